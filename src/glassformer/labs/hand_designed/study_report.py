"""The report's section on the study: how often each recipe succeeds, and why training on unique sometimes fails."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from glassformer.handcraft.tasks import unique
from glassformer.labs.hand_designed.results import Results
from glassformer.labs.hand_designed.study import Story, Summary
from glassformer.labs.hand_designed.training_runs import Minimum

_FROM_CLS = 0.9
"""A head that takes at least this share of its +1 from CLS does so as it should."""

_FLAT = 1e-3
"""A curvature above minus this share of the largest one counts as no way down."""


def study_table(summaries: Sequence[Summary]) -> str:
    """The study as a table, a row for each task and recipe."""
    rows = [
        f"| {each.task} | {each.recipe} | {each.steps:,} | {each.solved} of {each.seeds} | "
        f"{each.lowest_outputs_right:.1%} | {each.median_error:.1e} | {each.largest_error:.1e} | "
        f"{each.small_error} of {each.seeds} | {each.median_seconds:.1f} |"
        for each in summaries
    ]
    return "\n".join(
        [
            "| task | recipe | steps | solved | outputs read rightly, worst seed | largest error, median seed | "
            "worst seed | largest error below 0.01 | seconds, median |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
        ]
    )


def study_text(results: Results) -> str:
    """What was studied, and what came out."""
    course, fast = ([each for each in results.summaries if each.recipe == name] for name in ("course", "fast"))
    seeds = results.summaries[0].seeds
    partly = (
        "" if results.plan == "full" else " Here both are cut to a part of their steps, and neither shows what it can."
    )
    return (
        f"Each recipe trains {seeds} heads for each task, from {seeds} seeds, and each head is then run on every "
        "sequence; *solved* means that no output is misread. The course's recipe takes one sequence a step, at a "
        "learning rate of 0.03. The fast one takes steps so large that clipping alone holds them, on eight sequences "
        f"at a time, and then lets AdamW finish on all sequences at once.{partly} {_tally('course', course)} "
        f"{_tally('fast', fast)} Times were taken one training after the other."
    )


def failure_text(stories: Sequence[Story]) -> list[str]:
    """Why the course's recipe sometimes fails on unique: paragraphs, none if no head was followed."""
    if not stories:
        return ["Why the course's recipe fails on unique for some seeds is followed up in the full version."]
    failed = [story for story in stories if story.kind != "solved"]
    if not failed:
        return [f"None of the {len(stories)} heads that were followed failed."]
    slow, trapped = ([story for story in failed if story.kind == kind] for kind in ("slow", "trapped"))
    blocks = [
        f"Of {len(stories)} heads trained by the course's recipe, {len(failed)} misread some sequence. Each of these "
        f"was trained on, to {_times(failed)} times the recipe's steps at most: {_then_solve(slow)}, and "
        f"{_stay_wrong(trapped)}. {_where(failed)}"
    ]
    blocks += [_slow_text(stories, slow)] if slow else []
    blocks += [_trapped_text(stories, trapped)] if trapped else []
    return blocks


def _tally(name: str, summaries: Sequence[Summary]) -> str:
    counts = ", ".join(f"{each.solved} of {each.seeds} on {each.task}" for each in summaries)
    return f"The {name} recipe solves {counts}."


def _times(stories: Sequence[Story]) -> int:
    return max(round(story.moments[-1].steps / story.moments[0].steps) for story in stories)


def _then_solve(slow: Sequence[Story]) -> str:
    return f"{len(slow)} then {'solves' if len(slow) == 1 else 'solve'} the task"


def _stay_wrong(trapped: Sequence[Story]) -> str:
    return f"{len(trapped)} {'does' if len(trapped) == 1 else 'do'} not"


def _where(failed: Sequence[Story]) -> str:
    wrong = [sequence for story in failed for sequence in story.moments[0].wrong]
    longest = max(map(len, wrong))
    share = sum(len(sequence) == longest for sequence in wrong) / len(wrong)
    return f"Of the sequences that they misread after the recipe, {share:.0%} have {longest} letters."


def _slow_text(stories: Sequence[Story], slow: Sequence[Story]) -> str:
    rest = [story for story in stories if story.kind == "solved"]
    compared = f", against {_median_own(rest, 0):.2f} in the heads that had solved it by then" if rest else ""
    worst = [_worst_position(story) for story in slow]
    position = statistics.mode(worst)
    return (
        f"**Those that are late** take their +1 from CLS as they should (for {_median_cls(slow):.0%} of its positive "
        "part, in the median), but a letter that occurs again does not yet leave itself out everywhere. At the worst "
        f"position its weight on itself, as a share of that weight and the one on another occurrence, is "
        f"{_median_own(slow, 0):.2f}{compared}; further steps bring it to {_median_own(slow, -1):.2f}. For "
        f"{worst.count(position)} of {len(slow)} of these heads the worst position is that of letter {position + 1}. "
        "The course draws every length equally often, so only "
        f"{_share_of_sequences(position):.0%} of the sequences have such a letter. The "
        "score between a position and itself is a product of two small random vectors, and each position has to find "
        "its own: at one sequence a step, those that are seldom met are late."
    )


def _trapped_text(stories: Sequence[Story], trapped: Sequence[Story]) -> str:
    rest = [story for story in stories if story.kind != "trapped"]
    compared = f" ({_median_cls(rest):.0%} in the others)" if rest else ""
    minima = [story.minimum for story in trapped if story.minimum is not None]
    closed = sum(_is_minimum(minimum) for minimum in minima)
    escaped = sum(story.escaped is not None and not story.escaped.wrong for story in trapped)
    cause = (
        " The first letter's position is in every sequence too, as CLS is, and while attention is still even both "
        "receive the same gradient; such a head has made it a second CLS. A first letter that is repeated then sends "
        "its copies +1 where -1 is wanted, and no small change of the weights repairs that."
        if _median_cls(trapped) < _FROM_CLS
        else ""
    )
    descent = (
        f" Descending without noise ends at a loss of {statistics.median(each.mse for each in minima):.2g}, and for "
        f"{closed} of {len(minima)} nothing curves down there: a local minimum."
        if minima
        else ""
    )
    way_out = (
        " The fast recipe, begun at the weights that the course's recipe leaves, solves the task for "
        f"{escaped} of {len(trapped)}: "
        + (
            "its first steps are too large for such a hollow to hold them."
            if escaped == len(trapped)
            else "the hollow can hold it too. Its large steps help most at the start, while the hollow is shallow."
        )
        if trapped[0].escaped is not None
        else ""
    )
    return (
        f"**Those that stay** have only {_median_cls(trapped):.0%} of the positive part of a +1 from CLS{compared}."
        f"{cause}{descent}{way_out}"
    )


def _median_own(stories: Sequence[Story], moment: int) -> float:
    """Median over the heads of the weight on itself at the worst position."""
    return statistics.median(max(story.moments[moment].circuit.self_shares) for story in stories)


def _worst_position(story: Story) -> int:
    """The letter, from 0, that leaves itself out least after the recipe."""
    shares = story.moments[0].circuit.self_shares
    return max(range(len(shares)), key=shares.__getitem__)


def _share_of_sequences(position: int) -> float:
    """How many of the sequences have a letter number ``position``, all lengths being equally frequent."""
    longest = unique().space.max_len
    return (longest - position) / longest


def _median_cls(stories: Sequence[Story]) -> float:
    return statistics.median(story.moments[0].circuit.cls_share for story in stories)


def _is_minimum(minimum: Minimum) -> bool:
    return minimum.lowest_curvature > -_FLAT * minimum.highest_curvature
