"""The course's settings, plots, two transformers and training loop, under the course's names.

:mod:`glassformer.handcraft.single_head` computes the heads, and :mod:`glassformer.handcraft`
designs them.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float, Num
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.figures import style
from glassformer.figures.heat_maps import panel, rescaled
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS


@dataclass(frozen=True)
class PlotConfig:
    """Look of the eight panels, and how they are saved; sizes in inches, fonts in points."""

    figure_width: float = 20.0
    figure_height: float = 5.0
    dpi: int = 100
    colormap: str = "Reds"
    vmin: float | int | None = None
    vmax: float | int | None = None
    title_fontsize: int = 12
    label_fontsize: int = 10
    show_xticks: bool = False
    show_yticks: bool = False
    tight_layout: bool = True
    nrows: int = 1
    ncols: int = 8
    save_dir: str = "plots"
    save_format: Literal["png", "pdf", "svg"] = "png"
    save_dpi: int = 150
    auto_save: bool = False
    add_timestamp: bool = True


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of :func:`train_loop`: one sequence for each of ``num_epochs`` updates."""

    num_epochs: int = 10_001
    learning_rate: float = 3e-2
    log_interval: int = 1000
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss_fn: Literal["mse", "cross_entropy"] = "mse"


PLOT_CONFIG = PlotConfig()
TRAIN_CONFIG = TrainingConfig()


