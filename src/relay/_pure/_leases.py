"""How a lease ends: its token is given back or thrown away, or its holder misses a beat and is asked for it.

Any thread may call any method; every call is atomic. The invariant: a lease ends once, and whoever comes with its token
after that changes nothing.
"""

from __future__ import annotations

from relay._pure._ledger import FOREVER_NS, Ledger
from relay._pure._token import FAILED, UNUSED, Token, owner, revoked_token, stale_token
from relay._pure.state import BUSY, SLOT_BITS, slot_of, state_of


class Leases(Ledger):
    """What `Permits` is built on: tokens once they have been granted."""

    __slots__ = ()

    # Giving back.

    def release(self, token: Token) -> None:
        """Take `token` back and hand what it frees to those whose turn it is.

        Raises:
            StaleToken: Its lease has ended.
            TypeError: It is no token.
            ValueError: It belongs to another pool.
        """
        self._give_back(token, None)

    def exit(self, token: Token, kind: type[BaseException] | None = None) -> None:
        """As `release`, at the end of a block; in the child of a fork, tokens of the parent are let go silently.

        Args:
            token: The token.
            kind: What the block raised: an `Exception` counts as work that failed.
        """
        if token._handle >> SLOT_BITS >= self._first_generation:
            self._give_back(token, kind)

    def drop(self, handle: int) -> None:
        """Note that a token has been thrown away; if it was held, it comes back with the next call or soon. Safe to
        call from a finaliser, at any moment."""
        if self._arena.live(handle):
            self._guard.late.append(~handle)
            self._nudge()

    def collect(self) -> None:
        """Take back what was thrown away, and wake whoever is still to be woken."""
        with self._guard:
            pass

    def holds(self, token: Token) -> bool:
        """True while the lease of `token`, one of this pool's, lasts."""
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        return token._permits is self and self._arena.live(token._handle)

    def state_of(self, token: Token) -> str:
        """``"busy"``, ``"revoked"`` or ``"released"``."""
        if not self.holds(token):
            return "released"
        state = self._state(token._handle)
        if not self._arena.live(token._handle):
            return "released"  # meanwhile
        return "busy" if state == BUSY else "revoked"

    def adopt(self, token: Token) -> None:
        """From now on `owner()` counts as who acquired `token`."""
        self._own(token)
        with self._guard:
            if self._arena.live(token._handle):
                self._arena.key[slot_of(token._handle)] = owner()

    def _state(self, handle: int) -> int:
        return state_of(self._arena.word.load(slot_of(handle)))

    def _give_back(self, token: Token, kind: type[BaseException] | None) -> None:
        self._own(token)
        with self._guard:
            if not self._arena.live(token._handle):
                raise stale_token("release")
            if kind is not None:
                self._arena.arrival_ns[slot_of(token._handle)] = FAILED if issubclass(kind, Exception) else UNUSED
            if self._guard.depth > 1:
                self._guard.late.append(token._handle)
            else:
                self._end(token._handle)
                self._serve()

    def _own(self, token: Token) -> None:
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, got {type(token).__name__}")
        if token._permits is not self:
            raise ValueError("this token belongs to another pool; call token.release(), which knows its own")

    # Leases that end without a beat.

    def beat(self, token: Token) -> None:
        """Note that the holder of `token` is alive.

        Raises:
            TokenRevoked: The token has been asked back.
            StaleToken, TypeError, ValueError: As `release`.
        """
        self._own(token)
        now_ns = self._now_ns()
        with self._guard:
            if not self._arena.live(token._handle):
                raise stale_token("beat for")
            if self._state(token._handle) != BUSY:
                raise revoked_token()
            self._arena.ready_ns[slot_of(token._handle)] = now_ns

    def expire(self, stretch: float = 1.0) -> tuple[list[Token], list[Token]]:
        """Revoke the leases that have missed their beat, and end those whose grace time is over.

        Args:
            stretch: Beats may be late by this factor.

        Returns:
            Tokens revoked now, and tokens ended now. They are views: to drop them means nothing.
        """
        now_ns = self._now_ns()
        arena, revoked, fenced = self._arena, list[Token](), list[Token]()
        with self._guard:
            for slot in self._leases.due(now_ns):
                handle = self._handle(slot)
                if self._state(handle) != BUSY:
                    fenced.append(self._view(handle))
                    arena.arrival_ns[slot] = FAILED
                    self._end(handle)
                    continue
                due_ns = arena.ready_ns[slot] + int(min(arena.commit_ns[slot] * stretch, FOREVER_NS))
                if due_ns > now_ns:
                    self._leases.arm(slot, due_ns)
                else:
                    self._ask_back(handle, now_ns + self.grace_ns)
                    revoked.append(self._view(handle))
            self._serve()
        return revoked, fenced

    def revoke(self, token: Token) -> bool:
        """Ask a token back: its holder has the grace time to release it, and the lease ends then in any case.

        Returns:
            False if it has been asked back already, or its lease has ended.
        """
        self._own(token)
        now_ns = self._now_ns()
        with self._guard:
            if not self._arena.live(token._handle) or self._state(token._handle) != BUSY:
                return False
            self._ask_back(token._handle, now_ns + self.grace_ns)
        return True

    def next_lease_ns(self) -> int | None:
        """When `expire` is to be called next, or None."""
        with self._guard:
            return self._leases.next_ns()
