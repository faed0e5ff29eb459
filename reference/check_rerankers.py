"""Compares the goldens of tiny-logit-score and tiny-logit-score-one with the sentence-transformers library itself.

    python -m venv .venv && .venv/bin/pip install "sentence-transformers==6.2.0"
    .venv/bin/python reference/check_rerankers.py turbo-models/tests/data

make_references.py makes them with an older transformers library, which has no such rerankers."""

import json
import sys
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder

for name in ("tiny-logit-score", "tiny-logit-score-one"):
    folder = Path(sys.argv[1]) / name
    rows = json.loads((folder / "golden.json").read_text())["sentences"]
    pairs = [tuple(row["text"]) for row in rows]
    model = CrossEncoder(str(folder), device="cpu").double()
    prompt = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
    inputs = model.preprocess(pairs, prompt=prompt)
    for row, ids, mask in zip(rows, inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True):
        assert [i for i, there in zip(ids, mask) if there] == row["input_ids"], row["text"]
    scores = model.predict(pairs, activation_fn=torch.nn.Identity(), batch_size=1)
    worst = max(abs(float(score) - row["pooled"][0]) for score, row in zip(scores, rows, strict=True))
    assert worst < 1e-5, worst
    print(f"{name}: the same ids of {len(rows)} pairs, scores off by {worst:.1e} at most")
