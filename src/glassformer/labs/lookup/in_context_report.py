"""What the report says of fresh facts: tables and sentences that follow from the results."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.labs.lookup.in_context_measured import InContextMeasured, LengthMeasured
from glassformer.labs.lookup.results import Results, at, median

TOLERANCE = 0.02
"""A measured accuracy within this of a ceiling is said to lie at it."""

_LEVEL = 0.01
"""Differences of accuracy below this are called none: another seed makes them."""

_ROUNDING = 1e-4
"""Changes of a logit up to this are rounding, for contexts of any length."""


def encodings_table(results: Results) -> str:
    """Accuracy of each encoding at each number of facts, with the best possible for a bag."""
    counts = [length.num_facts for length in results.of_encoding("slots")[0].lengths]
    names = {"slots": "slots", "bag": "bag of tokens", "positions": "tokens with positions"}
    rows = [
        "| facts in the context | " + " | ".join(f"{count:,}" for count in counts) + " |",
        "|---|" + "---:|" * len(counts),
    ]
    for encoding, name in names.items():
        if models := results.of_encoding(encoding):
            rows.append(f"| {name} | " + " | ".join(_cell(models, count) for count in counts) + " |")
    if bags := results.of_encoding("bag"):
        best = [at(bags[0], count) for count in counts]
        cells = " | ".join("" if length is None else f"*{length.ceiling:.2%}*" for length in best)
        rows.append(f"| *best possible for a bag* | {cells} |")
    seeds = len(results.of_encoding("slots"))
    note = (
        f"The share of questions answered right{f', the median of {seeds} seeds' if seeds > 1 else ''}. Trained on "
        f"{results.trained_facts[0]} to {results.trained_facts[1]} facts. Slots and positions are asked about pairings "
        "of key and value that no training context held, bags about any: there the best possible share is exact."
    )
    return "\n".join(rows) + "\n\n" + note


def _cell(models: Sequence[InContextMeasured], count: int) -> str:
    found = [length.accuracy for model in models if (length := at(model, count)) is not None]
    return f"{median(found):.2%}" if found else ""


def bag_text(results: Results) -> str:
    """How near the bags come to the best possible, where they were trained, and whether they pass it anywhere."""
    most = results.trained_facts[1]
    lengths = [length for model in results.of_encoding("bag") for length in model.lengths]
    gap = max(abs(length.accuracy - length.ceiling) for length in lengths if length.num_facts <= most)
    above = [length for length in lengths if length.accuracy > length.ceiling + _chance(length)]
    verdict = (
        f"The trained model comes to within {100 * gap:.1f} points of it"
        if gap <= TOLERANCE
        else f"The trained model stays up to {100 * gap:.1f} points away from it"
    )
    passes = "nowhere passes it by more than chance" if not above else f"passes it at {above[0].num_facts} facts"
    return (
        "All assignments of the values to the keys are equally likely, and the bag is the same for each. So the asked "
        "key owns each of n different values with probability 1/n, and no reader of the bag can be right more often, "
        f"however it was trained. {verdict} at {results.trained_facts[0]} to {most} facts, and {passes}."
    )


def _chance(length: LengthMeasured) -> float:
    """Four standard deviations of the share that one would count at the ceiling."""
    return 4 * (length.ceiling * (1 - length.ceiling) / length.num_questions) ** 0.5


def slots_text(results: Results) -> str:
    """How far slots reach, what their order does, and what positions do instead."""
    models, most = results.of_encoding("slots"), results.trained_facts[1]
    parts = [
        f"{accuracy_at(results, 'slots', count):.2%} at {count:,}"
        for count in (most, 32, 64)
        if at(models[0], count) is not None
    ]
    changed = sum(model.order.answers_changed for model in models)
    largest = max(model.order.largest_change for model in models)
    order = (
        f"Another order of the slots changes no answer, and no logit by more than {largest:.1e}."
        if changed == 0 and largest <= _ROUNDING
        else f"Another order of the slots changes {changed} answers, and a logit by up to {largest:.1e}."
    )
    text = (
        f"The slots' model answers {', '.join(parts)} facts, on pairings never trained on: it has learned to look up, "
        f"and no table. {order}"
    )
    if placed := results.of_encoding("positions"):
        text += " " + _positions(results, placed)
    return text


def _positions(results: Results, placed: Sequence[InContextMeasured]) -> str:
    most, longest = results.trained_facts[1], max(length.num_facts for length in placed[0].lengths)
    reached, far = accuracy_at(results, "positions", most), accuracy_at(results, "positions", longest)
    learned = (
        "have not learned to bind in these steps: they"
        if reached <= measured_at(results, "bag", most)[0].ceiling + TOLERANCE
        else "can bind a value to the key before it, at a price: they"
    )
    share = sum(model.order.answers_changed for model in placed) / sum(model.order.num_questions for model in placed)
    return (
        f"Tokens with positions {learned} come to {reached:.2%} at {most} facts and {far:.2%} at {longest:,}, and "
        f"another order of the facts changes {share:.2%} of the answers."
    )


def limits_text(results: Results) -> str:
    """Whether finding or reading fails at the most facts measured, and the scores that finding rests on."""
    model = results.plain_slots
    last = _last(model)
    assert last.found is not None  # of slots both are measured
    assert last.read is not None
    whose = "a plain model that knows keys and values enough" if results.changes else "the slots' model"
    text = (
        f"An answer has two steps: find the slot of the asked key, and read its value. In {whose}, at "
        f"{last.num_facts:,} facts, {last.accuracy:.1%} of the answers are right; if the decoder is shown the right "
        f"slot alone, {last.read:.1%}. {_culprit(1 - last.found, last.found - last.accuracy, 1 - last.read)}."
    )
    trained = at(model, results.trained_facts[1])
    return text if trained is None else f"{text} {_scores(trained, last)}".rstrip()


def _scores(trained: LengthMeasured, last: LengthMeasured) -> str:
    """What finding rests on, at the most facts trained on and at the most measured."""
    if not (trained.gap and trained.noise and last.gap and last.noise and last.margin):
        return ""
    gap, noise, margin, gap_trained, noise_trained = (
        sum(heads) / len(heads) for heads in (last.gap, last.noise, last.margin, trained.gap, trained.noise)
    )
    steady = abs(gap - gap_trained) < 0.2 * gap_trained and abs(noise - noise_trained) < 0.2 * noise_trained
    change = "hardly change" if steady else "change"
    where = "above" if margin > 0 else "below"
    return (
        f"The right slot's score lies {gap:.1f} above the mean of the others, whose deviation is {noise:.1f}; from "
        f"{trained.num_facts} facts on these two {change} ({gap_trained:.1f} and {noise_trained:.1f} there). But the "
        "largest of n others grows like their deviation times sqrt(2 log n), and with so many the right slot is "
        f"{abs(margin):.1f} {where} it on average."
    )


def _culprit(lost: float, diluted: float, unread: float) -> str:
    """What fails: another slot has the largest weight; the right one has it and too little of it; or reading."""
    if max(lost, diluted, unread) <= TOLERANCE:
        return "Neither step fails much"
    if unread > max(lost, diluted):
        return "Reading is what fails"
    text = f"So finding is what fails: in {lost:.1%} another slot has the largest weight"
    if diluted > TOLERANCE:
        text += (
            f", and in {diluted:.1%} more the right one has it, but less than all others together. A factor on all "
            "scores could mend at most the latter"
        )
    return text


def changes_text(results: Results) -> str:
    """What the best and the worst change do, and how far the recommended model reaches."""
    base, *changed, recommended = results.changes
    longest = _last(base).num_facts
    text = f"Changing one thing at a time tells which limit is real ({base.name}: {_reached(base, longest):.1%} at "
    text += f"{longest:,} facts)."
    if changed:
        ranked = sorted(changed, key=lambda model: _reached(model, longest))
        best, worst = ranked[-1], ranked[0]
        gained = _reached(best, longest) - _reached(base, longest)
        helped = "Most is gained by" if gained > _LEVEL else "None alone gains much; the best is"
        text += f" {helped} {best.name}, which comes to {_reached(best, longest):.1%}"
        text += f"; the least by {worst.name}, with {_reached(worst, longest):.1%}." if len(ranked) > 1 else "."
    text += f" What is recommended, trained on up to {recommended.order.num_facts} facts, comes to "
    text += f"{_reached(recommended, longest):.1%}"
    return text + (f", and to {_reached(recommended, 64):.1%} at 64 facts." if at(recommended, 64) else ".")


def changes_table(results: Results) -> str:
    """Every change, with what it does to accuracy and scores."""
    longest = _last(results.changes[0]).num_facts
    counts = sorted({count for count in (8, 64, 256, 1024) if count < longest} | {longest})
    names = [*(f"{count:,} facts" for count in counts), "right slot found", "gap", "noise", "numbers in the model"]
    rows = ["| slots | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for model in results.changes:
        last = _last(model)
        cells = [
            model.name,
            *(_cell([model], count) for count in counts),
            "" if last.found is None else f"{last.found:.1%}",
            _heads(last.gap),
            _heads(last.noise),
            f"{model.num_parameters:,}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    note = (
        f"The last columns, at {longest:,} facts: how often the right slot has the largest weight; how far its score "
        "lies above the mean of the others; and the deviation of the others."
    )
    return "\n".join(rows) + "\n\n" + note


def _last(model: InContextMeasured) -> LengthMeasured:
    return max(model.lengths, key=lambda length: length.num_facts)


def _reached(model: InContextMeasured, count: int) -> float:
    found = at(model, count)
    return 0.0 if found is None else found.accuracy


def _heads(values: Sequence[float] | None) -> str:
    return "" if values is None else f"{sum(values) / len(values):.1f}"


def measured_at(results: Results, encoding: str, count: int) -> list[LengthMeasured]:
    """What each model of an encoding does with so many facts."""
    return [length for model in results.of_encoding(encoding) if (length := at(model, count)) is not None]


def accuracy_at(results: Results, encoding: str, count: int) -> float:
    """The median over seeds."""
    return median([length.accuracy for length in measured_at(results, encoding, count)])
