"""What the report says of fresh facts: tables and sentences that follow from the results."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.data.in_context_lookup import bag_ceiling
from glassformer.labs.lookup.in_context_measured import InContextMeasured, LengthMeasured
from glassformer.labs.lookup.results import Results, at, median

TOLERANCE = 0.02
"""A measured accuracy within this of a ceiling is said to lie at it."""

_LEARNED = 0.9
"""Who is right in this share of the questions is said to have learned the task."""

_ROUNDING = 1e-4
"""Changes of a logit up to this are rounding. More than the scrambling test of the course allows: logits of these
models are larger, and sums over many more places are taken in another order."""

NAMES: dict[str, str] = {"slots": "slots", "bag": "bag of tokens", "positions": "tokens with positions"}
"""Of the encodings."""


def encodings_table(results: Results) -> str:
    """Accuracy of each encoding at each number of facts, with the best possible for a bag."""
    counts = [length.num_facts for length in results.of_encoding("slots")[0].lengths]
    rows = [
        "| facts in the context | " + " | ".join(f"{count:,}" for count in counts) + " |",
        "|---|" + "---:|" * len(counts),
    ]
    for encoding, name in NAMES.items():
        if models := results.of_encoding(encoding):
            rows.append(f"| {name} | " + " | ".join(_cell(models, count) for count in counts) + " |")
    if bags := results.of_encoding("bag"):
        best = [at(bags[0], count) for count in counts]
        cells = " | ".join("" if each is None or each.ceiling is None else f"*{each.ceiling:.2%}*" for each in best)
        rows.append(f"| *best possible for a bag* | {cells} |")
    seeds = len(results.of_encoding("slots"))
    note = (
        f"The share of questions answered right{f', the median of {seeds} seeds' if seeds > 1 else ''}. Trained on "
        f"{results.trained_facts[0]} to {results.trained_facts[1]} facts. {_asked_about(results)}"
    )
    return "\n".join(rows) + "\n\n" + note


def _asked_about(results: Results) -> str:
    """The vocabulary of each encoding's model, and which pairings it is asked about."""
    sentences, sizes = [], set()
    for encoding, name in NAMES.items():
        for model in results.of_encoding(encoding)[:1]:
            data = model.recipe.data
            sizes.add((data.num_keys, data.num_values))
            pairings = (
                "pairings of the two that no training context held"
                if model.recipe.asks_unseen
                else "any pairing of the two, as in training"
            )
            sentences.append(
                f"{name.capitalize()}: {data.num_keys:,} keys and {data.num_values:,} values, and questions about "
                f"{pairings}."
            )
    if len(sizes) > 1:
        sentences.append("So small differences between these rows need not come from the encoding.")
    return " ".join(sentences)


def _cell(models: Sequence[InContextMeasured], count: int) -> str:
    found = [length.accuracy for model in models if (length := at(model, count)) is not None]
    return f"{median(found):.2%}" if found else ""


def bag_text(results: Results) -> str:
    """How near the bags come to the best possible, where they were trained, and whether they pass it anywhere."""
    most = results.trained_facts[1]
    lengths = [(each, ceiling_of(each)) for model in results.of_encoding("bag") for each in model.lengths]
    gap = max(abs(each.accuracy - ceiling) for each, ceiling in lengths if each.num_facts <= most)
    # Twice the sampling error: there are many numbers of facts, and one of them may well lie beyond it once.
    above = [each for each, ceiling in lengths if each.accuracy > ceiling + 2 * sampling_error(ceiling, each)]
    verdict = (
        f"The trained model comes to within {100 * gap:.1f} points of it"
        if gap <= TOLERANCE
        else f"The trained model stays up to {100 * gap:.1f} points away from it"
    )
    passes = (
        "nowhere passes it by more than chance"
        if not above
        else f"passes it at {above[0].num_facts} facts, which cannot be"
    )
    return (
        "All assignments of the values to the keys are equally likely, and the bag is the same for each. So the asked "
        "key owns each of n different values with probability 1/n, and no reader of the bag can be right more often, "
        f"however it was trained. {verdict} at {results.trained_facts[0]} to {most} facts, and {passes}."
    )


