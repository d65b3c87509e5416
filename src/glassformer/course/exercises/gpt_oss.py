"""Exercises of the GPT-OSS lesson, and the variants of its recurrence."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.course.checking import (
    Case,
    Exercise,
    Judgement,
    ModuleRun,
    ValuesAlone,
    Verdict,
    build,
    call,
)
from glassformer.course.exercises.inputs import (
    LARGE,
    LARGE_LOGITS,
    Batches,
    attention_far_from_zero,
)
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.kernels.experts import Experts, mix_experts
from glassformer.kernels.pattern import Pattern
from glassformer.labs import gpt_oss as lab
from glassformer.labs.gpt_oss.experiments.sequences import DATA

CPU = torch.device("cpu")


def recurrence(seed: int) -> RecurrenceConfig:
    """The sequences of a variant: 0 is the document's own, other seeds have another modulus and
    other noise.
    """
    if seed == 0:
        return DATA
    sizes = (7, 5, 6, 8)
    noise = (0.1, 0.05, 0.15, 0.2)
    return RecurrenceConfig(
        order=2,
        vocab_size=sizes[seed % 4],
        next_prob=noise[(seed // 4 + seed) % 4],
        seq_len=DATA.seq_len,
    )


def puzzle(seed: int) -> list[int]:
    """Ten tokens without noise that one pair of coefficients explains, and no other."""
    size = recurrence(seed).vocab_size
    pairs = torch.Generator().manual_seed(seed)
    while True:
        a, b, *tokens = torch.randint(size, (4,), generator=pairs).tolist()
        while len(tokens) < 10:
            tokens.append((a * tokens[-2] + b * tokens[-1]) % size)
        others = itertools.product(range(size), repeat=2)
        if a != b and sum(_misfit(tokens, size, *pair) is None for pair in others) == 1:
            return tokens


def _misfit(tokens: list[int], size: int, a: int, b: int) -> int | None:
    """The first place at which a pair of coefficients gives another token."""
    steps = ((a * tokens[at - 2] + b * tokens[at - 1]) % size for at in range(2, len(tokens)))
    return next((at for at, step in enumerate(steps, 2) if step != tokens[at]), None)


def _judge(data: Any, seed: int) -> Judgement:
    tokens = puzzle(seed)
    size = recurrence(seed).vocab_size
    if (
        not isinstance(data, list)
        or len(data) != 2
        or not all(type(each) is int and abs(each) < 100 for each in data)
    ):
        return Judgement(False, "wrong. Return two whole numbers, (a, b).")
    a, b = data
    at = _misfit(tokens, size, a, b)
    if at is None:
        return Judgement(True, f"right (it gives all {len(tokens) - 2} tokens after the first two)")
    found = (a * tokens[at - 2] + b * tokens[at - 1]) % size
    step = f"{a} * {tokens[at - 2]} + {b} * {tokens[at - 1]} = {found} (mod {size}), but {tokens[at]} follows them"
    return Judgement(False, f"wrong. {step}", step)


def _normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=dtype)


def _rms_norm_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        yield torch.tensor([[1.0, 7.0]], dtype=dtype), torch.tensor([1.0, 2.0], dtype=dtype)
        for shape in ((2, 3, 4), (3, 2, 5, 8)):
            x = _normal(generator, *shape, dtype=dtype)
            weight = _normal(generator, shape[-1], dtype=dtype)
            yield x, weight
            yield 3 + 10 * x, weight
            yield 1e-3 * x, weight  # so small that eps counts
            yield x, weight, 0.5
        yield torch.zeros(2, 3, dtype=dtype), torch.ones(3, dtype=dtype)


def _feed_forward_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for sizes, shape in (((2, 3), (1, 1, 2)), ((4, 6), (2, 3, 4)), ((8, 5), (3, 7, 8))):
            yield sizes, _normal(generator, *shape, dtype=dtype)
            yield sizes, _normal(generator, shape[0] + 1, shape[1] + 1, shape[2], dtype=dtype)
            yield ValuesAlone([sizes, LARGE * _normal(generator, *shape, dtype=dtype)])


def _rotation_cases(generator: torch.Generator) -> Iterator[Case]:
    yield (2, 4, 10000.0), torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), 0
    for shape, start, base in (
        ((1, 1, 3, 2), 0, 10000.0),
        ((1, 2, 3, 4), 0, 10000.0),
        ((1, 2, 3, 4), 5, 10000.0),
        ((1, 2, 2, 4), 27, 10000.0),  # up to the last row of the tables
        ((2, 3, 9, 16), 0, 500.0),
        ((2, 3, 1, 16), 17, 10000.0),
    ):
        yield (shape[-1], 32, base), _normal(generator, *shape), start
        yield (
            (shape[-1], 32, base),
            _normal(generator, shape[0], 2, shape[2] + 1, shape[3]),
            start + 2,
        )


def _mask(length: int, window_size: int | None = None) -> Tensor:
    window = None if window_size is None else window_size + 1
    return Pattern(causal=True, window=window).mask(length, length, CPU)[0, 0]


def _mask_cases(_: torch.Generator) -> Iterator[Case]:
    for length in (1, 2, 3, 6, 9):
        yield (length,)
        yield from ((length, window_size) for window_size in (0, 1, 2, 4, 20))


def _share(x: Tensor, num_heads: int) -> Tensor:
    return x[:, torch.arange(num_heads) * x.shape[1] // num_heads]


def _share_cases(generator: torch.Generator) -> Iterator[Case]:
    for shape, heads in (
        ((1, 1, 1, 1), 2),
        ((1, 2, 1, 1), 4),
        ((1, 2, 2, 2), 2),
        ((2, 3, 4, 5), 6),
        ((3, 2, 5, 4), 8),
    ):
        yield _normal(generator, *shape), heads


def _attention_inputs(generator: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """What attention is called with, up to the device."""
    for dtype in (torch.float32, torch.float64):
        for batch, heads, kv_heads, length, head_dim in (
            (1, 1, 1, 2, 2),
            (1, 2, 1, 2, 2),
            (1, 4, 4, 4, 4),
            (2, 4, 2, 5, 8),
            (3, 6, 2, 9, 4),
        ):
            q = _normal(generator, batch, heads, length, head_dim, dtype=dtype)
            k, v = _normal(generator, 2, batch, kv_heads, length, head_dim, dtype=dtype)
            weights = _normal(generator, heads, dtype=dtype)
            for scale in (
                {head_dim**-0.5, 1.0} if length == 2 else {head_dim ** (-1 if batch > 2 else -0.5)}
            ):
                yield q, k, v, weights, lab.RotaryPositionalEmbedding(head_dim, 32), scale, CPU


def _far_from_zero(dtype: torch.dtype) -> Iterator[tuple[list[Any], Tensor | None]]:
    """Arguments up to the device, and a mask, for scores whose exponentials overflow or vanish;
    nothing is rotated.
    """
    for q, k, v, mask in attention_far_from_zero(dtype):
        yield (
            [
                *(part[None, None] for part in (q, k, v)),
                torch.ones(1, dtype=dtype),
                nn.Identity(),
                1.0,
                CPU,
            ],
            mask,
        )


def _attention_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for far, mask in _far_from_zero(dtype):
            yield ValuesAlone([*far, mask])
    for inputs in _attention_inputs(generator):
        yield inputs
        length = inputs[0].shape[2]
        seen = (torch.rand(length, length, generator=generator) < 0.5) | torch.eye(
            length, dtype=torch.bool
        )
        yield (*inputs, seen)


def _sliding_cases(generator: torch.Generator) -> Iterator[Case]:
    for far, mask in _far_from_zero(torch.float32):
        if mask is None:
            yield ValuesAlone([*far, 1])
    for inputs in _attention_inputs(generator):
        yield from ((*inputs, window_size) for window_size in (0, 1, 3, 12))


def _sink(scores: Tensor, sinks: Tensor) -> Tensor:
    wide = scores.double()
    sums = torch.logaddexp(wide.logsumexp(-1, keepdim=True), sinks.double()[:, None, None])
    return (wide - sums).exp().to(scores.dtype)


def _short(numbers: Tensor) -> Tensor:
    """Numbers that stay exact in float32 where some hundreds are added."""
    return (16 * numbers).round() / 16


def _sink_cases(generator: torch.Generator) -> Iterator[Case]:
    yield torch.tensor([1.0, 3.0]).log().view(1, 1, 1, 2), torch.tensor([4.0]).log()
    for dtype, shift in ((torch.float32, 100), (torch.float64, 900)):  # whose exponentials overflow
        for shape in ((1, 1, 2, 2), (1, 2, 3, 3), (2, 4, 5, 7)):
            scores = _normal(generator, *shape, dtype=dtype)
            sinks = _normal(generator, shape[1], dtype=dtype)
            yield scores, sinks
            scores = _short(scores)
            sinks = _short(sinks)
            yield scores + shift, sinks + shift
            yield scores - 2 * shift, sinks - 2 * shift  # whose exponentials vanish
            yield scores, sinks + shift
            yield scores + shift, sinks
            yield scores.masked_fill(_mask(shape[3])[: shape[2]].logical_not(), -torch.inf), sinks


class _Layer(lab.GroupedQueryAttention):
    """The library's layer, with the lesson's method for its mask."""

    def mask(self, length: int) -> Tensor:
        return _mask(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = self.mask(q.shape[2])
        return lab.calculate_attention(
            q, k, v, self.key_weights, self.rope, self.scale, q.device, mask
        )


_WINDOW = "window of its mask"


def _make_layer(answer: Any, sizes: dict[str, Any]) -> nn.Module:
    """A layer, or one of a subclass whose mask has a window."""
    window = sizes.get(_WINDOW)
    others = {name: size for name, size in sizes.items() if name != _WINDOW}
    masked = {"mask": lambda self, length: _mask(length, window)}
    layer: nn.Module = (answer if window is None else type(answer.__name__, (answer,), masked))(
        **others
    )
    return layer


def _layer_cases(generator: torch.Generator) -> Iterator[Case]:
    names = "hidden_dim", "num_heads", "head_dim", "num_kv_heads"
    for sizes, shape, more in (
        ((2, 1, 2), (1, 1, 2), {}),
        ((4, 2, 2), (1, 2, 4), {}),
        ((4, 2, 2), (1, 3, 4), {_WINDOW: 1}),
        ((8, 4, 2), (2, 5, 8), {}),
        ((8, 4, 6, 2), (2, 5, 8), {}),
        ((8, 4, 2, 1), (3, 9, 8), {_WINDOW: 2}),
        ((8, 4, 2, 1), (3, 9, 8), {}),
    ):
        named = dict(zip(names, sizes, strict=False)) | more
        yield named, _normal(generator, *shape)
        yield ValuesAlone([named, LARGE * _normal(generator, *shape)])
        yield named, _normal(generator, shape[0] + 1, shape[1] + 2, shape[2])


def _settled(shares: Tensor, scores: Tensor) -> Tensor:
    """``shares`` [..., choice] with those of equal scores in descending order: which of equals is
    chosen is free.
    """
    by_share = shares.argsort(dim=-1, descending=True, stable=True)
    by_both = by_share.gather(
        -1, scores.gather(-1, by_share).argsort(dim=-1, descending=True, stable=True)
    )
    by_score = scores.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(shares).scatter(-1, by_score, shares.gather(-1, by_both))


class _DenseRouter(nn.Module):
    """A router's choice as weights of all experts, 0 for those not chosen: the same in whatever
    order it gives them.
    """

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.router: Any = router

    def forward(self, x: Tensor) -> Tensor:
        router: Any = self.router
        weights, indices = router(x)
        if indices.is_floating_point():
            raise TypeError(
                "expected weights, then indices; the second result holds no whole numbers"
            )
        every = torch.zeros(*x.shape[:-1], router.score.out_features, dtype=weights.dtype)
        return _settled(every.scatter(-1, indices, weights), router.score(x).detach())


def _make_router(answer: Any, sizes: Any) -> nn.Module:
    return _DenseRouter(call(answer, sizes))


def _router_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for sizes, shape in (
            ((2, 3, 2), (1, 1, 2)),
            ((4, 3, 1), (1, 2, 4)),
            ((4, 8, 2), (2, 3, 4)),
            ((5, 4, 4), (3, 5, 5)),
        ):
            yield sizes, 2 * _normal(generator, *shape, dtype=dtype)
            yield ValuesAlone([sizes, LARGE * _normal(generator, *shape, dtype=dtype)])
            yield sizes, 2 * _normal(generator, shape[0] + 1, shape[1] + 1, shape[2], dtype=dtype)
            yield ValuesAlone([sizes, torch.zeros(1, 1, shape[2], dtype=dtype)])  # equal scores


class _Mixture(nn.Module):
    """The library's mixture of experts, with experts that are modules."""

    def __init__(
        self, hidden_dim: int, inner_dim: int, num_experts: int = 8, top_k: int = 2
    ) -> None:
        super().__init__()
        self.router = lab.Router(hidden_dim, num_experts, top_k)
        self.experts = nn.ModuleList(
            lab.SwiGLUFeedForward(hidden_dim, inner_dim) for _ in range(num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (
            torch.stack([getattr(each, name).weight for each in self.experts])
            for name in ("gate", "up", "down")
        )
        tokens = x.flatten(0, -2)
        return mix_experts(Experts(gate, up, down), tokens, *self.router(tokens)).view(x.shape)


def _mixture_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for sizes, shape in (
            ((2, 2, 2, 1), (1, 1, 2)),
            ((2, 3, 3, 2), (1, 2, 2)),
            ((4, 6, 4, 2), (2, 5, 4)),
        ):
            yield sizes, 2 * _normal(generator, *shape, dtype=dtype)
            yield sizes, 2 * _normal(generator, shape[0] + 1, shape[1] + 2, shape[2], dtype=dtype)
            yield ValuesAlone([sizes, LARGE * _normal(generator, *shape, dtype=dtype)])


class _Block(lab.TransformerBlock):
    def __init__(self, hidden_dim: int, ff_dim: int, *sizes: Any, **options: Any) -> None:
        super().__init__(hidden_dim, ff_dim, *sizes, **options)
        if isinstance(self.ffn, lab.MixtureOfExperts):
            self.ffn = _Mixture(hidden_dim, ff_dim, self.ffn.num_experts, self.ffn.top_k)


_VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_kv_heads": 2},
    {"window_size": 2},
    {"use_moe": True, "num_experts": 3, "top_k": 2},
    {"use_moe": True, "num_experts": 4, "top_k": 1},
)


def _block_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = {"hidden_dim": 4, "ff_dim": 6, "num_heads": 2, "head_dim": 2}
    yield sizes, 3 * _normal(generator, 1, 1, 4)
    yield sizes, 3 * _normal(generator, 1, 2, 4)
    for variant in (*_VARIANTS, {"use_sliding_window": True, "window_size": 3, "num_kv_heads": 1}):
        wide = sizes | {"hidden_dim": 5, "num_heads": 4} | variant
        yield wide, 3 * _normal(generator, 2, 6, 5)
        yield wide, 3 * _normal(generator, 1, 4, 5)
    yield wide, 1e-3 * _normal(generator, 2, 6, 5)  # so small that eps counts


class _Transformer(lab.Transformer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for layer in self.layers:
            if isinstance(layer.ffn, lab.MixtureOfExperts):
                layer.ffn = _Mixture(
                    options["hidden_dim"], options["ff_dim"], layer.ffn.num_experts, layer.ffn.top_k
                )


def _transformer_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = {
        "vocab_size": 5,
        "n_layers": 1,
        "hidden_dim": 4,
        "ff_dim": 6,
        "num_heads": 2,
        "head_dim": 2,
    }
    yield sizes, torch.tensor([[3]])
    yield sizes, torch.tensor([[1, 4, 1]])
    alternating = {
        "use_sliding_window_alternating": True,
        "n_layers": 4,
        "window_size": 3,
        "num_kv_heads": 1,
    }
    for variant in (*_VARIANTS, alternating):
        tokens = torch.randint(5, (2, 7), generator=generator)
        yield sizes | {"n_layers": 3, "num_heads": 4} | variant, tokens
        yield sizes | {"n_layers": 3, "num_heads": 4} | variant, tokens[:1, :4]


class _Reader(nn.Module):
    """Logits of all tokens so far and their order, others in training mode, with weights drawn from
    a seed.
    """

    def __init__(self, vocab_size: int, seed: int = 0, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        drawn = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(_normal(drawn, vocab_size, 6))
        self.output = nn.Parameter(_normal(drawn, 6, vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(1, tokens.shape[1] + 1)[:, None].cos()
        summed = (self.embedding[tokens] * places).cumsum(dim=1)
        return (
            self.factor * summed @ (self.output if self.training else self.output.roll(1, dims=0))
        )


def _batches(generator: torch.Generator, *shapes: tuple[int, int]) -> Batches:
    tokens = [
        torch.randint(4, (batch, length + 1), generator=generator) for batch, length in shapes
    ]
    return Batches((rows[:, :-1], rows[:, 1:]) for rows in tokens)


def _train(answer: Any, case: Case) -> Any:
    """The losses, what is evaluated, and the weights after a training."""
    optimizer, rate, epochs, batches, factor = case
    model = _Reader(4, factor=factor)
    calls = []
    means = answer(
        model,
        getattr(torch.optim, optimizer)(model.parameters(), lr=rate),
        batches,
        lambda epoch, model: calls.append(epoch),
        epochs,
    )
    weights = {
        "embedding at the end": model.embedding.detach(),
        "output at the end": model.output.detach(),
    }
    if isinstance(means, list):  # a total that is a tensor without a graph is as good as a number
        means = [
            float(mean) if isinstance(mean, Tensor) and not mean.requires_grad else mean
            for mean in means
        ]
    return {"mean losses": means, "epochs of eval_fn": calls, **weights}


def _train_cases(generator: torch.Generator) -> Iterator[Case]:
    yield "SGD", 0.1, 1, _batches(generator, (1, 1)), 1.0
    yield "SGD", 0.1, 1, _batches(generator, (2, 3)), 1.0
    yield "SGD", 0.1, 2, _batches(generator, (3, 4), (1, 4)), 1.0
    yield "AdamW", 0.01, 3, _batches(generator, (4, 5), (4, 5), (2, 5)), 1.0
    yield (
        "SGD",
        0.1,
        1,
        _batches(generator, (2, 3)),
        LARGE_LOGITS,
    )  # logits whose exponentials overflow


def _generate(answer: Any, case: Case) -> Any:
    seed, prompt, length, greedy = case
    return answer(_Reader(4, seed), prompt, length, *(() if greedy else (_least,)))


def _least(logits: Tensor) -> Tensor:
    """The token that is least likely after the last position."""
    return logits[:, -1:].argmin(dim=-1)


def _generate_cases(generator: torch.Generator) -> Iterator[Case]:
    yield 0, torch.tensor([[1]]), 1, True
    for seed, shape, length in ((0, (1, 1), 3), (1, (1, 4), 5), (2, (3, 4), 6), (3, (5, 2), 9)):
        prompt = torch.randint(4, shape, generator=generator)
        yield seed, prompt, length, True
        yield seed, prompt, length, False


def _nucleus(answer: Any, case: Case) -> Any:
    """The probabilities; which of equally likely tokens stay is free."""
    found = answer(*case)
    is_alike = (
        isinstance(found, Tensor) and found.is_floating_point() and found.shape == case[0].shape
    )
    return _settled(found, case[0]) if is_alike else found


def _nucleus_cases(generator: torch.Generator) -> Iterator[Case]:
    yield torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).log(), 0.75, 1.0
    yield torch.tensor([[[0.3, 0.05, 0.5, 0.15]]]).log(), 0.75, 1.0
    for size in (2, 4, 8):  # equal probabilities, whose sums are exact: some reach top_p exactly
        yield from (
            (torch.zeros(1, 1, size), top_p, 1.0) for top_p in (0.5, 0.25, 0.6, 0.75, 1.0, 0.0)
        )
    yield torch.tensor([[[0.0, -torch.inf, 0.0, -torch.inf]]]), 0.5, 1.0
    for t in (0.01, 100.0):
        yield 2 * _normal(generator, 1, 2, 5), 0.5, t
        yield 2 * t * _normal(generator, 1, 2, 5), 0.7, t
    yield _short(2 * _normal(generator, 1, 2, 5)) - 128, 0.7, 1.0
    for shape in ((1, 1, 2), (1, 1, 4), (2, 3, 5), (3, 2, 9)):
        logits = 2 * _normal(generator, *shape)
        yield from (
            (logits, top_p, t) for top_p in (1.0, 0.0, 0.4, 0.7, 0.95) for t in (1.0, 0.4, 3.0)
        )
    yield 200 * _normal(generator, 2, 2, 6), 0.9, 0.5  # whose exponentials overflow


def _accuracy(answer: Any, case: Case) -> Any:
    return answer(_Reader(4), case[0])


def _accuracy_cases(generator: torch.Generator) -> Iterator[Case]:
    for shapes in (((1, 1),), ((2, 3),), ((3, 3), (1, 3)), ((6, 8), (6, 8), (1, 8))):
        yield (_batches(generator, *shapes),)


_TRAINING = ("optimizer", "learning rate", "num_epochs", "batches", "factor of the logits")
_GENERATION = ("seed of the model", "input", "gen_length", "greedy")

EXERCISES: tuple[Exercise | Verdict, ...] = (
    Verdict("coefficients", _judge),
    Exercise(
        "rms-norm",
        lambda x, weight, eps=1e-5: F.rms_norm(x, weight.shape, weight, eps),
        _rms_norm_cases,
    ),
    Exercise("swiglu", lab.SwiGLUFeedForward, _feed_forward_cases, run=build),
    Exercise(
        "rotation", lab.RotaryPositionalEmbedding, _rotation_cases, run=build, same_dtype=True
    ),
    Exercise("mask", _mask, _mask_cases, gradients=False),
    Exercise("grouping", _share, _share_cases),
    Exercise("attention", lab.calculate_attention, _attention_cases),
    Exercise("grouped-attention", _Layer, _layer_cases, ModuleRun(_make_layer, ("key_weights",))),
    Exercise("sliding-attention", lab.calculate_sliding_attention, _sliding_cases),
    Exercise("sink", _sink, _sink_cases, tolerance=1e-4),
    Exercise("router", lab.Router, _router_cases, ModuleRun(_make_router)),
    Exercise("mixture", _Mixture, _mixture_cases, run=build),
    Exercise("block", _Block, _block_cases, run=build),
    Exercise("transformer", _Transformer, _transformer_cases, run=build),
    Exercise(
        "training-step",
        lab.train,
        _train_cases,
        run=_train,
        gradients=False,
        same_dtype=True,
        names=_TRAINING,
    ),
    Exercise(
        "generation",
        lab.generate,
        _generate_cases,
        run=_generate,
        gradients=False,
        names=_GENERATION,
    ),
    Exercise(
        "nucleus", lab.get_dist_after_with_temp_and_topp, _nucleus_cases, _nucleus, gradients=False
    ),
    Exercise(
        "accuracy",
        lab.calc_per_token_acc,
        _accuracy_cases,
        run=_accuracy,
        gradients=False,
        names=("batches",),
    ),
)
