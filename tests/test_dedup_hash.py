"""The hash that `dedup` finds equal content by: what it promises, on both sides. Its values differ between them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from conftest import Core

TOP = 2**128 - 1

TEXTS = ["", "a", "b", "\0", "\0\0", "aa", "naïve", "naïvé", "日本語", "日本", "🙂", "🙂🙂", "\ud800", "\ud83d\ude42"]
TEXTS += ["x" * size for size in (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 8192)]
TEXTS += ["x" * size + last for size in (7, 16, 64) for last in "é日🙂"]


def test_equal_content_has_equal_hashes_and_other_content_has_others(core: Core) -> None:
    table = core.dedup.Dedup(1)
    again = core.dedup.Dedup(9)
    contents: list[str | bytes] = [*TEXTS, *(text.encode("utf-8", "surrogatepass") for text in TEXTS)]
    hashes = [table.hash(content) for content in contents]
    assert hashes == [again.hash(type(content)().join([content[:3], content[3:]])) for content in contents]  # type: ignore[list-item]
    assert len(set(hashes)) == len(contents)  # str and bytes of the same characters included
    assert all(0 <= h <= TOP for h in hashes)


def test_a_str_is_its_characters_however_it_was_made(core: Core) -> None:
    table = core.dedup.Dedup(1)
    for text in TEXTS:
        wide = text + "🙂"  # its first characters, cut out again, take their own narrow form
        assert table.hash(wide[:-1]) == table.hash(text)

    class Text(str):
        pass

    class Data(bytes):
        pass

    assert table.hash(Text("日本")) == table.hash("日本")
    assert table.hash(Data(b"ab")) == table.hash(b"ab")


@pytest.mark.parametrize("size", [*range(0, 36), 48, 63, 64, 65, 66, 127, 128, 129, 191, 192, 193, 1000])
def test_every_bit_and_the_length_count(core: Core, size: int, rng: random.Random) -> None:
    table = core.dedup.Dedup(1)
    data = bytes(rng.randrange(1, 256) for _ in range(size))
    seen = {table.hash(data), table.hash(data + b"\0"), table.hash(b"\0" + data)}
    for bit in range(8 * size):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        seen.add(table.hash(bytes(flipped)))
    assert len(seen) == (8 * size + 3 if size else 2)


@pytest.mark.parametrize("size", [15, 24, 70])
def test_each_half_alone_tells_apart_what_differs_in_two_bits(core: Core, size: int, rng: random.Random) -> None:
    table = core.dedup.Dedup(1)
    pairs = rng.sample(list(combinations(range(8 * size), 2)), 7000)
    hashes = [table.hash((1 << i ^ 1 << j).to_bytes(size, "little")) for i, j in pairs]
    assert len({h >> 64 for h in hashes}) == len({h & (1 << 64) - 1 for h in hashes}) == len(pairs)


def test_repeats_of_one_character_differ(core: Core) -> None:
    # All of their overlapping reads hold the same words: only the length tells them apart.
    table = core.dedup.Dedup(1)
    assert len({table.hash("a" * size) for size in range(2000)}) == 2000


def test_hashes_spread_over_all_their_bits(core: Core, rng: random.Random) -> None:
    table = core.dedup.Dedup(1)
    hashes = [table.hash(f"request {i} {'x' * rng.randrange(100)}") for i in range(8000)]
    for bit in range(128):
        ones = sum(h >> bit & 1 for h in hashes)
        assert 3720 < ones < 4280, f"bit {bit} is set in {ones} of 8000"  # 6 standard deviations
    for shift in range(0, 120, 8):
        assert len({h >> shift & 0xFF for h in hashes}) == 256


def test_a_secret_decides(core: Core) -> None:
    one, two = core.dedup.Dedup(1, b"0123456789abcdef"), core.dedup.Dedup(1, secret=b"0123456789abcdeg")
    assert one.hash("text") == core.dedup.Dedup(5, b"0123456789abcdef").hash("text")
    assert len({one.hash("text"), two.hash("text"), core.dedup.Dedup(1).hash("text")}) == 3
    assert core.dedup.Dedup(1).hash("text") == core.dedup.Dedup(1, None).hash("text")
    assert one.hash("") != two.hash("")


@pytest.mark.parametrize(
    ("secret", "error", "text"),
    [
        ("0123456789abcdef", TypeError, "secret must be bytes, got str"),
        (b"short", ValueError, "secret has 5 bytes: give 16 to 64, as os.urandom(32) does, or leave it out"),
        (bytes(65), ValueError, "secret has 65 bytes: give 16 to 64, as os.urandom(32) does, or leave it out"),
    ],
)
def test_bad_secrets(core: Core, secret: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        core.dedup.Dedup(1, secret)
    assert str(caught.value) == text


@pytest.mark.parametrize("data", [None, bytearray(b"x"), 1, ("a", "b")])
def test_only_str_and_bytes_are_hashed(core: Core, data: object) -> None:
    with pytest.raises(TypeError) as caught:
        core.dedup.Dedup(1).hash(data)
    assert str(caught.value) == f"data must be str or bytes, got {type(data).__name__}"
