"""Single texts: the verdict is the classifier's, and each effect is the change that leaving a token out makes."""

from __future__ import annotations

import pytest

from glassformer.classifier import Classifier
from glassformer.data.sentiment import reviews
from glassformer.errors import InputError
from glassformer.labs.sentiment.looks import SHOWN_TEXTS, look_at
from glassformer.labs.sentiment.recipes import FROM_SCRATCH
from glassformer.labs.sentiment.training_runs import build_classifier


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    found = build_classifier(FROM_SCRATCH, [example.text for example in reviews()], ("negative", "positive"), seed=0)
    found.encoder.eval()
    return found


def test_verdicts_and_effects(classifier: Classifier) -> None:
    looks = look_at(classifier)
    assert [look.text for look in looks] == list(SHOWN_TEXTS)
    probabilities = classifier.probabilities(SHOWN_TEXTS)
    for look, row in zip(looks, probabilities, strict=True):
        assert look.label == int(row.argmax())
        assert look.probability == pytest.approx(float(row.max()), abs=1e-6)
        assert len(look.tokens) == len(look.effects) > 4
    short = look_at(classifier, ["good film"])[0]
    without = float(classifier.probabilities(["good"])[0, short.label])  # no positions: leaving out is as never there
    assert short.effects[1] == pytest.approx(short.probability - without, abs=1e-6)


def test_no_texts_are_refused(classifier: Classifier) -> None:
    with pytest.raises(InputError):
        look_at(classifier, [])
