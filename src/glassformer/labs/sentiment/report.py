"""The lab's report: its numbers, and the claims that depend on them, follow from the results."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from pathlib import Path

from glassformer.files import write_text
from glassformer.labs.sentiment.answers import (
    answers,
    from_earlier_models,
    looking_forward,
    reflection,
    takeaways,
)
from glassformer.labs.sentiment.measured import table
from glassformer.labs.sentiment.recipes import FROM_MINILM, FROM_SCRATCH
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.wording import listed, percent, recalled


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
        "# Sentiment, from a toy set to real sentences",
        _introduction(results),
        "## The models",
        _models(results),
        table([model.measured for model in results.models]).rstrip(),
        _table_note(results),
        images["training"],
        images["calibration"],
        images["kinds"],
        _kinds(results),
        "## What a random split hides",
        _leak(results),
        images["leak"],
        "## What padding does",
        _padding(results),
        "## Two layer normalisations",
        _norms(results),
        images["norms"],
        "## From words to vectors",
        "A token is a row of a table, scaled; its place is a fixed pattern of sines that is added to it. The same word "
        "at "
        "two places has the same vector before, and another one after.",
        images["positions"],
        images["embeddings"],
        "## The model",
        _course(results),
        images["architecture"],
        images["block"],
        images["course-training"],
        "## Attention",
        _attention(results),
        images["recurrent-and-parallel"],
        images["attention-example"],
        images["heads"],
        images["attention-rows"],
        "## What the best encoder reads",
        _asked(results),
        images["effects"],
        images["best-architecture"],
        "## What it costs",
        _growth(results),
        images["complexity"],
        "## The course's questions",
        *answers(results),
        "## Takeaways",
        takeaways(results),
        "## From earlier models to transformers",
        *from_earlier_models(results),
        images["timeline"],
        "## Looking forward",
        looking_forward(results),
        "## Reflection",
        reflection(results),
    ]
    return "\n\n".join(blocks) + "\n"


def _introduction(results: Results) -> str:
    short = "This is the quick version: one epoch and one seed of everything. " if results.plan == "quick" else ""
    data, leak = results.data, results.experiments.leak
    best = results.median(results.asked.model).measured
    return (
        f"{short}An encoder that tells praise from blame. The course trains it on a toy set whose validation sentences "
        f"are its training sentences, and sees {percent(leak.mean('leaky', 'transformer'))} (mean over "
        f"{len(leak.leaky)} splits); without that leak it is {percent(leak.mean('clean', 'transformer'))}. Here it is "
        f"trained on {data.name} ({data.num_train:,} training, {data.num_validation:,} validation and "
        f"{data.num_test:,} test texts, none of them in two parts), beside what one would use instead. The best by "
        f"validation accuracy, the {best.name}, gets {percent(best.test_accuracy)} of the test texts right; always "
        f"naming the more frequent class would get {percent(data.majority)}."
    )


def _models(results: Results) -> str:
    missing = "".join(f" The {name} is missing: {why}." for name, why in results.missing.items())
    pretrained = ", and one whose pretrained weights are all trained on" if FROM_MINILM.name in results.names else ""
    scratch = FROM_SCRATCH.model
    order = (
        " The encoder from scratch has no positions, which did best there: it reads a text as a set of words, and word "
        "order is nothing to it."
        if scratch["positions"] == "none"
        else ""
    )
    return (
        "Word counts with logistic regression (with the course's settings: 500 words, without the most frequent "
        "English ones; with all words; with all pairs of neighbours too), a recurrent and a convolutional network, an "
        f"encoder from random weights{pretrained}. The networks' hyperparameters were chosen on SST-2's validation "
        "sentences, the strength of the regression's penalty on the validation texts of this table; test texts had no "
        f"part in either. Weights are those of the last step.{order}{missing}"
    )


def _table_note(results: Results) -> str:
    rows = {name: results.median(name).measured for name in results.names}
    counted = [row for row in rows.values() if row.seed is None]
    trained = [row for row in rows.values() if row.seed is not None]
    strongest = max(counted, key=lambda row: row.test_accuracy)
    better = [row.name for row in trained if row.test_accuracy > strongest.test_accuracy]
    others = [row.name for row in trained if row.name not in better]
    best_count = f"the best of the word counts ({strongest.name}, {percent(strongest.test_accuracy)})"
    verdict = (
        f"{listed(better)} {'gets' if len(better) == 1 else 'get'} more test texts right than {best_count}"
        + (f", {listed(others)} {'does' if len(others) == 1 else 'do'} not" if others else "")
        if better
        else f"None of the networks gets more test texts right than {best_count}"
    )
    ratio = max(row.num_parameters for row in trained) / strongest.num_parameters
    return (
        "Median rows are those of the median test accuracy, with the median times. A regression's training time is "
        "that "
        f"of all strengths it chooses among. {verdict}. The largest network has {ratio:,.0f} times as many parameters "
        "as "
        "that regression. Calibration error is the mean distance between how sure a model is and how often it is right."
    )


def _kinds(results: Results) -> str:
    counted = [name for name in results.names if results.median(name).measured.seed is None]
    strongest = max(counted, key=lambda name: results.median(name).measured.test_accuracy)
    best = results.asked.model
    first, second = results.median(strongest).kinds, results.median(best).kinds
    parts = "; ".join(
        f"{kind} {percent(first[kind])} and {percent(second[kind])}" for kind in results.data.kinds if kind in first
    )
    hardest = min(second, key=lambda kind: second[kind])
    trap = (
        f" On {hardest} the {best} is below a coin, and below the word counts: the better it reads the words, the "
        "surer it takes them at their word."
        if second[hardest] < min(0.5, first.get(hardest, 0.0))
        else ""
    )
    return (
        "What a verdict rests on decides who can read it. On reviews of several kinds "
        f"({', '.join(f'{count} {kind}' for kind, count in results.data.kinds.items())}), {strongest} and the {best} "
        f"get right: {parts}.{trap}"
    )


def _leak(results: Results) -> str:
    leak = results.experiments.leak
    seen = statistics.fmean(run.num_seen / run.num_validated for run in leak.leaky)
    return (
        f"The course's set is {leak.num_texts} sentences, each {leak.num_examples // leak.num_texts} times, split at "
        f"random: of its validation sentences {percent(seen)} were trained on. Sentences of our own in the same form "
        f"give, over {len(leak.leaky)} seeds and {leak.epochs} epochs, a validation accuracy of "
        f"{percent(leak.mean('leaky', 'transformer'))} for the course's model and "
        f"{percent(leak.mean('leaky', 'tfidf'))} for word counts. Split by text, so that four sentences are new, the "
        f"same two get {percent(leak.mean('clean', 'transformer'))} and {percent(leak.mean('clean', 'tfidf'))}, "
        "where a coin gets 50 %: four new sentences a split, so single splits say little and the mean over them says "
        "that "
        "what looked like learning was recognition."
    )


def _padding(results: Results) -> str:
    padding = results.experiments.padding
    seen, left_out = padding.of("seen"), padding.of("left out")
    flipped = max(filled.flipped for run in seen for filled in run.filled)
    longest = max(filled.length for run in seen for filled in run.filled)
    return (
        "The course attends to padding and averages over it. Trained so on rows of "
        f"{padding.trained_length} and asked about the same {padding.num_compared} short texts filled up to other "
        f"lengths (up to {longest}), its probabilities move by up to {padding.largest_change('seen'):.2f}, and "
        f"{percent(flipped)} of its verdicts change at the worst length. With padding left out of attention and of the "
        f"mean, the largest change is {padding.largest_change('left out'):.0e}, and another order of the texts changes "
        f"{max(run.order_change for run in left_out):.0e}. Validation accuracy, mean over "
        f"{len(seen)} trainings each: {percent(statistics.fmean(run.validation_accuracy for run in seen))} with "
        "padding seen, "
        f"{percent(statistics.fmean(run.validation_accuracy for run in left_out))} without."
    )


def _norms(results: Results) -> str:
    norms = results.experiments.norms
    width = next(each for each in norms.widths if each.width == norms.hidden_dim)
    tiny = min(norms.scales, key=lambda each: abs(each.deviation - 1e-3))
    return (
        "The course divides by the unbiased standard deviation plus eps, torch by the root of the mean square "
        "deviation "
        f"plus eps. For {width.width} numbers the outputs differ by the factor {width.ratio:.5f} "
        f"(sqrt({width.width - 1}/{width.width}) = {width.predicted_ratio:.5f}), by {width.largest:.3f} at most. A "
        "weight that follows takes up any fixed factor. Where a position hardly varies, eps decides: at a deviation of "
        f"{tiny.deviation:g} the course's output has size {tiny.course:.3f} and torch's {tiny.torch:.3f}."
    )


def _course(results: Results) -> str:
    course = results.course
    parts = ", ".join(
        f"{name} {count:,} ({percent(count / course.num_parameters)})" for name, count in course.parts.items()
    )
    history = course.history
    lowest = min(range(len(history["val_loss"])), key=lambda epoch: history["val_loss"][epoch])
    return (
        f"The course's model has {course.num_parameters:,} parameters: {parts}. Both drawings are made from the loaded "
        f"model. Trained on the reviews that ship, none of which it is validated on, it ends at "
        f"{history['train_acc'][-1]:.1f} % of the training and {history['val_acc'][-1]:.1f} % of the validation texts "
        f"after {len(history['val_loss'])} epochs; its validation loss is lowest after epoch {lowest + 1}."
    )


def _attention(results: Results) -> str:
    reach, heads = results.experiments.reach, results.experiments.heads
    furthest, nearest = reach.distances[-1], reach.distances.index(min(each for each in reach.distances if each > 0))
    norms = "; ".join(f"{each.name} {each.relative[-1]:.1e}" for each in reach.influences)
    own = "; ".join(f"{each.name} {each.norms[0] / each.norms[nearest]:.0f}" for each in reach.influences)
    counts = sorted({run.num_heads for run in heads.by_count})
    return (
        "In a recurrence the first word reaches the last through every state between; with attention every word reads "
        f"every other at once. Before any training, the gradient of the last state with respect to an input {furthest} "
        f"steps back, relative to one step back: {norms}. The last input itself counts so many times as much as the "
        "one "
        f"before it: {own}; what attention reads is shared among all words. {recalled(results)} With the same width of "
        f"{heads.hidden_dim}, {heads.num_validated:,} validation texts and the mean over "
        f"{len(heads.by_count) // len(counts)} trainings each, accuracy by number of heads: "
        + ", ".join(f"{count}: {percent(heads.accuracy(count))}" for count in counts)
        + f"; with positions from sines {percent(heads.accuracy_with('sinusoidal'))}, none "
        f"{percent(heads.accuracy_with('none'))}. The heads drawn below are those of the course's model, which gets "
        f"{results.course.history['val_acc'][-1]:.0f} % of the validation reviews right: they show how attention "
        "spreads, "
        "not how a text is understood."
    )


def _asked(results: Results) -> str:
    asked = results.asked
    return (
        f"What the {asked.model} makes of single texts: each token coloured by how much less probable the verdict "
        "would "
        "be without it. " + _pairs(results) + " " + _words(results)
    )


def _growth(results: Results) -> str:
    growth = results.experiments.growth
    rows = ["| layer | time | operations | peak memory | predicted memory |", "|---|---:|---:|---:|---:|"]
    for each in growth.growths:
        found = growth.exponents(each)
        rows.append(
            f"| {each.name} | {found['seconds']:.2f} | {found['operations']:.2f} | {found['peak_bytes']:.2f} | "
            f"{found['predicted_bytes']:.2f} |"
        )
    counted = "equals" if growth.counted else "differs from"
    first = growth.growths[0]
    return (
        f"One layer of the course's sizes, over texts of {first.lengths[0]} to {first.lengths[-1]:,} tokens. The "
        f"predicted number of operations {counted} what torch's FlopCounterMode counts, at every length and for every "
        "model. Exponents fitted to the three longest texts:\n\n" + "\n".join(rows) + "\n\n"
        f"Scores and values overtake the feed-forward network at {growth.overtakes:,} tokens, with the projections at "
        f"{growth.overtakes_with_projections:,}. The course's own count leaves out the projections, one of each pair "
        "of "
        "products and the factor two; its crossing is the same, its totals are a quarter and less."
    )


def _pairs(results: Results) -> str:
    pairs = results.asked.pairs
    kinds = ", ".join(f"{kind} {percent(share)}" for kind, share in pairs.told_apart.items())
    ordered = sum(pairs.in_order.values()) / len(pairs.in_order)
    return (
        f"Of {len(pairs.pairs)} pairs of texts with nearly the same words and opposite verdicts it gets both right in "
        f"{percent(pairs.overall)} (guessing: a quarter; {kinds}), and praise has the higher probability in "
        f"{percent(ordered)} (guessing: a half)."
    )


def _words(results: Results) -> str:
    words = results.asked.words
    worst = max(words.groups, key=lambda group: group.largest_gap)
    gaps = ", ".join(f"{group.group} {group.largest_gap:.2f}" for group in words.groups)
    return (
        f"In {words.num_sentences} sentences without any verdict, one word for another of its group moves the "
        "probability "
        f"of praise by up to: {gaps}. The largest is in “{worst.template}”, between {worst.low_word} and "
        f"{worst.high_word}."
    )
