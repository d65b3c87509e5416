"""The course's own names: both transformers, their plots and comparison, the designed weights."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from glassformer.labs.hand_designed import (
    NumpyTransformer,
    PlotConfig,
    PytorchTransformer,
    compare_transformers,
    generate_test_cases_first,
    generate_test_cases_identity,
    generate_test_cases_unique,
    hand_designed_weights,
    rescale_and_plot,
    save_figure,
)
from refusals import refused

PANELS = ["Km", "Qm", "Vm", "K", "Q", "V", "Attn", "Out"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The titles of the panels of every figure that was shown."""
    seen: list[list[str]] = []
    monkeypatch.setattr(plt, "show", lambda: seen.append([ax.get_title() for ax in plt.gcf().axes]))
    return seen


def plain(Km: np.ndarray, Qm: np.ndarray, Vm: np.ndarray, pos: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """The head's formula in one go."""
    x = x if pos is None else np.concatenate([x, pos[: len(x)]], axis=1)
    weights = np.exp((x @ Qm) @ (x @ Km).T / np.sqrt(Km.shape[1]))
    return weights / weights.sum(axis=1, keepdims=True) @ (x @ Vm)


@pytest.mark.parametrize("pos_dim", [0, 2])
def test_both_transformers_compute_the_formula(pos_dim: int) -> None:
    rng = np.random.default_rng(3)
    Km, Qm, Vm = (rng.normal(size=(5, size)) for size in (4, 4, 3))
    pos = rng.normal(size=(6, pos_dim)) if pos_dim else None
    x = rng.normal(size=(4, 5 - pos_dim))
    expected = plain(Km, Qm, Vm, pos, x)
    np.testing.assert_allclose(NumpyTransformer(Km, Qm, Vm, pos).forward(x), expected, rtol=1e-12)
    model = PytorchTransformer(5 - pos_dim, 4, 3, pos_dim or None, 6)
    state = {"Km.weight": Km.T, "Qm.weight": Qm.T, "Vm.weight": Vm.T} | ({} if pos is None else {"pos.weight": pos})
    model.load_state_dict({name: torch.tensor(matrix.copy()).float() for name, matrix in state.items()})
    np.testing.assert_allclose(model(torch.tensor(x).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_scores_of_thousands_do_not_overflow() -> None:
    eye = np.eye(3)
    assert np.array_equal(NumpyTransformer(5000 * eye, eye, eye).forward(eye), eye)


def test_the_source_of_the_pytorch_transformer_can_be_read() -> None:
    assert "nn.Linear" in inspect.getsource(PytorchTransformer.__init__)
    assert "self.Qm.weight" in inspect.getsource(PytorchTransformer.forward)


def test_verbose_prints_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    eye = np.eye(2)
    NumpyTransformer(eye, 3 * eye, 7 * eye).forward(eye, verbose=True)
    text = capsys.readouterr().out
    score, weight = 3 / np.sqrt(2), np.exp(3 / np.sqrt(2)) / (1 + np.exp(3 / np.sqrt(2)))
    for number in (3, 7, score, weight, 7 * weight):
        assert f"{number:.4f}" in text


def drawn(ax) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def test_a_matrix_is_rescaled_to_the_unit_interval() -> None:
    _, axes = plt.subplots(1, 2)
    rescale_and_plot(np.array([[3, 5], [7, 4]]), "T", axes[0], "columns", "rows")
    np.testing.assert_allclose(drawn(axes[0]), [[0, 0.5], [1, 0.25]])
    assert (axes[0].images[0].get_clim(), axes[0].images[0].get_cmap().name) == ((0, 1), "Reds")
    assert (axes[0].get_title(), axes[0].get_xlabel(), axes[0].get_ylabel()) == ("T", "columns", "rows")
    assert [*axes[0].get_xticks(), *axes[0].get_yticks()] == []
    plt.sca(axes[1])
    rescale_and_plot(np.full((2, 3), 7.0), colormap="Blues", vmin=-1, vmax=2, show_xticks=True, show_yticks=True)
    assert (drawn(axes[1]) == 0).all()
    assert axes[1].images[0].get_clim() == (-1, 2)
    assert (axes[1].get_xticks().tolist(), axes[1].get_yticks().tolist()) == ([0, 1, 2], [0, 1])
    plt.close("all")


def test_the_panels_are_shown_and_saved(
    shown: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = PlotConfig(save_dir=str(tmp_path), add_timestamp=False, save_format="svg", nrows=2, ncols=5)
    transformer = NumpyTransformer(**hand_designed_weights("copy_first"))
    transformer.forward(np.eye(3), plot=True, config=config)
    assert [titles[:8] for titles in shown] == [PANELS]
    assert not list(tmp_path.iterdir())
    transformer.forward(np.eye(3), save_plot=True, plot_name="head", run_name="first", config=config)
    assert len(shown) == 1
    saved = tmp_path / "first" / "head.svg"
    assert "Attn" in saved.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"figure saved: {saved}\n"
    transformer.forward(np.eye(3), config=PlotConfig(save_dir=str(tmp_path), add_timestamp=False, auto_save=True))
    assert (tmp_path / "transformer_attention.png").exists()
    assert plt.get_fignums() == []


def test_files_carry_name_time_and_format(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    timed = save_figure(figure, "a", str(tmp_path), "pdf", run_name="run 1")
    assert timed.parent == tmp_path / "run 1"
    assert re.fullmatch(r"a_\d{8}_\d{6}\.pdf", timed.name)
    assert timed.read_bytes().startswith(b"%PDF")
    heights = [
        plt.imread(save_figure(figure, "b", str(tmp_path), "png", dpi, add_timestamp=False)).shape[0]
        for dpi in (40, 80)
    ]
    assert heights[1] == pytest.approx(2 * heights[0], abs=2)
    with refused("^name = "):
        save_figure(figure, "../up", str(tmp_path), add_timestamp=False)
    with refused("'gif'"):
        save_figure(figure, "a", str(tmp_path), "gif")


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


def test_bad_arguments_are_refused() -> None:
    with refused(anywhere="'sort'"):
        hand_designed_weights("sort")
    with refused("parity"):
        hand_designed_weights("parity")
