"""The course's model: trained alike from one seed, read exactly, and drawn from what its result holds."""

import numpy as np
import pytest
import torch

from glassformer.data.examples import Example, split_by_text
from glassformer.labs.sentiment.experiments import mini_transformer
from glassformer.labs.sentiment.experiments.mini_transformer import (
    SENTENCE,
    CourseResult,
    SeesPadding,
    draw_heads,
    measure_course,
    plain_reviews,
    train_course,
)
from glassformer.labs.sentiment.figures import draw_training_curves
from readable import check_readable

FEW = tuple(
    Example(f"a {word} {thing}", label) for thing in ("film", "book") for word, label in (("good", 1), ("bad", 0))
)


@pytest.fixture(scope="module")
def course() -> CourseResult:
    return measure_course(0, epochs=1)


def test_the_same_seed_trains_the_same_model_and_leaves_the_generator_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (train_course(FEW, FEW[:2], seed, epochs=1) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.history == same.history
    assert torch.equal(one.model.classifier.weight, same.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)
    assert not one.model.training
    assert set(one.tokenizer.vocab) >= {"good", "bad", "film", "book", "a"}
    assert capsys.readouterr().out == ""


def test_seeing_padding_is_what_the_model_computes_with_a_mask_of_ones() -> None:
    model, tokenizer, _ = train_course(FEW, FEW[:2], seed=0, epochs=1, sees_padding=True)
    row = torch.tensor([tokenizer.tokenize("a good film", max_length=7)])
    expected = model(row, torch.ones_like(row))[0]
    assert torch.allclose(SeesPadding(model).eval()(row), expected, atol=1e-6)
    assert not torch.allclose(model(row)[0], expected, atol=1e-4)


def test_ctrl_c_is_no_shorter_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_transformer, "train_transformer", lambda *arguments: {"val_acc": [50.0]})
    with pytest.raises(KeyboardInterrupt):
        train_course(FEW, FEW[:2], seed=0, epochs=2)


def test_the_result_is_that_of_the_trained_model(course: CourseResult) -> None:
    train, held_out = split_by_text(plain_reviews(), (0.8, 0.2), 0)
    assert (course.plain.num_trained, course.plain.num_validated) == (192, 48)
    assert not {example.text for example in train} & {example.text for example in held_out}
    model, tokenizer, history = train_course(train, held_out, 0, epochs=1)
    assert course.plain.history == history
    assert course.plain.accuracy == history["val_acc"][-1] / 100
    assert sum(course.parts.values()) == sum(weight.numel() for weight in model.parameters())
    with torch.no_grad():
        logits, weights = model(torch.tensor([tokenizer.words.encode(SENTENCE)]))
    reading = course.reading
    assert logits[0].softmax(-1)[reading.label].item() == pytest.approx(reading.probability, abs=1e-6)
    np.testing.assert_allclose(reading.weights, torch.stack([layer[0] for layer in weights]), atol=6e-5)


def test_figures_show_what_the_result_holds(course: CourseResult) -> None:
    training = draw_training_curves(course.plain.history, "MiniTransformer on plain reviews")
    np.testing.assert_array_equal(training.axes[0].lines[1].get_ydata(), course.plain.history["val_loss"])
    reading = course.reading
    heads = draw_heads(reading)
    shown = [np.asarray(ax.images[0].get_array()) for ax in heads.axes[:16]]
    np.testing.assert_array_equal(shown, np.array(reading.weights).reshape(16, 9, 9))
    assert [ax.get_title() for ax in heads.axes[:16]][8] == "Layer 2, head 1"
    check_readable(training)


@pytest.mark.slow
def test_sixteen_heads_can_be_read(course: CourseResult) -> None:
    check_readable(draw_heads(course.reading))
