"""What type checkers see of a token pool. Checked, never run."""

from typing import assert_type

import relay
from relay import Token, TokenPool

pool = TokenPool(4, reserved={relay.REALTIME: 1}, policy=relay.DynamicPriority(), max_waiting=10, name="gpu")


def work(x: int) -> str:
    return str(x)


assert_type(pool.acquire(), Token)
assert_type(pool.acquire(relay.REALTIME, timeout=0.2), Token)
assert_type(pool.acquire("realtime"), Token)
assert_type(pool.try_acquire(0), Token | None)
assert_type(pool.run(work, 3, priority=0), str)
assert_type(pool.snapshot(), relay.PoolSnapshot)
assert_type(pool.snapshot().held, int)
assert_type(pool.capacity, int)
pool.acquire(timeout="soon")  # type: ignore[arg-type]
TokenPool("four")  # type: ignore[arg-type]

with pool.acquire() as token:
    assert_type(token, Token)
    assert_type(token.held, bool)
with pool.lease(0) as leased:
    assert_type(leased, Token)


async def main() -> None:
    assert_type(await pool.acquire_async(0, timeout=1), Token)
    async with pool.lease(0) as leased:
        assert_type(leased, Token)
