"""The course's plotting functions: what is in the pictures, and where files go."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.handcraft.single_head import HeadWeights
from glassformer.labs.hand_designed.plots import PlotConfig, draw_transformer, rescale_and_plot, save_figure
from refusals import refused


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def drawn(ax) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def test_a_matrix_is_rescaled_to_the_unit_interval() -> None:
    figure = Figure()
    ax = figure.add_subplot()
    rescale_and_plot(np.array([[3, 5], [7, 4]]), "T", ax, "columns", "rows")
    np.testing.assert_allclose(drawn(ax), [[0, 0.5], [1, 0.25]])
    assert ax.images[0].get_clim() == (0, 1)
    assert ax.images[0].get_cmap().name == "Reds"
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("T", "columns", "rows")
    assert [ax.title.get_fontsize(), ax.xaxis.label.get_fontsize()] == [12, 10]
    assert [*ax.get_xticks(), *ax.get_yticks()] == []


def test_options_and_the_current_axes() -> None:
    _, axes = plt.subplots(1, 2)
    plt.sca(axes[0])
    rescale_and_plot(np.full((2, 3), 7.0), colormap="Blues", vmin=-1, vmax=2, show_xticks=True, show_yticks=True)
    assert not axes[1].images
    assert (drawn(axes[0]) == 0).all()
    assert axes[0].images[0].get_clim() == (-1, 2)
    assert axes[0].get_xticks().tolist() == [0, 1, 2]
    assert axes[0].get_yticks().tolist() == [0, 1]


def test_eight_panels_show_the_transposed_matrices() -> None:
    rng = np.random.default_rng(0)
    weights = HeadWeights(*(rng.normal(size=(5, size)) for size in (2, 2, 3)), rng.normal(size=(4, 2)))
    config = PlotConfig(figure_width=12, figure_height=6, nrows=2, ncols=5, title_fontsize=8)
    figure = draw_transformer(weights, np.eye(3), config)
    assert figure.get_size_inches().tolist() == [12, 6]
    shapes = {ax.get_title(): drawn(ax).shape for ax in figure.axes if ax.axison}
    assert shapes == {
        "Km": (2, 5),
        "Qm": (2, 5),
        "Vm": (3, 5),
        "K": (2, 3),
        "Q": (2, 3),
        "V": (3, 3),
        "Attn": (3, 3),
        "Out": (3, 3),
    }
    keys = figure.axes[0]
    expected = (weights.Km.T - weights.Km.min()) / (weights.Km.max() - weights.Km.min())
    np.testing.assert_allclose(drawn(keys), expected)
    assert keys.title.get_fontsize() == 8


def test_files_carry_name_run_time_and_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure(figsize=(2, 2))
    plain = save_figure(figure, "a", str(tmp_path), "png", 40, add_timestamp=False)
    assert plain == tmp_path / "a.png"
    timed = save_figure(figure, "a", str(tmp_path), "pdf", run_name="run 1")
    assert timed.parent == tmp_path / "run 1"
    assert re.fullmatch(r"a_\d{8}_\d{6}\.pdf", timed.name)
    assert timed.read_bytes().startswith(b"%PDF")
    assert capsys.readouterr().out == f"figure saved: {plain}\nfigure saved: {timed}\n"
    small = plt.imread(plain).shape[0]
    large = plt.imread(save_figure(figure, "b", str(tmp_path), "png", 80, add_timestamp=False)).shape[0]
    assert large == pytest.approx(2 * small, abs=2)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    for name in ("..", "../up", "/etc", "a/b", "a\\b", "", ".", "a\0b", "a\nb"):
        with refused("^name = ", expected="plain name"):
            save_figure(Figure(), name, str(tmp_path / "plots"))
        with refused("^run_name = ", expected="plain name"):
            save_figure(Figure(), "a", str(tmp_path / "plots"), run_name=name)
    assert list(tmp_path.iterdir()) == []
    with refused("'gif'"):
        save_figure(Figure(), "a", str(tmp_path), "gif")
    with refused("'gif'"):
        PlotConfig(save_format="gif")
    with refused(expected="eight panels"):
        PlotConfig(nrows=1, ncols=7)
    with refused("dpi = 0"):
        PlotConfig(dpi=0)
    with refused(anywhere="matrix"):
        rescale_and_plot(np.zeros(3), ax=Figure().add_subplot())
    assert list(tmp_path.iterdir()) == []
