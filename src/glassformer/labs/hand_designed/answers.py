"""The written answers to the course's questions: how a trained head resembles the designed one, how not, and why.

Every number, and every claim that could turn out otherwise, follows from the results.
"""

from __future__ import annotations

import numpy as np

from glassformer.handcraft.circuits import values_at_places
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import Certificate
from glassformer.labs.hand_designed.results import Comparison, Results

_ALIKE = 0.8
"""Circuits whose cosine is at least this are called alike."""

_NOTICED = 0.05
"""Shares of attention below this are not made anything of."""

_ALIKE_TITLE = "**What is alike, and why.**"
_DIFFERENT_TITLE = "**What differs, and why.**"


def by_content(results: Results) -> list[str]:
    """The answer to the first question, on the identity task: two headed lists."""
    comparison = results.comparison("identity")
    return [
        _ALIKE_TITLE,
        _bullets(
            [
                f"{_where('keys with its own letter', comparison)} {_circuit(comparison)}",
                f"The value maps: the entries of Vm have a cosine of {comparison.hand_learned.entries['Vm']:.4f}. Vm "
                "leads straight to the output, where the task fixes every axis, so training has no choice of basis "
                "there.",
                _reading(comparison.certificate),
            ]
        ),
        _DIFFERENT_TITLE,
        _bullets(
            [
                _entries(comparison) + _why_entries(comparison),
                _softness(comparison),
                _values(comparison),
                _worst(results, comparison),
            ]
        ),
    ]


def by_position(results: Results) -> list[str]:
    """The answer to the second question, on copying the first token: two headed lists."""
    comparison = results.comparison("copy_first")
    first, *later = comparison.value_gap
    return [
        _ALIKE_TITLE,
        _bullets(
            [
                f"{_where('the first position', comparison)} {_circuit(comparison)}",
                f"The values of the first position: the two heads' differ by {first:.4f} on average. They are nearly "
                "all that reaches an output, so the task fixes them.",
                _reading(comparison.certificate),
            ]
        ),
        _DIFFERENT_TITLE,
        _bullets(
            [
                _entries(comparison),
                "The position vectors: a design takes unit vectors, training starts from normal random ones, and the "
                f"cosine of the two tables is {comparison.hand_learned.entries['pos']:.2f}. Any linearly independent "
                "vectors serve, since Km, Qm and Vm can undo what mixes them.",
                f"The values of later positions: they differ by {np.mean(later):.2f} on average, and the entries of "
                f"Vm have a cosine of only {comparison.hand_learned.entries['Vm']:.2f}. "
                + (
                    "Nearly nothing attends there, so nearly no gradient corrects what the random start left. "
                    if np.mean(later) > 10 * first
                    else ""
                )
                + "A constant can also move between Vm's rows for letters and those for positions without changing "
                "the value of any place.",
                _softness(comparison),
                _worst(results, comparison),
            ]
        ),
    ]


def by_both(results: Results) -> list[str]:
    """The comment on the unique task: two headed lists."""
    comparison = results.comparison("unique")
    once, again = comparison.spread["learned"]["+1"], comparison.spread["learned"]["-1"]
    design = comparison.spread["hand"]["+1"]
    cls, letters = _signs(comparison)
    own, swapped = comparison.crossed["learned"]["learned"], comparison.crossed["learned"]["hand"]
    other = comparison.crossed["hand"]["learned"]
    together = own < min(swapped, other)
    return [
        _ALIKE_TITLE,
        _bullets(
            [
                f"A letter that occurs again attends to its repetitions: with {again['same letter']:.1%} of its "
                f"attention in the trained head. {_circuit(comparison)}",
                f"CLS is worth {cls:+.2f} and a letter {letters:+.2f} on average in the trained head, +1 and -1 in "
                "the designed one. No other place than CLS stands in every sequence, so it alone can speak for what "
                "is absent.",
                _reading(comparison.certificate),
            ]
        ),
        _DIFFERENT_TITLE,
        _bullets(
            [
                f"A letter that occurs once: the designed head attends to CLS with {design['CLS']:.1%}; the trained "
                f"one gives CLS {once['CLS']:.1%}, the letter itself {once['itself']:.1%} and other letters "
                f"{once['other letters']:.1%}."
                + (
                    " It did not learn to leave its own place out, and need not: CLS is worth enough to outweigh the "
                    "rest."
                    if once["itself"] > _NOTICED
                    else ""
                ),
                f"Attention and values fit together or not at all: the mean error of the trained head is {own:.2f}, "
                f"with the designed values in place of its own {swapped:.2f}, and {other:.2f} with the designed "
                "attention and the trained values."
                + (" Each compensates what the other does." if together else " Here a swap does no harm."),
                _entries(comparison),
                _softness(comparison),
            ]
        ),
    ]


