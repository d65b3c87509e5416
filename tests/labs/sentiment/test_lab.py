"""The lab from start to end, with a plan of the smallest sizes: what it leaves, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from glassformer.classifier import load_classifier, save_classifier
from glassformer.data.examples import fingerprint
from glassformer.data.sentiment_sources import find_data
from glassformer.labs import sentiment
from glassformer.labs.sentiment import lab, run
from glassformer.labs.sentiment.compare import best_encoder
from glassformer.labs.sentiment.plan import QUICK
from glassformer.labs.sentiment.recipes import FROM_SCRATCH, TrainingRecipe
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.training_runs import build_classifier
from refusals import refused

TINY = dataclasses.replace(
    QUICK,
    course_epochs=1,
    leak_seeds=1,
    head_counts=(1, 4),
    reach_distances=(0, 1, 2),
    reach_lengths=(4,),
    reach_updates=2,
    growth_lengths=(16, 32),
    growth_rounds=1,
)


@pytest.mark.slow
def test_it_leaves_a_report_and_a_classifier_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "QUICK", TINY)
    out = tmp_path / "run"

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lab, "compete", stop)
        with pytest.raises(KeyboardInterrupt):
            run(out, quick=True, seed=1, resume=False)
    assert "leak ..." in capsys.readouterr().out
    with refused("holds a run"):
        run(out, quick=True, seed=1, resume=False)
    report = run(out, quick=True, seed=1, resume=True)
    told = capsys.readouterr().out
    assert "leak ..." not in told  # what was finished is kept
    assert f"classify --run {out / 'classifier'}" in told
    assert report == out / "report.md"
    text = report.read_text(encoding="utf-8")
    assert "This is the quick version" in text
    assert "### 7. " in text
    names = {path.stem for path in (out / "figures").iterdir()}
    assert {"architecture", "calibration", "complexity", "effects", "heads", "leak", "timeline", "training"} <= names
    assert "encoder from scratch" in (out / "models.md").read_text(encoding="utf-8")
    assert len(json.loads((out / "results.json").read_text(encoding="utf-8"))["models"]) == 6
    classifier = load_classifier(out / "classifier")
    assert classifier.probabilities(["A fine film."]).shape == (1, 2)

    results = (out / "results.json").read_bytes()
    run(out, quick=True, seed=1, resume=True)
    assert (out / "results.json").read_bytes() == results


def test_another_seed_or_data_set_is_refused(tmp_path: Path) -> None:
    asked = {"seed": 1, "data": None, "texts": fingerprint(find_data(None)[1]), **dataclasses.asdict(QUICK)}
    (tmp_path / "lab.json").write_text(json.dumps(asked))
    with refused("another seed"):
        run(tmp_path, quick=True, seed=2, resume=True)
    with refused("seed = -1"):
        run(tmp_path, quick=True, seed=-1, resume=True)
    with refused("not there"):
        run(tmp_path, quick=True, seed=1, resume=True, data=str(tmp_path / "none.tsv"))


def test_other_texts_under_the_same_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Claimed(Exception):
        pass

    def stop(*arguments: object) -> None:
        raise Claimed

    monkeypatch.setattr(lab, "_experiments", stop)
    texts, out = tmp_path / "mine.tsv", tmp_path / "run"
    rows = [f"{word} number {number}\t{label}" for number in range(20) for word, label in (("good", 1), ("bad", 0))]
    texts.write_text("\n".join(rows) + "\n", encoding="utf-8")
    for resume in (False, True):
        with pytest.raises(Claimed):
            run(out, quick=True, seed=1, resume=resume, data=str(texts))
    texts.write_text("\n".join(["very " + rows[0], *rows[1:]]) + "\n", encoding="utf-8")
    with refused("another texts"):
        run(out, quick=True, seed=1, resume=True, data=str(texts))


def test_the_kept_classifier_is_the_best_ones_whatever_was_there(tmp_path: Path, results: Results) -> None:
    training = TrainingRecipe(1, 2, 0.01, 0.0)
    recipe = dataclasses.replace(FROM_SCRATCH, training=training)
    texts = ["good film", "bad film"]
    best, stale = (build_classifier(recipe, texts, ("negative", "positive"), seed) for seed in (0, 1))
    model = best_encoder(results.models)
    save_classifier(best, tmp_path / "trainings" / model.slug)
    save_classifier(stale, tmp_path / "classifier")
    kept = lab._kept_classifier(tmp_path, model)
    assert torch.equal(kept.probabilities(texts), best.probabilities(texts))
    (tmp_path / "classifier" / "tokenizer.json").unlink()
    assert torch.equal(lab._kept_classifier(tmp_path, model).probabilities(texts), kept.probabilities(texts))
    assert torch.equal(load_classifier(tmp_path / "classifier").probabilities(texts), kept.probabilities(texts))


def test_without_scikit_learn_the_lab_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("sklearn", "glassformer.labs.sentiment."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sentiment, "lab")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refused("without scikit-learn", fix=r"glassformer\[labs\]"):
        run(tmp_path, quick=True, seed=0, resume=False)
