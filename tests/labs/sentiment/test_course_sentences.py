"""The leak on the course's own sentences, which are read from its document where that is present."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from glassformer.data.examples import Example
from glassformer.labs.sentiment.experiments import pitfalls

DOCUMENT = Path(
    os.environ.get("GLASSFORMER_COURSE_TEXTS", Path(__file__).parents[4] / "shared" / "seeds"), "sentiment.txt"
)


def sentences(name: str) -> list[str]:
    document = DOCUMENT.read_text(encoding="utf-8")
    begin = document.index(f"{name} = [")
    return re.findall(r'"(.+)"', document[begin : document.index("]", begin)])


@pytest.mark.slow
@pytest.mark.skipif(not DOCUMENT.exists(), reason="the course's document is not here; set GLASSFORMER_COURSE_TEXTS")
def test_the_courses_sentences_leak_as_ours_do(monkeypatch: pytest.MonkeyPatch) -> None:
    praise, blame = sentences("positive_samples"), sentences("negative_samples")
    assert len(set(praise)) == len(set(blame)) == 10
    examples = [Example(text, 1) for text in praise * 10] + [Example(text, 0) for text in blame * 10]
    monkeypatch.setattr(pitfalls, "leaky_examples", lambda: examples)
    found = pitfalls.measure_leak(seeds=range(5))
    assert (found.num_examples, found.num_texts) == (200, 20)
    assert all(run.num_seen == run.num_validated == 40 for run in found.leaky)
    assert found.mean("leaky", "transformer") == found.mean("leaky", "tfidf") == 1
    # Four sentences are held out in each split: a coin's mean over five splits has a standard error of 11 points.
    assert all(run.num_seen == 0 for run in found.clean)
    assert 0.25 <= found.mean("clean", "transformer") <= 0.75
