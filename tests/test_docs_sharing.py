"""What docs/sharing.md shows runs, as it stands there, and what it says of names, sizes and answers is so."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from relay.identity import MAX_CONTENT_BYTES, content_of
from relay.keeping import DEPTH, MOST_PARTS
from relay.sharing import BYTES_AN_ENTRY

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIRST, ELSEWHERE, IDS, SURE = "relay.models.load", "os.urandom", "relay.preprocess", "ran.extend"


def run(word: str, package: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the block with a word leaves, run on one side of the core."""
    (block,) = [block for block in BLOCKS if word in block]
    names: dict[str, Any] = {"__name__": "page"}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "relay", package)
        exec(compile(block, "docs/sharing.md", "exec"), names)  # noqa: S102
    return names


def between(first: str, then: str) -> str:
    """The page's text between two of its headings."""
    return PAGE.partition(f"\n## {first}\n")[2].partition(f"\n## {then}\n")[0]


def test_all_blocks_are_run_here() -> None:
    assert len(BLOCKS) == 4
    assert all(sum(word in block for block in BLOCKS) == 1 for word in (FIRST, ELSEWHERE, IDS, SURE))


def test_how_to_be_sure(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(SURE, lab.package, monkeypatch)
    assert type(names["r"]) is lab.Relay
    lab.testing.assert_idle(names["r"])


def test_the_same_request_elsewhere(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run(ELSEWHERE, lab.package, monkeypatch)


@pytest.mark.hf
def test_the_blocks_that_need_the_packaged_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import relay

    run(IDS, relay, monkeypatch)
    r = run(FIRST, relay, monkeypatch)["embedder"]
    answers = [r("a token is a permit") for _ in range(3)]
    assert answers[0] is answers[2] and not answers[0].flags.writeable
    assert r.snapshot().items == 1 and 1500 < r.snapshot().sharing.nbytes < 2500, "an embedding takes about 2 kB"
    r.close()


def test_what_the_page_names_is_there(lab: Lab) -> None:
    from relay.integrations import prometheus

    r = lab.start(lab.model(), cache_bytes=1 << 20)
    for name in re.findall(r"\br\.(\w+)", PAGE):
        assert hasattr(r, name), name
    for name in re.findall(r"(?:snapshot\(\)|\bsharing)\.(?!py)(\w+)", PAGE):
        assert hasattr(r.snapshot(), name) or hasattr(r.snapshot().sharing, name), name
    told = re.findall(r"^\| ([a-z, ]+) \| ", between("What it counts", "What it costs"), re.MULTILINE)
    assert set(", ".join(told[1:]).split(", ")) == set(type(r.snapshot().sharing).__dataclass_fields__)
    series = {kind.name + ("_total" if kind.counter else "") for kind in prometheus.RELAY}
    for name in re.findall(r"`(relay_\w+)`", PAGE):
        assert name in series, name
    for file in re.findall(r"`(bench/\w+\.py)`", PAGE):
        assert (ROOT / file).exists(), file


def test_the_numbers_of_the_page(lab: Lab) -> None:
    backend = lab.package._backend
    assert f"and {backend.cache.ENTRY_BYTES} more" in PAGE and f"one for each {BYTES_AN_ENTRY} bytes" in PAGE
    assert abs(backend.cache.ENTRY_BYTES / BYTES_AN_ENTRY - 2 / 7) < 0.01
    assert MAX_CONTENT_BYTES == 1 << 20 and "1,048,576 characters" in PAGE
    assert (DEPTH, MOST_PARTS) == (4, 65_536) and "four deep" in PAGE and "65,536 parts" in PAGE
    assert "than a tenth of `cache_bytes`" in PAGE
    r = lab.start(lab.model(lambda size: "x" * size), cache_bytes=100_000)
    for size in (9_500, 9_900):  # with its tables and its content the second is more than a tenth
        r(size)
    assert r.snapshot().sharing.entries == 1


def test_what_is_compared() -> None:
    assert len({content_of(item) for item in (1, True, "1", b"1", (1,), [1])}) == 6
    shared = ["", 0, (None, 1.5), [[[[["five deep"]]]]], np.arange(3), "x" * (1 << 20), ("x",) * 16_131]
    assert None not in map(content_of, shared)
    apart: list[Any] = [1.5, None, {}, [[[[[["six"]]]]]], np.ones(3), np.ones((2, 2), int), "x" * ((1 << 20) + 1)]
    apart += [("x",) * 16_132, type("Text", (str,), {})("x")]
    assert set(map(content_of, apart)) == {None}


def test_what_is_kept_of_an_answer(lab: Lab) -> None:
    given, kept = lab.keeping.given, lab.keeping.kept
    for row in ("", b"", 1, None, np.float32(1), ("a", 1.5), frozenset("a")):
        assert given(kept(row)[0]) is row
    for row in ([1], {"a": 1}, {1}, ([1],)):
        value, _ = kept(row)
        first, second = given(value), given(value)
        assert first == second == row and first is not second and first is not row
    for row in (float("nan"), [1, float("inf")], object(), [[[[[1]]]]], [0] * 65_537):
        assert kept(row) is None
    with pytest.raises(ValueError):
        kept(np.ones(3))[0].flags.writeable = True


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_arrays_of_those_who_share_a_run(lab: Lab, cache_bytes: int) -> None:
    model = lab.model(lambda item: np.ones(3))
    r = lab.start(model, merge=True, cache_bytes=cache_bytes)
    with lab.testing.paused(r, model, "plug"):
        tickets = [r.submit("x") for _ in range(3)]
    answers = [ticket.result(30) for ticket in tickets]
    assert {answer.flags.writeable for answer in answers} == {not cache_bytes}
    assert len(set(map(id, answers))) == (1 if cache_bytes else 3)


def test_a_kept_answer_comes_at_once(lab: Lab) -> None:
    """In a full queue, too; and what warms a relay up is neither shared nor kept."""
    model = lab.model()
    r = lab.start(model, cache_bytes=1 << 20, max_queue=2)
    r.warmup(["warm"] * 2)
    told = r.snapshot().sharing
    assert (told.hits, told.joins, told.misses, told.entries) == (0, 0, 0, 0)
    assert r("x") == "x"
    with lab.testing.paused(r, model, "plug"):
        lab.fill(r)
        ticket = r.submit("x")
        assert ticket.done() and ticket.result() == "x" and ticket.timing is None
    r.close()
    with pytest.raises(lab.Closed):
        r.submit("x")
