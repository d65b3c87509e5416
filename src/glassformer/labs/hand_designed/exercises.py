"""What the course asks for, under its own names: the two transformers and their comparison.

Each is a thin cover over the library: :mod:`glassformer.handcraft.single_head` computes,
:mod:`glassformer.handcraft` designs. Scores of any size are safe: the largest is subtracted before the exponential.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Num

from glassformer.errors import InputError, require
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.plots import PLOT_CONFIG, PlotConfig, draw_transformer, save_figure

PytorchTransformer = SingleHead
"""The PyTorch twin; its state holds ``Km.weight``, ``Qm.weight`` and ``Vm.weight``, transposed, and ``pos.weight``."""


class NumpyTransformer:
    """The NumPy twin: one head whose weights are given.

    Args:
        Km: Makes keys, ``[input_dim + pos_dim, qk_dim]``.
        Qm: Makes queries, of the same shape.
        Vm: Makes values, ``[input_dim + pos_dim, v_dim]``.
        pos: A vector for each position, ``[max_seq_len, pos_dim]``, concatenated to the input; None for no positions.

    Raises:
        InputError: Matrices that are empty, not finite, or do not fit one another.
    """

    def __init__(
        self,
        Km: Num[np.ndarray, "inputs qk_dim"],
        Qm: Num[np.ndarray, "inputs qk_dim"],
        Vm: Num[np.ndarray, "inputs v_dim"],
        pos: Num[np.ndarray, "max_seq_len pos_dim"] | None = None,
    ) -> None:
        self.weights = HeadWeights(Km, Qm, Vm, pos)
        self.Km, self.Qm, self.Vm, self.pos = self.weights.Km, self.weights.Qm, self.weights.Vm, self.weights.pos
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
        """``softmax(Q Kᵀ / sqrt(qk_dim)) V`` for one sequence, with Q = x Qm, K = x Km, V = x Vm.

        Args:
            seq: The input vectors.
            verbose: Print K, Q and V, and the scores, weights and output of every query.
            plot: Show the eight panels.
            save_plot: Save the eight panels.
            plot_name: Name of the file, without suffix.
            run_name: Directory for this run's files, inside the one for all plots.
            config: How the panels look, and where and as what they are saved.

        Raises:
            InputError: ``seq`` is no matrix of finite numbers, or does not fit the weights.
        """
        head = NumpyHead(self.weights)
        output = head(seq)
        if verbose:
            print(head.explain(seq))
        save_plot = save_plot or config.auto_save
        if plot or save_plot:
            figure = draw_transformer(self.weights, seq, config)
            if save_plot:
                place = config.save_dir, config.save_format, config.save_dpi, config.add_timestamp
                save_figure(figure, plot_name, *place, run_name=run_name)
            if plot:
                plt.show()
            if not (plot and plt.isinteractive()):
                plt.close(figure)
        return output


def compare_transformers(
    hand_transformer: NumpyTransformer,
    learned_transformer: SingleHead,
    seq: Num[np.ndarray, "position input_dim"],
    plot: bool = True,
    save_plot: bool = False,
    run_name: str | None = None,
    *,
    config: PlotConfig = PLOT_CONFIG,
) -> tuple[Float[np.ndarray, "position v_dim"], Float[np.ndarray, "position v_dim"]]:
    """Both heads on one sequence, with the eight panels of each.

    Args:
        hand_transformer: The designed head.
        learned_transformer: The trained head.
        seq: The input vectors.
        plot: Show the panels.
        save_plot: Save them, as ``hand_designed`` and ``learned``.
        run_name: Directory for this run's files, inside the one for all plots.
        config: How the panels look, and where and as what they are saved.

    Returns:
        The outputs of the designed and of the trained head.

    Raises:
        InputError: ``seq`` does not fit a head, or the heads' outputs differ in length.
    """
    learned = NumpyTransformer(**learned_transformer.to_weights().matrices)
    require(
        learned.Vm.shape[1] == hand_transformer.Vm.shape[1],
        f"heads with outputs of length {hand_transformer.Vm.shape[1]} and {learned.Vm.shape[1]}",
        "outputs of one length",
        "Compare heads for the same task.",
    )
    outputs = []
    for title, name, transformer in (
        ("Hand Designed", "hand_designed", hand_transformer),
        ("Learned", "learned", learned),
    ):
        print(f"{f' {title} ':=^80}")
        outputs.append(
            transformer.forward(seq, plot=plot, save_plot=save_plot, plot_name=name, run_name=run_name, config=config)
        )
    return outputs[0], outputs[1]


def hand_designed_weights(task: str) -> dict[str, Float[np.ndarray, "row column"] | None]:
    """The designed weights for a built-in task, under the names Km, Qm, Vm and pos; pos is None where none is needed.

    They are worked out from the task's description by :func:`glassformer.handcraft.designs.design`.

    Raises:
        InputError: No such task, or one that no single head can do.
    """
    if task not in TASKS:
        raise InputError(f"the task {task!r}", f"one of {', '.join(TASKS)}", "Name one of the built-in tasks.")
    weights = design(TASKS[task]()).weights
    return {"Km": weights.Km, "Qm": weights.Qm, "Vm": weights.Vm, "pos": weights.pos}
