"""Single attention heads with weights chosen by hand, in NumPy and in PyTorch.

Both compute, for a sequence of vectors x, each with its position vector concatenated if the head
has positions::

    K = x Km     Q = x Qm     V = x Vm     output = softmax(Q Kᵀ / sqrt(qk_dim)) V

There is no mask, residual, norm or MLP. The NumPy version goes query by query and keeps every
intermediate result; the PyTorch version computes batches and can be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.pattern import FULL, Pattern
from glassformer.layers.attention import attend

Array = np.ndarray[Any, np.dtype[np.float64]]


class HeadWeights:
    """The weights of one head, in float64 and read-only; both versions use them.

    Args:
        Km: Key matrix, ``[input_dim + pos_dim, qk_dim]``.
        Qm: Query matrix, of the same shape.
        Vm: Value matrix, ``[input_dim + pos_dim, v_dim]``.
        pos: Position vectors, ``[max_seq_len, pos_dim]``, concatenated to the inputs; None without
            positions.
    """

    def __init__(
        self, Km: ArrayLike, Qm: ArrayLike, Vm: ArrayLike, pos: ArrayLike | None = None
    ) -> None:
        self.Km = _matrix("Km", Km)
        self.Qm = _matrix("Qm", Qm)
        self.Vm = _matrix("Vm", Vm)
        self.pos = None if pos is None else _matrix("pos", pos)
        if self.Km.shape != self.Qm.shape or len(self.Km) != len(self.Vm):
            raise InputError(
                got=", ".join(
                    f"{name} of shape {list(matrix.shape)}"
                    for name, matrix in (("Km", self.Km), ("Qm", self.Qm), ("Vm", self.Vm))
                ),
                expected=(
                    "the same number of rows, input_dim + pos_dim, and in Km and Qm the same "
                    "number of columns, qk_dim"
                ),
                fix=(
                    "Give each a row for every entry of the input and of its position, and Km and "
                    "Qm equally many columns."
                ),
            )
        if self.pos_dim >= len(self.Km):
            raise InputError(
                got=f"pos of {self.pos_dim} columns with matrices of {len(self.Km)} rows",
                expected="more rows than columns of pos: input_dim + pos_dim",
                fix="Add rows for the tokens above those for the position.",
            )

    @property
    def pos_dim(self) -> int:
        """Length of a position's vector; 0 without positions."""
        return 0 if self.pos is None else self.pos.shape[1]

    @property
    def input_dim(self) -> int:
        """Length of an input vector, before its position is concatenated."""
        return len(self.Km) - self.pos_dim

    @property
    def qk_dim(self) -> int:
        """Length of a key and of a query."""
        return self.Km.shape[1]

    @property
    def v_dim(self) -> int:
        """Length of a value, and of an output."""
        return self.Vm.shape[1]

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence; None without positions, for any length."""
        return None if self.pos is None else len(self.pos)

    @property
    def matrices(self) -> dict[str, Array]:
        """The matrices by name: Km, Qm, Vm, and pos if the head has positions."""
        matrices = {"Km": self.Km, "Qm": self.Qm, "Vm": self.Vm}
        if self.pos is not None:
            matrices["pos"] = self.pos
        return matrices

    def with_positions(self, seq: ArrayLike) -> Float[np.ndarray, "position total_dim"]:
        """Return ``seq`` [position, input_dim] with each position's vector concatenated."""
        x = _matrix("seq", seq)
        if x.shape[1] != self.input_dim:
            raise InputError(
                got=f"a sequence of vectors of length {x.shape[1]}",
                expected=f"vectors of length input_dim = {self.input_dim}",
                fix="Encode the tokens for these weights.",
            )
        _require_length(len(x), self.max_seq_len)
        if self.pos is None:
            return x
        return np.concatenate([x, self.pos[: len(x)]], axis=1)


@dataclass(frozen=True, eq=False)
class HeadTrace:
    """Every intermediate result of one sequence.

    Each row of ``weights`` is the softmax of a row of ``scores``.
    """

    K: Float[np.ndarray, "position qk_dim"]
    Q: Float[np.ndarray, "position qk_dim"]
    V: Float[np.ndarray, "position v_dim"]
    scores: Float[np.ndarray, "query key"]
    weights: Float[np.ndarray, "query key"]
    output: Float[np.ndarray, "query v_dim"]


