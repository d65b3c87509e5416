"""Whether attention ranks the words of a text as removing them does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from matplotlib.figure import Figure

from glassformer.classifier import ENCODER, Classifier, load_classifier
from glassformer.data.examples import CLASSES, split_by_text
from glassformer.figures.style import BLACK, BLUE, LINES, in_style, new_figure
from glassformer.labs.run import Run
from glassformer.labs.sentiment.experiments.mini_transformer import SPLIT, plain_reviews, train_course
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH
from glassformer.labs.sentiment.sources import find_data
from glassformer.labs.sentiment.word_rankings import ESTIMATES, REMOVALS, Ranked, compare_rankings

COURSE = "the course's model"


@dataclass(frozen=True)
class RankingResult:
    """Classifiers of all seeds by the name of their network; none for which there are not two texts to rank."""

    networks: dict[str, list[Ranked]]

    def means(self, network: str, estimate: str, removal: str) -> list[float]:
        """The mean correlation of each seed."""
        return [each.correlations[estimate][removal][0] for each in self.networks[network]]

    @property
    def largest_error(self) -> float:
        """Of all standard errors."""
        every = chain.from_iterable(self.networks.values())
        return max(error for each in every for kinds in each.correlations.values() for _, error in kinds.values())

    @property
    def random_bound(self) -> float:
        """Two standard deviations of the mean of random rankings, for the classifier with the fewest words."""
        return max(2 * each.random_error for each in chain.from_iterable(self.networks.values()))


def measure_ranking(run: Run, num_texts: int, seeds: Sequence[int]) -> RankingResult:
    """Rank the words of test texts with the encoders from scratch of ``run``, and those of held-out plain reviews with
    the course's model, trained from each of ``seeds``."""
    texts = [example.text for example in find_data(run.settings.data)[1].test]
    found: dict[str, list[Ranked | None]] = {FROM_SCRATCH.name: [], COURSE: []}
    for row in run.done.models.of(FROM_SCRATCH.name):
        classifier = load_classifier(run.out / "trainings" / row.slug / ENCODER)
        found[FROM_SCRATCH.name].append(compare_rankings(classifier, texts, num_texts, row.seed))
    for seed in seeds:
        train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
        model, tokenizer, _ = train_course(train, held_out, seed)
        classifier = Classifier(model.encoder, tokenizer.words, CLASSES)
        found[COURSE].append(compare_rankings(classifier, [example.text for example in held_out], num_texts, seed))
    networks = {name: [one for one in each if one is not None] for name, each in found.items()}
    return RankingResult({name: each for name, each in networks.items() if each})


@in_style
def draw_ranking(result: RankingResult) -> Figure:
    """Above, the mean correlations of each training and estimate, and of heads alone; below, those of single texts."""
    columns, names = len(result.networks), ESTIMATES
    figure, panels = new_figure(10, 6, rows=2, columns=columns, height_ratios=[3, 2], sharex=True)
    for place, (network, trainings) in enumerate(result.networks.items()):
        means, texts = panels[place], panels[columns + place]
        for look, (series, removal) in zip(LINES, enumerate(REMOVALS), strict=False):
            for row, name in enumerate(names):
                found = result.means(network, name, removal)
                label = f"removal: {removal}" if row == 0 else None
                rows = [row + 0.18 * (series - 1)] * len(found)
                means.plot(found, rows, look["marker"], color=look["color"], label=label, markersize=6, alpha=0.7)
        alone = [head for each in trainings for head in each.heads]
        means.plot(alone, [len(names)] * len(alone), LINES[0]["marker"], color=BLUE, markersize=6, alpha=0.3)
        bound = max(2 * each.random_error for each in trainings)
        means.axvspan(-bound, bound, color="#808080", alpha=0.3, linewidth=0, label="random rankings, 95 % of means")
        means.set(title=f"{network}, {len(trainings)} training{'s'[: len(trainings) > 1]}", xlim=(-1, 1))
        means.set_yticks(range(len(names) + 1), [*names, "attention, each head"] if place == 0 else [""] * 4)
        means.set_ylim(len(names) + 0.5, -0.5)
        means.grid(False, axis="y")
        bins = [step / 10 for step in range(-10, 11)]
        chance = [value for each in trainings for value in each.random]
        texts.hist(
            [value for each in trainings for value in each.texts], bins, color=BLUE, alpha=0.7, label="attention"
        )
        texts.hist(chance, bins, color=BLACK, histtype="step", label="a random ranking")
        texts.set(title="attention in single texts, removed edges", xlabel="rank correlation", ylabel="texts")
        for ax in (means, texts):
            ax.axvline(0, color=BLACK, linewidth=0.8)
    panels[columns].legend(loc="upper left", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    return figure
