"""The script that trains the bundled models writes what the explorer reads."""

import json
from pathlib import Path

import pytest
import torch
import train_bundled_models as make

from glassformer.explorer import BUNDLED
from glassformer.explorer.loading.bundled import RECURRENCE
from glassformer.explorer.loading.task_models import load_exact
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoderConfig


def test_what_is_bundled_was_made_with_this_recipe() -> None:
    stored = DecoderConfig.from_json((BUNDLED / "recurrence" / "config.json").read_text())
    assert stored == make.DECODER
    assert (
        DecoderConfig.from_json((BUNDLED / "induction" / "config.json").read_text())
        == make.ATTENTION_ONLY
    )
    facts = EncoderDecoderConfig.from_json((BUNDLED / "lookup-facts" / "config.json").read_text())
    assert facts == make.FACTS.model_config()
    sentiment = json.loads((BUNDLED / "sentiment" / "config.json").read_text())
    assert make.SENTIMENT.model.items() <= sentiment.items()
    assert list(make.MAKERS) == [
        "sentiment",
        "lookup-course",
        "lookup-facts",
        "recurrence",
        "induction",
    ]


def test_a_model_is_written_in_half_precision_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "BUNDLED", tmp_path)
    config = DecoderConfig(5, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
    model = Decoder(config)
    make._write("small", model, {"right": 3})
    assert json.loads((tmp_path / "small" / "measured.json").read_text()) == {"right": 3}
    assert DecoderConfig.from_json((tmp_path / "small" / "config.json").read_text()) == config
    again = load_exact(lambda: Decoder(config), tmp_path / "small")
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight.half().float(), atol=0, rtol=0)


def test_samples_are_predicted_right_and_one_fills_the_model() -> None:
    config = DecoderConfig(7, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
    model = Decoder(config).eval()
    *short, long = make._samples(model)
    assert len(long.split()) == make.LONG
    for text in short:
        tokens = [int(word) for word in text.split()]
        assert len(tokens) == 40
        assert all(0 <= token < RECURRENCE.vocab_size for token in tokens)


def test_the_named_makers_are_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    makers = {name: lambda work, name=name: made.append(name) for name in make.MAKERS}
    monkeypatch.setattr(make, "MAKERS", makers)
    make.main(["sentiment"])
    assert made == ["sentiment"]
    assert "making sentiment" in capsys.readouterr().out
    make.main([])
    assert made == ["sentiment", *make.MAKERS]


@pytest.mark.slow
def test_a_maker_runs_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "BUNDLED", tmp_path / "bundled")
    train_course = make.train_course
    monkeypatch.setattr(
        make, "train_course", lambda seed, work, epochs: train_course(seed, work, epochs=1)
    )
    make.make_lookup_course(tmp_path / "work")
    told = json.loads((tmp_path / "bundled" / "lookup-course" / "measured.json").read_text())
    assert told["contexts"] == 72
    assert 24 <= told["right"] <= 72
