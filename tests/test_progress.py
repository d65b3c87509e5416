"""Progress bars: on a terminal and in a notebook, after a second; nowhere else."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glassformer.checkpoints.lazy import in_memory
from glassformer.checkpoints.shards import write_tensors
from glassformer.observe.sweep import ablation_sweep, patch_sweep
from glassformer.progress import DELAY, progress_bar
from processes import printed
from small_models import decoder


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class CellOutput(io.StringIO):
    """A stream as a notebook's kernel has it."""


CellOutput.__module__ = "ipykernel.iostream"


def drawn(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, show: bool | None, later: float
) -> str:
    """What a bar writes on standard error ``later`` seconds after it began."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(show, total=3, desc="work", mininterval=0) as bar:
        if not bar.disable:
            bar.start_t -= later
            bar.last_print_t -= later
        bar.update(2)
    return "" if stream is None else stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "show", "later", "is_drawn"),
    [
        (Screen, None, DELAY + 1, True),
        (CellOutput, None, DELAY + 1, True),
        (io.StringIO, None, DELAY + 1, False),
        (io.StringIO, True, DELAY + 1, True),
        (Screen, False, DELAY + 1, False),
        (Screen, None, 0, False),
        (Screen, True, 0, False),
        (lambda: None, None, DELAY + 1, False),
    ],
)
def test_where_and_when_a_bar_is_drawn(
    stream: Callable[[], io.StringIO],
    show: bool | None,
    later: float,
    is_drawn: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = drawn(stream(), monkeypatch, show, later)
    assert ("2/3" in text) == is_drawn
    assert is_drawn or text == ""


def test_a_variable_of_the_environment_hides_bars() -> None:
    script = """if True:
        import io, sys
        from glassformer.progress import progress_bar
        class Screen(io.StringIO):
            def isatty(self): return True
        sys.stderr = Screen()
        print(progress_bar(None, total=1).disable, progress_bar(True, total=1).disable)
    """
    assert printed(script, env={"TQDM_DISABLE": "1"}) == "True False\n"


def test_nothing_is_printed_to_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("glassformer.progress.DELAY", 0)
    model = decoder()
    tokens = torch.tensor([[1, 2, 3]])

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1, 0]

    ablation_sweep(model, tokens, metric)
    patch_sweep(model, tokens, tokens + 1, metric)
    write_tensors(tmp_path, {"a": in_memory(torch.zeros(3))})
    assert capsys.readouterr() == ("", "")
    ablation_sweep(model, tokens, metric, progress=True)
    assert "sweep over heads" in capsys.readouterr().err