def ceiling_of(length: LengthMeasured) -> float:
    """The best share possible for a bag, which a plan of the lab makes sure is known."""
    assert length.ceiling is not None
    return length.ceiling


def sampling_error(share: float, length: LengthMeasured) -> float:
    """Two standard errors of a share that is counted with the questions of ``length``: ``2 sqrt(p (1 - p) / n)``."""
    return 2 * (share * (1 - share) / length.num_questions) ** 0.5


def slots_text(results: Results) -> str:
    """How far slots reach, what their order does, and what positions do instead."""
    models, most = results.of_encoding("slots"), results.trained_facts[1]
    parts = [
        f"{accuracy_at(results, 'slots', count):.2%} at {count:,}"
        for count in sorted({most, 32, 64})
        if at(models[0], count) is not None
    ]
    reached, unseen = accuracy_at(results, "slots", most), models[0].recipe.asks_unseen
    if reached < _LEARNED:
        learned = "it has not learned to look up well" if slots_bind(results) else "it has not learned to look up"
    else:
        learned = "it has learned to look up, and no table" if unseen else "it has learned to look up"
    asked = "on pairings never trained on" if unseen else "on any pairings"
    text = f"The slots' model answers {', '.join(parts)} facts, {asked}: {learned}. {order_text(results)}"
    for placed in results.of_encoding("positions"):
        text += " " + _positions(placed, most)
    return text


def slots_bind(results: Results) -> bool:
    """Whether slots are right more often than a bag could be, at the most facts trained on."""
    most = results.trained_facts[1]
    first = measured_at(results, "slots", most)[0]
    ceiling = ceiling_of(measured_at(results, "bag", most)[0])
    return accuracy_at(results, "slots", most) > ceiling + TOLERANCE + sampling_error(ceiling, first)


def order_is_nothing(results: Results) -> bool:
    """Whether another order of the slots changed no answer, and no logit by more than rounding."""
    orders = [model.order for model in results.of_encoding("slots")]
    return all(order.answers_changed == 0 and order.largest_change <= _ROUNDING for order in orders)


def order_text(results: Results) -> str:
    """What another order of the slots changes."""
    orders = [model.order for model in results.of_encoding("slots")]
    changed, largest = sum(order.answers_changed for order in orders), max(order.largest_change for order in orders)
    if order_is_nothing(results):
        return f"Another order of the slots changes no answer, and no logit by more than {largest:.1e}."
    return f"Another order of the slots changes {changed} answers, and a logit by up to {largest:.1e}."


def _positions(model: InContextMeasured, most: int) -> str:
    lengths = [each for each in model.lengths if 1 < each.num_facts <= most]
    steps = f"{model.recipe.steps:,} steps"
    reached = ", ".join(f"{each.accuracy:.2%} at {each.num_facts}" for each in lengths)
    tried = [(each, bag_ceiling(model.recipe.data, each.num_facts)) for each in lengths]
    beyond = [each.accuracy - ceiling > sampling_error(ceiling, each) for each, ceiling in tried]
    below = [ceiling - each.accuracy > sampling_error(ceiling, each) for each, ceiling in tried]
    if any(beyond):
        text = f"Tokens with positions bind within {steps}, at least in part: {reached} facts, more than a bag allows."
    else:
        which = "less than a bag allows" if any(below) else "what a bag allows, to within sampling error"
        text = (
            "Tokens with positions could be bound to their neighbours in principle. The model did not learn to within "
            f"{steps}: it comes to {reached} facts, {which}. Whether more training or another kind of position would "
            "help was not tried."
        )
    share = model.order.answers_changed / model.order.num_questions
    return f"{text} Another order of its facts changes {share:.2%} of the answers."


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
    trained = at(model, model.recipe.data.max_facts)
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
    text = f"So more is lost in finding: in {lost:.1%} another slot has the largest weight"
    if diluted > TOLERANCE:
        text += f", and in at least {diluted:.1%} more the right one has it, and the answer is wrong all the same"
    return text


