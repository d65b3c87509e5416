"""Perplexity of real text, computed as llama.cpp's llama-perplexity does, beside what transformers
gave in float32.
"""

import math

import pytest
import torch

CHUNKS = 8
LENGTH = 512


def perplexity(lm, text: str) -> float:
    """Of the second halves of the first chunks; a model with a token before every text begins each
    chunk with it.
    """
    begin = list(lm.tokenizer.begin)
    tokens = torch.tensor([*begin, *lm.tokenizer.encode(text)][: CHUNKS * LENGTH]).view(
        CHUNKS, LENGTH
    )
    if begin:
        tokens[:, 0] = begin[0]
    losses = []
    with torch.no_grad():
        for chunk in tokens:
            logits = lm.model(chunk[None])[0, LENGTH // 2 : -1]
            losses.append(
                torch.nn.functional.cross_entropy(
                    logits, chunk[LENGTH // 2 + 1 :], reduction="none"
                )
            )
    return math.exp(torch.cat(losses).mean().item())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("expanded_smollm2", 40.238), ("gemma", 44.546)])
def test_perplexity_of_shakespeare(name, expected, shared_data, request):
    lm = request.getfixturevalue(name)
    text = (shared_data / "tinyshakespeare.txt").read_text(encoding="utf-8")[:40000]
    assert perplexity(lm, text) == pytest.approx(expected, abs=0.01)
