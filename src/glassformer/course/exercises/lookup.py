"""Exercises of the lookup lesson."""

import random
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

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
    """Keys and values of the exercise "bag": three of each, or four in half of the other variants."""
    if seed == 0:
        return list("ABC"), list("123")
    drawn = random.Random(seed)
    count = drawn.choice((3, 4))
    return drawn.sample("ABCDEFGHKLMNPRSTUVWXYZ", count), drawn.sample("123456789", count)


def _judge_bag(answer: Any, seed: int) -> Judgement:
    """Every context with the bag has to be there, none twice, and the share that of one value of
    the first key.
    """
    keys, values = draw_bag(seed)
    if not isinstance(answer, dict) or not {"contexts", "share"} <= answer.keys():
        return Judgement(False, "expected a dictionary with 'contexts' and 'share'")
    contexts = answer["contexts"]
    share = answer["share"]
    if not isinstance(contexts, list) or not all(isinstance(each, dict) for each in contexts):
        return Judgement(False, "'contexts' has to be a list of dictionaries from key to value")
    wanted = [dict(zip(keys, order, strict=True)) for order in permutations(values)]
    for number, context in enumerate(contexts):
        if context not in wanted:
            return Judgement(
                False,
                f"{str(context)[:200]} has another bag than {keys} and {values}",
                str(context)[:200],
            )
        if context in contexts[:number]:
            return Judgement(False, f"{context} is there twice", str(context))
    left = [context for context in wanted if context not in contexts]
    if left:
        return Judgement(
            False,
            f"{len(left)} of {len(wanted)} contexts are not there, such as {left[0]}",
            str(left[0]),
        )
    near = isinstance(share, int | float) and 0 < share < 1 and abs(share - 1 / len(values)) < 1e-9
    if not near:
        return Judgement(
            False,
            f"the contexts are right, the share is not: in how many of the {len(wanted)} has the "
            "first key the same "
            "value? Give an exact number, such as 1 / 2",
        )
    return Judgement(True, f"right (all {len(wanted)} contexts of this bag, and the share)")


def _tokens(generator: torch.Generator, *shape: int) -> Tensor:
    """Words, without padding."""
    return torch.randint(3, VOCAB, shape, generator=generator)


