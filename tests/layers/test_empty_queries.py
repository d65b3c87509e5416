"""Queries without an allowed key, and sinks of -inf: zeros and finite derivatives on every path of
attention.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import attend

HEADS = 4
DIM = 8
NONE = -torch.inf
SINKS: dict[str, tuple[float, ...] | None] = {
    "without sinks": None,
    "sinks of -inf": (NONE, NONE, NONE, NONE),
    "some sinks of -inf": (NONE, 0.3, NONE, -1.0),
}


def padding(length: int) -> Tensor:
    """Of three texts: the first keys, no key and all keys are padding."""
    real = torch.ones(3, length, dtype=torch.bool)
    real[0, : length // 2] = False
    real[2] = False
    return real


PATTERNS: dict[str, Any] = {
    "full": lambda length: Pattern(key_padding=padding(length)),
    "causal": lambda length: Pattern(causal=True, key_padding=padding(length)),
    "window": lambda length: Pattern(causal=True, window=3, key_padding=padding(length)),
    "long window": lambda length: Pattern(causal=True, window=16, key_padding=padding(length)),
}


def by_rows(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, pattern: Pattern, cap: float | None
) -> Tensor:
    """Attention, one query at a time: the softmax of its allowed scores and its sink."""
    allowed = pattern.mask(q.shape[2], k.shape[2], q.device).expand(q.shape[0], 1, -1, -1)
    group = q.shape[1] // k.shape[1]
    rows = []
    for text, head, query in itertools.product(*map(range, q.shape[:3])):
        keys = allowed[text, 0, query].nonzero()[:, 0]
        scores = k[text, head // group, keys] @ q[text, head, query] * q.shape[3] ** -0.5
        if cap is not None:
            scores = cap * (scores / cap).tanh()
        if sinks is not None and sinks[head] > NONE:
            scores = torch.cat([scores, sinks[head, None]])
        weights = scores.softmax(0)[: len(keys)]
        rows.append(weights @ v[text, head // group, keys])
    return torch.stack(rows).view(*q.shape[:3], -1)


def inputs(length: int, kv_heads: int, value_dim: int, sinks: str) -> list[Tensor]:
    torch.manual_seed(length)
    sizes = ((HEADS, DIM), (kv_heads, DIM), (kv_heads, value_dim))
    made = [torch.randn(3, heads, length, dim, dtype=torch.double) for heads, dim in sizes]
    logits = SINKS[sinks]
    return made if logits is None else [*made, torch.tensor(logits, dtype=torch.double)]


def attention(arguments: list[Tensor], pattern: Pattern, cap: float | None) -> Tensor:
    q, k, v, *rest = arguments
    return attend(q, k, v, pattern, cap=cap, sinks=rest[0] if rest else None)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("value_dim", [DIM, 5])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("sinks", SINKS)
def test_values_and_derivatives(
    sinks: str, kind: str, kv_heads: int, value_dim: int, cap: float | None
) -> None:
    pattern = PATTERNS[kind](9)
    leaves = [each.requires_grad_() for each in inputs(9, kv_heads, value_dim, sinks)]
    q, k, v, *rest = leaves
    expected = by_rows(q, k, v, rest[0] if rest else None, pattern, cap)
    out = attention(leaves, pattern, cap)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    found, wanted = (
        torch.autograd.grad(each, leaves, direction, create_graph=True, allow_unused=True)
        for each in (out, expected)
    )
    zeros = [torch.zeros_like(leaf) for leaf in leaves]
    wanted = tuple(zero if each is None else each for each, zero in zip(wanted, zeros, strict=True))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    once_more = [
        torch.autograd.grad(
            sum(each.square().sum() for each in grads), leaves[:3], allow_unused=True
        )
        for grads in (found, wanted)
    ]
    for one, other in zip(*once_more, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [4, 40, 150])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("sinks", SINKS)
def test_values_of_every_dtype(
    sinks: str, kind: str, cap: float | None, length: int, dtype: torch.dtype
) -> None:
    pattern = PATTERNS[kind](length)
    made = [each.to(dtype) for each in inputs(length, 2, DIM, sinks)]
    wide = attention([each.double() for each in made], pattern, cap)
    near = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    with torch.no_grad():
        torch.testing.assert_close(attention(made, pattern, cap).double(), wide, rtol=0, atol=near)
    leaves = [each.requires_grad_() for each in made]
    out = attention(leaves, pattern, cap)
    torch.testing.assert_close(out.double(), wide, rtol=0, atol=near)
    for each in torch.autograd.grad(out.float().square().sum(), leaves):
        assert each.isfinite().all()
    assert not out[2].any()


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("sinks", SINKS)
def test_transforms(sinks: str, kind: str, cap: float | None) -> None:
    pattern = PATTERNS[kind](6)
    made = inputs(6, 2, DIM, sinks)
    several = [torch.stack([each, each.flip(0)]) for each in made[:3]]
    rest = made[3:]
    run = lambda q, k, v: attention([q, k, v, *rest], pattern, cap)  # noqa: E731
    out = vmap(run)(*several)
    torch.testing.assert_close(
        out, torch.stack([run(*each) for each in zip(*several, strict=True)])
    )
    slopes = vmap(grad(lambda q, k, v: run(q, k, v).square().sum(), argnums=(0, 1, 2)))(*several)
    for at in range(2):
        leaves = [each[at].clone().requires_grad_() for each in several]
        wanted = torch.autograd.grad(run(*leaves).square().sum(), leaves)
        for one, other in zip(slopes, wanted, strict=True):
            torch.testing.assert_close(one[at], other)


def test_a_text_of_padding_gives_zeros() -> None:
    for kind, sinks in itertools.product(PATTERNS, SINKS):
        assert not attention(inputs(9, 2, DIM, sinks), PATTERNS[kind](9), None)[2].any()
