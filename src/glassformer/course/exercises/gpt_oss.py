"""Exercises of the GPT-OSS lesson, with the variants of its recurrence."""

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
    """Return the sequences of a variant: seed 0 is the course's, others vary modulus and noise."""
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
    """Return ten tokens without noise that exactly one pair of coefficients explains."""
    size = recurrence(seed).vocab_size
    generator = torch.Generator().manual_seed(seed)
    while True:
        a, b, *tokens = torch.randint(size, (4,), generator=generator).tolist()
        while len(tokens) < 10:
            tokens.append((a * tokens[-2] + b * tokens[-1]) % size)
        pairs = itertools.product(range(size), repeat=2)
        if a != b and sum(_misfit(tokens, size, *pair) is None for pair in pairs) == 1:
            return tokens


def _misfit(tokens: list[int], size: int, a: int, b: int) -> int | None:
    """Return the first index at which the coefficients give another token, or None."""
    for index in range(2, len(tokens)):
        if (a * tokens[index - 2] + b * tokens[index - 1]) % size != tokens[index]:
            return index
    return None


def _judge(data: Any, seed: int) -> Judgement:
    """Judge a pair of coefficients."""
    tokens = puzzle(seed)
    size = recurrence(seed).vocab_size
    is_pair = isinstance(data, list) and len(data) == 2
    if not is_pair or not all(type(value) is int and abs(value) < 100 for value in data):
        return Judgement(False, "wrong. Return two whole numbers, (a, b).")
    a, b = data
    index = _misfit(tokens, size, a, b)
    if index is None:
        return Judgement(True, f"right (it gives all {len(tokens) - 2} tokens after the first two)")
    first, second, following = tokens[index - 2 : index + 1]
    result = (a * first + b * second) % size
    step = f"{a} * {first} + {b} * {second} = {result} (mod {size}), but {following} follows them"
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
            yield 1e-3 * x, weight  # so small that eps matters
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
    """Repeat key-value heads for the query heads that share them."""
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
    """Yield the arguments of attention, up to the device."""
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
            scales = {head_dim**-0.5, 1.0} if length == 2 else {head_dim**-0.5}
            if batch > 2:
                scales = {1 / head_dim}
            for scale in scales:
                yield q, k, v, weights, lab.RotaryPositionalEmbedding(head_dim, 32), scale, CPU


def _far_from_zero(dtype: torch.dtype) -> Iterator[tuple[list[Any], Tensor | None]]:
    """Yield arguments up to the device, without rotation, and a mask.

    Exponentials of the scores overflow or vanish.
    """
    for q, k, v, mask in attention_far_from_zero(dtype):
        heads = [tensor[None, None] for tensor in (q, k, v)]
        yield [*heads, torch.ones(1, dtype=dtype), nn.Identity(), 1.0, CPU], mask


def _attention_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for far, mask in _far_from_zero(dtype):
            yield ValuesAlone([*far, mask])
    for inputs in _attention_inputs(generator):
        yield inputs
        length = inputs[0].shape[2]
        mask = torch.rand(length, length, generator=generator) < 0.5
        yield (*inputs, mask | torch.eye(length, dtype=torch.bool))


def _sliding_cases(generator: torch.Generator) -> Iterator[Case]:
    for far, mask in _far_from_zero(torch.float32):
        if mask is None:
            yield ValuesAlone([*far, 1])
    for inputs in _attention_inputs(generator):
        yield from ((*inputs, window_size) for window_size in (0, 1, 3, 12))


def _sink(scores: Tensor, sinks: Tensor) -> Tensor:
    """Return attention weights with a learned sink in each head's softmax, computed in float64."""
    exact = scores.double()
    log_sums = torch.logaddexp(exact.logsumexp(-1, keepdim=True), sinks.double()[:, None, None])
    return (exact - log_sums).exp().to(scores.dtype)


def _rounded(numbers: Tensor) -> Tensor:
    """Round numbers so that they stay exact in float32 when some hundreds are added."""
    return (16 * numbers).round() / 16


