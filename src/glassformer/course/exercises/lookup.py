"""Exercises of the lookup lesson."""

import random
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.course.checking import (
    Built,
    Case,
    Exercise,
    Judgement,
    ModuleRun,
    ValuesAlone,
    Verdict,
    build,
    run_module,
)
from glassformer.course.exercises.inputs import (
    LARGE,
    LARGE_LOGITS,
    Batches,
    attention_far_from_zero,
)
from glassformer.data.lookup import EOS, PAD, SOS
from glassformer.labs.lookup import course, course_network
from glassformer.labs.sentiment.course import scaled_dot_product_attention
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.layers.positions import SinusoidalPositions
from glassformer.observe import scrambling

VOCAB = course.VOCAB_SIZE


def draw_bag(seed: int) -> tuple[list[str], list[str]]:
    """Return keys and values of the exercise "bag": three of each; other seeds also have four."""
    if seed == 0:
        return list("ABC"), list("123")
    rng = random.Random(seed)
    count = rng.choice((3, 4))
    return rng.sample("ABCDEFGHKLMNPRSTUVWXYZ", count), rng.sample("123456789", count)


def _judge_bag(answer: Any, seed: int) -> Judgement:
    """Judge a list of all contexts with one bag, and the share of one value of the first key."""
    keys, values = draw_bag(seed)
    if not isinstance(answer, dict) or not {"contexts", "share"} <= answer.keys():
        return Judgement(False, "expected a dictionary with 'contexts' and 'share'")
    contexts = answer["contexts"]
    if not isinstance(contexts, list) or not all(isinstance(entry, dict) for entry in contexts):
        return Judgement(False, "'contexts' has to be a list of dictionaries from key to value")
    expected = [dict(zip(keys, order, strict=True)) for order in permutations(values)]
    for number, context in enumerate(contexts):
        if context not in expected:
            text = str(context)[:200]
            return Judgement(False, f"{text} has another bag than {keys} and {values}", text)
        if context in contexts[:number]:
            return Judgement(False, f"{context} is there twice", str(context))
    missing = [context for context in expected if context not in contexts]
    if missing:
        message = f"{len(missing)} of {len(expected)} contexts are not there, such as {missing[0]}"
        return Judgement(False, message, str(missing[0]))
    share = answer["share"]
    is_share = isinstance(share, int | float) and 0 < share < 1
    if not is_share or abs(share - 1 / len(values)) >= 1e-9:
        return Judgement(
            False,
            f"the contexts are right, the share is not: in how many of the {len(expected)} has "
            "the first key the same value? Give an exact number, such as 1 / 2",
        )
    return Judgement(True, f"right (all {len(expected)} contexts of this bag, and the share)")


