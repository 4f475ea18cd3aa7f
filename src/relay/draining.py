"""The part of a pool that is drained: waiting until tokens have come back, and telling of those that have not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from relay._backend import permits as core
from relay.clock import NS, Clock, limit_ns
from relay.stats import HeldToken, Left
from relay.ticket import warn_if_on_loop
from relay.tracing import Places
from relay.waiter import Waiter
from relay.waiting import Waiting

log = logging.getLogger("relay")

Token = core.Token


class Watchers:
    """Those who wait for a pool to have come to some state; each looks again whenever a token has come back.

    Args:
        permits: The pool.
        clock: What time limits are read from by threads; coroutines go by their loop's.
    """

    def __init__(self, permits: core.Permits, clock: Clock) -> None:
        self._permits = permits
        self._clock = clock
        self._waiters: list[Waiter] = []

    def look(self) -> None:
        """Let all look again."""
        for waiter in list(self._waiters):
            waiter.wake()

    def wait(self, done: Callable[[], bool], limit: int | None) -> None:
        """Wait until `done()`, or for `limit` ns."""
        until_ns = None if limit is None else self._clock.now_ns() + limit
        while True:
            waiter = self._add(Waiter())
            try:
                if done() or not self._clock.park(waiter.gate, until_ns):
                    return
            finally:
                self._remove(waiter)

    async def wait_async(self, done: Callable[[], bool], limit: int | None) -> None:
        """As `wait`, for coroutines."""
        try:
            async with asyncio.timeout(None if limit is None else limit / NS):
                while True:
                    waiter = self._add(Waiter(asyncio.get_running_loop()))
                    try:
                        if done():
                            return
                        await waiter.future
                    finally:
                        self._remove(waiter)
        except TimeoutError:
            return

    def _add(self, waiter: Waiter) -> Waiter:
        self._waiters.append(waiter)
        self._permits.watched = True
        return waiter

    def _remove(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        # Never unset while somebody waits: one who came meanwhile stands in the list before it looks.
        if not self._waiters:
            self._permits.watched = False
            if self._waiters:
                self._permits.watched = True


class Draining(Waiting):
    """What `TokenPool` is built on; its arguments are explained there."""

    _traces: Places | None = None
    _on_revoke: Callable[[Token], object] | None = None

    def _clear(self) -> None:
        super()._clear()
        self._watchers = Watchers(self, self._clock)

    def drain_epoch(self, epoch: int, timeout: float | None = None) -> Left:
        """Wait until all tokens of `epoch` and earlier ones have come back, then revoke what is left of them.

        Args:
            epoch: An epoch that is over: less than `pool.epoch`; `advance` begins the next.
            timeout: Seconds to wait before revoking; None waits without limit.

        Returns:
            The tokens that were revoked.
        """
        limit = self._epoch_limit(epoch, timeout)
        warn_if_on_loop("TokenPool.drain_epoch()", "use drain_epoch_async()")
        self._watchers.wait(lambda: not self._of_epoch(epoch), limit)
        return self._revoke_epoch(epoch)

    async def drain_epoch_async(self, epoch: int, timeout: float | None = None) -> Left:
        """As `drain_epoch`, for coroutines."""
        limit = self._epoch_limit(epoch, timeout)
        await self._watchers.wait_async(lambda: not self._of_epoch(epoch), limit)
        return self._revoke_epoch(epoch)

    def drain(self, timeout: float | None = None) -> Left:
        """Let no newcomers in (`Closed`), serve those who wait, and wait until all tokens have come back.

        Returns:
            What is left when `timeout` seconds are over; false if nothing.
        """
        limit = limit_ns(timeout, "timeout")
        warn_if_on_loop("TokenPool.drain()", "use drain_async()")
        self.seal()
        self._watchers.wait(self._idle_now, limit)
        return self._what_is_left(self.tokens())

    async def drain_async(self, timeout: float | None = None) -> Left:
        """As `drain`, for coroutines."""
        limit = limit_ns(timeout, "timeout")
        self.seal()
        await self._watchers.wait_async(self._idle_now, limit)
        return self._what_is_left(self.tokens())

    def _freed(self) -> None:
        self._watchers.look()

    def _idle_now(self) -> bool:
        return not len(self) and not self.waiting

    def _of_epoch(self, epoch: int) -> list[Token]:
        return [token for token in self.tokens() if token.epoch <= epoch]

    def _epoch_limit(self, epoch: int, timeout: float | None) -> int | None:
        if epoch >= self.epoch:
            raise ValueError(
                f"epoch {epoch} of {self.name!r} is not over (it is at {self.epoch}); call advance() before draining it"
            )
        return limit_ns(timeout, "timeout")

    def _revoke_epoch(self, epoch: int) -> Left:
        left = self._what_is_left(self._of_epoch(epoch))
        self._tell_revoked([token for token in self._of_epoch(epoch) if self.revoke(token)])
        return Left(left.held, 0)

    def _what_is_left(self, tokens: list[Token]) -> Left:
        held = tuple(
            HeldToken(token.priority, token.cost, token.tenant, token.epoch, token.state, self._acquired_at(token))
            for token in tokens
        )
        return Left(held, self.waiting)

    def _tell_revoked(self, tokens: list[Token]) -> None:
        for token in tokens:
            log.warning("relay: a token of %r was revoked: %s", self.name, self._acquired_at(token) or token)
            if self._on_revoke is not None:
                try:
                    self._on_revoke(token)
                except Exception:
                    log.exception("relay: on_revoke of %r failed", self.name)

    def _start_tracing(self) -> None:
        self._traces = Places(self.max_capacity)
        self.traced = True

    def _trace(self, token: Token) -> None:
        if self._traces is not None:
            self._traces.note(token)

    def _acquired_at(self, token: Token) -> str | None:
        return None if self._traces is None else self._traces.find(token)
