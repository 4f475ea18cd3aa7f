"""What type checkers see of batched functions and methods. Checked, never run."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_type

import relay
from relay import Batch, Relay, Ticket
from relay.batched import Batched, BatchedMethod


@relay.batched
def embed(texts: list[str]) -> list[tuple[float, ...]]:
    return [(1.0,) for _ in texts]


assert_type(embed, Batched[str, [], tuple[float, ...]])
assert_type(embed("x"), tuple[float, ...])
assert_type(embed.submit("x"), Ticket[tuple[float, ...]])
assert_type(embed.submit_many(["x"]), Ticket[list[tuple[float, ...]]])
assert_type(embed.map(["x"]), Iterator[tuple[float, ...]])
assert_type(embed.map_async(["x"]), AsyncIterator[tuple[float, ...]])
assert_type(embed.relay, Relay[str, tuple[float, ...]])
embed("x", "y")  # type: ignore[call-arg]
embed("x", size=1)  # type: ignore[call-arg]
embed(1)  # type: ignore[arg-type]


@relay.batched(max_batch_size=3)
def count(items: Sequence[bytes], least: int = 0, *, most: int) -> Sequence[int]:
    return [len(item) for item in items]


assert_type(count(b"x", most=3), int)
assert_type(count(b"x", 1, most=3), int)
count("x", most=3)  # type: ignore[arg-type]
count(b"x")  # type: ignore[call-arg]
count(b"x", most="3")  # type: ignore[arg-type]


@relay.batched
def halves(items: list[int]) -> list[float | ValueError]:
    return [item / 2 if item else ValueError(item) for item in items]


assert_type(halves(3), float)


@relay.batched
async def ask(prompts: list[str], *, top_k: int = 3) -> list[str]:
    return prompts


@relay.batched(mixed=("top_k",))
def mix(prompts: list[str], *, top_k: list[int | None]) -> list[str]:
    return prompts


@relay.batched(name="mix")
async def ask_too(prompts: list[str]) -> list[str]:
    return prompts


@relay.batched(tokenizer=None)
def pooled(batch: Batch[str], *, dimensions: int = 3) -> list[float]:
    return [1.0 for _ in batch.items]


assert_type(pooled("x", dimensions=2), float)


async def main() -> None:
    assert_type(await ask("x", top_k=1), str)
    assert_type(await ask_too("x"), str)
    assert_type(await ask.submit("x"), str)
    await ask("x", top_k="1")  # type: ignore[arg-type]
    assert_type(mix("x", top_k=3), str)
    assert_type(await Service().ask("x", top_k=2), str)
    await ask.aclose()


class Service:
    @relay.batched
    def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @relay.batched(max_batch_size=8)
    def scaled(self, texts: list[str], *, by: int) -> list[int]:
        return [by * len(text) for text in texts]

    @relay.batched
    async def ask(self, prompts: list[str], *, top_k: int = 3) -> list[str]:
        return prompts

    @staticmethod
    @relay.batched
    def plain(items: list[int]) -> list[int]:
        return items

    @relay.batched
    @staticmethod
    def static(items: list[int]) -> list[int]:
        return items

    @relay.batched
    @classmethod
    def of_class(cls, items: list[int]) -> list[int]:
        return items


assert_type(Service().embed, Batched[str, [], int])
assert_type(Service.embed, BatchedMethod[Batched[str, [], int]])
assert_type(Service().embed("x"), int)
assert_type(Service().embed.submit("x"), Ticket[int])
assert_type(Service().scaled("x", by=2), int)
assert_type(Service.plain(1), int)
assert_type(Service.static(1), int)
assert_type(Service().of_class(1), int)
Service().embed(3)  # type: ignore[arg-type]
Service().scaled("x", by="2")  # type: ignore[arg-type]
