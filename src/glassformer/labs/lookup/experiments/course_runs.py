"""The seed's experiment: train on fixed facts, scramble contexts, inspect the cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from glassformer.data import lookup
from glassformer.data.lookup import EOS, FACTS, SOS, LookupExample, all_contexts, lookup_batch
from glassformer.figures.attention_maps import cross_attention
from glassformer.figures.style import (
    BLACK,
    BLUE,
    ORANGE,
    RED,
    SKY,
    in_style,
    label_powers_of_ten,
    line,
    new_figure,
)
from glassformer.generation import greedy_decode
from glassformer.labs.lookup import course
from glassformer.labs.lookup.course_network import CrossAttentionLookupModel
from glassformer.labs.run import Run
from glassformer.models.encoder import Positions
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import seeded
from glassformer.observe.capture import capture
from glassformer.observe.scrambling import Scrambling, scrambling_test
from glassformer.training import (
    EpochBatches,
    TargetTask,
    TrainingConfig,
    TrainingResult,
    load_weights,
)
from glassformer.training.loop import train_in

if TYPE_CHECKING:
    from glassformer.labs.lookup.experiments import Results

NUM_SAMPLES = 5000
TARGET_LEN = 2
ROLES = ("NAME", "COLOR", "key", "ITEM", "value")
KEY = ROLES.index("key")
VALUE = ROLES.index("value")
SIZES = (
    course.VOCAB_SIZE,
    course.D_MODEL,
    course.NUM_HEADS,
    course.NUM_LAYERS,
    course.D_FF,
    course.MAX_SEQ_LEN,
)

Attention = dict[str, list[list[list[float]]]]
"""Weights [head][target token][role] by key of a fact, averaged over the 24 orders of its context.

The roles are :data:`ROLES`.
"""


@dataclass(frozen=True)
class CourseRun:
    """A training of the seed's model, measured with the weights of lowest validation loss."""

    seed: int
    source_positions: str
    num_parameters: int
    evaluations: list[tuple[int, float, float]]
    """Epoch, validation loss, and share of validation examples answered right."""
    best_epoch: int
    test_seen: float
    """Share of test examples whose context is also a training context."""
    test_accuracy: float
    contexts_accuracy: float
    """Accuracy on all 72 contexts."""
    scrambling: Scrambling
    before: Attention
    """Cross-attention before training."""
    after: Attention
    """Cross-attention after training."""
    side_by_side: list[str]
    """Lines of :func:`side_by_side`."""

    @property
    def right_after(self) -> int | None:
        """First epoch after which every validation example is answered right."""
        return next((epoch for epoch, _, share in self.evaluations if share == 1), None)

    @property
    def spikes(self) -> dict[str, tuple[int, float]]:
        """Head (from 0) with the largest weight on the value after training, and the weight.

        The keys are the facts.
        """
        on_value = {key: [head[0][VALUE] for head in heads] for key, heads in self.after.items()}
        return {key: (int(np.argmax(weights)), max(weights)) for key, weights in on_value.items()}

    @property
    def steadiest(self) -> float:
        """Largest weight on the value token that a single head reaches for every fact."""
        return float(np.array(list(self.after.values()))[:, :, 0, VALUE].min(0).max())

    @property
    def sharpest(self) -> int:
        """Head with the largest mean weight on a fact's two tokens after training."""
        return int(shares(self.after).sum(1).argmax())


def shares(attention: Attention) -> Float[np.ndarray, "head 2"]:
    """Return each head's mean weights at ``[SOS]`` on the key and on the value, over the facts."""
    return np.mean(list(attention.values()), axis=0)[:, 0, [KEY, VALUE]]


def course_split(
    seed: int, num_samples: int = NUM_SAMPLES
) -> tuple[tuple[LookupExample, ...], ...]:
    """Return training, validation and test examples: 80, 10 and 10 % of ``num_samples``."""
    return lookup.split_lookup(lookup.lookup_examples(num_samples, seed))


def build_course_model(seed: int, source_positions: Positions = "none") -> EncoderDecoder:
    """Build the seed's model before training; the control has positions in the encoder."""
    with torch.device("meta"):
        config = CrossAttentionLookupModel(*SIZES).config
    with seeded(seed):
        return EncoderDecoder(replace(config, source_positions=source_positions))


