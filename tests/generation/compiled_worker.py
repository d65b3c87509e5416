"""Generation with compiled steps, without the type checks of the tests, which torch.compile cannot trace.

Prints one JSON object: for each check, what it found. What is compiled runs as it was traced, without a backend's
half minute, except in ``by_inductor``.
"""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

from glassformer.generation import generate
from glassformer.models import Decoder, DecoderConfig

SIZES = {"vocab_size": 61, "num_layers": 2, "hidden_dim": 32, "ff_dim": 32, "num_heads": 4, "head_dim": 8}
VARIANTS = {
    "windowed": {"window": 4, "windowed_layers": "all", "sinks": True, "num_kv_heads": 2, "key_weights": True},
    "experts": {"num_experts": 4, "window": 300},
    "packed": {"num_experts": 4, "expert_format": "mxfp4"},
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11]]
really_compile = torch.compile


def model(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(**SIZES, **changes))
    with torch.no_grad():  # far from each other's logits, so that rounding decides no argmax
        decoder.output.weight.mul_(4)
    return decoder


@contextmanager
def counting() -> Iterator[CompileCounter]:
    torch._dynamo.reset()
    counter = CompileCounter()
    torch.compile = lambda step, *, options, **more: really_compile(step, backend=counter, **more)
    yield counter
    torch.compile = really_compile


def forty_lengths(variant: str) -> dict[str, Any]:
    """Prompts of 40 lengths, some of them padded: compilations, and for how many the texts differ."""
    decoder, different = model(**VARIANTS[variant]), 0
    with counting() as counter:
        for length in [*range(1, 26), *range(40, 760, 50)]:
            prompts = [[token % 61 for token in range(length)], [5] * (1 if length % 2 else length)]
            different += generate(decoder, prompts, 3, compile=True) != generate(decoder, prompts, 3)
    return {"compilations": counter.frame_count, "different": different}


def ten_models() -> list[int]:
    """Compilations after each of ten models alike; torch.compile gives up after eight of one function."""
    counts = []
    with counting() as counter:
        for _ in range(10):
            decoder = model()
            assert generate(decoder, PROMPTS, 3, compile=True) == generate(decoder, PROMPTS, 3)
            counts.append(counter.frame_count)
    return counts


def kept_after_its_model() -> bool:
    with counting():
        decoder = model()
        generate(decoder, PROMPTS, 3, compile=True)
    reference = weakref.ref(decoder)
    del decoder
    gc.collect()
    return reference() is not None


def beyond_the_limit() -> str:
    """What happens where torch.compile would go on uncompiled."""
    with counting(), torch._dynamo.config.patch(recompile_limit=1):
        decoder = model()
        generate(decoder, PROMPTS, 3, compile=True)
        try:
            generate(decoder.double(), PROMPTS, 3, compile=True)
        except Exception as error:
            return type(error).__name__
    return "nothing"


def by_inductor() -> bool:
    torch._dynamo.reset()
    decoder = model(**VARIANTS["experts"])
    return all(generate(decoder, p, 20, compile=True) == generate(decoder, p, 20) for p in (PROMPTS, [[5, 6]]))


if __name__ == "__main__":
    checks: list[Callable[[], Any]] = [ten_models, kept_after_its_model, beyond_the_limit, by_inductor]
    found = {check.__name__: check() for check in checks}
    print(json.dumps({**found, "forty_lengths": {variant: forty_lengths(variant) for variant in VARIANTS}}))
