"""Messages about heads whose weights a person chooses."""

from __future__ import annotations

from typing import Literal

from glassformer.explorer.messages.base import Cells, Message, Name, Text


class HeadWeightsMessage(Message):
    """The matrices of a hand-designed head."""

    Km: Cells
    Qm: Cells
    Vm: Cells
    pos: Cells | None = None


class AskHead(Message):
    """Which task's design to show."""

    model: Name


class Head(Message):
    """A task and the weights that somebody chose for it."""

    task: str
    summary: str
    letters: list[str]
    has_cls: bool
    max_len: int
    weights: HeadWeightsMessage
    inputs: list[str]
    """What each row of Km, Qm and Vm is of: the tokens, then the coordinates of the position."""
    positions: list[str]
    """What each row of pos is of."""
    why: dict[str, str]
    """For each matrix, in a sentence, why it is as it is."""


class AskCheck(Message):
    """Weights to run and to judge."""

    model: Name
    weights: HeadWeightsMessage
    text: Text
    """The sequence whose numbers are shown."""


class Numbers(Message):
    """A matrix with names on its rows and columns."""

    rows: list[str]
    columns: list[str]
    cells: list[list[float]]


class FailureMessage(Message):
    """One output that is not what was wanted; see ``handcraft.certificate.Failure``."""

    sequence: str
    position: int
    output: list[float]
    target: list[float]
    error: float


class CertificateMessage(Message):
    """What is proved of the weights; see ``handcraft.certificate.Certificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: str
    criterion: str
    num_checked: int
    num_possible: float
    num_right: int
    num_outputs: int
    largest_error: float
    margin: float | None
    bound: float | None
    counterexample: FailureMessage | None
    text: str
    """All of it as a person reads it."""


class Check(Message):
    """Every number on the way from a sequence to its outputs, and what is proved of the weights for all sequences."""

    tokens: list[str]
    inputs: Numbers
    """[position, input]: one-hot tokens, then positions."""
    K: Numbers
    Q: Numbers
    V: Numbers
    scores: Numbers
    weights: Numbers
    outputs: Numbers
    targets: Numbers
    """What is wanted; rows of the outputs that are judged."""
    reads: list[str]
    """What each judged output says."""
    wanted: list[str]
    """What it should say."""
    right: list[bool]
    """Whether it does, by the task's own reading: where several letters are wanted alike, any of them will do."""
    certificate: CertificateMessage
