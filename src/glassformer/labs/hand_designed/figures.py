"""The lab's figures of designed beside trained heads, drawn from its results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from glassformer.handcraft.circuits import (
    centred_scores,
    part_names,
    place_names,
    qk_parts,
    value_circuit,
    values_at_places,
)
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.labs.hand_designed.cases import shown_sequence
from glassformer.labs.hand_designed.results import Comparison, Pair, Results
from glassformer.labs.hand_designed.study_figures import draw_failures, draw_study
from glassformer.observe.figures.heat_maps import panel
from glassformer.observe.figures.single_heads import draw_circuit_comparison, draw_comparison
from glassformer.observe.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, in_style, new_figure, save_figure

TITLES = {"identity": "by content", "copy_first": "by position", "unique": "by content and position"}
"""What a head attends by in each of the course's tasks."""

_MARKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Km", "entries of Km", {"color": ORANGE, "marker": "s"}),
    ("Qm", "entries of Qm", {"color": RED, "marker": "D"}),
    ("Vm", "entries of Vm", {"color": PURPLE, "marker": "v"}),
    ("qk", "QK circuit", {"color": BLUE, "marker": "o"}),
    ("values", "values of places", {"color": GREEN, "marker": "^"}),
)


def draw_figures(results: Results, directory: Path) -> dict[str, Path]:
    """Draw every figure into ``directory`` as PNG and SVG; returns the PNG of each by name."""
    drawn: dict[str, Figure] = {"what-can-be-compared": draw_cosines(results)}
    for comparison in results.comparisons:
        name = comparison.task.replace("_", "-")
        drawn[f"{name}-heads"] = draw_heads(comparison)
        drawn[f"{name}-circuits"] = draw_circuits(comparison)
    drawn["unique-signs"] = draw_signs(results.comparison("unique"))
    drawn["study"] = draw_study(results)
    if any(story.kind != "solved" for story in results.stories):
        drawn["unique-failures"] = draw_failures(results.stories)
    return {name: save_figure(figure, directory, name)[0] for name, figure in drawn.items()}


def draw_heads(comparison: Comparison) -> Figure:
    """The course's eight panels of the designed head above those of the trained one, on the course's sequence."""
    sequence, names = shown_sequence(comparison.task)
    return draw_comparison(
        comparison.hand_head,
        comparison.learned_head,
        sequence,
        names,
        input_names=list(TASKS[comparison.task]().space.token_names),
        title=f"Attention {TITLES[comparison.task]} ({comparison.task}), each panel rescaled to [0, 1]",
    )


def draw_circuits(comparison: Comparison) -> Figure:
    """The QK circuits and the values of both heads, each on its own scale; rows less what softmax ignores."""
    task = TASKS[comparison.task]()
    (qk, values, names), (learned_qk, learned_values, _) = (
        circuits(head, task) for head in (comparison.hand_head, comparison.learned_head)
    )
    return draw_circuit_comparison(
        (qk, values),
        (learned_qk, learned_values),
        names,
        f"Circuits of attention {TITLES[comparison.task]} ({comparison.task})",
        value_names=list(task.space.letters) if task.readout == "argmax" else ["sign"],
        common_scale=False,
    )


def circuits(head: HeadWeights, task: Task) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Scores less what softmax ignores, values, and names: of places, or of tokens for a head without positions."""
    if head.pos is None:
        scores = qk_parts(head, task.space)
        return (
            scores - scores.mean(axis=1, keepdims=True),
            value_circuit(head, task.space),
            part_names(head, task.space),
        )
    return centred_scores(head, task.space), values_at_places(head, task.space), place_names(task.space)


@in_style
def draw_cosines(results: Results) -> Figure:
    """Entries beside circuits: cosines of two heads that do the same, for each task and each pair of heads."""
    pairs: tuple[tuple[str, str], ...] = (
        ("hand_learned", "designed and trained"),
        ("learned_again", "trained from two seeds"),
        ("learned_moved", "trained, and in another basis"),
    )
    figure, panels = new_figure(10.5, 3.6, columns=len(results.comparisons), sharey=True)
    rows = np.arange(len(pairs))
    for ax, comparison in zip(panels, results.comparisons, strict=True):
        for number, (name, words, style) in enumerate(_MARKS):
            shown = [_cosine(getattr(comparison, pair), name) for pair, _ in pairs]
            ax.plot(shown, rows + 0.13 * (number - 2), label=words, linestyle="none", markersize=7, **style)
        ax.axvline(0, color=BLACK, linewidth=0.8)
        ax.set(title=comparison.task, xlabel="cosine", xlim=(-1.08, 1.08))
        ax.set_xticks([-1, -0.5, 0, 0.5, 1])
    panels[0].set_yticks(rows, [words for _, words in pairs])
    panels[0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_MARKS))
    return figure


@in_style
def draw_signs(comparison: Comparison) -> Figure:
    """The course's last figure: signs of the designed head, of the trained one, and the expected ones; CLS left out."""
    sequence, names = shown_sequence(comparison.task)
    task = TASKS[comparison.task]()
    letters = task.space.encode("".join(names[1:]))
    heads = (comparison.hand_head, comparison.learned_head)
    outputs = [NumpyHead(head)(sequence)[1:] for head in heads]
    shown = [("Hand-designed", outputs[0]), ("Trained", outputs[1]), ("Expected", task.target(letters[None])[0])]
    figure, panels = new_figure(8, 1.35, columns=3)
    for ax, (title, numbers) in zip(panels, shown, strict=True):
        panel(
            ax, np.sign(numbers).T, title, "sequence", "sign", limits=(-1.0, 1.0), colormap="RdBu_r", x_names=names[1:]
        )
        for column, number in enumerate(numbers.ravel()):
            ax.text(column, 0, f"{number:+.2f}", ha="center", va="center", fontsize=9, color="white")
    return figure


def _cosine(pair: Pair, name: str) -> float:
    special = {"qk": pair.distance.qk_cosine, "values": pair.distance.value_cosine}
    return special[name] if name in special else pair.entries[name]
