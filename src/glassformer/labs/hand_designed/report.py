"""The lab's report: its numbers, and the claims that depend on them, follow from the results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glassformer.files import write_text
from glassformer.handcraft.verification import Certificate
from glassformer.labs.hand_designed.answers import by_both, by_content, by_position
from glassformer.labs.hand_designed.cases import COURSE_TASKS
from glassformer.labs.hand_designed.results import DesignResult, Refutation, Results
from glassformer.labs.hand_designed.study_report import failure_text, study_table, study_text


def write_report(results: Results, figures: Mapping[str, Path], path: Path) -> Path:
    """Write the report on ``results`` to ``path``, showing the images named in ``figures``; returns ``path``."""
    write_text(path, report_text(results, {name: os.path.relpath(png, path.parent) for name, png in figures.items()}))
    return path


def report_text(results: Results, figures: Mapping[str, str]) -> str:
    """The report in Markdown.

    Args:
        results: What it reports.
        figures: The address of each figure's image, by the figure's name.
    """
    images = {name: f"![{name.replace('-', ' ')}]({address})" for name, address in figures.items()}
    blocks = [
        "# Hand-designed attention, proved and compared with what training finds",
        _introduction(results),
        "## The designs and their certificates",
        _designs(results.designs),
        _certified(results.designs),
        "## What no single head can do",
        _refuted(results.refutation),
        "## What can be compared",
        _comparable(results),
        images["what-can-be-compared"],
        "## Attention by content: every position outputs its own letter",
        images["identity-heads"],
        "*Question: what is alike and what differs between the designed and the learned variables, and why?*",
        *by_content(results),
        images["identity-circuits"],
        "## Attention by position: every position outputs the first letter",
        images["copy-first-heads"],
        "*Question: what is alike and what differs between the designed and the learned variables, and why?*",
        *by_position(results),
        images["copy-first-circuits"],
        "## Attention by content and position: which letters are unique?",
        images["unique-heads"],
        *by_both(results),
        images["unique-signs"],
        images["unique-circuits"],
        "## How often training succeeds",
        study_text(results),
        study_table(results.summaries),
        images["study"],
        "### Why training on unique sometimes fails",
        *failure_text(results.stories),
        *([images["unique-failures"]] if "unique-failures" in images else []),
    ]
    return "\n\n".join(blocks) + "\n"


def _introduction(results: Results) -> str:
    short = "This is the quick version: fewer seeds and steps than the full one. " if results.plan == "quick" else ""
    trained = [results.comparison(task).certificate for task in COURSE_TASKS]
    solved = sum(certificate.holds for certificate in trained)
    cosines = [results.comparison(task).hand_learned.distance.qk_cosine for task in COURSE_TASKS]
    return (
        f"{short}One attention head, whose matrices Km, Qm, Vm and pos are made from a description of what it attends "
        f"to, and beside it the same head trained by gradient descent. The {len(results.designs)} designs are "
        f"verified over every sequence. Training with the course's recipe, from one seed for each task, reads every "
        f"output rightly in {solved} of the course's {len(trained)}; how often it does from other seeds is told at the "
        f"end. It ends at other matrices, whose circuits have cosines of {min(cosines):.2f} to {max(cosines):.2f} with "
        "the designed ones."
    )


def _designs(designs: list[DesignResult]) -> str:
    rows = [
        f"| {design.task} | {design.description} | {design.qk_dim} | {design.pos_dim or 'none'} | "
        f"{design.sharpness:g} | {design.float64.num_checked:,} | {design.float64.largest_error:.1e} | "
        f"{design.float64.bound:.1e} | {design.float32.largest_error:.1e} | {design.large.bound:.1e} |"
        for design in designs
    ]
    return "\n".join(
        [
            "| task | description | qk_dim | pos_dim | sharpness | sequences, all run | largest error, float64 | "
            "its bound | largest error, float32 | bound for large alphabets |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
        ]
    )


def _certified(designs: list[DesignResult]) -> str:
    large = designs[0].large
    return (
        "The task says what is wanted without a word on attention; the description says how a head does it; the "
        "sharpness is worked out from the largest error that is allowed, here 1e-9. "
        f"{_verdicts('float64', [design.float64 for design in designs])} "
        f"{_verdicts('float32', [design.float32 for design in designs])} The last column is the same description for "
        f"26 letters and up to {designs[0].large_len} of them, {large.num_possible:.1e} sequences in the first row: "
        "too many to run, so a bound over all pairs of places decides. "
        f"{_verdicts('float64', [design.large for design in designs])}"
    )


def _verdicts(dtype: str, certificates: list[Certificate]) -> str:
    holding = sum(certificate.holds for certificate in certificates)
    count = f"All {len(certificates)}" if holding == len(certificates) else f"{holding} of {len(certificates)}"
    return f"{count} certificates in {dtype} hold ({certificates[0].criterion})."


def _refuted(refutation: Refutation) -> str:
    trained = refutation.trained
    share = trained.num_right / trained.num_outputs
    everyone = (
        "refuted every one" if refutation.num_refuted == refutation.num_random else f"refuted {refutation.num_refuted}"
    )
    return (
        f"Whether a letter occurs an even number of times ({refutation.task}) is beyond any single head: the sign of "
        "its output is that of a sum with one term for each place, and parity asks two sums of the same four terms "
        f"to differ in sign. Of {refutation.num_random} heads with random weights the verifier {everyone}, with "
        f"counterexamples of at most {refutation.longest} letters. A head that was trained on it reads {share:.0%} of "
        f"the outputs rightly; {'its first failure' if trained.counterexample else 'it fails'} is "
        f"{trained.counterexample}."
    )


def _comparable(results: Results) -> str:
    moved = max(comparison.learned_moved.distance.output_max for comparison in results.comparisons)
    entries = [
        abs(comparison.learned_again.entries[name]) for comparison in results.comparisons for name in ("Km", "Qm")
    ]
    circuits = [comparison.learned_again.distance.qk_cosine for comparison in results.comparisons]
    return (
        "The figures below draw matrices entry by entry, as the course does, and that misleads. A score is Qm Kmᵀ "
        "between two inputs: Km and Qm are fixed only up to an invertible change of basis, and pos likewise. A "
        f"random one moves Km, Qm and pos and leaves every output as it was, to {moved:.0e}. What is well defined are "
        "the circuits (Elhage et al. 2021): the score of every pair of places, less what the softmax ignores, and "
        "the value of every place. Two trainings from different seeds agree in the entries of Km and Qm by cosines "
        f"of {min(entries):.2f} to {max(entries):.2f} in size, and in the QK circuit by {min(circuits):.2f} to "
        f"{max(circuits):.2f}."
    )
