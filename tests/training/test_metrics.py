import io
import json
from pathlib import Path

import pytest

from glassformer.training.metrics import MetricsFile, Progress, TensorBoard, read_records
from refusals import refused

RECORDS = [
    {"step": 1, "loss": 2.5},
    {"step": 2, "loss": 2.0},
    {"step": 2, "evaluation": {"accuracy": 0.5}},
]


def test_what_is_written_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsFile(path, RECORDS[:1])
    for record in RECORDS[1:]:
        log.write(record)
    assert read_records(path, 2) == RECORDS
    log.sync()
    log.close()
    assert len(path.read_text().splitlines()) == 3


def test_reading_stops_at_the_step_and_at_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_records(path, 9) == []
    MetricsFile(path, RECORDS).close()
    assert read_records(path, 1) == RECORDS[:1]
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    assert read_records(path, 9) == RECORDS


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b'{"loss": 1}',
        b'{"step": "x"}',
        b"\xff",
        b'{"step": 1',
        b'{"step": 1}',
        b"",
        b"[" * 10**5,
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_dropped(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path, RECORDS).close()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, lines[2]]) + b"\n")
    before = path.read_bytes()
    with refused(r"metrics\.jsonl, line 3"):
        read_records(path, 9)
    assert path.read_bytes() == before


def test_continuing_replaces_what_came_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path, RECORDS).close()
    log = MetricsFile(path, read_records(path, 1))
    log.write({"step": 2, "loss": 1.0})
    log.close()
    assert read_records(path, 9) == [RECORDS[0], {"step": 2, "loss": 1.0}]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsFile(path, [])
    log.write({"step": 1, "grad_norm": float("inf"), "evaluation": {"accuracy": float("nan")}})
    log.close()
    assert json.loads(path.read_text()) == {
        "step": 1,
        "grad_norm": None,
        "evaluation": {"accuracy": None},
    }


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    board = TensorBoard(tmp_path, 0)
    for record in RECORDS:
        board.write(record)
    board.sync()
    board.close()
    events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (1, 2.5),
        (2, 2.0),
    ]
    assert [(event.step, event.value) for event in events.Scalars("evaluation/accuracy")] == [
        (2, 0.5)
    ]


class Terminal(io.StringIO):
    """Stands for standard error on a terminal."""

    def isatty(self) -> bool:
        return True


def drive(progress: Progress) -> None:
    for _ in range(2):
        progress.advance()
    progress.show({"step": 2, "loss": 1.25, "tokens_per_second": 12345.6})
    progress.show({"step": 2, "evaluation": {"accuracy": 0.5}})
    progress.advance()
    progress.say("a word")
    progress.close()


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    drive(Progress(6, 1, "accuracy", "tokens", True))
    last = terminal.getvalue().split("\r")[-1]
    assert "4/6" in last
    assert "loss 1.2500, tokens/s 12,346, evaluation accuracy 0.5000" in last
    assert "a word" in terminal.getvalue()


def test_a_file_gets_a_line_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    drive(Progress(6, 1, "accuracy", "tokens", True))
    assert capsys.readouterr().err.splitlines() == [
        "step 2/6: loss 1.2500, tokens/s 12,346, evaluation accuracy 0.5000",
        "a word",
    ]


def test_a_file_gets_a_line_now_and_then_between_evaluations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.0, 15.0])
    monkeypatch.setattr("glassformer.training.metrics.time.monotonic", lambda: next(clock))
    progress = Progress(40, 0, "accuracy", "tokens", True)
    for step in (10, 20, 30):
        progress.show({"step": step, "loss": 1.25, "tokens_per_second": 12345.6})
    assert capsys.readouterr().err.splitlines() == ["step 20/40: loss 1.2500, tokens/s 12,346"]


def test_nothing_is_shown_when_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    drive(Progress(6, 1, "accuracy", "tokens", False))
    assert capsys.readouterr().err == "a word\n"