class NumpyHead:
    """The head in NumPy: one query after another, with every step visible.

    It is the reference for the PyTorch version.
    """

    def __init__(self, weights: HeadWeights) -> None:
        self.weights = weights

    def __call__(self, seq: ArrayLike) -> Float[np.ndarray, "position v_dim"]:
        """Return the output for ``seq`` [position, input_dim]."""
        return self.trace(seq).output

    def trace(self, seq: ArrayLike) -> HeadTrace:
        """Return all intermediate results for ``seq`` [position, input_dim]."""
        x = self.weights.with_positions(seq)
        K = x @ self.weights.Km
        Q = x @ self.weights.Qm
        V = x @ self.weights.Vm
        scores = []
        weights = []
        outputs = []
        for query in Q:
            score = K @ query / np.sqrt(self.weights.qk_dim)
            exponential = np.exp(score - score.max())  # float64 cannot hold it for scores above 709
            weight = exponential / exponential.sum()
            scores.append(score)
            weights.append(weight)
            outputs.append(weight @ V)
        return HeadTrace(K, Q, V, np.stack(scores), np.stack(weights), np.stack(outputs))

    def explain(self, seq: ArrayLike, names: list[str] | None = None) -> str:
        """Return the computation for ``seq`` as tables of text.

        They are K, Q and V, and for each query its scores, weights and output.

        Args:
            names: The names of the positions, such as their letters; None for numbers.
        """
        trace = self.trace(seq)
        if names is None:
            names = [str(i) for i in range(len(trace.K))]
        if len(names) != len(trace.K):
            raise InputError(
                got=f"{len(names)} names for {len(trace.K)} positions",
                expected="one name for each position",
                fix="Pass one name for each position, or None.",
            )
        tables = [_table(title, getattr(trace, title), names) for title in "KQV"]
        for i, name in enumerate(names):
            rows = np.stack([trace.scores[i], trace.weights[i]], axis=1)
            output = " ".join(f"{number:10.4f}" for number in trace.output[i])
            table = _table(f"query {i} ({name})", rows, names, ["score", "weight"])
            tables.append(f"{table}\noutput  {output}")
        return "\n\n".join(tables)


def run_head(
    seq: Float[Tensor, "*batch position input_dim"],
    Km: Float[Tensor, "total_dim qk_dim"],
    Qm: Float[Tensor, "total_dim qk_dim"],
    Vm: Float[Tensor, "total_dim v_dim"],
    pos: Float[Tensor, "max_seq_len pos_dim"] | None = None,
    real: Bool[Tensor, "batch position"] | None = None,
) -> Float[Tensor, "*batch position v_dim"]:
    """Return the output of the head with these matrices, for one sequence or for a batch.

    Args:
        seq: One sequence ``[position, input_dim]``, or a batch of them.
        real: For a batch of sequences of different lengths, True for positions of the sequence and
            False for padding. Padding is not attended to, and its output is zero.
    """
    input_dim = Km.shape[0]
    longest = None
    if pos is not None:
        input_dim -= pos.shape[1]
        longest = len(pos)
    if seq.dim() not in (2, 3) or seq.shape[-1] != input_dim:
        raise InputError(
            got=f"seq of shape {list(seq.shape)}",
            expected=f"[position, {input_dim}] or [batch, position, {input_dim}]",
            fix="Encode the tokens for these weights.",
        )
    if real is not None and seq.dim() != 3:
        raise InputError(
            got="real with a single sequence",
            expected="a batch",
            fix="Omit real.",
        )
    length = seq.shape[-2]
    _require_length(length, longest)
    if pos is not None:
        seq = torch.cat([seq, pos[:length].expand(*seq.shape[:-1], -1)], dim=-1)
    q = (seq @ Qm)[..., None, :, :]
    k = (seq @ Km)[..., None, :, :]
    v = (seq @ Vm)[..., None, :, :]
    if seq.dim() == 2:
        return attend(q[None], k[None], v[None])[0, 0]
    if real is None:
        return attend(q, k, v, FULL).squeeze(1)
    out = attend(q, k, v, Pattern(key_padding=real)).squeeze(1)
    return out.masked_fill(~real[..., None], 0.0)