def set_random_seed(seed: int = 42) -> None:
    """Seed the global random generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the course draws from the global generator
    torch.manual_seed(seed)


_set_seed = set_random_seed
get_current_figure = plt.gcf


def rescale_and_plot(
    arr: Num[np.ndarray, "row column"],
    title: str = "",
    ax: Axes | None = None,
    x_lab: str | None = None,
    y_lab: str | None = None,
    colormap: str = PLOT_CONFIG.colormap,
    vmin: float | int | None = PLOT_CONFIG.vmin,
    vmax: float | int | None = PLOT_CONFIG.vmax,
    title_fontsize: int = PLOT_CONFIG.title_fontsize,
    label_fontsize: int = PLOT_CONFIG.label_fontsize,
    show_xticks: bool = PLOT_CONFIG.show_xticks,
    show_yticks: bool = PLOT_CONFIG.show_yticks,
) -> None:
    """Draw ``(arr - min) / (max - min)`` as a heat map on ``ax``; a constant array as zeros.

    Default of ``ax``: pyplot's current axes.
    """
    ax = plt.gca() if ax is None else ax
    limits = (0.0 if vmin is None else vmin, 1.0 if vmax is None else vmax)
    panel(ax, rescaled(arr), title, x_lab, y_lab, limits=limits, colormap=colormap)
    ax.title.set_fontsize(title_fontsize)
    ax.xaxis.label.set_fontsize(label_fontsize)
    ax.yaxis.label.set_fontsize(label_fontsize)
    if show_xticks:
        ax.set_xticks(range(arr.shape[1]))
    if show_yticks:
        ax.set_yticks(range(arr.shape[0]))


def save_figure(
    fig: Figure,
    name: str,
    save_dir: str = PLOT_CONFIG.save_dir,
    save_format: str = PLOT_CONFIG.save_format,
    save_dpi: int = PLOT_CONFIG.save_dpi,
    add_timestamp: bool = PLOT_CONFIG.add_timestamp,
    run_name: str | None = None,
) -> Path:
    """Save ``fig`` as ``save_dir / run_name / name_YYYYmmdd_HHMMSS.save_format``.

    The path is printed and returned.
    """
    stamp = f"_{datetime.now():%Y%m%d_%H%M%S}" if add_timestamp else ""
    options: dict[str, Any] = {"dpi": save_dpi, "bbox_inches": "tight"}
    (path,) = style.save_figure(
        fig, Path(save_dir, run_name or ""), name + stamp, formats=[save_format], **options
    )
    print(f"figure saved: {path}")
    return path


class PytorchTransformer(nn.Module):
    """A trainable head in PyTorch.

    ``Qm``, ``Km`` and ``Vm`` are linear layers without bias, whose weights PyTorch stores
    transposed; ``pos`` is an embedding of positions or None. The submission log holds the source of
    ``__init__`` and ``forward``: they must contain the whole computation.
    """

    def __init__(
        self,
        input_dim: int,
        qk_dim: int,
        v_dim: int,
        pos_dim: int | None = None,
        max_seq_len: int | None = 10,
    ) -> None:
        super().__init__()
        _require_sizes(input_dim, qk_dim, v_dim, pos_dim, max_seq_len)
        if pos_dim is None or max_seq_len is None:
            self.pos = None
        else:
            self.pos = nn.Embedding(max_seq_len, pos_dim)
        total_dim = input_dim + (pos_dim or 0)
        self.Qm = nn.Linear(total_dim, qk_dim, bias=False)
        self.Km = nn.Linear(total_dim, qk_dim, bias=False)
        self.Vm = nn.Linear(total_dim, v_dim, bias=False)
        self.d_k = qk_dim

    def forward(
        self, seq: Float[Tensor, "*batch position input_dim"]
    ) -> Float[Tensor, "*batch position v_dim"]:
        """Return ``softmax(Q Kᵀ / sqrt(d_k)) V`` of a sequence, or of a batch of equal lengths."""
        _require_sequence(seq, self)
        if self.pos is not None:
            positions = self.pos.weight[: seq.shape[-2]]
            seq = torch.cat([seq, positions.expand(*seq.shape[:-1], -1)], dim=-1)
        Q = self.Qm(seq)
        K = self.Km(seq)
        V = self.Vm(seq)
        scores = Q @ K.mT / math.sqrt(self.d_k)
        weights = torch.softmax(scores, dim=-1)
        return weights @ V

    def to_weights(self) -> HeadWeights:
        """Return the weights as matrices in float64."""
        Km, Qm, Vm = (_float64(layer.weight).T for layer in (self.Km, self.Qm, self.Vm))
        pos = None if self.pos is None else _float64(self.pos.weight)
        return HeadWeights(Km, Qm, Vm, pos)


def _float64(weight: Tensor) -> np.ndarray:
    return weight.detach().double().cpu().numpy()


def _require_sizes(
    input_dim: int, qk_dim: int, v_dim: int, pos_dim: int | None, max_seq_len: int | None
) -> None:
    require_positive(input_dim=input_dim, qk_dim=qk_dim, v_dim=v_dim)
    if pos_dim is None:
        return
    if max_seq_len is None:
        raise InputError(
            got=f"pos_dim = {pos_dim} without max_seq_len",
            expected="both or neither",
            fix="Pass max_seq_len.",
        )
    require_positive(pos_dim=pos_dim, max_seq_len=max_seq_len)


def _require_sequence(seq: Tensor, head: PytorchTransformer) -> None:
    input_dim = head.Qm.in_features
    max_positions: float = math.inf
    expected = "at least one"
    if head.pos is not None:
        input_dim -= head.pos.embedding_dim
        max_positions = head.pos.num_embeddings
        expected = f"1 to {max_positions}, one row of pos for each"
    if seq.dim() not in (2, 3) or seq.shape[-1] != input_dim:
        raise InputError(
            got=f"seq of shape {list(seq.shape)}",
            expected=f"[position, {input_dim}] or [batch, position, {input_dim}]",
            fix="Encode the tokens for these weights.",
        )
    if not 1 <= seq.shape[-2] <= max_positions:
        raise InputError(
            got=f"a sequence of {seq.shape[-2]} positions",
            expected=expected,
            fix="Change the sequence's length, or give pos more rows.",
        )


class NumpyTransformer:
    """A head in NumPy, with the weights of :class:`~glassformer.handcraft.HeadWeights`."""

    def __init__(
        self,
        Km: Num[np.ndarray, "inputs qk_dim"],
        Qm: Num[np.ndarray, "inputs qk_dim"],
        Vm: Num[np.ndarray, "inputs v_dim"],
        pos: Num[np.ndarray, "max_seq_len pos_dim"] | None = None,
    ) -> None:
        self.weights = HeadWeights(Km, Qm, Vm, pos)
        self.Km = self.weights.Km
        self.Qm = self.weights.Qm
        self.Vm = self.weights.Vm
        self.pos = self.weights.pos
        self.qk_dim = self.weights.qk_dim

    def forward(
        self,
        seq: Num[np.ndarray, "position input_dim"],
        verbose: bool = False,
        plot: bool = False,
        save_plot: bool = False,
        plot_name: str = "transformer_attention",
        run_name: str | None = None,
        *,
        config: PlotConfig = PLOT_CONFIG,
    ) -> Float[np.ndarray, "position v_dim"]:
        """Return ``softmax(Q Kᵀ / sqrt(qk_dim)) V``, with Q = x Qm, K = x Km and V = x Vm.

        ``verbose`` prints every intermediate result; ``plot`` shows the eight panels, and
        ``save_plot`` saves them.
        """
        head = NumpyHead(self.weights)
        if verbose:
            print(head.explain(seq))
        save_plot = save_plot or config.auto_save
        if plot or save_plot:
            figure = self._draw(seq, config)
            if save_plot:
                options = config.save_dir, config.save_format, config.save_dpi, config.add_timestamp
                save_figure(figure, plot_name, *options, run_name=run_name)
            if plot:
                plt.show()
            if not (plot and plt.isinteractive()):
                plt.close(figure)
        return head(seq)

    @style.in_style
    def _draw(self, seq: Num[np.ndarray, "position input_dim"], config: PlotConfig) -> Figure:
        """Draw the eight panels, with transposed matrices."""
        trace = NumpyHead(self.weights).trace(seq)
        matrices = {
            ("Km", "d_in", "d_qk"): self.Km,
            ("Qm", "d_in", "d_qk"): self.Qm,
            ("Vm", "d_in", "d_v"): self.Vm,
            ("K", "seq", "d_qk"): trace.K,
            ("Q", "seq", "d_qk"): trace.Q,
            ("V", "seq", "d_v"): trace.V,
            ("Attn", "Q", "K"): trace.weights,
            ("Out", "seq", "d_v"): trace.output,
        }
        options: dict[str, Any] = {
            "figsize": (config.figure_width, config.figure_height),
            "dpi": config.dpi,
            "layout": "tight" if config.tight_layout else None,
            "FigureClass": style.StyledFigure,
        }
        figure, axes = plt.subplots(config.nrows, config.ncols, **options)
        colors = (config.colormap, config.vmin, config.vmax)
        fonts = (config.title_fontsize, config.label_fontsize)
        panels = zip(axes.flat[:8], matrices.items(), strict=True)
        for ax, ((title, x_lab, y_lab), matrix) in panels:
            rescale_and_plot(
                matrix.T,
                title,
                ax,
                x_lab,
                y_lab,
                *colors,
                *fonts,
                config.show_xticks,
                config.show_yticks,
            )
        for ax in axes.flat[8:]:
            ax.set_axis_off()
        return figure


def compare_transformers(
    hand_transformer: NumpyTransformer,
    learned_transformer: PytorchTransformer,
    seq: Num[np.ndarray, "position input_dim"],
    plot: bool = True,
    save_plot: bool = False,
    run_name: str | None = None,
    *,
    config: PlotConfig = PLOT_CONFIG,
) -> tuple[Float[np.ndarray, "position v_dim"], Float[np.ndarray, "position v_dim"]]:
    """Run both heads on ``seq``, with the eight panels of each, and return both outputs."""
    learned = NumpyTransformer(**learned_transformer.to_weights().matrices)
    print(f"{' Hand Designed ':=^80}")
    out_hand = hand_transformer.forward(
        seq, False, plot, save_plot, "hand_designed", run_name, config=config
    )
    print(f"{' Learned ':=^80}")
    return out_hand, learned.forward(
        seq, False, plot, save_plot, "learned", run_name, config=config
    )


def hand_designed_weights(task: str) -> dict[str, Any]:
    """Return the designed weights Km, Qm, Vm and pos for a built-in task.

    ``pos`` is None if the task needs no positions.
    """
    if task not in TASKS:
        raise InputError(
            got=f"the task {task!r}",
            expected=f"one of {', '.join(TASKS)}",
            fix="Choose one of the built-in tasks.",
        )
    weights = design(TASKS[task]()).weights
    return {"Km": weights.Km, "Qm": weights.Qm, "Vm": weights.Vm, "pos": weights.pos}


def train_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]],
    input_dim: int,
    qk_dim: int,
    v_dim: int,
    pos_dim: int | None = None,
    max_seq_len: int | None = None,
    remove_cls: bool = False,
    num_epochs: int = TRAIN_CONFIG.num_epochs,
    lr: float = TRAIN_CONFIG.learning_rate,
    log_interval: int = TRAIN_CONFIG.log_interval,
    seed: int | None = None,
    *,
    config: TrainingConfig = TRAIN_CONFIG,
) -> tuple[PytorchTransformer, float]:
    """Train a new head on one sequence per update and return it with the last loss.

    ``make_batch`` returns a sequence ``[position, input_dim]`` and its target
    ``[position, v_dim]``. ``remove_cls`` leaves out the output of CLS. ``config`` gives the
    optimizer, momentum, weight decay and loss.

    Raises:
        InputError: If outputs and target differ in shape, or the loss is not finite.
    """
    if seed is not None:
        set_random_seed(seed)
    head = PytorchTransformer(input_dim, qk_dim, v_dim, pos_dim, max_seq_len)
    weights = list(head.parameters())
    decay = config.weight_decay
    optimizer: torch.optim.Optimizer = torch.optim.Adam(weights, lr=lr, weight_decay=decay)
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(weights, lr=lr, momentum=config.momentum, weight_decay=decay)
    loss_fn: nn.Module = nn.MSELoss() if config.loss_fn == "mse" else nn.CrossEntropyLoss()
    final_loss = math.nan
    for step in range(num_epochs):
        sequence, target = make_batch()
        output = head(sequence)[int(remove_cls) :]
        if output.shape != target.shape:
            shapes = f"shape {list(target.shape)} for outputs of shape {list(output.shape)}"
            raise InputError(
                got=f"a target of {shapes}",
                expected="equal shapes",
                fix="Change make_batch, v_dim or remove_cls.",
            )
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        final_loss = loss.item()
        if not math.isfinite(final_loss):
            raise InputError(
                got=f"lr = {lr}, with a loss of {final_loss} at step {step}",
                expected="a finite loss",
                fix="Lower lr.",
            )
        if step % log_interval == 0:
            print(f"Step {step}: loss {final_loss:.6f}")
    return head, final_loss
