"""The designed head and heads that the course's recipe trained, for each of the course's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from glassformer.handcraft import circuits
from glassformer.handcraft.designs import design
from glassformer.handcraft.distances import HeadDistance, attention_weights, head_distance
from glassformer.handcraft.single_head import HeadTrace, HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import Certificate, verify
from glassformer.labs.hand_designed.course import train_loop
from glassformer.labs.hand_designed.course_tasks import MAKE_BATCH, SHOWN, shown_sequence
from glassformer.observe.figures.heat_maps import panel
from glassformer.observe.figures.single_heads import draw_circuit_comparison, draw_comparison
from glassformer.observe.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, in_style, new_figure

COURSE_SEED = 227
"""The course trains its first head from this seed."""

TITLES = {"identity": "by content", "copy_first": "by position", "unique": "by content and position"}

Matrices = dict[str, list[list[float]]]
"""Km, Qm, Vm and, where there are positions, pos."""

Attention = Float[np.ndarray, "sequence query key"]


@dataclass(frozen=True)
class Pair:
    """Two heads of equal shapes: the cosine of each matrix's entries, and what does not depend on the basis."""

    entries: dict[str, float]
    distance: HeadDistance

    def cosine(self, name: str) -> float:
        """Of a matrix, or of the circuits "qk" and "values"."""
        special = {"qk": self.distance.qk_cosine, "values": self.distance.value_cosine}
        return special[name] if name in special else self.entries[name]


@dataclass(frozen=True)
class Comparison:
    """The designed head ("hand") and a trained one ("learned")."""

    task: str
    steps: int
    hand: Matrices
    learned: Matrices
    certificate: Certificate  # of the trained head
    hand_learned: Pair
    learned_again: Pair | None  # trained from the next seed; left out of the quick version
    learned_moved: Pair  # the trained head in another basis
    # spread[head][sign][kind]: mean weight on keys "itself", "same letter", "other letters" and "CLS", over the queries
    # with the target "+1" or "-1"; empty where targets are no signs
    spread: dict[str, dict[str, dict[str, float]]]
    on_wanted: dict[str, float]  # mean weight on the wanted keys
    value_gap: list[float]  # mean absolute difference of the values at each position, CLS first
    crossed: dict[str, dict[str, float]]  # mean absolute error by crossed[attention of][values of]

    def head(self, name: str) -> HeadWeights:
        """The designed head or the trained one."""
        return HeadWeights(**(self.hand if name == "hand" else self.learned))

    def trace(self, name: str) -> HeadTrace:
        """Every intermediate result on the course's sequence."""
        return NumpyHead(self.head(name)).trace(shown_sequence(self.task)[0])

    def own_keys(self, name: str) -> tuple[float, float]:
        """The mean cosine of a letter's query with its own key, and with those of other letters; without positions."""
        q, k = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (self.head(name).Qm, self.head(name).Km))
        return contrast(q @ k.T)

    def part_scores(self, name: str) -> tuple[tuple[float, float], tuple[float, float]]:
        """Mean scores of a letter with itself and with others, and likewise of the positions of letters."""
        space = TASKS[self.task]().space
        parts = circuits.qk_parts(self.head(name), space)
        letters, first = len(space.letters), space.num_tokens + int(space.has_cls)
        return contrast(parts[:letters, :letters]), contrast(parts[first:, first:])

    def signs(self) -> tuple[float, float]:
        """The value of CLS and the mean value of a letter in the trained head; for the task unique."""
        values = circuits.values_at_places(self.head("learned"), TASKS[self.task]().space)[:, 0]
        return float(values[0]), float(values[1:].mean())


def contrast(square: Float[np.ndarray, "row column"]) -> tuple[float, float]:
    """The mean entry on the diagonal and beside it."""
    own = np.eye(len(square), dtype=bool)
    return float(square[own].mean()), float(square[~own].mean())