class SingleHead(nn.Module):
    """The head in PyTorch: all queries of all sequences at once, and trainable.

    ``Qm``, ``Km`` and ``Vm`` are linear layers without bias, whose weights PyTorch stores
    transposed; ``pos`` is an embedding of positions or None.

    Args:
        input_dim: Length of an input vector.
        qk_dim: Length of keys and queries.
        v_dim: Length of values and outputs.
        pos_dim: Length of a position's vector; None for a head without positions.
        max_seq_len: The longest sequence of a head with positions.
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
        require_positive(input_dim=input_dim, qk_dim=qk_dim, v_dim=v_dim)
        self.pos = None
        if pos_dim is not None:
            if max_seq_len is None:
                raise InputError(
                    got=f"pos_dim = {pos_dim} without max_seq_len",
                    expected="both or neither",
                    fix="Pass max_seq_len.",
                )
            require_positive(pos_dim=pos_dim, max_seq_len=max_seq_len)
            self.pos = nn.Embedding(max_seq_len, pos_dim)
        total_dim = input_dim + (pos_dim or 0)
        self.Qm = nn.Linear(total_dim, qk_dim, bias=False)
        self.Km = nn.Linear(total_dim, qk_dim, bias=False)
        self.Vm = nn.Linear(total_dim, v_dim, bias=False)

    def forward(
        self,
        seq: Float[Tensor, "*batch position input_dim"],
        real: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "*batch position v_dim"]:
        """Return the output for one sequence or for a batch of them; see :func:`run_head`."""
        pos = None if self.pos is None else self.pos.weight
        return run_head(seq, self.Km.weight.T, self.Qm.weight.T, self.Vm.weight.T, pos, real)

    @classmethod
    def from_weights(cls, weights: HeadWeights, dtype: torch.dtype = torch.float64) -> SingleHead:
        """Build the head with these weights, rounded to ``dtype``."""
        head = cls(
            weights.input_dim,
            weights.qk_dim,
            weights.v_dim,
            weights.pos_dim or None,
            weights.max_seq_len,
        )
        state = {}
        for name, matrix in weights.matrices.items():
            stored = _transposed(name, matrix)
            state[f"{name}.weight"] = torch.tensor(stored)
        head.to(dtype).load_state_dict(state)
        return head

    def to_weights(self) -> HeadWeights:
        """Return the weights as matrices in float64."""
        matrices = {}
        for key, tensor in self.state_dict().items():
            name = key.removesuffix(".weight")
            matrices[name] = _transposed(name, tensor.double().cpu().numpy())
        return HeadWeights(**matrices)


def _transposed(name: str, matrix: Array) -> Array:
    """Return a matrix as linear layers store it, or back; ``pos`` is not transposed."""
    return matrix if name == "pos" else matrix.T


def _matrix(name: str, values: ArrayLike) -> Array:
    """Return a read-only copy of ``values`` in float64; refuse all but a finite matrix."""
    try:
        array = np.array(values)
    except (TypeError, ValueError) as error:
        raise InputError(
            got=f"{name}, which is not a table ({error})",
            expected="a matrix",
            fix="Use rows of one length.",
        ) from error
    if array.dtype.kind not in "biuf":
        raise InputError(
            got=f"{name} of {array.dtype}",
            expected="a matrix of numbers",
            fix=f"Pass {name} as numbers.",
        )
    if array.ndim != 2 or array.size == 0:
        raise InputError(
            got=f"{name} of shape {list(array.shape)}",
            expected="a matrix with at least one row and one column",
            fix=f"Pass {name} as a list of rows.",
        )
    array = array.astype(np.float64)
    for row, column in np.argwhere(~np.isfinite(array))[:1].tolist():
        raise InputError(
            got=f"{name}[{row}, {column}] = {array[row, column]}",
            expected="finite numbers",
            fix=f"Replace that entry of {name}.",
        )
    array.setflags(write=False)
    return array


def _require_length(length: int, longest: int | None) -> None:
    """Refuse an empty sequence, and one of more than ``longest`` positions."""
    if length >= 1 and (longest is None or length <= longest):
        return
    expected = "at least one"
    if longest is not None:
        expected = f"1 to {longest}, one row of pos for each"
    fix = "Pass at least one token."
    if length:
        fix = "Shorten the sequence, or give pos more rows."
    raise InputError(
        got=f"a sequence of {length} positions",
        expected=expected,
        fix=fix,
    )


def _table(title: str, rows: Array, names: list[str], columns: Sequence[object] = ()) -> str:
    """Return a table of numbers as text, with a name for each row."""
    width = max(len(name) for name in names)
    header = "".join(f"{column:>11}" for column in columns or range(rows.shape[1]))
    lines = [title, " " * width + header]
    for name, row in zip(names, rows, strict=True):
        numbers = "".join(f"{number:11.4f}" for number in row)
        lines.append(f"{name:>{width}}{numbers}")
    return "\n".join(lines)
