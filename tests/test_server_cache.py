"""`relay serve --cache-mib`: texts that come again are answered as before, and counted as before."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("msgspec", reason="needs the extra serve")

from test_server import Toy, running

from relay.cli import main


def test_the_second_answer_is_the_first() -> None:
    toy = Toy()
    with running(toy, cache=1 << 20) as server, server.client() as client:
        first, second = (client.embeddings.create(model="toy", input=["hello", "abc", "hello"]) for _ in range(2))
        assert first.data == second.data and first.usage == second.usage
        assert first.usage.prompt_tokens == 13, "of the toy's texts, characters"
        alone = client.embeddings.create(model="toy", input="abc")
        assert alone.data[0].embedding == first.data[1].embedding and alone.usage.prompt_tokens == 3
        assert sorted(toy.seen) == ["abc", "hello"]
        assert server.relay.snapshot().sharing.hits == 4


def test_how_much_to_keep_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--cache-mib", "-1"])
    assert "--cache-mib: must be at least 0, got -1" in capsys.readouterr().err