def train_course(
    seed: int,
    directory: Path | None,
    *,
    epochs: int = course.NUM_EPOCHS,
    num_samples: int = NUM_SAMPLES,
    source_positions: Positions = "none",
) -> tuple[EncoderDecoder, TrainingResult]:
    """Train the seed's model with Adam at 1e-4 and batches of 32, evaluated after each epoch.

    The returned model has the weights with the lowest validation loss, or without a directory the
    last weights.
    """
    model = build_course_model(seed, source_positions)
    training, validation, _ = course_split(seed, num_samples)
    steps = -(-len(training) // course.BATCH_SIZE)
    config = TrainingConfig(
        steps=epochs * steps,
        batch_size=course.BATCH_SIZE,
        learning_rate=course.LEARNING_RATE,
        weight_decay=0.0,
        betas=(0.9, 0.999),
        schedule="constant",
        clip_norm=None,
        eval_every=steps,
        checkpoint_every=steps,
        keep_checkpoints=1,
        seed=seed,
        log_every=steps,
    )
    description = {"model": asdict(model.config), "samples": num_samples, "seed": seed}
    task = TargetTask(
        EpochBatches(lookup_batch(training)._asdict(), seed=seed),
        lookup_batch(validation)._asdict(),
    )
    result = train_in(directory, model, task, config, description)
    if directory is not None:
        load_weights(model, directory / "best")
    return model, result


def measure(current: Run, seed: int, source_positions: Positions = "none") -> CourseRun:
    """Train a model, and measure it on all 72 contexts in all orders."""
    name = f"course-{seed}"
    if source_positions != "none":
        name = f"course-{source_positions}-{seed}"

    def compute() -> CourseRun:
        print(f"the seed's model, source positions {source_positions}, seed {seed}", flush=True)
        epochs = current.settings.epochs
        directory = current.out / "trainings" / name
        model, result = train_course(
            seed, directory, epochs=epochs, source_positions=source_positions
        )
        training, _, test = course_split(seed)
        steps = result.step // epochs
        assert result.best is not None
        untrained = build_course_model(seed, source_positions).eval()
        source = lookup_batch(all_contexts()).source
        evaluations = [
            (step // steps, metrics["loss"], metrics["accuracy"])
            for step, metrics in result.evaluations
        ]
        return CourseRun(
            seed=seed,
            source_positions=source_positions,
            num_parameters=sum(weight.numel() for weight in model.parameters()),
            evaluations=evaluations,
            best_epoch=result.best.step // steps,
            test_seen=lookup.share_seen(training, test),
            test_accuracy=share_right(model, test),
            contexts_accuracy=share_right(model, all_contexts()),
            scrambling=scrambling_test(lambda rows: written_logits(model, rows), source),
            before=attention(untrained),
            after=attention(model),
            side_by_side=side_by_side(model, test[:6], seed),
        )

    return current.kept(name, CourseRun, compute)


def share_right(model: EncoderDecoder, examples: Sequence[LookupExample]) -> float:
    """Return the share of examples for which the model writes exactly the value and ``[EOS]``."""
    batch = lookup_batch(examples)
    written = greedy_decode(model, batch.source, TARGET_LEN, SOS)
    return float((written == batch.targets).all(-1).double().mean())


@torch.no_grad()
def written_logits(
    model: EncoderDecoder, source: Int[Tensor, "batch source"]
) -> Float[Tensor, "batch target vocab"]:
    """Return the logits of each token that the model writes in greedy decoding."""
    memory = model.encode(source)
    written = torch.full((len(source), 1), SOS, device=source.device)
    for _ in range(TARGET_LEN):
        logits = model.decode(written, memory)
        written = torch.cat([written, logits[:, -1:].argmax(-1)], dim=1)
    return logits


@torch.no_grad()
def attention(model: EncoderDecoder) -> Attention:
    """Return the cross-attention for each fact, averaged over its contexts."""
    by_key = {}
    for key in FACTS:
        examples = [example for example in all_contexts() if example.key == key]
        batch = lookup_batch(examples)
        with capture(model, ["decoder_layers.0.cross_attention"]) as captured:
            model(batch.source, batch.inputs)
        (weights,) = captured.weights.values()
        places = torch.tensor([_role_places(example) for example in examples])
        by_role = weights.gather(3, places[:, None, None].expand_as(weights))
        by_key[key] = by_role.mean(0).tolist()
    return by_key


def _role_places(example: LookupExample) -> list[int]:
    """Return the place of each role in a context, which begins with ROLES[0]."""
    order = list[str](example.order)
    return [0, *(1 + order.index(role) for role in ROLES[1:])]


def side_by_side(
    model: EncoderDecoder, examples: Sequence[LookupExample], seed: int = 0
) -> list[str]:
    """Return lines of words read and written, for each example in two orders."""
    source = lookup_batch(examples).source
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(source.shape[1], generator=generator) for _ in examples])
    lines = []
    for original, scrambled in zip(source, source.gather(1, orders), strict=True):
        for name, row in (("original", original), ("scrambled", scrambled)):
            written = greedy_decode(model, row[None], TARGET_LEN, SOS, EOS)[0]
            words_read = " ".join(course.token_words(row))
            words_written = " ".join(course.token_words(written))
            lines.append(f"{name:9}  {words_read:27} ->  {words_written}")
    return lines


