"""Rankings of words: against rankings by hand, and what the experiment and its figure make of them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from glassformer.classifier import Classifier
from glassformer.data.tokenizer import WordTokenizer
from glassformer.labs.sentiment import MiniTransformer
from glassformer.labs.sentiment.experiments import Results, ranking
from glassformer.labs.sentiment.experiments.ranking import (
    ATTENTION,
    EDGES,
    GRADIENT,
    INTEGRATED,
    MASKED,
    SIGNED,
    compare_rankings,
    draw_ranking,
    rank_words,
)
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, build_classifier
from glassformer.observe.capture import capture
from glassformer.observe.edits import scale
from glassformer.observe.intervene import intervene

ROW, WORDS = [2, 5, 9, 4, 7, 5], [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model() -> MiniTransformer:
    torch.manual_seed(0)
    made = MiniTransformer(12, 16, 2, 2, 16, 16, 2).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return made


def margin_of(model: MiniTransformer, vectors: Tensor, label: int, mask: Tensor | None = None) -> Tensor:
    """The course's forward pass from vectors of words on, without padding; ``mask`` is for attention alone."""
    for block in model.transformer_blocks:
        vectors, _ = block(vectors, mask)
    logits = model.classifier(model.ln_f(vectors).mean(1))[0]
    return logits[label] - logits[1 - label]


def test_each_number_is_that_of_the_written_out_model(model: MiniTransformer) -> None:
    found, tokens = rank_words(model.encoder, ROW, WORDS), torch.tensor([ROW])
    with torch.no_grad():
        logits, weights = model(tokens)
        vectors = model.embeddings(tokens)
    label = int(logits.argmax())
    whole = margin_of(model, vectors, label)
    attention = torch.cat(weights).flatten(0, 1).mean(1)[:, WORDS]
    torch.testing.assert_close(found.attention, attention)
    torch.testing.assert_close(found.estimates[ATTENTION], attention.mean(0))
    for place, word in enumerate(WORDS):
        seen = torch.arange(len(ROW)) != word
        edges = whole - margin_of(model, vectors, label, seen[None, None, None])
        alone = model(tokens, seen[None])[0][0]
        torch.testing.assert_close(found.edges[place], edges.detach(), rtol=1e-4, atol=1e-5)
        masked = whole - (alone[label] - alone[1 - label])
        torch.testing.assert_close(found.masked[place], masked.detach(), rtol=1e-4, atol=1e-5)
    leaf = vectors.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(margin_of(model, leaf, label), leaf)
    expected = (gradient * vectors).sum(-1)[0, WORDS]
    torch.testing.assert_close(found.estimates[GRADIENT], expected, rtol=1e-4, atol=1e-5)


def test_integrated_gradients_add_up_to_the_difference(model: MiniTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "STEPS", 512)
    with torch.no_grad():
        vectors = model.embeddings(torch.tensor([ROW]))
        label = int(model(torch.tensor([ROW]))[0].argmax())
        difference = margin_of(model, vectors, label) - margin_of(model, vectors.mean(1, keepdim=True), label)
    found = rank_words(model.encoder, ROW, range(len(ROW))).estimates[INTEGRATED]
    torch.testing.assert_close(found.sum(), difference, rtol=1e-3, atol=1e-3)


def test_the_length_of_a_vector_does_not_reach_attention_behind_a_norm() -> None:
    classifier = build_classifier(FROM_SCRATCH, ["a good film", "a bad film"], ("negative", "positive"), seed=0)
    encoder, tokens = classifier.encoder.eval(), torch.tensor(classifier.rows(["a good film"]))
    with torch.no_grad(), capture(encoder, what=("attention", "residual")) as seen:
        encoder(tokens)
        with intervene(encoder, scale("embedding", 1.5, queries=2)):
            encoder(tokens)
    (before, after), (stream, changed) = (next(iter(seen.of(what).values())) for what in ("attention", "residual"))
    torch.testing.assert_close(before.values, after.values, rtol=1e-4, atol=1e-4)
    assert (stream.values - changed.values).abs().max() > 0.1


def test_means_and_errors_over_texts_of_at_least_five_words(model: MiniTransformer) -> None:
    texts = [
        "good bad film plot song",
        "good film",
        "a film bad plot bad song good",
        "plot song good bad a film",
        "a a",
    ]
    tokenizer = WordTokenizer.from_texts(texts, 12)
    classifier = Classifier(model.encoder, tokenizer, ("negative", "positive"))
    found = compare_rankings(classifier, texts, most=2, seed=3)
    assert compare_rankings(classifier, texts[1:3], most=2, seed=0) is None
    used = [rank_words(model.encoder, row, range(1, len(row))) for row in classifier.rows([texts[0], texts[2]])]
    assert (found.seed, found.num_texts, len(found.heads)) == (3, 2, 4)
    assert found.chance_top == pytest.approx((1 / 5 + 1 / 7) / 2)
    assert found.random_error == pytest.approx(np.sqrt(1 / 4 + 1 / 6) / 2)
    for name in (ATTENTION, GRADIENT, INTEGRATED):
        for kind, sizes in ((MASKED, True), (SIGNED, False)):
            pairs = [torch.stack([each.estimates[name], each.masked]).numpy() for each in used]
            values = [spearmanr(*(np.abs(pair) if sizes else pair)).statistic for pair in pairs]
            expected = np.mean(values), np.std(values, ddof=1) / np.sqrt(2)
            np.testing.assert_allclose(found.correlations[name][kind], expected, atol=1e-12)
    edges = [spearmanr(each.estimates[ATTENTION], each.edges.abs()).statistic for each in used]
    np.testing.assert_allclose(found.texts, edges, atol=1e-12)
    assert len(found.random) == 2
    heads = [[spearmanr(head, each.edges.abs()).statistic for head in each.attention] for each in used]
    np.testing.assert_allclose(found.heads, np.mean(heads, axis=0), atol=1e-12)


def test_claims_turn_with_the_numbers(results: Results, report: Callable[..., str]) -> None:
    assert "So attention ranks words, in each training" in report()
    assert "ranks words the wrong way round" in report()
    # Its correlations with signs are above those of random rankings, so it says something.
    assert "Attention says less about the class for which a word speaks" in report()
    networks = {
        name: [replace(each, correlations=dict.fromkeys(each.correlations, each.correlations[ATTENTION]))
               for each in found]
        for name, found in results.ranking.networks.items()
    }  # fmt: skip
    alike = report(ranking=replace(results.ranking, networks=networks))
    assert "ranks words the wrong way round" not in alike
    assert "about the class for which a word speaks" not in alike
    weak = dict.fromkeys((EDGES, MASKED, SIGNED), (0.05, 0.05))
    networks["the course's model"] = [
        replace(each, correlations={**each.correlations, ATTENTION: weak}) for each in networks["the course's model"]
    ]
    weakly = report(ranking=replace(results.ranking, networks=networks))
    assert "So attention ranks words" not in weakly


def test_each_training_is_drawn(results: Results) -> None:
    figure = draw_ranking(results.ranking)
    assert len(figure.axes) == 4
    drawn = {float(x) for line in figure.axes[0].lines for x in np.ravel(line.get_xdata())}
    assert set(results.ranking.means("encoder from scratch", ATTENTION, EDGES)) <= drawn