def _sink_cases(generator: torch.Generator) -> Iterator[Case]:
    yield torch.tensor([1.0, 3.0]).log().view(1, 1, 1, 2), torch.tensor([4.0]).log()
    for dtype, shift in ((torch.float32, 100), (torch.float64, 900)):  # exponentials overflow
        for shape in ((1, 1, 2, 2), (1, 2, 3, 3), (2, 4, 5, 7)):
            scores = _normal(generator, *shape, dtype=dtype)
            sinks = _normal(generator, shape[1], dtype=dtype)
            yield scores, sinks
            scores = _rounded(scores)
            sinks = _rounded(sinks)
            yield scores + shift, sinks + shift
            yield scores - 2 * shift, sinks - 2 * shift  # exponentials vanish
            yield scores, sinks + shift
            yield scores + shift, sinks
            yield scores.masked_fill(_mask(shape[3])[: shape[2]].logical_not(), -torch.inf), sinks


class _Layer(lab.GroupedQueryAttention):
    """The library's layer, with the lesson's ``mask`` method."""

    def mask(self, length: int) -> Tensor:
        return _mask(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = self.mask(q.shape[2])
        return lab.calculate_attention(
            q, k, v, self.key_weights, self.rope, self.scale, q.device, mask
        )


_WINDOW = "window of its mask"


def _make_layer(answer: Any, sizes: dict[str, Any]) -> nn.Module:
    """Build a layer, or if the sizes have a window, a layer of a subclass with such a mask."""
    window = sizes.get(_WINDOW)
    options = {name: size for name, size in sizes.items() if name != _WINDOW}
    layer_class = answer
    if window is not None:
        methods = {"mask": lambda self, length: _mask(length, window)}
        layer_class = type(answer.__name__, (answer,), methods)
    layer: nn.Module = layer_class(**options)
    return layer


def _layer_cases(generator: torch.Generator) -> Iterator[Case]:
    names = "hidden_dim", "num_heads", "head_dim", "num_kv_heads"
    for sizes, shape, window in (
        ((2, 1, 2), (1, 1, 2), {}),
        ((4, 2, 2), (1, 2, 4), {}),
        ((4, 2, 2), (1, 3, 4), {_WINDOW: 1}),
        ((8, 4, 2), (2, 5, 8), {}),
        ((8, 4, 6, 2), (2, 5, 8), {}),
        ((8, 4, 2, 1), (3, 9, 8), {_WINDOW: 2}),
        ((8, 4, 2, 1), (3, 9, 8), {}),
    ):
        named = dict(zip(names, sizes, strict=False)) | window
        yield named, _normal(generator, *shape)
        yield ValuesAlone([named, LARGE * _normal(generator, *shape)])
        yield named, _normal(generator, shape[0] + 1, shape[1] + 2, shape[2])


def _settled(shares: Tensor, scores: Tensor) -> Tensor:
    """Sort ``shares`` [..., choice] in descending order among choices of equal scores.

    An answer may select any of several choices with equal scores.
    """
    by_share = shares.argsort(dim=-1, descending=True, stable=True)
    sorted_scores = scores.gather(-1, by_share)
    by_both = by_share.gather(-1, sorted_scores.argsort(dim=-1, descending=True, stable=True))
    by_score = scores.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(shares).scatter(-1, by_score, shares.gather(-1, by_both))


class _DenseRouter(nn.Module):
    """A router whose output is one weight for every expert, 0 for experts that are not chosen.

    The output does not depend on the order in which the router returns its choices.
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
        zeros = torch.zeros(*x.shape[:-1], router.score.out_features, dtype=weights.dtype)
        return _settled(zeros.scatter(-1, indices, weights), router.score(x).detach())


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
            torch.stack([getattr(expert, name).weight for expert in self.experts])
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
    yield wide, 1e-3 * _normal(generator, 2, 6, 5)  # so small that eps matters


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
    """A model with random weights, whose logits depend on all tokens so far and their order.

    Training mode gives other logits than evaluation mode.
    """

    def __init__(self, vocab_size: int, seed: int = 0, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(_normal(generator, vocab_size, 6))
        self.output = nn.Parameter(_normal(generator, 6, vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        position_factors = torch.arange(1, tokens.shape[1] + 1)[:, None].cos()
        hidden = (self.embedding[tokens] * position_factors).cumsum(dim=1)
        output = self.output if self.training else self.output.roll(1, dims=0)
        return self.factor * hidden @ output


def _batches(generator: torch.Generator, *shapes: tuple[int, int]) -> Batches:
    tokens = [
        torch.randint(4, (batch, length + 1), generator=generator) for batch, length in shapes
    ]
    return Batches((rows[:, :-1], rows[:, 1:]) for rows in tokens)


def _train(answer: Any, case: Case) -> Any:
    """Return the losses, the epochs that were evaluated, and the weights after a training."""
    optimizer_name, rate, epochs, batches, factor = case
    model = _Reader(4, factor=factor)
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=rate)
    calls = []
    means = answer(model, optimizer, batches, lambda epoch, model: calls.append(epoch), epochs)
    weights = {
        "embedding at the end": model.embedding.detach(),
        "output at the end": model.output.detach(),
    }
    if isinstance(means, list):
        means = [_as_number(mean) for mean in means]
    return {"mean losses": means, "epochs of eval_fn": calls, **weights}


def _as_number(mean: Any) -> Any:
    """Convert a tensor without a graph, which is as good as a number."""
    return float(mean) if isinstance(mean, Tensor) and not mean.requires_grad else mean


def _train_cases(generator: torch.Generator) -> Iterator[Case]:
    yield "SGD", 0.1, 1, _batches(generator, (1, 1)), 1.0
    yield "SGD", 0.1, 1, _batches(generator, (2, 3)), 1.0
    yield "SGD", 0.1, 2, _batches(generator, (3, 4), (1, 4)), 1.0
    yield "AdamW", 0.01, 3, _batches(generator, (4, 5), (4, 5), (2, 5)), 1.0
    # Logits whose exponentials overflow.
    yield "SGD", 0.1, 1, _batches(generator, (2, 3)), LARGE_LOGITS


def _generate(answer: Any, case: Case) -> Any:
    seed, prompt, length, greedy = case
    rule = () if greedy else (_least_likely,)
    return answer(_Reader(4, seed), prompt, length, *rule)


def _least_likely(logits: Tensor) -> Tensor:
    """Return the least likely token after the last position."""
    return logits[:, -1:].argmin(dim=-1)


def _generate_cases(generator: torch.Generator) -> Iterator[Case]:
    yield 0, torch.tensor([[1]]), 1, True
    for seed, shape, length in ((0, (1, 1), 3), (1, (1, 4), 5), (2, (3, 4), 6), (3, (5, 2), 9)):
        prompt = torch.randint(4, shape, generator=generator)
        yield seed, prompt, length, True
        yield seed, prompt, length, False


def _nucleus(answer: Any, case: Case) -> Any:
    """Return the probabilities; an answer may keep any of several equally likely tokens."""
    probabilities = answer(*case)
    logits = case[0]
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        return probabilities
    if probabilities.shape != logits.shape:
        return probabilities
    return _settled(probabilities, logits)


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
    yield _rounded(2 * _normal(generator, 1, 2, 5)) - 128, 0.7, 1.0
    for shape in ((1, 1, 2), (1, 1, 4), (2, 3, 5), (3, 2, 9)):
        logits = 2 * _normal(generator, *shape)
        for top_p, t in itertools.product((1.0, 0.0, 0.4, 0.7, 0.95), (1.0, 0.4, 3.0)):
            yield logits, top_p, t
    yield 200 * _normal(generator, 2, 2, 6), 0.9, 0.5  # exponentials overflow


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