def _tokens(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw words, without padding."""
    return torch.randint(3, VOCAB, shape, generator=generator)


def _padding(generator: torch.Generator, batch: int, length: int) -> Tensor:
    """Draw a padding mask: True from a random position on, but never at the first."""
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    return torch.arange(length) >= lengths


def _numbers(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=dtype)


def _dataset_cases(generator: torch.Generator) -> Iterator[Case]:
    for lengths in ((1,), (2,), (2, 3), (5, 1, 2)):
        contexts = [_tokens(generator, size) for size in (5, 3, 5)]
        pairs = [
            (context, _tokens(generator, size))
            for context, size in zip(contexts, lengths, strict=False)
        ]
        names = ("enc_input", "dec_target", "query_val_id")
        rows = ((context, target, int(target[0])) for context, target in pairs)
        yield {"data": [dict(zip(names, row, strict=True)) for row in rows]}


def _items(answer: Callable[..., Any], case: Any) -> list[Any]:
    """Return all items, the first item of another dataset, then all items in reverse order."""
    dataset = answer(case["data"])
    reversed_dataset = answer(case["data"][::-1])
    numbers = range(len(case["data"]))
    items = [tuple(dataset[number]) for number in numbers]
    items.append(tuple(reversed_dataset[0]))
    items += [tuple(dataset[number]) for number in reversed(numbers)]
    return items


def _collate_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes in (
        ((2, 1),),
        ((2, 1), (1, 2)),
        ((5, 2), (5, 2)),
        ((3, 2), (5, 1)),
        ((1, 4), (3, 1), (5, 2)),
    ):
        items = [
            (_tokens(generator, source), *_tokens(generator, 2, target)) for source, target in sizes
        ]
        yield (items,)
    # Items of the lesson's dataset.
    items = []
    for target in (torch.tensor([7, EOS]), torch.tensor([EOS])):
        decoder_input = torch.cat([torch.tensor([SOS]), target[:-1]])
        items.append((_tokens(generator, 5), decoder_input, target))
    yield (items,)


def _attention_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = (((1,), 1, 2, 2, 1), ((1,), 2, 3, 2, 2), ((2, 3), 4, 7, 5, 3), ((), 6, 6, 16, 16))
    for dtype in (torch.float32, torch.float64):
        for batch, queries, keys, width, out in sizes:
            q, k, v = (
                _numbers(generator, *batch, rows, columns, dtype=dtype)
                for rows, columns in ((queries, width), (keys, width), (keys, out))
            )
            yield q, k, v
            mask = torch.rand(queries, keys, generator=generator) < 0.5
            mask[:, 0] = True
            yield q, k, v, mask
        yield from map(ValuesAlone, attention_far_from_zero(dtype))


class _Heads(course_network.MultiHeadAttention):
    """Multi-head attention built on the lesson's attention function."""

    def forward(  # type: ignore[override]
        self, x: Tensor, source: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (
            projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(source), self.value(source))
        )
        output, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.output(output.transpose(1, 2).flatten(2)), weights


def _heads_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        for sizes, batch, queries, keys in (
            ((2, 1), 1, 1, 2),
            ((4, 2), 1, 2, 3),
            ((12, 3), 3, 5, 4),
        ):
            x = _numbers(generator, batch, queries, sizes[0], dtype=dtype)
            source = _numbers(generator, batch, keys, sizes[0], dtype=dtype)
            yield sizes, x, source
            yield sizes, x, source, ~_padding(generator, batch, keys)[:, None, None]
            yield sizes, x, x, torch.ones(queries, queries, dtype=torch.bool).tril()
            yield ValuesAlone([sizes, LARGE * x, source])
            yield sizes, source, _numbers(generator, batch, keys + 2, sizes[0], dtype=dtype)


class _HalfDropped(ModuleRun):
    """Runs a module, and also compares the two outputs that dropout of a single unit can give."""

    def __call__(self, answer: Any, case: Case) -> Built:
        """Return the output, and the smallest and largest outputs of 100 equal tokens."""
        built = super().__call__(answer, case)
        x = case[1]
        module = self.make(answer, {"d_model": x.shape[-1], "d_ff": 1, "dropout": 0.5})
        run_module(module, x)
        with torch.no_grad():
            outputs = module.train()(x.flatten(0, -2)[:, None].expand(-1, 100, -1))
        return built._replace(
            output={
                "output": built.output,
                "least of 100 equal tokens in training": outputs.amin(1),
                "largest of 100 equal tokens in training": outputs.amax(1),
            }
        )


def _any_dropout(module_class: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return a maker of the library's class that also accepts a dropout of 1."""

    def make(*sizes: int, dropout: float = 0.1, **named: int) -> nn.Module:
        module = module_class(*sizes, **named)
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = dropout
            elif isinstance(part, MLP | Block):
                part.dropout = dropout
        return module

    return make


def _dropping(names: str, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield sizes with a dropout of 1 and of 0."""
    for dropout in (1.0, 0.0):
        yield dict(zip(names.split(), sizes, strict=True)) | {"dropout": dropout}


def _feed_forward_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, shape in (((1, 2), (1, 1)), ((2, 3), (1, 2)), ((8, 16), (3, 5))):
        yield sizes, _numbers(generator, *shape, sizes[0])
        yield sizes, _numbers(generator, *shape, sizes[0], dtype=torch.float64)
        yield sizes, _numbers(generator, shape[0] + 1, shape[1] + 1, sizes[0])
    for dropping in _dropping("d_model d_ff", (2, 3)):
        yield dropping, _numbers(generator, 2, 2, 2)


class _EncoderLayer(course_network.EncoderLayer):
    """The library's layer, with the lesson's mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, key_padding=None if mask is None else mask[:, 0, 0])


def _encoder_layer_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, batch, length in (((4, 1, 2), 1, 1), ((4, 2, 6), 1, 2), ((8, 4, 16), 3, 5)):
        for dtype in (torch.float32, torch.float64):
            x = _numbers(generator, batch, length, sizes[0], dtype=dtype)
            yield sizes, x
            yield sizes, x, ~_padding(generator, batch, length)[:, None, None]
            yield sizes, _numbers(generator, batch + 1, length + 2, sizes[0], dtype=dtype)
    for dropping in _dropping("d_model num_heads d_ff", (4, 2, 6)):
        yield dropping, _numbers(generator, 1, 2, 4)


class _DecoderLayer(course_network.DecoderLayer):
    """The library's layer, with the lesson's masks."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        key_padding = None if mask is None else mask[:, 0, 0]
        memory_padding = None if memory_mask is None else memory_mask[:, 0, 0]
        return super().forward(x, memory, key_padding=key_padding, memory_padding=memory_padding)


def _decoder_layer_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, batch, length, memory_length in (
        ((4, 1, 2), 1, 1, 2),
        ((4, 2, 6), 1, 3, 2),
        ((8, 4, 16), 3, 4, 5),
    ):
        width = sizes[0]
        for dtype in (torch.float32, torch.float64):
            x = _numbers(generator, batch, length, width, dtype=dtype)
            memory = _numbers(generator, batch, memory_length, width, dtype=dtype)
            mask = ~_padding(generator, batch, length)[:, None, None]
            memory_mask = ~_padding(generator, batch, memory_length)[:, None, None]
            yield sizes, x, memory
            yield sizes, x, memory, mask
            yield sizes, x, memory, mask, memory_mask
            x = _numbers(generator, batch + 1, length + 1, width, dtype=dtype)
            memory = _numbers(generator, batch + 1, memory_length + 1, width, dtype=dtype)
            yield sizes, x, memory
    for dropping in _dropping("d_model num_heads d_ff", (4, 2, 6)):
        yield dropping, _numbers(generator, 1, 2, 4), _numbers(generator, 1, 3, 4)


class _Encoder(course_network.Encoder):
    """The library's encoder with a maximum length that no case reaches."""

    def __init__(self, *sizes: int, **named: int) -> None:
        super().__init__(*sizes, max_seq_len=64, **named)  # type: ignore[misc]


def _encoder_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, batch, length in (
        ((14, 4, 1, 1, 2), 1, 1),
        ((14, 4, 2, 1, 8), 2, 3),
        ((14, 8, 2, 2, 8), 3, 7),
    ):
        tokens = _tokens(generator, batch, length)
        yield sizes, tokens, torch.zeros(batch, length, dtype=torch.bool)
        yield sizes, tokens, _padding(generator, batch, length)
        yield (
            sizes,
            _tokens(generator, batch + 1, length + 1),
            _padding(generator, batch + 1, length + 1),
        )
    for dropping in _dropping("vocab_size d_model num_heads num_layers d_ff", (14, 4, 2, 1, 8)):
        yield dropping, _tokens(generator, 1, 2), torch.zeros(1, 2, dtype=torch.bool)


def _positions_cases(_: torch.Generator) -> Iterator[Case]:
    yield from ((1, 2), (2, 2), (3, 4), (10, 64), (50, 16))


def _decoder_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = (
        ((14, 4, 1, 1, 2, 1), 1, 1, 1),
        ((14, 4, 2, 1, 8, 5), 2, 3, 2),
        ((14, 8, 2, 2, 8, 9), 3, 6, 4),
    )
    for size, batch, length, memory_length in sizes:
        tokens = _tokens(generator, batch, length)
        memory = _numbers(generator, batch, memory_length, size[1])
        yield size, tokens, memory, _no_padding(batch, memory_length), _no_padding(batch, length)
        memory_padding = _padding(generator, batch, memory_length)
        yield size, tokens, memory, memory_padding, _padding(generator, batch, length)
        if length > 1:
            longer = _numbers(generator, 1, memory_length + 1, size[1])
            memory_padding = _no_padding(1, memory_length + 1)
            yield size, tokens[:1, :-1], longer, memory_padding, _no_padding(1, length - 1)
    for dropping in _dropping(
        "vocab_size d_model num_heads num_layers d_ff max_seq_len", (14, 4, 2, 1, 8, 5)
    ):
        memory = _numbers(generator, 1, 2, 4)
        padding = _no_padding(1, 2)
        yield dropping, _tokens(generator, 1, 2), memory, padding, padding


def _no_padding(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.bool)


def _model_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = (
        ((14, 4, 1, 1, 2, 1), 1, 1, 1),
        ((14, 4, 2, 1, 8, 5), 2, 4, 3),
        ((14, 8, 2, 2, 8, 9), 3, 5, 6),
    )
    for size, batch, source, target in sizes:
        padding = _padding(generator, batch, source)
        target_padding = _padding(generator, batch, target)
        tokens = _tokens(generator, batch, source)
        targets = _tokens(generator, batch, target)
        padded = tokens.masked_fill(padding, PAD)
        yield size, tokens, targets
        yield size, tokens, torch.cat([torch.full((batch, 1), SOS), targets[:, 1:]], dim=1)
        yield size, padded, targets.masked_fill(target_padding, PAD)
        yield size, tokens, targets, padding, target_padding
        yield size, tokens, targets, None, target_padding
        yield size, padded, targets, torch.zeros_like(padding)
        tokens = _tokens(generator, batch + 1, source)
        yield size, tokens, _tokens(generator, batch + 1, max(target - 1, 1))


class Table(nn.Module):
    """A model whose logits are rows of a table, one row for each first word of a context.

    Each input token raises its own logit. Masked padding makes logits smaller, and training mode
    doubles them.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows.clone())

    def forward(
        self,
        enc_input: Tensor,
        dec_input: Tensor,
        src_padding_mask: Tensor | None = None,
        tgt_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return logits [batch, target position, vocabulary]."""
        if src_padding_mask is None:
            src_padding_mask = enc_input == PAD
        if tgt_padding_mask is None:
            tgt_padding_mask = dec_input == PAD
        masked = src_padding_mask[:, 1:2, None] + 2 * tgt_padding_mask[..., None]
        rows = self.rows[enc_input[:, 0], : dec_input.shape[1]]
        logits = rows + F.one_hot(dec_input, self.rows.shape[-1])
        return logits / (1 + masked) * (2 if self.training else 1)


class _TrainingCase(NamedTuple):
    """A small training on :class:`Table`."""

    num_batches: int
    num_epochs: int
    learning_rate: float
    agreement: float = 1.0
    """Probability that a held-out target agrees with the training target."""
    shift: int = 0
    """Added to the first words of held-out contexts."""
    contradicts: bool = False
    """If True, the second batch contradicts the first."""
    factor: float = 1.0
    """Factor of the initial logits."""


_TRAINING_CASES = (
    _TrainingCase(1, 1, 0.1),
    _TrainingCase(1, 2, 0.1, factor=LARGE_LOGITS),  # exponentials of logits overflow
    _TrainingCase(2, 3, 0.1),
    _TrainingCase(2, 8, 0.5, agreement=0.5),  # the validation loss rises from some epoch on
    _TrainingCase(3, 5, 0.2, agreement=0.0),  # the validation loss never falls
    _TrainingCase(1, 3, 0.1, shift=3),  # the validation loss stays the same
    _TrainingCase(2, 5, 2.0, contradicts=True),  # the training loss rises, too
)


def _training_cases(generator: torch.Generator) -> Iterator[Case]:
    for case in _TRAINING_CASES:
        rows = case.factor * _numbers(generator, VOCAB, 3, 5)
        loaders: list[Batches] = []
        for held_out in (False, True):
            loader = Batches()
            for number in range(case.num_batches):
                source = torch.tensor([[3, 6], [4, PAD], [5, 6]])[: 3 - number % 2]
                targets = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 1]])[: len(source)]
                if case.contradicts and number == 1:
                    targets = targets % 4 + 1
                if held_out:
                    source[:, 0] += case.shift
                    disagrees = torch.rand(targets.shape, generator=generator) >= case.agreement
                    targets = torch.where(disagrees, targets % 4 + 1, targets)
                targets[0, 1:] = PAD
                inputs = torch.cat([torch.full((len(source), 1), SOS), targets[:, :-1]], 1)
                loader.append((source, inputs, targets, source == PAD, inputs == PAD))
            loaders.append(loader)
        yield rows, *loaders, case.num_epochs, case.learning_rate


