"""Comparisons of designed heads with heads that the course's loop trained, for each task."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from glassformer.figures.heat_maps import panel
from glassformer.figures.single_heads import draw_circuit_comparison, draw_comparison
from glassformer.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, in_style, new_figure
from glassformer.handcraft import circuits
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadTrace, HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import Certificate, verify
from glassformer.labs.hand_designed.course import train_loop
from glassformer.labs.hand_designed.course_tasks import MAKE_BATCH, SHOWN, shown_sequence
from glassformer.labs.hand_designed.distances import (
    HeadDistance,
    attention_weights,
    cosine,
    head_distance,
)

TITLES = {
    "identity": "by content",
    "copy_first": "by position",
    "unique": "by content and position",
}


@dataclass(frozen=True)
class Pair:
    """Comparison of two heads of equal shapes."""

    entries: dict[str, float]
    """Cosine of the entries of each matrix."""
    distance: HeadDistance
    """Distances that do not depend on the basis."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of the designed head ("hand") with a trained head ("learned")."""

    task: str
    steps: int
    hand: dict[str, list[list[float]]]
    """Matrices Km, Qm, Vm and, if there are positions, pos."""
    learned: dict[str, list[list[float]]]
    certificate: Certificate
    """Certificate of the trained head."""
    hand_learned: Pair
    learned_again: Pair | None
    """Comparison of trainings from two seeds; None in the quick version."""
    learned_moved: Pair
    """Comparison of the trained head with itself in another basis."""
    spread: dict[str, dict[str, dict[str, float]]]
    """Mean weights ``spread[head][sign][kind]``, empty if targets are no signs.

    Kinds of keys are "itself", "same letter", "other letters" and "CLS". The mean is over queries
    with the target "+1" or "-1".
    """
    on_wanted: dict[str, float]
    """Mean weight on the keys that the design attends to."""
    value_gap: list[float]
    """Mean absolute difference of the values at each position, CLS first."""
    crossed: dict[str, dict[str, float]]
    """Mean absolute error ``crossed[attention of][values of]``."""

    def head(self, name: str) -> HeadWeights:
        """Return the designed head ("hand") or the trained head ("learned")."""
        return HeadWeights(**(self.hand if name == "hand" else self.learned))

    @property
    def pairs(self) -> dict[str, Pair]:
        """Pairs of heads that were compared, by their names in the figure."""
        pairs = {"designed, trained": self.hand_learned}
        if self.learned_again is not None:
            pairs["trained, two seeds"] = self.learned_again
        pairs["trained, two bases"] = self.learned_moved
        return pairs

    def trace(self, name: str) -> HeadTrace:
        """Return every intermediate result on the course's sequence."""
        return NumpyHead(self.head(name)).trace(shown_sequence(self.task)[0])

    def own_keys(self, name: str) -> tuple[float, float]:
        """Return mean cosines of a letter's query with its own key and with other letters' keys.

        The head must not have positions.
        """
        q, k = (
            rows / np.linalg.norm(rows, axis=1, keepdims=True)
            for rows in (self.head(name).Qm, self.head(name).Km)
        )
        return contrast(q @ k.T)

    def part_scores(self, name: str) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return mean scores of a letter with itself and with others, and the same for positions.

        The position of CLS is left out.
        """
        space = TASKS[self.task]().space
        parts = circuits.qk_parts(self.head(name), space)
        letters = len(space.letters)
        first = space.num_tokens + int(space.has_cls)
        return contrast(parts[:letters, :letters]), contrast(parts[first:, first:])

    def signs(self) -> tuple[float, float]:
        """Return the trained head's value of CLS and its mean value of a letter (task unique)."""
        values = circuits.values_at_places(self.head("learned"), TASKS[self.task]().space)[:, 0]
        return float(values[0]), float(values[1:].mean())


def contrast(square: Float[np.ndarray, "row column"]) -> tuple[float, float]:
    """Return the mean entry on the diagonal and the mean entry off it."""
    diagonal = np.eye(len(square), dtype=bool)
    return float(square[diagonal].mean()), float(square[~diagonal].mean())


