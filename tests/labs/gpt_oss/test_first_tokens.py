"""A token and a run of it."""

from __future__ import annotations

from pathlib import Path

import torch

from glassformer.labs.gpt_oss.experiments import Results
from glassformer.labs.gpt_oss.experiments.first_tokens import draw
from glassformer.labs.run import read
from glassformer.models import Decoder, DecoderConfig


def test_only_sinks_tell_a_token_from_a_run_of_it() -> None:
    runs = torch.arange(7)[:, None].expand(-1, 5)
    for sinks in (False, True):
        model = Decoder(DecoderConfig(7, 2, 16, 16, 2, 8, key_weights=True, sinks=sinks)).eval()
        with torch.no_grad():
            change = (model(runs) - model(runs)[:, :1]).abs().max()
        assert (change > 1e-3) == sinks


def test_the_lab_compares_the_models_with_the_optimum(tiny_run: Path) -> None:
    first = read(tiny_run / "results.json", Results).first_tokens
    assert list(first.change) == list(first.predictions) == ["optimal", "long-new", "long-sinks"]
    assert first.change["long-new"] < 1e-5 < first.change["long-sinks"]
    assert all(abs(sum(row) - 1) < 1e-6 for rows in first.predictions.values() for row in rows)
    panels = draw(first).axes
    heights = [bar.get_height() for bar in panels[0].patches]
    assert heights == [share for row in first.predictions["optimal"] for share in row]
