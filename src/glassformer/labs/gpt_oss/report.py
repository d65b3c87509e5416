"""The lab's report: 300 to 600 words whose numbers, and whose claims, follow from the results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from glassformer.files import write_text
from glassformer.labs.gpt_oss.plan import COURSE_STEPS, DATA, RECIPES
from glassformer.labs.gpt_oss.results import GenerationResult, ModelResult, Results

_LEVEL = 0.005
"""Differences of shares below this are called none: they are what another seed of the sampling makes."""

PARTS = ((0, 3), (3, 12), (12, None))
"""Positions before the coefficients can be known, those where they are being found, and the rest: start and stop."""


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
    best = next(model for model in results.models if model.name == results.generation.model)
    blocks = [
        "# A small GPT-OSS learns a noisy recurrence",
        _task(results),
        _table(results),
        _models(results),
        images["training"],
        "## Cross-entropy",
        "The loss is the mean cross-entropy, over all positions of all sequences in the batch, between the softmax of "
        "the logits at a position and the token that follows it.",
        "## Generation",
        "Each step runs the model on the newest token, with the keys and values of earlier ones kept in a cache, takes "
        "the logits of the last position, chooses a token from them by the sampling rule, and appends it.",
        f"## {_nucleus_title(results.generation)}",
        _nucleus_first(results.generation, best),
        _nucleus_second(results.generation),
        images["generation"],
        images["next-token"],
        "## Temperature",
        _temperature(results.generation),
        images["sampling-grid"],
        "## Accuracy at each position",
        _positions(results, best),
        images["accuracy-by-position"],
    ]
    return "\n\n".join(blocks) + "\n"


def _task(results: Results) -> str:
    short = (
        f"This is the quick version: fewer models, which saw far fewer sequences than the course's {COURSE_STEPS} "
        f"steps of {RECIPES['course'].batch_size} show. "
        if results.plan == "quick"
        else ""
    )
    return (
        f"{short}Every sequence follows a linear recurrence of order {DATA.order} modulo {DATA.vocab_size} whose "
        f"coefficients stay hidden; with probability {DATA.next_prob:g} a step is the previous token plus one instead. "
        f"{_unseen(results)} An exact Bayesian predictor, which "
        f"weighs all {DATA.num_generators:,} generators, gives the highest accuracy that any model can expect: "
        f"{results.optimum:.4f} on the {results.num_measured:,} new sequences used below."
    )


def _unseen(results: Results) -> str:
    if any(model.fresh for model in results.models):
        return (
            "The models are tested on generators that training never showed them; only the longer run draws new "
            "sequences of all."
        )
    return "The models are tested on generators that training never showed them."


def _table(results: Results) -> str:
    rows = [
        f"| {model.title} | {model.num_parameters:,} | {model.steps:,} | {model.test_accuracy:.4f} | "
        f"{model.accuracy:.4f} | {results.gap(model):.4f} |"
        for model in results.models
    ]
    return "\n".join(
        [
            f"| model | weights | steps | accuracy, {results.num_test:,} test sequences | "
            f"accuracy, {results.num_measured:,} new sequences | missing to the optimum |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            f"| *optimum* | | | *{results.optimum_test:.4f}* | *{results.optimum:.4f}* | |",
        ]
    )


def _models(results: Results) -> str:
    first, *others = results.models
    share = first.accuracy / results.optimum
    text = f"The {first.title} comes to {first.accuracy:.4f}, which is {share:.1%} of the optimum."
    if variants := [model for model in others if not model.fresh]:
        ranked = sorted([first, *variants], key=lambda model: model.accuracy)
        text += (
            f" Of the models trained equally long, the {ranked[-1].title} does best ({ranked[-1].accuracy:.4f}) "
            f"and the {ranked[0].title} worst ({ranked[0].accuracy:.4f})."
        )
    for model in others:
        if model.fresh:
            text += (
                f" The {model.title}, with new sequences at every step, {_moves(model.accuracy - first.accuracy)} this "
                f"to {model.accuracy:.4f}, {results.gap(model):.4f} below the optimum."
            )
            text += _price_of_holding_out(first, model)
    return text


def _price_of_holding_out(first: ModelResult, model: ModelResult) -> str:
    """Where the first model loses what the longer run does not: a pool of generators teaches its own limits."""
    behind = [
        theirs - ours for ours, theirs in zip(first.accuracy_by_position, model.accuracy_by_position, strict=True)
    ]
    if sum(behind) <= 0 or (early := sum(behind[:12]) / sum(behind)) <= 0.5:
        return ""
    return (
        f" {early:.0%} of that difference lies before position 12: training without some generators teaches that "
        "they do not exist."
    )


def _nucleus_title(generation: GenerationResult) -> str:
    return "Nucleus sampling" + (" cuts the errors" if _errors_cut(generation) > _LEVEL else "")


def _errors_cut(generation: GenerationResult) -> float:
    return generation.rules["temperature 1"].neither - generation.rules["top-p 0.9"].neither


def _nucleus_first(generation: GenerationResult, best: ModelResult) -> str:
    true, full, cut = generation.true, generation.rules["temperature 1"], generation.rules["top-p 0.9"]
    errors = f"Cutting to the nucleus of 0.9 {_moves(cut.neither - full.neither)} the latter to {cut.neither:.1%}"
    if true.increment - cut.increment > _LEVEL:
        price = (
            f", but it also cuts real variety: just {cut.increment:.1%} are steps of plus one, since a rare but "
            "genuine continuation looks like an error to it"
        )
    else:
        price = f", and steps of plus one come to {cut.increment:.1%}, so no genuine variety is lost"
    return (
        f"The {best.title} continued {generation.num_prompts} sequences of {generation.prompt_length} tokens by "
        f"{generation.new_tokens} more. The true sequences follow the rule in {true.rule:.1%} of these steps, and the "
        f"other {true.increment:.1%} are plus one. Sampling from the full distribution at "
        f"temperature 1 follows the rule in {full.rule:.1%}, makes {full.increment:.1%} steps of plus one and "
        f"{full.neither:.1%} that are neither, which the process never makes. {errors}{price}."
    )


def _nucleus_second(generation: GenerationResult) -> str:
    hot, cut_hot = generation.rules["temperature 1.5"], generation.rules["temp. 1.5, top-p 0.9"]
    greedy, cut = generation.rules["greedy"], generation.rules["top-p 0.9"]
    gain = hot.neither - cut_hot.neither
    worth = "a larger" if gain > _errors_cut(generation) + _LEVEL else "no larger"
    repetition = (
        "repeats itself more than" if greedy.repeated - cut.repeated > _LEVEL else "repeats itself no more than"
    )
    true = generation.true
    truth = "above" if greedy.repeated - true.repeated > _LEVEL else "not above"
    temperature, top_p, nearest = generation.closest()
    return (
        f"At temperature 1.5 the nucleus takes the errors from {hot.neither:.1%} to {cut_hot.neither:.1%}, {worth} "
        f"effect than at temperature 1. Greedy decoding {repetition} nucleus sampling: of its runs of four tokens "
        f"{greedy.repeated:.1%} occurred before ({cut.repeated:.1%} with the nucleus), {truth} the "
        f"{true.repeated:.1%} of the true sequences, and {greedy.cycling:.1%} of its continuations end in a "
        f"cycle, against {true.cycling:.1%}. Nearest to the true mixture of steps is temperature {temperature:g} with "
        f"top-p {top_p:g}, at a total variation of {nearest.distance(true):.3f}."
    )


def _temperature(generation: GenerationResult) -> str:
    column = max(range(len(generation.top_ps)), key=lambda place: generation.top_ps[place])
    rows = sorted(range(len(generation.temperatures)), key=lambda place: generation.temperatures[place])
    cold, hot = generation.grid[rows[0]][column], generation.grid[rows[-1]][column]
    low, high = generation.temperatures[rows[0]], generation.temperatures[rows[-1]]
    change = hot.rule - cold.rule
    direction = "falls" if change < -_LEVEL else "rises" if change > _LEVEL else "hardly moves,"
    neither = hot.neither - cold.neither
    cause = (
        "A high temperature lends probability to tokens that the model holds to be all but impossible, and each error "
        "also misleads the steps after it."
        if neither > _LEVEL
        else "Here a high temperature does not add errors: the model is nearly as unsure at any of them."
    )
    sharp = (
        "a low one hides the noise that belongs to the process"
        if generation.true.increment - cold.increment > _LEVEL
        else "even the lowest keeps the noise that belongs to the process"
    )
    return (
        f"With the full distribution (top-p {generation.top_ps[column]:g}) the share of steps that follow the rule "
        f"{direction} from {cold.rule:.1%} at temperature {low:g} to {hot.rule:.1%} at {high:g}, the steps of plus one "
        f"go from {cold.increment:.1%} to {hot.increment:.1%}, and the errors from {cold.neither:.1%} to "
        f"{hot.neither:.1%}. {cause} Temperature thus trades one thing for the other: {sharp}, and no temperature "
        "knows which of the unlikely tokens are genuine."
    )


def _positions(results: Results, best: ModelResult) -> str:
    gap = results.gap(best)
    lost = [results.gap(best, start, stop) for start, stop in PARTS]
    largest = max(range(len(PARTS)), key=lambda part: lost[part])
    optimum, reached = results.optimum_by_position, best.accuracy_by_position
    gaps = [possible - actual for possible, actual in zip(optimum, reached, strict=True)]
    peak = max(range(len(gaps)), key=lambda position: gaps[position])
    early, late = slice(PARTS[0][0], PARTS[0][1]), slice(PARTS[2][0], PARTS[2][1])
    learned = _mean(reached[late]) - _mean(reached[early]) > 0.2
    rise = "both rise steeply" if learned else "the optimum rises steeply, and the model does not follow yet"
    if gap > 0:
        where = (
            f"Of the {gap:.4f} that it misses on average, {lost[largest] / gap:.0%} is lost at {_range(largest)}, "
            f"{_reason(largest)}; the single position with the largest gap is {peak}, with {gaps[peak]:.3f}."
        )
    else:
        where = f"On average it misses nothing here; what chance added is {-gap:.4f}."
    return (
        f"At the first three positions no model does well: two coefficients need two equations, hence four tokens. "
        f"The optimum is {_mean(optimum[early]):.3f} there and the {best.title} has {_mean(reached[early]):.3f}. From "
        f"position 3 on {rise}, as each step confirms or corrects a guess of the coefficients, and from position "
        f"{PARTS[2][0]} on the two average {_mean(optimum[late]):.3f} and {_mean(reached[late]):.3f}. That ceiling "
        f"lies below 1 because every tenth step ignores the rule, which is unpredictable. {where}"
    )


def _range(part: int) -> str:
    start, stop = PARTS[part]
    return f"positions {start} to {stop - 1}" if stop is not None else f"positions {start} and later"


def _reason(part: int) -> str:
    return (
        "where little is known, the prior over generators decides, and attention without a sink cannot tell a first "
        "token from a run of it",
        "where few tokens, any of which may be noise, have to fix the coefficients",
        "where an optimal reader knows the coefficients and only has to apply them",
    )[part]


def _moves(change: float) -> str:
    return "raises" if change > _LEVEL else "lowers" if change < -_LEVEL else "brings"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