def compare(name: str, steps: int, seed: int, again: bool) -> Comparison:
    """Train a head on the course's task ``name`` and compare it with the design.

    With ``again``, a second head is trained from the next seed.
    """
    task = TASKS[name]()
    designed = design(task)
    hand = designed.weights
    learned = _train(name, hand, steps, seed)
    learned_again = None
    if again:
        learned_again = _pair(learned, _train(name, hand, steps, seed + 1), task)
    heads = {"hand": hand, "learned": learned}
    block, counted, target = task.all_cases[:3]
    attention = {key: attention_weights(head, task.space, block) for key, head in heads.items()}
    values = {key: circuits.values_at_places(head, task.space) for key, head in heads.items()}
    places = task.space.place_of(block)
    positions = task.space.places[1]
    gaps = np.abs(values["hand"] - values["learned"]).mean(axis=1)
    wanted_keys = designed.description.wanted(block)

    def error(weights: np.ndarray, value: np.ndarray) -> float:
        return float(np.abs(weights @ value[places] - target)[counted].mean())

    return Comparison(
        task=name,
        steps=steps,
        hand={name: matrix.tolist() for name, matrix in hand.matrices.items()},
        learned={name: matrix.tolist() for name, matrix in learned.matrices.items()},
        certificate=verify(learned, task, tolerance=None),
        hand_learned=_pair(hand, learned, task),
        learned_again=learned_again,
        learned_moved=_pair(learned, circuits.in_random_bases(learned, seed), task),
        spread={key: _spread(weights, task) for key, weights in attention.items()},
        on_wanted={
            key: float((weights * wanted_keys).sum(axis=2)[counted].mean())
            for key, weights in attention.items()
        },
        value_gap=[
            float(gaps[positions == position].mean())
            for position in range(task.space.num_positions)
        ],
        crossed={
            key: {other: error(weights, value) for other, value in values.items()}
            for key, weights in attention.items()
        },
    )


@dataclass(frozen=True)
class Training:
    """A further training, with the head's certificate and its distance from the design."""

    seed: int
    certificate: Certificate
    distance: HeadDistance


def train_again(name: str, steps: int, seed: int) -> Training:
    """Train a head on the course's task ``name`` from ``seed``."""
    task = TASKS[name]()
    designed = design(task).weights
    trained = _train(name, designed, steps, seed)
    certificate = verify(trained, task, tolerance=None)
    return Training(seed, certificate, head_distance(designed, trained, task.space))


def _spread(
    weights: Float[np.ndarray, "sequence query key"], task: Task
) -> dict[str, dict[str, float]]:
    """Return mean weights by the sign of the target and the kind of key."""
    block, counted, target = task.all_cases[:3]
    itself = np.eye(block.tokens.shape[1], dtype=bool)[None]
    same = (block.tokens[:, :, None] == block.tokens[:, None, :]) & ~itself
    cls = np.zeros_like(same)
    cls[:, :, 0] = task.space.has_cls
    other = ~itself & ~same & ~cls
    kinds = {"itself": itself, "same letter": same, "other letters": other, "CLS": cls}
    signs = ("+1", "-1") if task.readout == "sign" else ()
    groups = {sign: counted & (np.sign(target[..., 0]) == float(sign)) for sign in signs}
    return {
        group: {
            kind: float((weights * keys).sum(axis=2)[queries].mean())
            for kind, keys in kinds.items()
        }
        for group, queries in groups.items()
    }


