"""The course's own names: the NumPy twin's output, text and figures, the comparison, the designed weights."""

from __future__ import annotations

import inspect
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from glassformer.labs.hand_designed import (
    NumpyTransformer,
    PlotConfig,
    PytorchTransformer,
    compare_transformers,
    generate_test_cases_first,
    generate_test_cases_identity,
    generate_test_cases_unique,
    hand_designed_weights,
)
from refusals import refused


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The titles of the panels of every figure that was shown."""
    seen: list[list[str]] = []

    def show() -> None:
        seen.append([ax.get_title() for ax in plt.gcf().axes])

    monkeypatch.setattr(plt, "show", show)
    return seen


PANELS = ["Km", "Qm", "Vm", "K", "Q", "V", "Attn", "Out"]


def plain(Km: np.ndarray, Qm: np.ndarray, Vm: np.ndarray, pos: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """The head's formula in one go."""
    x = x if pos is None else np.concatenate([x, pos[: len(x)]], axis=1)
    weights = np.exp((x @ Qm) @ (x @ Km).T / np.sqrt(Km.shape[1]))
    return weights / weights.sum(axis=1, keepdims=True) @ (x @ Vm)


@pytest.mark.parametrize("pos_dim", [0, 2])
def test_both_twins_compute_the_formula(pos_dim: int) -> None:
    rng = np.random.default_rng(3)
    Km, Qm, Vm = (rng.normal(size=(5, size)) for size in (4, 4, 3))
    pos = rng.normal(size=(6, pos_dim)) if pos_dim else None
    x = rng.normal(size=(4, 5 - pos_dim))
    expected = plain(Km, Qm, Vm, pos, x)
    np.testing.assert_allclose(NumpyTransformer(Km, Qm, Vm, pos).forward(x), expected, rtol=1e-12)

    twin = PytorchTransformer(5 - pos_dim, 4, 3, pos_dim or None, 6)
    state = {"Km.weight": Km.T, "Qm.weight": Qm.T, "Vm.weight": Vm.T} | ({} if pos is None else {"pos.weight": pos})
    twin.load_state_dict({name: torch.tensor(matrix.copy()).float() for name, matrix in state.items()})
    np.testing.assert_allclose(twin(torch.tensor(x).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_scores_of_thousands_are_no_trouble() -> None:
    eye = np.eye(3)
    assert np.array_equal(NumpyTransformer(5000 * eye, eye, eye).forward(eye), eye)


def test_the_sources_of_the_pytorch_twin_can_be_read() -> None:
    assert "nn.Linear" in inspect.getsource(PytorchTransformer.__init__)
    assert "self.Qm.weight" in inspect.getsource(PytorchTransformer.forward)


def test_verbose_prints_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    eye = np.eye(2)
    NumpyTransformer(eye, 3 * eye, 7 * eye).forward(eye, verbose=True)
    text = capsys.readouterr().out
    score, weight = 3 / np.sqrt(2), np.exp(3 / np.sqrt(2)) / (1 + np.exp(3 / np.sqrt(2)))
    for number in (3, 7, score, weight, 7 * weight):
        assert f"{number:.4f}" in text


def test_plots_are_shown_and_saved(shown: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = hand_designed_weights("copy_first")
    config = PlotConfig(save_dir=str(tmp_path), add_timestamp=False, save_format="svg")
    transformer = NumpyTransformer(**weights)
    transformer.forward(np.eye(3), plot=True, config=config)
    assert shown == [PANELS]
    assert not list(tmp_path.iterdir())
    transformer.forward(np.eye(3), save_plot=True, plot_name="head", run_name="first", config=config)
    assert shown == [PANELS]
    saved = tmp_path / "first" / "head.svg"
    assert "Attn" in saved.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"figure saved: {saved}\n"
    transformer.forward(np.eye(3), config=PlotConfig(save_dir=str(tmp_path), add_timestamp=False, auto_save=True))
    assert (tmp_path / "transformer_attention.png").exists()
    assert plt.get_fignums() == []


def test_comparing_draws_both_and_returns_both_outputs(
    shown: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand = NumpyTransformer(**hand_designed_weights("unique"))
    learned = PytorchTransformer(4, hand.qk_dim, 1, 5, 5)
    sequence = np.eye(4)[[3, 0, 1, 2, 2]]
    config = PlotConfig(save_dir=str(tmp_path), add_timestamp=False)
    outputs = compare_transformers(hand, learned, sequence, save_plot=True, run_name="unique", config=config)
    assert outputs[0][1:].ravel().tolist() == pytest.approx([1, 1, -1, -1], abs=1e-9)
    np.testing.assert_allclose(outputs[1], learned(torch.tensor(sequence).float()).detach().numpy(), rtol=1e-5)
    assert shown == [PANELS, PANELS]
    assert {path.name for path in (tmp_path / "unique").iterdir()} == {"hand_designed.png", "learned.png"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip("= ") for line in lines if line.startswith("=")] == ["Hand Designed", "Learned"]


@pytest.mark.parametrize(
    ("task", "generate", "eye"),
    [
        ("identity", generate_test_cases_identity, list(np.eye(3))),
        ("copy_first", generate_test_cases_first, list(np.eye(3))),
        ("unique", generate_test_cases_unique, list(np.eye(4)[:3])),
    ],
)
def test_designed_weights_solve_random_cases(task: str, generate, eye: list[np.ndarray]) -> None:
    weights = hand_designed_weights(task)
    assert set(weights) == {"Km", "Qm", "Vm", "pos"}
    assert (weights["pos"] is None) == (task == "identity")
    for _ in range(50):
        sequence, target = generate(eye)
        output = NumpyTransformer(**weights).forward(sequence)
        np.testing.assert_allclose(output[-len(target) :], target, atol=1e-9)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    eye = np.eye(3)
    with refused(anywhere="'sort'"):
        hand_designed_weights("sort")
    with refused("parity"):
        hand_designed_weights("parity")
    with refused(expected="rows"):
        NumpyTransformer(eye, eye, np.eye(2))
    with refused(expected="input_dim"):
        NumpyTransformer(eye, eye, eye).forward(np.eye(4))
    with refused("length 3 and 1"):
        compare_transformers(NumpyTransformer(eye, eye, eye), PytorchTransformer(3, 3, 1), eye, plot=False)
