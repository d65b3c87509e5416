"""What the lab measured, as data: the report and the figures are made from this alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import InputError
from glassformer.files import write_text
from glassformer.handcraft.distances import HeadDistance
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.verification import Certificate, Failure
from glassformer.labs.hand_designed.study import Cell, Story, Summary
from glassformer.labs.hand_designed.training_runs import Circuit, Minimum, Moment

Matrices = dict[str, list[list[float]]]
"""Km, Qm, Vm and, where there are positions, pos."""


@dataclass(frozen=True)
class DesignResult:
    """One design with its certificates.

    Attributes:
        task: Name of the task.
        summary: What is wanted.
        description: How the head does it, in words.
        qk_dim: Length of its keys.
        pos_dim: Length of its position vectors; 0 without.
        sharpness: The factor on its scores.
        float64: The certificate in this number format, and so on.
        large: The certificate of the same description for 26 letters and sequences of up to ``large_len``.
        large_len: See there.
    """

    task: str
    summary: str
    description: str
    qk_dim: int
    pos_dim: int
    sharpness: float
    float64: Certificate
    float32: Certificate
    large: Certificate
    large_len: int


@dataclass(frozen=True)
class Refutation:
    """Heads that tried what no single head can do.

    Attributes:
        task: Name of the task.
        num_random: Heads with random weights.
        num_refuted: Those of them that the verifier refuted.
        longest: Letters of the longest counterexample among them.
        trained: The certificate of a head that was trained on the task.
    """

    task: str
    num_random: int
    num_refuted: int
    longest: int
    trained: Certificate


@dataclass(frozen=True)
class Pair:
    """How far two heads of equal shapes are from one another.

    Attributes:
        entries: Cosine of each matrix's entries with the other head's, from -1 to 1, by name.
        distance: What does not depend on the basis.
    """

    entries: dict[str, float]
    distance: HeadDistance


@dataclass(frozen=True)
class Comparison:
    """The designed head beside trained ones, for one of the course's tasks.

    Attributes:
        task: Name of the task.
        steps: Updates of the course's recipe.
        seed: Seed of the trained head; ``again`` has the next one.
        final_loss: Mean squared error of its last sequence.
        hand: Weights of the designed head.
        learned: Weights of the trained one.
        certificate: Of the trained head: do all outputs read as wanted?
        hand_learned: The designed head beside the trained one.
        learned_again: The trained head beside one that was trained from another seed.
        learned_moved: The trained head beside itself in another basis.
        spread: Where a head's attention lies: ``spread[head][group][kind]`` is the mean weight on keys of a kind
            ("itself", "same letter", "other letters", "CLS"), over the queries of a group: "+1" and "-1" by what is
            wanted of them where that is a sign, otherwise "all".
        on_wanted: Mean weight that the designed and the trained head have on the wanted keys.
        value_gap: Mean absolute difference of the two heads' values at each position, CLS's first where there is one.
        crossed: Mean absolute error of outputs made of one head's attention and one head's values:
            ``crossed[attention][values]``, for "hand" and "learned".
    """

    task: str
    steps: int
    seed: int
    final_loss: float
    hand: Matrices
    learned: Matrices
    certificate: Certificate
    hand_learned: Pair
    learned_again: Pair
    learned_moved: Pair
    spread: dict[str, dict[str, dict[str, float]]]
    on_wanted: dict[str, float]
    value_gap: list[float]
    crossed: dict[str, dict[str, float]]

    @property
    def hand_head(self) -> HeadWeights:
        """The designed head."""
        return HeadWeights(**self.hand)

    @property
    def learned_head(self) -> HeadWeights:
        """The trained head."""
        return HeadWeights(**self.learned)


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured.

    ``summaries`` and ``cells`` are the study's, ``stories`` what became of the heads that failed on unique.
    """

    plan: str
    seed: int
    designs: list[DesignResult]
    refutation: Refutation
    comparisons: list[Comparison]
    summaries: list[Summary]
    cells: list[Cell]
    stories: list[Story]

    def design(self, task: str) -> DesignResult:
        """The design for ``task``."""
        return next(each for each in self.designs if each.task == task)

    def comparison(self, task: str) -> Comparison:
        """The comparison for ``task``."""
        return next(each for each in self.comparisons if each.task == task)

    def write(self, path: Path) -> None:
        """Write all of it to the file ``path`` as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote.

        Raises:
            InputError: The file is missing or damaged.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            values["designs"] = [_with_certificates(DesignResult, each) for each in values["designs"]]
            values["refutation"] = _with_certificates(Refutation, values["refutation"])
            values["comparisons"] = [_comparison(each) for each in values["comparisons"]]
            values["summaries"] = [Summary(**each) for each in values["summaries"]]
            values["cells"] = [Cell(**each) for each in values["cells"]]
            values["stories"] = [_story(each) for each in values["stories"]]
            return cls(**values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"{path}, which cannot be read ({error})", "the results of a run", "Remove it and run the lab again."
            ) from error


def read_comparison(text: str) -> Comparison:
    """A comparison from what :func:`comparison_text` made of it.

    Raises:
        ValueError, TypeError, KeyError: It is damaged.
    """
    return _comparison(json.loads(text))


def comparison_text(comparison: Comparison) -> str:
    """A comparison as JSON."""
    return json.dumps(asdict(comparison), indent=1) + "\n"


def _comparison(values: dict[str, Any]) -> Comparison:
    for name in ("hand_learned", "learned_again", "learned_moved"):
        pair = values[name]
        values[name] = Pair(pair["entries"], HeadDistance(**pair["distance"]))
    made: Comparison = _with_certificates(Comparison, values)
    return made


def _story(values: dict[str, Any]) -> Story:
    """A story made of what ``dataclasses.asdict`` and JSON made of it."""
    parts = {
        "moments": tuple(_moment(each) for each in values["moments"]),
        "minimum": None if values["minimum"] is None else Minimum(**values["minimum"]),
        "escaped": None if values["escaped"] is None else _moment(values["escaped"]),
    }
    return Story(**{**values, **parts})


def _moment(values: dict[str, Any]) -> Moment:
    circuit = Circuit(values["circuit"]["cls_share"], tuple(values["circuit"]["self_shares"]))
    return Moment(**{**values, "wrong": tuple(values["wrong"]), "circuit": circuit})


def _with_certificates(kind: type, values: dict[str, Any]) -> Any:
    """``kind`` made of ``values``, those of its fields that are certificates made of their own values."""
    certificates = {
        name: _certificate(value) for name, value in values.items() if isinstance(value, dict) and "verdict" in value
    }
    return kind(**{**values, **certificates})


def _certificate(values: dict[str, Any]) -> Certificate:
    failures = {name: _failure(values[name]) for name in ("worst", "counterexample")}
    return Certificate(**{**values, **failures})


def _failure(values: dict[str, Any] | None) -> Failure | None:
    if values is None:
        return None
    return Failure(**{**values, "output": tuple(values["output"]), "target": tuple(values["target"])})