def _train(name: str, like: HeadWeights, steps: int, seed: int) -> HeadWeights:
    """Train a head of the same shapes with the course's loop."""
    sizes = (like.input_dim, like.qk_dim, like.v_dim, like.pos_dim or None, like.max_seq_len)
    cls = TASKS[name]().space.has_cls
    log_interval = max(1, steps // 2)
    head, _ = train_loop(
        MAKE_BATCH[name], *sizes, cls, num_epochs=steps, log_interval=log_interval, seed=seed
    )
    return head.to_weights()


def _pair(first: HeadWeights, second: HeadWeights, task: Task) -> Pair:
    entries = {
        name: cosine(matrix, second.matrices[name]) for name, matrix in first.matrices.items()
    }
    return Pair(entries, head_distance(first, second, task.space))


def draw_heads(comparison: Comparison) -> Figure:
    """Draw the course's eight panels of both heads, on the course's sequence."""
    sequence, names = shown_sequence(comparison.task)
    return draw_comparison(
        comparison.head("hand"),
        comparison.head("learned"),
        sequence,
        names,
        input_names=list(TASKS[comparison.task]().space.token_names),
        title=f"Attention {TITLES[comparison.task]} ({comparison.task}); white is 0",
    )


def draw_circuits(comparison: Comparison) -> Figure:
    """Draw the QK circuits and the values of both heads.

    Entries are shares of each table's largest entry. Score rows are without the constant that
    softmax ignores.
    """
    task = TASKS[comparison.task]()
    hand, learned = (
        circuits.circuit_tables(comparison.head(name), task.space) for name in ("hand", "learned")
    )
    return draw_circuit_comparison(
        hand[:2],
        learned[:2],
        hand[2],
        f"Circuits of attention {TITLES[comparison.task]} ({comparison.task})",
        value_names=list(task.space.letters) if task.readout == "argmax" else ["sign"],
    )


@in_style
def draw_cosines(comparisons: Sequence[Comparison]) -> Figure:
    """Draw cosines of entries and of circuits, for each pair of heads for the same task."""
    looks = (
        ("entries of Km", "s", ORANGE),
        ("entries of Qm", "D", RED),
        ("entries of Vm", "v", PURPLE),
        ("QK circuit", "o", BLUE),
        ("values of places", "^", GREEN),
    )
    names = list(comparisons[0].pairs)
    figure, panels = new_figure(9, 1.4 + 0.65 * len(names), columns=len(comparisons), sharey=True)
    rows = np.arange(len(names))
    for ax, comparison in zip(panels, comparisons, strict=True):
        pairs = comparison.pairs.values()
        entries = [[pair.entries[name] for pair in pairs] for name in ("Km", "Qm", "Vm")]
        qk = [pair.distance.qk_cosine for pair in pairs]
        values = [pair.distance.value_cosine for pair in pairs]
        series = zip(looks, [*entries, qk, values], strict=True)
        for number, ((label, marker, color), cosines) in enumerate(series):
            places = rows + 0.13 * (number - 2)
            ax.plot(cosines, places, marker, color=color, label=label, markersize=7)
        ax.axvline(0, color=BLACK, linewidth=0.8)
        ax.set(
            title=comparison.task, xlabel="cosine", xlim=(-1.08, 1.08), xticks=[-1, -0.5, 0, 0.5, 1]
        )
    panels[0].set_yticks(rows, names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(looks)
    )
    return figure


@in_style
def draw_signs(comparison: Comparison) -> Figure:
    """Draw the course's last figure: signs of the designed and the trained head, and the target.

    CLS is left out.
    """
    names = list(SHOWN[comparison.task])
    task = TASKS[comparison.task]()
    target = task.target(task.space.encode(names)[None])[0]
    outputs = {
        "Hand-designed": comparison.trace("hand").output[1:],
        "Trained": comparison.trace("learned").output[1:],
    }
    figure, panels = new_figure(8, 1.35, columns=3)
    for ax, (title, numbers) in zip(panels, [*outputs.items(), ("Expected", target)], strict=True):
        panel(
            ax,
            np.sign(numbers).T,
            title,
            "sequence",
            "sign",
            limits=(-1, 1),
            colormap="RdBu_r",
            x_names=names,
        )
        for column, number in enumerate(numbers.ravel()):
            ax.text(
                column, 0, f"{number:+.2f}", ha="center", va="center", fontsize=9, color="white"
            )
    return figure