def _trained(answer: Callable[..., Any], case: Case) -> Any:
    rows, *others = case
    model = Table(rows)
    history = answer(model, *others)
    if isinstance(history, dict):
        history = {name: history[name] for name in ("train_loss", "val_loss") if name in history}
    return {"history": history, "weights at the end": model.rows.detach()}


class Writer(course_network.CrossAttentionLookupModel):
    """A model with random weights that sometimes writes [EOS], and never [PAD].

    ``factor`` multiplies its logits.
    """

    def __init__(self, seed: int, factor: float = 1.0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(VOCAB, 8, 2, 1, 8, 10)
            for weight in self.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight)
            self.projection.bias.data[[PAD, SOS, EOS]] = torch.tensor([-1e4, -1e4, 2.0])
            for weight in self.projection.parameters():
                weight.data *= factor
        self.seed = seed
        self.eval()

    def __repr__(self) -> str:
        return f"a model of random weights ({self.seed})"


def _decode_cases(generator: torch.Generator) -> Iterator[Case]:
    # With these seeds, the models write different texts, and some texts end.
    for seed, batch, max_length in (
        (13, 1, 1),
        (22, 1, 9),
        (13, 1, 3),
        (29, 2, 9),
        (37, 4, 9),
        (12, 4, 4),
        (13, 6, 9),
    ):
        yield Writer(seed), _tokens(generator, batch, 5), max_length
    yield Writer(22, LARGE_LOGITS), _tokens(generator, 2, 5), 9