def changes_text(results: Results) -> str:
    """What the best and the worst single change do, what changes do together, and which model reaches farthest."""
    base, *changed = results.changes
    last = _last(base)
    longest = last.num_facts
    text = f"Changing one thing at a time (*{base.name}*: {last.accuracy:.1%} at {longest:,} facts)"
    ranked = _ranked(changed, longest)
    if ranked:
        (best, top), (worst, bottom) = ranked[-1], ranked[0]
        gained = top.accuracy - last.accuracy > _difference_error(top, last)
        helped = "most is gained by" if gained else "nothing gains more than sampling error; the best is"
        text += f": {helped} *{best.name}*, which comes to {top.accuracy:.1%}"
        text += f"; the lowest is *{worst.name}*, with {bottom.accuracy:.1%}" if len(ranked) > 1 else ""
    text += "."
    together = _ranked(results.combined, longest)
    if together:
        parts = [f"*{model.name}* comes to {found.accuracy:.1%}" for model, found in reversed(together)]
        text += f" Changing several things together, {', '.join(parts)}."
    everyone = _ranked([*results.changes, *results.combined], longest)
    if len(everyone) > 1:
        (best, top), (other, second) = everyone[-1], everyone[-2]
        names = (
            f"*{best.name}* reaches" if top.accuracy > second.accuracy else f"*{best.name}* and *{other.name}* reach"
        )
        text += f" Of all, {names} farthest: {top.accuracy:.1%} at {longest:,} facts"
        near = at(best, 64) if longest > 64 else None
        if top.accuracy > second.accuracy:
            text += f" and {near.accuracy:.1%} at 64" if near is not None else ""
            within = top.accuracy - second.accuracy <= _difference_error(top, second)
            text += f"; the next lies {'within' if within else 'beyond'} sampling error"
        text += "."
    return text + f" Each was trained once, and asked {last.num_questions:,} questions at {longest:,} facts."


def _ranked(models: Sequence[InContextMeasured], count: int) -> list[tuple[InContextMeasured, LengthMeasured]]:
    """Those that were measured with so many facts, from the lowest accuracy to the highest."""
    measured = [(model, found) for model in models if (found := at(model, count)) is not None]
    return sorted(measured, key=lambda pair: pair[1].accuracy)


def _difference_error(first: LengthMeasured, second: LengthMeasured) -> float:
    """Two standard errors of the difference of two shares, counted apart."""
    return sum(sampling_error(each.accuracy, each) ** 2 for each in (first, second)) ** 0.5


def changes_table(results: Results) -> str:
    """Every model of the search, with its accuracy and scores."""
    longest = _last(results.changes[0]).num_facts
    counts = sorted({count for count in (8, 64, 256, 1024) if count < longest} | {longest})
    names = [*(f"{count:,} facts" for count in counts), "right slot found", "gap", "noise", "numbers in the model"]
    rows = ["| slots | changed | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
    many = ["nothing", *["one thing"] * (len(results.changes) - 1), *["several"] * len(results.combined)]
    for model, changed in zip([*results.changes, *results.combined], many, strict=True):
        last = at(model, longest)
        cells = [
            model.name,
            changed,
            *(_cell([model], count) for count in counts),
            "" if last is None or last.found is None else f"{last.found:.1%}",
            _heads(None if last is None else last.gap),
            _heads(None if last is None else last.noise),
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


def _heads(values: Sequence[float] | None) -> str:
    return "" if values is None else f"{sum(values) / len(values):.1f}"


def measured_at(results: Results, encoding: str, count: int) -> list[LengthMeasured]:
    """What each model of an encoding does with so many facts."""
    return [length for model in results.of_encoding(encoding) if (length := at(model, count)) is not None]


def accuracy_at(results: Results, encoding: str, count: int) -> float:
    """The median over seeds."""
    return median([length.accuracy for length in measured_at(results, encoding, count)])
