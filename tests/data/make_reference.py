"""Writes sentences_minilm.npz: what sentence-transformers makes of sentences.jsonl, one text per forward pass.

Run with the package sentence-transformers installed; the tests only read the result.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from relay.modelfolder import find

HERE = Path(__file__).parent


def main() -> None:
    with open(HERE / "sentences.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    model = SentenceTransformer(str(find("minilm")), device="cpu")
    rows = [model.encode([text], batch_size=1, show_progress_bar=False)[0] for text in texts]
    np.savez_compressed(HERE / "sentences_minilm.npz", vec=np.stack(rows).astype(np.float32))


if __name__ == "__main__":
    main()
