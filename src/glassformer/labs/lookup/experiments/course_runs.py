"""The seed's experiment: train on fixed facts, scramble every context, look at the cross-attention."""

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
"""By key of a fact: [head][target token][role], weights on ROLES, averaged over the 24 orders of
the context.
"""


@dataclass(frozen=True)
class CourseRun:
    """One training of the seed's model, and what the weights with the lowest validation loss do."""

    seed: int
    source_positions: str
    num_parameters: int
    evaluations: list[
        tuple[int, float, float]
    ]  # epoch, validation loss, share of validation examples right
    best_epoch: int
    test_seen: float  # the share of test examples whose context was trained on
    test_accuracy: float
    contexts_accuracy: float
    scrambling: Scrambling
    before: Attention
    after: Attention
    side_by_side: list[str]

    @property
    def right_after(self) -> int | None:
        """The first epoch after which every validation example is answered right."""
        return next((epoch for epoch, _, share in self.evaluations if share == 1), None)

    @property
    def spikes(self) -> dict[str, tuple[int, float]]:
        """For each fact, the head (from 0) with the largest weight on the value token after
        training, its weight.
        """
        on_value = {key: [head[0][VALUE] for head in heads] for key, heads in self.after.items()}
        return {key: (int(np.argmax(weights)), max(weights)) for key, weights in on_value.items()}

    @property
    def steadiest(self) -> float:
        """The largest weight on the value token that one head has for every fact."""
        return float(np.array(list(self.after.values()))[:, :, 0, VALUE].min(0).max())

    @property
    def sharpest(self) -> int:
        """The head with the largest weight on the fact's two tokens after training, averaged over
        facts.
        """
        return int(shares(self.after).sum(1).argmax())


def shares(attention: Attention) -> Float[np.ndarray, "head 2"]:
    """The weight of each head at ``[SOS]`` on the key and on the value, averaged over the facts."""
    return np.mean(list(attention.values()), axis=0)[:, 0, [KEY, VALUE]]


def course_split(
    seed: int, num_samples: int = NUM_SAMPLES
) -> tuple[tuple[LookupExample, ...], ...]:
    """The seed's 4,000 training, 500 validation and 500 test examples, or as large shares of
    ``num_samples``.
    """
    return lookup.split_lookup(lookup.lookup_examples(num_samples, seed))


def build_course_model(seed: int, source_positions: Positions = "none") -> EncoderDecoder:
    """The seed's model before training; positions in its encoder make the control."""
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

    It has the weights with the lowest validation loss; without a directory the last ones.
    """
    model, (training, validation, _) = (
        build_course_model(seed, source_positions),
        course_split(seed, num_samples),
    )
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
    """Train one model, and try it on all 72 contexts in all orders."""
    if source_positions == "none":
        name = f"course-{seed}"
    else:
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
        return CourseRun(
            seed=seed,
            source_positions=source_positions,
            num_parameters=sum(weight.numel() for weight in model.parameters()),
            evaluations=[
                (step // steps, each["loss"], each["accuracy"]) for step, each in result.evaluations
            ],
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
    """The share of examples for which the model writes exactly the value and ``[EOS]``."""
    batch = lookup_batch(examples)
    written = greedy_decode(model, batch.source, TARGET_LEN, SOS)
    return float((written == batch.targets).all(-1).double().mean())


@torch.no_grad()
def written_logits(
    model: EncoderDecoder, source: Int[Tensor, "batch source"]
) -> Float[Tensor, "batch target vocab"]:
    """The logits of each token that the model writes, after what it has written itself."""
    memory = model.encode(source)
    written = torch.full((len(source), 1), SOS, device=source.device)
    for _ in range(TARGET_LEN):
        logits = model.decode(written, memory)
        written = torch.cat([written, logits[:, -1:].argmax(-1)], dim=1)
    return logits


@torch.no_grad()
def attention(model: EncoderDecoder) -> Attention:
    """The cross-attention while the model reads each fact's contexts and writes their targets."""
    found = {}
    for key in FACTS:
        examples = [example for example in all_contexts() if example.key == key]
        batch = lookup_batch(examples)
        orders = [list[str](example.order) for example in examples]
        with capture(model, ["decoder_layers.0.cross_attention"]) as seen:
            model(batch.source, batch.inputs)
        (weights,) = seen.weights.values()
        places = torch.tensor(
            [[0, *(1 + order.index(role) for role in ROLES[1:])] for order in orders]
        )
        found[key] = weights.gather(3, places[:, None, None].expand_as(weights)).mean(0).tolist()
    return found


def side_by_side(
    model: EncoderDecoder, examples: Sequence[LookupExample], seed: int = 0
) -> list[str]:
    """Two lines for each example: the words read and written, in the original order and in another
    one.
    """
    source = lookup_batch(examples).source
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(source.shape[1], generator=generator) for _ in examples])
    lines = []
    for original, scrambled in zip(source, source.gather(1, orders), strict=True):
        for name, row in (("original", original), ("scrambled", scrambled)):
            written = greedy_decode(model, row[None], TARGET_LEN, SOS, EOS)[0]
            lines.append(
                f"{name:9}  {' '.join(course.token_words(row)):27} ->  "
                f"{' '.join(course.token_words(written))}"
            )
    return lines


@in_style
def draw_training(results: Results) -> Figure:
    """Validation loss by epoch."""
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
    """The largest change of a logit over all orders of each context, without positions in the
    encoder and with.
    """
    figure, (ax,) = new_figure(8, 4.2)
    first = results.course[0].scrambling
    control = results.control.scrambling
    series = (
        (control, "sinusoidal positions in the encoder", RED, "o"),
        (first, "no positions in it", BLUE, "s"),
    )
    for found, label, color, marker in series:
        changes = np.array([context.largest_change for context in found.contexts])
        # A change of exactly 0 has no place on a logarithmic axis.
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
    title = f"Largest change of a logit over {first.orders // len(first.contexts)} orders of each context"
    ax.set(title=title, xlabel="context", ylabel="change of a logit", yscale="log")
    label_powers_of_ten(ax.yaxis)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return figure


def draw_cross_attention(results: Results) -> Figure:
    """The cross-attention of one fact's context, head by head, before training and after."""
    model = results.course[0]
    key = "CHAIR"
    words = [{"key": key, "value": FACTS[key]}.get(role, role) for role in ROLES]
    title = f"Cross-attention of one context before and after training (seed {model.seed})"
    weights = np.array([model.before[key], model.after[key]]).round(2)  # two decimals in every cell
    return cross_attention(
        weights, words, ["[SOS]", FACTS[key]], title, layer_names=("before", "after")
    )


@in_style
def draw_sharpness(results: Results) -> Figure:
    """Each head's weight on key and value at ``[SOS]``, averaged over the facts, before training
    and after.
    """
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
    """A bar for each head; those of before training are on the left and hatched."""
    before = "before" in label
    heads = np.arange(np.size(heights))
    style: dict[str, Any] = {
        "color": color,
        "hatch": dots + "///" * before,
        "edgecolor": BLACK,
        "linewidth": 0.6,
    }
    ax.bar(heads + (-0.2 if before else 0.2), heights, 0.36, bottom=bottom, label=label, **style)
    ax.set_xticks(heads, [f"head {head + 1}" for head in heads])
    ax.set_ylim(0, 1.05)
    ax.grid(False, axis="x")
