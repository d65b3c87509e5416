"""Files that former versions wrote still open, and mean the same.

The files of ``tests/former`` were written by version c45698de: decoders in our own layout and in those of two families, a
training run that was interrupted after step 2 of 4, and compiled programs. ``values.json`` holds what that version
computed with them. The bundled models and the pages of the notebooks are files of former versions, too; their own tests
open them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.cli.main import main
from glassformer.models import Decoder
from glassformer.programs import verify_program
from glassformer.programs.library import PROGRAMS
from glassformer.programs.saved import load_program

FORMER = Path(__file__).parent / "former"
VALUES: dict[str, Any] = json.loads((FORMER / "values.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VALUES["last_logits"])
def test_logits_of_a_saved_decoder(name: str) -> None:
    model = Decoder.from_pretrained(FORMER / name)
    with torch.no_grad():
        logits = model(torch.tensor(VALUES["tokens"]))[0, -1]
    torch.testing.assert_close(
        logits, torch.tensor(VALUES["last_logits"][name]), atol=1e-5, rtol=1e-5
    )


def test_a_training_run_continues(tmp_path: Path) -> None:
    """The remaining steps give the losses that the version which began the run had."""
    former = VALUES["run"]
    data = tmp_path / "text.txt"
    data.write_text(former["text"] * former["repeats"], encoding="utf-8")
    run = tmp_path / "run"
    shutil.copytree(FORMER / "run", run)
    assert main(["train", "--resume", "--run", str(run), "--data", str(data)]) == 0
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    evaluations = [entry["evaluation"]["loss"] for entry in metrics if "evaluation" in entry]
    losses = [entry["loss"] for entry in metrics if "loss" in entry]
    assert evaluations[-1] == pytest.approx(former["evaluation_loss"], rel=1e-4)
    assert losses[-1] == pytest.approx(former["training_loss"], rel=1e-4)


@pytest.mark.parametrize("name", VALUES["programs"])
def test_a_compiled_program_and_its_certificate(name: str) -> None:
    former = VALUES["programs"][name]
    model = load_program(FORMER / f"{name}.json")
    assert model.run(former["sequence"]) == former["output"]
    model.program = PROGRAMS[name].program
    assert verify_program(model).verdict == former["verdict"]
