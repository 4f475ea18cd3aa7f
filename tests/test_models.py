"""Models against the libraries they come from: one text at a time there, mixed batches here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra hf")
pytest.importorskip("transformers", reason="needs the extra hf")

import torch
import transformers
from small_models import BERT, batch_of, run, save_small

from relay.batch import Batch
from relay.errors import LoadFailed
from relay.models import Encoder, load

pytestmark = pytest.mark.hf

DATA = Path(__file__).parent / "data"
CLOSE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Where other work takes the cores, the threads of a small model mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load("minilm")


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    with open(DATA / "sentences.jsonl", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def pairs(count: int) -> list[tuple[str, str]]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    words = "the sea was calm until a ship with red sails came home, and nobody on the pier knew its name".split()

    def text(most: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(1, most)))

    return [(text(12), text(rng.choice([10, 10, 40, 250]))) for _ in range(count)]


def test_own_reference_in_mixed_batches(minilm: Encoder, sentences: list[str]) -> None:
    vectors = np.load(DATA / "sentences_minilm.npz")["vec"]
    order = np.random.default_rng(1).permutation(len(sentences))
    found = run(minilm, [sentences[i] for i in order], 13)
    assert found.dtype == np.float32 and found.shape == (len(sentences), 384)
    assert np.abs(found - vectors[order]).max() < CLOSE


def test_shared_reference_in_mixed_batches(minilm: Encoder, shared: Path) -> None:
    with open(shared / "data/reference/embeddings_texts.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    vectors = np.load(shared / "data/reference/embeddings_minilm.npz")["vec"]
    assert len(texts) == 201
    assert np.abs(run(minilm, texts, 32) - vectors).max() < CLOSE


def test_a_row_does_not_depend_on_its_neighbours(minilm: Encoder, sentences: list[str]) -> None:
    long = next(text for text in sentences if len(text) > 2000)
    alone = run(minilm, ["The kettle is still warm."])
    beside = run(minilm, [long, "The kettle is still warm.", "?", ""])
    assert np.abs(beside[1] - alone[0]).max() < CLOSE


def test_ids_give_what_their_text_gives(minilm: Encoder) -> None:
    text = "Where did I leave my umbrella?"
    result = minilm.tokenizer.encode([text])[0]
    assert not isinstance(result, Exception)
    assert np.array_equal(run(minilm, [result[0]]), run(minilm, [text]))


def test_what_relay_reads(minilm: Encoder) -> None:
    assert (minilm.name, minilm.dimensions, minilm.max_length, minilm.labels) == ("minilm", 384, 256, ())
    assert minilm.deterministic and minilm.check_finite
    assert minilm.tokenizer.max_length == 256


def test_buffers_may_be_wider_than_the_batch(minilm: Encoder) -> None:
    """Lanes reuse buffers, so the arrays are views with gaps between the rows."""
    tight = batch_of(minilm.tokenizer, ["one", "two and more of it", "three"])
    wide = []
    for array in (tight.input_ids, tight.attention_mask, tight.token_type_ids):
        assert array is not None
        buffer = np.full((8, 64), 99, np.int64)
        buffer[:3, : array.shape[1]] = array
        wide.append(buffer[:3, : array.shape[1]])
    assert np.array_equal(minilm(Batch(tight.items, wide[0], wide[1], wide[2], tight.lengths)), minilm(tight))


def test_rerank_equals_transformers(tmp_path: Path) -> None:
    network = save_small(
        tmp_path, transformers.BertForSequenceClassification, transformers.BertConfig, num_labels=1, **BERT
    )
    items = pairs(200)
    model = load(tmp_path, task="rerank")
    found = run(model, items, 24)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    wanted = []
    for first, second in items:
        inputs = reference(first, second, truncation=True, max_length=model.max_length, return_tensors="pt")
        with torch.inference_mode():
            wanted.append(network(**inputs).logits[0, 0].item())
    assert found.shape == (200,) and found.dtype == np.float32
    assert np.ptp(found) > 0.01
    assert np.abs(found - np.array(wanted)).max() < CLOSE
    assert load(tmp_path).task == "rerank"
    assert model.dimensions is None and model.max_length == 160


def test_classify_gives_probabilities(tmp_path: Path) -> None:
    names = {0: "calm", 1: "angry", 2: "asking"}
    settings = {"num_labels": 3, "id2label": names, "label2id": {v: k for k, v in names.items()}}
    network = save_small(
        tmp_path, transformers.BertForSequenceClassification, transformers.BertConfig, **settings, **BERT
    )
    model = load(tmp_path)
    assert (model.task, model.labels, model.dimensions) == ("classify", ("calm", "angry", "asking"), 3)
    texts = [second for _, second in pairs(20)]
    found = run(model, texts, 7)
    batch = batch_of(model.tokenizer, texts)
    with torch.inference_mode():
        logits = network(
            input_ids=torch.from_numpy(batch.input_ids), attention_mask=torch.from_numpy(batch.attention_mask)
        ).logits
    assert np.abs(found - logits.softmax(1).numpy()).max() < CLOSE
    with pytest.raises(LoadFailed, match="a reranker has one label, .* has 3; load it with task='classify'"):
        load(tmp_path, task="rerank")
    network.config.problem_type = "multi_label_classification"
    network.save_pretrained(tmp_path)
    assert np.abs(run(load(tmp_path), texts, 7) - logits.sigmoid().numpy()).max() < CLOSE


def test_embedder_that_is_no_bert(tmp_path: Path) -> None:
    """Positions that start behind the padding id, no segments, padding computed by transformers."""
    network = save_small(
        tmp_path,
        transformers.RobertaModel,
        transformers.RobertaConfig,
        vocab_size=30_522,
        max_position_embeddings=66,
        pad_token_id=0,
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(
        '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
    )
    texts = ["short", "a text that is somewhat longer than the first", "x " * 300]
    model = load(tmp_path)
    assert (model.task, model.max_length, model.dimensions) == ("embed", 65, 48)
    first = run(model, texts)
    (tmp_path / "1_Pooling/config.json").unlink()
    mean = run(load(tmp_path), texts)
    for text, by_first, by_mean in zip(texts, first, mean, strict=True):
        result = model.tokenizer.encode([text])[0]
        assert not isinstance(result, Exception)
        with torch.inference_mode():
            hidden = network(input_ids=torch.tensor([list(result[0])])).last_hidden_state[0]
        assert np.abs(by_first - hidden[0].numpy()).max() < CLOSE
        assert np.abs(by_mean - hidden.mean(0).numpy()).max() < CLOSE


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_is_what_the_folder_says(tmp_path: Path, pooling: str, normalize: bool) -> None:
    network = save_small(tmp_path, transformers.BertModel, transformers.BertConfig, **BERT)
    modules = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 48, **modes}))
    text = "the sea was calm"
    model = load(tmp_path)
    found = run(model, ["something longer than the other text", text])[1]
    result = model.tokenizer.encode([text])[0]
    assert not isinstance(result, Exception)
    with torch.inference_mode():
        hidden = network(input_ids=torch.tensor([list(result[0])])).last_hidden_state[0].numpy()
    wanted = hidden[0] if pooling == "cls" else hidden.mean(0)
    assert np.abs(found - (wanted / np.linalg.norm(wanted) if normalize else wanted)).max() < CLOSE
