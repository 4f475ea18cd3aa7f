"""Every error relay raises, as one tree.

    RelayError
      Refused                      not accepted; nothing was started
        Overloaded           429   reason: queue_full, predicted_late, displaced, tenant_cap
        TooLarge             413   also a ValueError
        Closed               503
      Expired                      also a TimeoutError
        AcquireTimeout       503   waited for a token too long
        DeadlineExceeded     504   still queued at its deadline
        RunTimeout           504   the model call took too long
      TokenError                   a Token was used outside its lease
        TokenRevoked
        StaleToken
      ModelError                   the model broke its contract
        BadOutput
        NonFiniteOutput
        LoadFailed
        CircuitOpen          503
      RequestCancelled       499   seen by waiters after ``ticket.cancel()``

A model's own exception reaches its caller unwrapped and is not part of this tree.
"""

from __future__ import annotations

from typing import ClassVar


class Text(tuple[object, ...]):
    """A text with numbers in it that is put together when it is asked for: a relay that is flooded raises tens of
    thousands of errors a second that nobody reads."""

    __slots__ = ()

    def __str__(self) -> str:
        form, *numbers = self
        return str(form).format(*numbers)

    def __repr__(self) -> str:
        return repr(str(self))


class RelayError(Exception):
    """Base of all errors raised by relay.

    Attributes:
        http_status: The status an HTTP front end should answer with.
        reason: A short machine-readable word, or "" where the class says it all.
        retry_after: Seconds after which a retry may succeed, or None if unknown.
    """

    http_status: ClassVar[int] = 500

    def __init__(self, message: str | Text = "", *, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class Refused(RelayError):
    """The request was not accepted; no work was started for it."""

    http_status = 503


class Overloaded(Refused):
    """There is no room, or the answer would come too late."""

    http_status = 429


class TooLarge(Refused, ValueError):
    """The item can never fit the configured limits."""

    http_status = 413


class Closed(Refused):
    """The relay or pool is closed, or was closed while the request waited."""

    http_status = 503


class Expired(RelayError, TimeoutError):
    """A time limit given by the caller ran out."""

    http_status = 504


class AcquireTimeout(Expired):
    """No token became free within the timeout."""

    http_status = 503


class DeadlineExceeded(Expired):
    """The request was still queued when its deadline passed; it was not started."""


class RunTimeout(Expired):
    """The model call took longer than allowed."""


class TokenError(RelayError):
    """A token was used outside its lease."""


class TokenRevoked(TokenError):
    """The lease was taken back because its holder stopped beating."""


class StaleToken(TokenError):
    """The lease has ended; a second release is such a use."""


class ModelError(RelayError):
    """The model broke its contract with relay."""


class BadOutput(ModelError):
    """The model returned something other than one row per item."""


class NonFiniteOutput(ModelError):
    """A row of the model's output holds NaN or infinity."""


class LoadFailed(ModelError):
    """The model could not be loaded."""


class CircuitOpen(ModelError):
    """The model has failed too often and is given a rest."""

    http_status = 503


class RequestCancelled(RelayError):
    """The request was cancelled through its ticket."""

    http_status = 499