def _where(keys: str, comparison: Comparison) -> str:
    hand, learned = comparison.on_wanted["hand"], comparison.on_wanted["learned"]
    return (
        f"Where they look: on average {_share(hand)} of a query's attention lies on {keys} in the designed head, and "
        f"{_share(learned)} in the trained one."
    )


def _circuit(comparison: Comparison) -> str:
    distance = comparison.hand_learned.distance
    verdict = "the same preferences" if distance.qk_cosine >= _ALIKE else "other preferences"
    return (
        f"The QK circuits, which say how much every query likes every key, have a cosine of {distance.qk_cosine:.3f}: "
        f"{verdict}. The attention differs by {distance.attention_mean:.3f} bits on average (Jensen-Shannon, of at "
        "most 1)."
    )


def _entries(comparison: Comparison) -> str:
    ours, again = comparison.hand_learned, comparison.learned_again
    return (
        f"The entries of Km and Qm: their cosines with the designed ones are {ours.entries['Km']:.2f} and "
        f"{ours.entries['Qm']:.2f}. Two trainings from different seeds come to {again.entries['Km']:.2f} and "
        f"{again.entries['Qm']:.2f} in their entries, and to {again.distance.qk_cosine:.3f} in their circuits: entries "
        "tell where a training began."
    )


def _why_entries(comparison: Comparison) -> str:
    moved = comparison.learned_moved
    return (
        " Only the product Qm Kmᵀ acts, and every invertible M gives the same product from Km M and Qm M⁻ᵀ. A random "
        f"M takes the trained entries to cosines of {moved.entries['Km']:.2f} and {moved.entries['Qm']:.2f} with what "
        f"they were, and moves no output by more than {moved.distance.output_max:.0e}."
    )


def _softness(comparison: Comparison) -> str:
    margin = comparison.certificate.margin
    if margin is None:
        return "The sharpness cannot be compared: no query meets an unwanted key."
    if margin <= 0:
        return (
            f"The order of the keys: in the trained head some unwanted key stands {-margin:.1f} above the best wanted "
            "one, so it does not choose as the designed one does. It weighs, and its values make up for the weights."
        )
    return (
        f"The sharpness: in the trained head the best wanted key stands at least {margin:.1f} above the best unwanted "
        "one, in the designed one as high as the wanted error asks. Leakage falls as exp(-margin), and so does the "
        f"gradient that would lower it further: {comparison.steps:,} steps of gradient descent end there. To a "
        "designer a large number costs no more than a small one."
    )


def _values(comparison: Comparison) -> str:
    own, swapped = comparison.crossed["learned"]["learned"], comparison.crossed["learned"]["hand"]
    values = comparison.learned_head.Vm
    diagonal = np.diagonal(values)
    rest = values[~np.eye(len(values), dtype=bool)]
    how = (
        f": {diagonal.mean():.3f} for the letter itself, and {rest.mean():.3f} for the others"
        if diagonal.mean() > 1 and rest.mean() < 0
        else ""
    )
    effect = (
        f"They take back part of what the soft attention leaks: with the designed values the trained head's mean error "
        f"would be {swapped:.4f}, with its own it is {own:.4f}."
        if own < swapped
        else f"They do not help: its mean error is {own:.4f}, and {swapped:.4f} with the designed values."
    )
    return f"The values, by {np.mean(comparison.value_gap):.4f} on average{how}. {effect}"


def _worst(results: Results, comparison: Comparison) -> str:
    certificate = comparison.certificate
    worst = certificate.worst
    assert worst is not None
    return (
        f"The outputs: the trained head is off by up to {certificate.largest_error:.2f}, at letter "
        f"{worst.position + 1} of {worst.sequence}, where most of the sequence is something else and what leaks to it "
        f"adds up. The designed head is off by {results.design(comparison.task).float64.largest_error:.0e} at most."
    )


def _reading(certificate: Certificate) -> str:
    share = certificate.num_right / certificate.num_outputs
    if certificate.holds:
        return (
            f"The answers: every one of the {certificate.num_checked:,} sequences is read rightly, "
            f"{certificate.num_outputs:,} outputs in all, as the verifier proves by running them."
        )
    return (
        f"Most answers: {share:.1%} of the {certificate.num_outputs:,} outputs are read rightly. The verifier's first "
        f"counterexample is {certificate.counterexample}."
    )


def _signs(comparison: Comparison) -> tuple[float, float]:
    """What CLS and, on average, a letter are worth in the trained head."""
    values = values_at_places(comparison.learned_head, TASKS[comparison.task]().space)[:, 0]
    return float(values[0]), float(values[1:].mean())


def _share(part: float) -> str:
    """A share in percent, "all" where nothing is missing that could be written."""
    return "all" if part > 0.99995 else f"{part:.1%}"


def _bullets(texts: list[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)
