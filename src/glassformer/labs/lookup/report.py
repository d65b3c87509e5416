"""The lab's report: its numbers, and its claims, follow from the results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glassformer.data.lookup import all_contexts
from glassformer.files import write_text
from glassformer.labs.lookup.course_data import NUM_EPOCHS
from glassformer.labs.lookup.in_context_report import (
    accuracy_at,
    bag_text,
    ceiling_of,
    changes_table,
    changes_text,
    encodings_table,
    limits_text,
    measured_at,
    order_is_nothing,
    order_text,
    sampling_error,
    slots_bind,
    slots_text,
)
from glassformer.labs.lookup.results import Results

_SHARP = 0.9
"""Attention of at least this much on the determining tokens is called sharp."""


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
        "# What can an encoder without positions bind, and what not?",
        _question(results),
        _answer(results),
        encodings_table(results),
        images["accuracy"],
        "## Fixed facts: the set of tokens names the fact",
        _course(results),
        _course_table(results),
        "\n".join(["```text", *results.course[0].side_by_side, "```"]),
        _scrambling(results),
        images["scrambling"],
        images["training"],
        "## Where the decoder looks",
        _sharpness(results),
        images["cross-attention"],
        images["sharpness"],
        "## Fresh facts: a bag cannot bind",
        bag_text(results),
        "## Slots bind, and stay a set",
        slots_text(results),
        "## What limits the slots",
        limits_text(results),
        images["finding"],
    ]
    if results.changes:
        blocks += [changes_text(results), changes_table(results), images["changes"]]
    return "\n\n".join(blocks) + "\n"


def _question(results: Results) -> str:
    short = "This is the quick version: fewer steps, seeds and words. " if results.plan == "quick" else ""
    return (
        f"{short}Without positions an encoder treats its input as a set: another order of the tokens gives the same "
        "result but for rounding. Which lookups are left to it?"
    )


def _answer(results: Results) -> str:
    most = results.trained_facts[1]
    slots, bag = accuracy_at(results, "slots", most), accuracy_at(results, "bag", most)
    measured = measured_at(results, "bag", most)[0]
    ceiling = ceiling_of(measured)
    error = sampling_error(ceiling, measured)
    solved = all(model.contexts_accuracy == 1 for model in results.course)
    fixed = "it answers all of them" if solved else f"it answers {_worst_contexts(results):.1%} of them at worst"
    binds = slots_bind(results)
    bound = (
        " So what makes one position is bound; what lies in two is not."
        if binds and order_is_nothing(results) and bag <= ceiling + 2 * error
        else ""
    )
    passed = "" if bag <= ceiling + 2 * error else ", **which is more than chance allows**"
    return (
        "It can use whatever the *set* of its tokens tells; which token stands beside which it cannot see. The "
        f"course's facts are fixed, so the set names the fact and order is not needed: {fixed}. Where facts are fresh "
        "in every context, a bag of separate tokens still holds all keys and values, but which value belongs to which "
        f"key was told by order alone and is lost: with {most} facts no model can be right in more than {ceiling:.1%} "
        f"of the questions, and the trained model is in {bag:.1%}{passed} (sampling error {100 * error:.1f} points). "
        "Slots, in which a key and its value are embedded together, "
        f"{'do bind' if binds else 'do not bind better here'}: {slots:.1%}. {order_text(results)}{bound}"
    )


def _course(results: Results) -> str:
    first = results.course[0]
    needed = sorted({model.epochs_needed for model in results.course if model.epochs_needed is not None})
    if not needed:
        when = f"In {first.epochs} epochs no seed answers all validation examples right."
    else:
        span = f"{needed[0]}" if len(needed) == 1 else f"{needed[0]} to {needed[-1]}"
        right = sum(model.epochs_needed is not None for model in results.course)
        where = "" if right == len(results.course) else f" in {right} of {len(results.course)} seeds"
        when = f"All validation examples are right after epoch {span}{where}; the course allows {NUM_EPOCHS}."
    after = (
        f" Each run went on to epoch {first.epochs}, and the weights with the lowest validation loss were kept."
        if needed
        else ""
    )
    return (
        f"The course's model ({first.num_parameters:,} numbers) reads `NAME` and then `COLOR`, a key, `ITEM` and the "
        f"key's value in any order, and writes the value. {when}{after} There are but {len(all_contexts())} different "
        f"contexts, and {first.test_seen:.0%} of the held-out examples repeat one from training"
        f"{' and say little' if first.test_seen > 0.5 else ''}. So all contexts were listed and tried:"
    )


def _course_table(results: Results) -> str:
    rows = [
        "| model | right first after epoch | held-out examples | all contexts | orders tried | tokens changed | "
        "largest change of a logit | sharpest head on the fact's tokens, before | after |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model in [*results.course, results.control]:
        name = f"seed {model.seed}" + ("" if model.source_positions == "none" else ", with positions")
        tried = model.scrambling
        cells = [
            name,
            str(model.epochs_needed or "never"),
            f"{model.test_accuracy:.2%}",
            f"{model.contexts_accuracy:.2%}",
            f"{tried.orders:,}",
            f"{tried.changed_tokens:,}",
            f"{tried.largest_change:.1e}",
            f"{max(share.fact for share in model.before):.3f}",
            f"{max(share.fact for share in model.after):.3f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _scrambling(results: Results) -> str:
    largest = max(model.scrambling.largest_change for model in results.course)
    changed = sum(model.scrambling.changed_tokens for model in results.course)
    tried, control = results.course[0].scrambling, results.control.scrambling
    which = "all orders" if tried.exhaustive else "a sample of the orders"
    holds = all(model.scrambling.holds for model in results.course)
    verdict = (
        f"No token that is written changes, and no logit by more than {largest:.1e}, which is rounding."
        if holds
        else f"**The test fails**: {changed or 'no'} tokens change, and a logit by {largest:.1e}."
    )
    if control.holds:
        other = "The same model with positions in its encoder passes as well, so that the test shows nothing here."
    else:
        share = control.changed_tokens / control.decided_tokens
        words = f"{share:.1%} of the tokens change" if control.changed_tokens else "no token changes"
        other = (
            f"The control, the same model with sinusoidal positions in its encoder, fails the test: {words}, and a "
            f"logit by {control.largest_change:.2g}. Its training showed it every order behind `NAME`, so what it "
            "writes can stay right; that all orders are the same to it no training can promise."
        )
    return (
        f"The scrambling test puts the five tokens of each of the {tried.contexts} contexts into {which}, "
        f"{tried.orders:,} in all. {verdict} {other}"
    )


def _sharpness(results: Results) -> str:
    first = results.course[0]
    before = [max(share.fact for share in model.before) for model in results.course]
    after = [model.after[model.sharpest] for model in results.course]
    facts = [share.fact for share in after]
    least, most = min(facts), max(facts)
    if least >= _SHARP:
        reached = f"at least {least:.3f}"
    else:
        reached = f"{least:.3f}" if least == most else f"{least:.3f} to {most:.3f}, by seed,"
    text = (
        "At `[SOS]` the value has to be written. What determines it are the two tokens of the fact, its key and its "
        "value: since facts are fixed, either names the other. The exception is RED, a value in one fact and a key in "
        f"another, which needs the token beside it. The sharpest head has {reached} of its weight on these two "
        f"tokens after training{', in every seed' if least >= _SHARP else ''}; before, the largest is "
        f"{max(before):.3f}."
    )
    sharpest = first.after[first.sharpest]
    if sharpest.alone > _SHARP:
        text += (
            f" Nor does it rely on RED: {sharpest.alone:.3f} lies on tokens that stand in one fact alone (head "
            f"{first.sharpest + 1} of seed {first.seed}; {sharpest.key:.3f} on keys, {sharpest.value:.3f} on values)."
        )
    return text + " Whether the answer needs what other heads read elsewhere, these weights do not tell."


def _worst_contexts(results: Results) -> float:
    return min(model.contexts_accuracy for model in results.course)
