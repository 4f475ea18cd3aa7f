"""Building: all that the requests of a relay pass through, made when it is, and once more in a child after a fork."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from relay.admission import predictor
from relay.dispatcher import Dispatcher
from relay.fork import survivors
from relay.holding import Holding
from relay.intake import Intake
from relay.sharing import Sharing

In = TypeVar("In")
Out = TypeVar("Out")


class Building(Holding, Generic[In, Out]):
    """The part of a `Relay` that makes its rooms, from what `Relay.__init__` has checked."""

    _new_dispatcher: Callable[..., Dispatcher]
    _new_intake: Callable[..., Intake[In, Out]]
    _sharing: Sharing
    _predicts: bool
    _retire: weakref.finalize[Any, Any]

    def _build(self, generation: int) -> None:
        """Make all that requests pass through, empty."""
        self._dispatcher = dispatcher = self._new_dispatcher(generation=generation)
        self._desk = desk = dispatcher.desk
        if self._predicts:
            desk.predict_ns = predictor(dispatcher.lanes)
        self._intake = self._new_intake(desk, self._sharing.merger(desk))
        self._ticket, self._place = self._intake.ticket, self._intake.place
        self._retire = weakref.finalize(self, dispatcher.retire)
        self._retire.atexit = False
        survivors.add(self)  # before the dispatcher, which then lets go of everything
        survivors.add(dispatcher)  # by itself, for it outlives a relay that is dropped

    def _after_fork_in_child(self) -> None:
        """Start anew with the same model and settings; closed if it was."""
        old = self._desk
        self._retire.detach()  # it would take locks
        self._build(old.queue.next_generation)
        if old.closed:
            self._dispatcher.close()
        elif old.refusing:
            self._desk.stop_admitting()