class Reader:
    """Logits from tables: of the set of words in a source, or of words at positions."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB, 2, 5, generator=generator)
        self.places = torch.randn(8, VOCAB, 2, 5, generator=generator)

    def __repr__(self) -> str:
        return f"a reader of {self.kind}"

    def __call__(self, source: Tensor) -> Tensor:
        """Return logits [batch, 2, 5]."""
        bag = self.table[source].sum(1)
        if self.kind == "a set":
            return bag
        if self.kind == "a set, and little of the last word":
            return bag + 1e-3 * self.table[source[:, -1]]
        if self.kind == "the last two words":
            return self.places[0][source[:, -2]] + self.places[1][source[:, -1]]
        return sum(
            (self.places[place][source[:, place]] for place in range(source.shape[1])), 0 * bag
        )


def _scrambling_cases(generator: torch.Generator) -> Iterator[Case]:
    kinds = ("a set", "a sequence", "a set, and little of the last word", "the last two words")
    for kind in kinds:
        for count, length in ((1, 2), (2, 3), (3, 5)):
            rows = [
                torch.randperm(VOCAB - 3, generator=generator)[:length] + 3 for _ in range(count)
            ]
            yield Reader(kind, length), torch.stack(rows)


def _library_scrambling(predict: Callable[[Tensor], Tensor], contexts: Tensor) -> tuple[float, int]:
    result = scrambling.scrambling_test(predict, contexts)
    return result.largest_change, result.changed_tokens


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross_attention = _Heads(8, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + self.cross_attention(x, memory)[0]


class Watched(nn.Module):
    """A model for the exercise "hook", whose cross-attention returns its weights."""

    decoder: Any

    def __init__(self, layers: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(layers)
            self.encoder = nn.Embedding(VOCAB, 8)
            self.decoder = nn.Module()
            self.decoder.embedding = nn.Embedding(VOCAB, 8)
            self.decoder.layers = nn.ModuleList(_Layer() for _ in range(layers))
        self.eval()

    def __repr__(self) -> str:
        count = len(self.decoder.layers)
        return f"a model of {count} decoder layer{'s' if count > 1 else ''}"

    def weights(self, enc_input: Tensor, dec_input: Tensor) -> Tensor:
        """Return the attention weights of the last layer, without a hook."""
        x = self.decoder.embedding(dec_input)
        memory = self.encoder(enc_input)
        *first, last = self.decoder.layers
        for layer in first:
            x = layer(x, memory)
        weights: Tensor = last.cross_attention(x, memory)[1]
        return weights

    def forward(self, enc_input: Tensor, dec_input: Tensor, *_: Tensor) -> Tensor:
        """Return the residual stream after the last layer."""
        x: Tensor = self.decoder.embedding(dec_input)
        memory = self.encoder(enc_input)
        for layer in self.decoder.layers:
            x = layer(x, memory)
        return x


def _hook_cases(generator: torch.Generator) -> Iterator[Case]:
    for layers, batch, source, target in ((1, 1, 2, 1), (1, 2, 5, 2), (2, 3, 4, 3)):
        yield Watched(layers), _tokens(generator, batch, source), _tokens(generator, batch, target)


def _watching(answer: Callable[..., Any], case: Case) -> Any:
    """Return the weights, and count the hooks and replaced ``forward`` methods that are left."""
    model, *inputs = case
    weights = answer(model, *inputs)
    hooks_left = 0
    for module in model.modules():
        hooks_left += len(module._forward_hooks) + len(module._forward_pre_hooks)
        hooks_left += bool(vars(module).pop("forward", None))
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return {"weights": weights, "hooks left in the model": hooks_left}


EXERCISES = (
    Exercise("dataset", course.LookupDataset, _dataset_cases, _items),
    Exercise("collate", course.collate_fn, _collate_cases),
    Exercise("attention", scaled_dot_product_attention, _attention_cases),
    Exercise("heads", _Heads, _heads_cases, build, tolerance=1e-4),
    Exercise(
        "feed_forward",
        _any_dropout(course_network.PositionWiseFeedForward),
        _feed_forward_cases,
        _HalfDropped(),
    ),
    Exercise(
        "encoder_layer", _any_dropout(_EncoderLayer), _encoder_layer_cases, build, tolerance=1e-4
    ),
    Exercise(
        "decoder_layer", _any_dropout(_DecoderLayer), _decoder_layer_cases, build, tolerance=1e-4
    ),
    Exercise("encoder", _any_dropout(_Encoder), _encoder_cases, build, tolerance=1e-4),
    Exercise(
        "positions",
        lambda length, width: SinusoidalPositions(width, length).table,
        _positions_cases,
        same_dtype=True,
    ),
    Exercise(
        "decoder", _any_dropout(course_network.Decoder), _decoder_cases, build, tolerance=1e-4
    ),
    Exercise(
        "model", course_network.CrossAttentionLookupModel, _model_cases, build, tolerance=1e-4
    ),
    Exercise(
        "training",
        course.train_model,
        _training_cases,
        _trained,
        gradients=False,
        same_dtype=True,
        names=("logits", "train_loader", "val_loader", "num_epochs", "learning_rate"),
    ),
    Exercise("decode", course.greedy_decode, _decode_cases, gradients=False),
    Exercise("scrambling", _library_scrambling, _scrambling_cases, gradients=False),
    Exercise("hook", Watched.weights, _hook_cases, _watching, gradients=False),
    Verdict("bag", _judge_bag),
)
