"""Run a hand-designed head while its weights are edited, and prove or refute that it is right."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from jaxtyping import Float

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.loading.loaded_model import LoadedHead, LoadedModel, of_kind
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import Task
from glassformer.handcraft.verification import Certificate, require_fits, verify

MOST_RUN = 20_000
"""Largest number of sequences that are all run, so that the verdict keeps up with typing.

If there are more, the bound decides.
"""

_TOLERANCE = 1e-9
_MOST_POSSIBLE = 10**300


def head(loaded: LoadedModel, _: m.AskHead | None = None) -> m.Head:
    """Return the task of a hand-designed head, and its designed weights."""
    loaded = of_kind(LoadedHead, loaded, "head", "a hand-designed head")
    task = loaded.task
    weights = loaded.weights
    positions: list[str] = []
    if weights.max_seq_len is not None:
        positions = position_names(task.space, weights.max_seq_len)
    return m.Head(
        task=task.name,
        summary=task.summary,
        letters=list(task.space.letters),
        has_cls=task.space.has_cls,
        max_len=task.space.max_len,
        weights=m.HeadWeightsMessage(
            **{name: matrix.tolist() for name, matrix in weights.matrices.items()}
        ),
        inputs=input_names(weights, task.space),
        positions=positions,
        why=dict(loaded.why),
    )


def check(loaded: LoadedModel, ask: m.AskCheck) -> m.Check:
    """Run ``ask.weights`` on ``ask.text`` in float64, and prove or refute that they are right.

    Weights are right if they solve the head's task.
    """
    task = of_kind(LoadedHead, loaded, "check", "a hand-designed head").task
    space = task.space
    weights = chosen_weights(ask.weights, task)
    cases = task.cases(space.block([space.encode(ask.text)]))
    with np.errstate(all="ignore"):
        # verify() comes first because it refuses what float64 cannot represent.
        certificate = verify(weights, task, limit=MOST_RUN)
        trace = NumpyHead(weights).trace(cases.inputs[0])
    tokens = [space.token_names[number] for number in cases.block.tokens[0]]
    counted = np.flatnonzero(cases.counted[0])
    output = trace.output[counted]
    target = cases.target[0][counted]
    outputs = output_names(task)
    columns = [str(number) for number in range(weights.qk_dim)]
    return m.Check(
        tokens=tokens,
        inputs=_numbers(
            tokens, input_names(weights, space), weights.with_positions(cases.inputs[0])
        ),
        K=_numbers(tokens, columns, trace.K),
        Q=_numbers(tokens, columns, trace.Q),
        V=_numbers(tokens, outputs, trace.V),
        scores=_numbers(tokens, tokens, trace.scores),
        weights=_numbers(tokens, tokens, trace.weights),
        outputs=_numbers(tokens, outputs, trace.output),
        targets=_numbers([tokens[position] for position in counted], outputs, target),
        reads=[reading(row, task) for row in output],
        wanted=[reading(row, task) for row in target],
        right=task.is_right(output, target).tolist(),
        certificate=_certificate(certificate),
    )


def chosen_weights(message: m.HeadWeightsMessage, task: Task) -> HeadWeights:
    """Return the weights of a request, which must fit the task."""
    matrices = message.model_dump(exclude_none=True)
    for name, matrix in matrices.items():
        cells = sum(map(len, matrix))
        if cells > m.MOST_CELLS:
            raise InputError(
                got=f"{name} of {cells:,} numbers",
                expected=f"at most {m.MOST_CELLS:,}",
                fix="Make it smaller.",
            )
    weights = HeadWeights(**matrices)
    require_fits(weights, task)
    return weights


def input_names(weights: HeadWeights, space: SequenceSpace) -> list[str]:
    """Return the names of the rows of Km, Qm and Vm: tokens, then coordinates of the position.

    If positions are one-hot, a coordinate has the name of its position (``@0``), otherwise ``p0``
    and so on.
    """
    if weights.pos is None:
        return list(space.token_names)
    square = weights.pos.shape[0] == weights.pos.shape[1]
    if square and (weights.pos == np.eye(len(weights.pos))).all():
        coordinates = position_names(space, len(weights.pos))
    else:
        coordinates = [f"p{number}" for number in range(weights.pos_dim)]
    return [*space.token_names, *coordinates]


def position_names(space: SequenceSpace, count: int) -> list[str]:
    """Return the names of the first ``count`` positions: ``@CLS`` if there is one, ``@0``, ``@1``.

    The first letter has the name ``@0``.
    """
    first = int(space.has_cls)
    return [f"@{position - first}" if position >= first else f"@{CLS}" for position in range(count)]


def output_names(task: Task) -> list[str]:
    """Return the names of an output's entries: the letters if there is one for each, or numbers."""
    letters = task.space.letters
    if task.readout == "argmax" and task.v_dim == len(letters):
        return list(letters)
    if task.v_dim == 1:
        return ["output"]
    return [str(number) for number in range(task.v_dim)]


def reading(output: Float[np.ndarray, " v_dim"], task: Task) -> str:
    """Return the meaning of an output: its sign, or the names of its largest entries.

    Entries are equally large if they differ by at most 1e-9 times the largest magnitude.
    """
    if task.readout == "sign":
        return " ".join({-1: "-1", 0: "0", 1: "+1"}[int(sign)] for sign in np.sign(output).tolist())
    least = output.max() - _TOLERANCE * np.abs(output).max()
    named_entries = zip(output_names(task), output, strict=True)
    return " or ".join(name for name, entry in named_entries if entry >= least)


def _numbers(
    rows: Sequence[str], columns: Sequence[str], cells: Float[np.ndarray, "rows columns"]
) -> m.Numbers:
    return m.Numbers(rows=list(rows), columns=list(columns), cells=cells.tolist())


def _certificate(certificate: Certificate) -> m.CertificateMessage:
    if not np.isfinite(certificate.largest_error):
        raise InputError(
            got="outputs that float64 cannot represent",
            expected="finite outputs",
            fix="Scale the weights down.",
        )
    values = asdict(certificate)
    values["num_possible"] = min(certificate.num_possible, _MOST_POSSIBLE)
    values["bound"] = certificate.bound if np.isfinite(certificate.bound) else None
    values["rounding"] = certificate.rounding if np.isfinite(certificate.rounding) else None
    values["covers"] = certificate.covers
    values["text"] = str(certificate)
    return m.CertificateMessage(
        **{name: values[name] for name in m.CertificateMessage.model_fields}
    )