def _padding(generator: torch.Generator, batch: int, length: int) -> Tensor:
    """True from a random place on, in each row; the first position is real."""
    real = torch.randint(1, length + 1, (batch, 1), generator=generator)
    return torch.arange(length) >= real


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
    """All items, then once more from the last on, beside another dataset."""
    dataset = answer(case["data"])
    other = answer(case["data"][::-1])
    numbers = range(len(case["data"]))
    items = [tuple(dataset[number]) for number in numbers]
    return [*items, tuple(other[0]), *(tuple(dataset[number]) for number in reversed(numbers))]


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
        yield ([tuple(each) for each in items],)
    # As the dataset of the lesson gives them.
    targets = [torch.tensor([7, EOS]), torch.tensor([EOS])]
    yield (
        [
            (_tokens(generator, 5), torch.cat([torch.tensor([SOS]), row[:-1]]), row)
            for row in targets
        ],
    )


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
    """The lesson's form, made of its attention function."""

    def forward(  # type: ignore[override]
        self, x: Tensor, source: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (
            part(given).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part, given in ((self.query, x), (self.key, source), (self.value, source))
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
    """Also, of equal tokens in training, with one unit inside that is dropped or not, the two
    outputs.
    """

    def __call__(self, answer: Any, case: Case) -> Built:
        """The output, and the least and the largest of many equal tokens."""
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
    """The library's class, also for a dropout of 1, which it refuses."""

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
    """Sizes with a dropout that drops everything, and nothing."""
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
        own, read = (None if each is None else each[:, 0, 0] for each in (mask, memory_mask))
        return super().forward(x, memory, key_padding=own, memory_padding=read)


def _decoder_layer_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, batch, length, read in (
        ((4, 1, 2), 1, 1, 2),
        ((4, 2, 6), 1, 3, 2),
        ((8, 4, 16), 3, 4, 5),
    ):
        for dtype in (torch.float32, torch.float64):
            x, memory = (
                _numbers(generator, batch, each, sizes[0], dtype=dtype) for each in (length, read)
            )
            mask, memory_mask = (
                ~_padding(generator, batch, each)[:, None, None] for each in (length, read)
            )
            yield sizes, x, memory
            yield sizes, x, memory, mask
            yield sizes, x, memory, mask, memory_mask
            yield (
                sizes,
                *(
                    _numbers(generator, batch + 1, each + 1, sizes[0], dtype=dtype)
                    for each in (length, read)
                ),
            )
    for dropping in _dropping("d_model num_heads d_ff", (4, 2, 6)):
        yield dropping, _numbers(generator, 1, 2, 4), _numbers(generator, 1, 3, 4)


class _Encoder(course_network.Encoder):
    """The library's encoder without a longest input."""

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
    for size, batch, length, read in sizes:
        tokens = _tokens(generator, batch, length)
        memory = _numbers(generator, batch, read, size[1])
        yield (
            size,
            tokens,
            memory,
            torch.zeros(batch, read).bool(),
            torch.zeros(batch, length).bool(),
        )
        yield (
            size,
            tokens,
            memory,
            _padding(generator, batch, read),
            _padding(generator, batch, length),
        )
        if length > 1:
            shorter = _numbers(generator, 1, read + 1, size[1])
            yield (
                size,
                tokens[:1, :-1],
                shorter,
                torch.zeros(1, read + 1).bool(),
                torch.zeros(1, length - 1).bool(),
            )
    for dropping in _dropping(
        "vocab_size d_model num_heads num_layers d_ff max_seq_len", (14, 4, 2, 1, 8, 5)
    ):
        memory = _numbers(generator, 1, 2, 4)
        seen = torch.zeros(1, 2).bool()
        yield dropping, _tokens(generator, 1, 2), memory, seen, seen


def _model_cases(generator: torch.Generator) -> Iterator[Case]:
    sizes = (
        ((14, 4, 1, 1, 2, 1), 1, 1, 1),
        ((14, 4, 2, 1, 8, 5), 2, 4, 3),
        ((14, 8, 2, 2, 8, 9), 3, 5, 6),
    )
    for size, batch, source, target in sizes:
        hidden = [_padding(generator, batch, each) for each in (source, target)]
        tokens = [_tokens(generator, batch, each) for each in (source, target)]
        yield size, *tokens
        yield size, tokens[0], torch.cat([torch.full((batch, 1), SOS), tokens[1][:, 1:]], dim=1)
        yield (
            size,
            *(each.masked_fill(mask, PAD) for each, mask in zip(tokens, hidden, strict=True)),
        )
        yield size, *tokens, *hidden
        yield size, *tokens, None, hidden[1]
        yield size, tokens[0].masked_fill(hidden[0], PAD), tokens[1], torch.zeros_like(hidden[0])
        yield size, *(_tokens(generator, batch + 1, each) for each in (source, max(target - 1, 1)))


class Table(nn.Module):
    """A model whose logits stand in a table, one row for each first word of a context; in training
    they are doubled.

    The token that is read raises its own logit; where padding is hidden, logits are smaller.
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
        """Logits [batch, target position, vocabulary]."""
        if src_padding_mask is None:
            source = enc_input == PAD
        else:
            source = src_padding_mask
        if tgt_padding_mask is None:
            target = dec_input == PAD
        else:
            target = tgt_padding_mask
        hidden = source[:, 1:2, None] + 2 * target[..., None]
        logits = self.rows[enc_input[:, 0], : dec_input.shape[1]] + F.one_hot(
            dec_input, self.rows.shape[-1]
        )
        return logits / (1 + hidden) * (2 if self.training else 1)


CONTRARY = -1


def _training_cases(generator: torch.Generator) -> Iterator[Case]:
    """Losses that fall; that rise from some epoch on; that never fall; that stay; targets with
    padding.
    """
    for batches, epochs, rate, agree, apart, factor in (
        (1, 1, 0.1, 1.0, 0, 1.0),
        (1, 2, 0.1, 1.0, 0, LARGE_LOGITS),  # logits whose exponentials overflow
        (2, 3, 0.1, 1.0, 0, 1.0),
        (2, 8, 0.5, 0.5, 0, 1.0),
        (3, 5, 0.2, 0.0, 0, 1.0),
        (
            1,
            3,
            0.1,
            1.0,
            3,
            1.0,
        ),  # contexts held out that training does not change: all epochs are equal
        (
            2,
            5,
            2.0,
            1.0,
            CONTRARY,
            1.0,
        ),  # batches that contradict each other: the training loss rises, too
    ):
        rows = factor * _numbers(generator, VOCAB, 3, 5)
        loaders: list[Batches] = []
        for _ in range(2):
            loaders.append(Batches())
            for number in range(batches):
                source = torch.tensor([[3, 6], [4, PAD], [5, 6]])[: 3 - number % 2]
                source[:, 0] += max(apart, 0) * (len(loaders) - 1)
                wanted = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 1]])[: len(source)]
                if apart == CONTRARY and number == 1:
                    wanted = wanted % 4 + 1
                if (
                    len(loaders) == 2
                ):  # those held out agree with what is trained on, in part or not at all
                    other = torch.rand(wanted.shape, generator=generator) >= agree
                    wanted = torch.where(other, wanted % 4 + 1, wanted)
                wanted[0, 1:] = PAD
                shifted = torch.cat([torch.full((len(source), 1), SOS), wanted[:, :-1]], 1)
                loaders[-1].append((source, shifted, wanted, source == PAD, shifted == PAD))
        yield rows, *loaders, epochs, rate


def _trained(answer: Callable[..., Any], case: Case) -> Any:
    rows, *others = case
    model = Table(rows)
    history = answer(model, *others)
    if isinstance(history, dict):
        history = {name: history[name] for name in ("train_loss", "val_loss") if name in history}
    return {"history": history, "weights at the end": model.rows.detach()}


class Writer(course_network.CrossAttentionLookupModel):
    """A model of random weights that writes [EOS] now and then, and never [PAD]; ``factor``
    multiplies its logits.
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
    # Models whose texts differ, of which some end.
    for seed, batch, most in (
        (13, 1, 1),
        (22, 1, 9),
        (13, 1, 3),
        (29, 2, 9),
        (37, 4, 9),
        (12, 4, 4),
        (13, 6, 9),
    ):
        yield Writer(seed), _tokens(generator, batch, 5), most
    yield Writer(22, LARGE_LOGITS), _tokens(generator, 2, 5), 9


class Reader:
    """From sources to logits by a table: of a set of words, or of which word stands where."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB, 2, 5, generator=generator)
        self.places = torch.randn(8, VOCAB, 2, 5, generator=generator)

    def __repr__(self) -> str:
        return f"a reader of {self.kind}"

    def __call__(self, source: Tensor) -> Tensor:
        """Logits [batch, 2, 5]."""
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
    found = scrambling.scrambling_test(predict, contexts)
    return found.largest_change, found.changed_tokens


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross_attention = _Heads(8, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + self.cross_attention(x, memory)[0]


class Watched(nn.Module):
    """A model with what the exercise "hook" needs: ``decoder.layers``, whose cross-attention
    returns its weights.
    """

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
        """Those of the last layer, without a hook."""
        x = self.decoder.embedding(dec_input)
        memory = self.encoder(enc_input)
        *first, last = self.decoder.layers
        for layer in first:
            x = layer(x, memory)
        weights: Tensor = last.cross_attention(x, memory)[1]
        return weights

    def forward(self, enc_input: Tensor, dec_input: Tensor, *_: Tensor) -> Tensor:
        """The residual stream after the last layer."""
        x: Tensor = self.decoder.embedding(dec_input)
        memory = self.encoder(enc_input)
        for layer in self.decoder.layers:
            x = layer(x, memory)
        return x


def _hook_cases(generator: torch.Generator) -> Iterator[Case]:
    for layers, batch, source, target in ((1, 1, 2, 1), (1, 2, 5, 2), (2, 3, 4, 3)):
        yield Watched(layers), _tokens(generator, batch, source), _tokens(generator, batch, target)


def _watching(answer: Callable[..., Any], case: Case) -> Any:
    """The weights, and the hooks and replaced ``forward`` methods that are left."""
    model, *inputs = case
    found = answer(model, *inputs)
    left = 0
    for part in model.modules():
        left += (
            len(part._forward_hooks)
            + len(part._forward_pre_hooks)
            + bool(vars(part).pop("forward", None))
        )
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return {"weights": found, "hooks left in the model": left}


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