def compare(name: str, steps: int, seed: int, again: bool) -> Comparison:
    """Train a head on the course's task ``name``, with ``again`` a second one, and compare them with the design."""
    task = TASKS[name]()
    hand = design(task).weights
    learned = _train(name, hand, steps, seed)
    heads = {"hand": hand, "learned": learned}
    block, counted, target = task.all_cases.block, task.all_cases.counted, task.all_cases.target
    attention = {key: attention_weights(head, task.space, block) for key, head in heads.items()}
    values = {key: circuits.values_at_places(head, task.space) for key, head in heads.items()}
    places, positions = task.space.place_of(block), task.space.places[1]
    gaps = np.abs(values["hand"] - values["learned"]).mean(axis=1)
    assert task.description is not None
    wanted = task.description.wanted(block)
    return Comparison(
        task=name,
        steps=steps,
        hand={name: matrix.tolist() for name, matrix in hand.matrices.items()},
        learned={name: matrix.tolist() for name, matrix in learned.matrices.items()},
        certificate=verify(learned, task, tolerance=None),
        hand_learned=_pair(hand, learned, task),
        learned_again=_pair(learned, _train(name, hand, steps, seed + 1), task) if again else None,
        learned_moved=_pair(learned, _moved(learned, seed), task),
        spread={key: _spread(weights, task) for key, weights in attention.items()},
        on_wanted={key: float((each * wanted).sum(axis=2)[counted].mean()) for key, each in attention.items()},
        value_gap=[float(gaps[positions == position].mean()) for position in range(task.space.num_positions)],
        crossed={
            key: {
                other: float(np.abs(weights @ value[places] - target)[counted].mean())
                for other, value in values.items()
            }
            for key, weights in attention.items()
        },
    )


def _spread(weights: Attention, task: Task) -> dict[str, dict[str, float]]:
    block, counted, target = task.all_cases.block, task.all_cases.counted, task.all_cases.target
    own = np.eye(block.tokens.shape[1], dtype=bool)[None]
    same = (block.tokens[:, :, None] == block.tokens[:, None, :]) & ~own
    cls = np.zeros_like(same)
    cls[:, :, 0] = task.space.has_cls
    kinds = {"itself": own, "same letter": same, "other letters": ~own & ~same & ~cls, "CLS": cls}
    signs = ("+1", "-1") if task.readout == "sign" else ()
    groups = {sign: counted & (np.sign(target[..., 0]) == float(sign)) for sign in signs}
    return {
        group: {kind: float((weights * keys).sum(axis=2)[queries].mean()) for kind, keys in kinds.items()}
        for group, queries in groups.items()
    }