@in_style
def draw_training(results: Results) -> Figure:
    """Draw the validation loss by epoch."""
    figure, (ax,) = new_figure(7, 3.6)
    models = {f"seed {model.seed}": model for model in results.course}
    models[f"seed {results.control.seed}, with positions"] = results.control
    for series, (label, model) in enumerate(models.items()):
        epochs, losses, _ = zip(*model.evaluations, strict=True)
        ax.plot(epochs, losses, label=label, **line(series, len(epochs)))
    ax.set(
        title="Validation loss (log scale)", xlabel="epoch", ylabel="nats per token", yscale="log"
    )
    label_powers_of_ten(ax.yaxis)
    ax.locator_params(axis="x", integer=True)
    ax.legend()
    return figure


@in_style
def draw_scrambling(results: Results) -> Figure:
    """Draw the largest change of a logit over all orders of each context, with the control."""
    figure, (ax,) = new_figure(8, 4.2)
    first = results.course[0].scrambling
    control = results.control.scrambling
    series = (
        (control, "sinusoidal positions in the encoder", RED, "o"),
        (first, "no positions in it", BLUE, "s"),
    )
    for scrambling, label, color, marker in series:
        changes = np.array([context.largest_change for context in scrambling.contexts])
        # A logarithmic axis cannot show a change of exactly 0.
        numbers = np.arange(1, len(changes) + 1)
        ax.plot(
            numbers,
            np.maximum(changes, 1e-8),
            label=label,
            color=color,
            marker=marker,
            linestyle="none",
        )
    ax.axhline(first.tolerance, color=BLACK, linestyle="--", linewidth=1)
    ax.annotate(
        "allowed for rounding",
        (1, first.tolerance),
        xytext=(0, 3),
        textcoords="offset points",
        va="bottom",
    )
    orders = first.orders // len(first.contexts)
    title = f"Largest change of a logit over {orders} orders of each context"
    ax.set(title=title, xlabel="context", ylabel="change of a logit", yscale="log")
    label_powers_of_ten(ax.yaxis)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return figure


def draw_cross_attention(results: Results) -> Figure:
    """Draw each head's cross-attention in one fact's contexts, before and after training."""
    model = results.course[0]
    key = "CHAIR"
    words = [{"key": key, "value": FACTS[key]}.get(role, role) for role in ROLES]
    title = f"Cross-attention of one context before and after training (seed {model.seed})"
    weights = np.array([model.before[key], model.after[key]]).round(2)  # cells show two decimals
    return cross_attention(
        weights, words, ["[SOS]", FACTS[key]], title, layer_names=("before", "after")
    )


@in_style
def draw_sharpness(results: Results) -> Figure:
    """Draw each head's mean weights on key and value at ``[SOS]``, before and after training."""
    figure, axes = new_figure(
        3.6 * len(results.course) + 1, 4.2, columns=len(results.course), sharey=True
    )
    for ax, model in zip(axes, results.course, strict=True):
        for when, attention, colors in (
            ("before", model.before, (SKY, ORANGE)),
            ("after", model.after, (BLUE, RED)),
        ):
            on_key, on_value = shares(attention).T
            draw_bars(ax, on_key, f"key, {when}", colors[0])
            draw_bars(ax, on_value, f"value, {when}", colors[1], bottom=on_key, dots="...")
        ax.set(title=f"Seed {model.seed}")
    axes[0].set_ylabel("attention weight at [SOS]")
    columns = min(4, 2 * len(results.course))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def draw_bars(
    ax: Axes, heights: ArrayLike, label: str, color: str, bottom: ArrayLike = 0.0, dots: str = ""
) -> None:
    """Draw a bar for each head; bars from before training are on the left and hatched."""
    before = "before" in label
    heads = np.arange(np.size(heights))
    style: dict[str, Any] = {
        "color": color,
        "hatch": dots + "///" * before,
        "edgecolor": BLACK,
        "linewidth": 0.6,
    }
    offset = -0.2 if before else 0.2
    ax.bar(heads + offset, heights, 0.36, bottom=bottom, label=label, **style)
    ax.set_xticks(heads, [f"head {head + 1}" for head in heads])
    ax.set_ylim(0, 1.05)
    ax.grid(False, axis="x")
