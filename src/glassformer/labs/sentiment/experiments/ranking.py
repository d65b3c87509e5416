"""Whether attention ranks the words of a text as removing them does, in networks of the lab."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.classifier import ENCODER, Classifier, load_classifier
from glassformer.data.examples import CLASSES, split_by_text
from glassformer.figures.style import BLACK, BLUE, LINES, in_style, new_figure
from glassformer.labs.run import Run
from glassformer.labs.sentiment.experiments.mini_transformer import SPLIT, plain_reviews, train_course
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH
from glassformer.labs.sentiment.sources import find_data
from glassformer.models.encoder import Encoder
from glassformer.observe.capture import capture
from glassformer.observe.detectors import attention_faithfulness, rank_correlation
from glassformer.observe.edits import put
from glassformer.observe.intervene import intervene

LEAST_WORDS, STEPS = 5, 8
ATTENTION, GRADIENT, INTEGRATED = "attention", "gradient × input", "integrated gradients"
ESTIMATES = (ATTENTION, GRADIENT, INTEGRATED)
"""Of the importance of a word."""
EDGES, MASKED, SIGNED = "edges, size", "masked, size", "masked, signed"
REMOVALS = (EDGES, MASKED, SIGNED)
"""What estimates are compared with: effects of forbidding attention to a word, or of masking it like padding."""


@dataclass(frozen=True)
class Ranked:
    """One classifier: rank correlations over the words of a text, means over texts."""

    seed: int
    num_texts: int
    correlations: dict[str, dict[str, tuple[float, float]]]  # of an estimate and a removal; mean and standard error
    texts: list[float]  # of the attention with the sizes for removed edges, of each text
    random: list[float]  # of a random ranking with these, of each text
    heads: list[float]  # as ``texts``, but of the attention of each head alone, means over texts, layer by layer
    top: float  # the share of texts whose most attended word is the one whose masking changes most
    chance_top: float  # that share for a random word
    random_error: float  # the standard deviation of a mean over these texts for random rankings


@dataclass(frozen=True, eq=False)
class Ranking:
    """Numbers for each word of one text."""

    attention: Float[Tensor, "head word"]  # the weight that each head gives it, mean over queries
    estimates: dict[str, Float[Tensor, " word"]]  # of its importance; the attention's is the mean over heads
    edges: Float[Tensor, " word"]  # what the margin of the predicted class loses if no query may attend to it
    masked: Float[Tensor, " word"]  # what it loses if the word is masked like padding

    def correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's, of sizes or, for :data:`SIGNED`, of the numbers as they are."""
        return {
            name: {
                EDGES: _correlation(values.abs(), self.edges.abs()),
                MASKED: _correlation(values.abs(), self.masked.abs()),
                SIGNED: _correlation(values, self.masked),
            }
            for name, values in self.estimates.items()
        }


def rank_words(encoder: Encoder, row: Sequence[int], words: Sequence[int]) -> Ranking:
    """Rank the ``words``, given by their positions, of the text with the token ids ``row``."""
    tokens, count = torch.tensor([row]), len(words)
    with torch.no_grad(), capture(encoder, what="embedding") as seen:
        label = int(encoder(tokens).argmax())

    def margin(logits: Tensor) -> Tensor:
        others = [each for each in range(logits.shape[-1]) if each != label]
        return logits[..., label] - logits[..., others].amax(-1)

    faithful = attention_faithfulness(encoder, tokens, lambda logits: margin(logits[:, -1]), keys=words)
    real = torch.ones(count, len(row), dtype=torch.bool)
    real[torch.arange(count), words] = False
    with torch.no_grad():
        masked = margin(encoder(tokens)) - margin(encoder(tokens.expand(count, -1), real))
    # Integrated gradients start from the mean vector of the text: an all-zero one has no direction for a norm to keep.
    (given,) = seen.last("embedding").values()
    start, along = given.mean(1, keepdim=True), (torch.arange(STEPS) + 0.5) / STEPS
    leaf = torch.lerp(start, given, along[:, None, None]).requires_grad_()
    with intervene(encoder, put("embedding", leaf)):
        (gradient,) = torch.autograd.grad(margin(encoder(tokens.expand(STEPS, -1))).mean(), leaf)
    integrated = ((given - start) * gradient).sum((0, 2))[words]
    attention = faithful.weights[0].flatten(0, 1)
    estimates = {ATTENTION: attention.mean(0), GRADIENT: faithful.gradients[0], INTEGRATED: integrated}
    return Ranking(attention, estimates, faithful.effects[0, 0, 0], masked)


def compare_rankings(classifier: Classifier, texts: Sequence[str], most: int, seed: int) -> Ranked | None:
    """Compare the rankings on the first ``most`` texts that have at least five words; None for fewer than two texts."""
    special, found = set(classifier.tokenizer.encode("")), list[Ranking]()
    for row in classifier.rows(texts):
        words = [place for place, token in enumerate(row) if token not in special]
        if len(words) >= LEAST_WORDS and len(found) < most:
            found.append(rank_words(classifier.encoder, row, words))
    if len(found) < 2:
        return None
    each = [ranking.correlations() for ranking in found]
    counts = [len(ranking.masked) for ranking in found]
    heads = [[_correlation(head, ranking.edges.abs()) for head in ranking.attention] for ranking in found]
    generator = torch.Generator().manual_seed(seed)
    random = [
        _correlation(torch.randperm(count, generator=generator).double(), one.edges.abs())
        for one, count in zip(found, counts, strict=True)
    ]
    same = [ranking.estimates[ATTENTION].argmax() == ranking.masked.abs().argmax() for ranking in found]
    return Ranked(
        seed=seed,
        num_texts=len(found),
        correlations={
            name: {kind: _mean([one[name][kind] for one in each]) for kind in kinds} for name, kinds in each[0].items()
        },
        texts=[one[ATTENTION][EDGES] for one in each],
        random=random,
        heads=[statistics.fmean(head) for head in zip(*heads, strict=True)],
        top=statistics.fmean(map(float, same)),
        chance_top=statistics.fmean(1 / count for count in counts),
        # The correlation of n numbers with a random order of n others has the variance 1 / (n - 1).
        random_error=sum(1 / (count - 1) for count in counts) ** 0.5 / len(counts),
    )


def _correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's; 0 where all words are alike."""
    return float(rank_correlation(first, second).nan_to_num())


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


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