def _train(name: str, like: HeadWeights, steps: int, seed: int) -> HeadWeights:
    """A head of the same shapes, trained by the course's loop."""
    sizes = (like.input_dim, like.qk_dim, like.v_dim, like.pos_dim or None, like.max_seq_len)
    cls, log_interval = TASKS[name]().space.has_cls, max(1, steps // 2)
    head, _ = train_loop(MAKE_BATCH[name], *sizes, cls, num_epochs=steps, log_interval=log_interval, seed=seed)
    return head.to_weights()


def _pair(first: HeadWeights, second: HeadWeights, task: Task) -> Pair:
    one, two = first.matrices, second.matrices
    entries = {name: _cosine(one[name], two[name]) for name in one if name in two}
    return Pair(entries, head_distance(first, second, task.space))


def _moved(head: HeadWeights, seed: int) -> HeadWeights:
    """The same head in other bases of keys and, where there are positions, of position vectors."""
    moved = circuits.change_basis(head, circuits.random_basis(head.qk_dim, seed))
    basis = circuits.random_basis(max(1, head.pos_dim), seed + 1)
    return moved if head.pos is None else circuits.change_position_basis(moved, basis)


def _cosine(first: Float[np.ndarray, "row column"], second: Float[np.ndarray, "row column"]) -> float:
    return float((first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))


def draw_heads(comparison: Comparison) -> Figure:
    """The course's eight panels of both heads, on the course's sequence."""
    sequence, names = shown_sequence(comparison.task)
    return draw_comparison(
        comparison.head("hand"),
        comparison.head("learned"),
        sequence,
        names,
        input_names=list(TASKS[comparison.task]().space.token_names),
        title=f"Attention {TITLES[comparison.task]} ({comparison.task}), each panel rescaled to [0, 1]",
    )


def draw_circuits(comparison: Comparison) -> Figure:
    """The QK circuits and the values of both heads, each on its own scale; rows less what softmax ignores."""
    task = TASKS[comparison.task]()
    shown = [circuit_tables(comparison.head(name), task) for name in ("hand", "learned")]
    return draw_circuit_comparison(
        shown[0][:2],
        shown[1][:2],
        shown[0][2],
        f"Circuits of attention {TITLES[comparison.task]} ({comparison.task})",
        value_names=list(task.space.letters) if task.readout == "argmax" else ["sign"],
        common_scale=False,
    )


def circuit_tables(head: HeadWeights, task: Task) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Scores less what softmax ignores, values, and names: of places, or of tokens for a head without positions."""
    if head.pos is not None:
        names = circuits.place_names(task.space)
        return circuits.centred_scores(head, task.space), circuits.values_at_places(head, task.space), names
    scores = circuits.qk_parts(head, task.space)
    names = circuits.part_names(head, task.space)
    return scores - scores.mean(axis=1, keepdims=True), circuits.value_circuit(head, task.space), names


@in_style
def draw_cosines(comparisons: Sequence[Comparison]) -> Figure:
    """Entries and circuits: cosines of two heads for the same task, for each pair of heads."""
    marks: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Km", "entries of Km", {"color": ORANGE, "marker": "s"}),
        ("Qm", "entries of Qm", {"color": RED, "marker": "D"}),
        ("Vm", "entries of Vm", {"color": PURPLE, "marker": "v"}),
        ("qk", "QK circuit", {"color": BLUE, "marker": "o"}),
        ("values", "values of places", {"color": GREEN, "marker": "^"}),
    )
    pairs = {"hand_learned": "designed, trained", "learned_again": "trained, two seeds"}
    pairs = {name: words for name, words in pairs.items() if getattr(comparisons[0], name) is not None}
    pairs["learned_moved"] = "trained, two bases"
    figure, panels = new_figure(9, 1.4 + 0.65 * len(pairs), columns=len(comparisons), sharey=True)
    rows = np.arange(len(pairs))
    for ax, comparison in zip(panels, comparisons, strict=True):
        for number, (name, words, style) in enumerate(marks):
            shown = [getattr(comparison, pair).cosine(name) for pair in pairs]
            ax.plot(shown, rows + 0.13 * (number - 2), label=words, linestyle="none", markersize=7, **style)
        ax.axvline(0, color=BLACK, linewidth=0.8)
        ax.set(title=comparison.task, xlabel="cosine", xlim=(-1.08, 1.08), xticks=[-1, -0.5, 0, 0.5, 1])
    panels[0].set_yticks(rows, list(pairs.values()))
    panels[0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(marks))
    return figure


@in_style
def draw_signs(comparison: Comparison) -> Figure:
    """The course's last figure: signs of the designed head, of the trained one, and the expected ones, without CLS."""
    names = list(SHOWN[comparison.task])
    task = TASKS[comparison.task]()
    target = task.target(task.space.encode("".join(names))[None])[0]
    outputs = {"Hand-designed": comparison.trace("hand").output[1:], "Trained": comparison.trace("learned").output[1:]}
    figure, panels = new_figure(8, 1.35, columns=3)
    for ax, (title, numbers) in zip(panels, [*outputs.items(), ("Expected", target)], strict=True):
        signs = np.sign(numbers).T
        panel(ax, signs, title, "sequence", "sign", limits=(-1.0, 1.0), colormap="RdBu_r", x_names=names)
        for column, number in enumerate(numbers.ravel()):
            ax.text(column, 0, f"{number:+.2f}", ha="center", va="center", fontsize=9, color="white")
    return figure
