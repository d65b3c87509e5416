"""The subject of a certificate: of which weights, inputs and definition it speaks.

Two certificates with equal figures may be of different heads. A :class:`Subject` says which one it
is: weights and definition by their digests, the rest in words. Its own digest is equal for equal
subjects alone.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import torch

from glassformer.errors import InputError

_VERSION: str = sys.modules[
    "glassformer"
].__version__  # to import the package would be to import what is above


@dataclass(frozen=True)
class Subject:
    """What a certificate is about.

    Attributes:
        kind: The kind of model.
        definition: The name of what it should compute.
        inputs: The alphabet or vocabulary, as texts that differ where tokens differ, and other
            tokens in front.
        max_len: Length of the longest input.
        readout: How outputs are read.
        tolerance: The largest error that is allowed; None if only the readout counts.
        dtype: Number format of the weights and of what is computed from them.
        weights_digest: SHA-256 of all weights with their names, shapes and dtypes.
        definition_digest: SHA-256 of the outputs that the definition asks for, on the inputs that
            were run.
        version: Version of glassformer, whose proof it is.
    """

    kind: Literal["head", "program", "induction"]
    definition: str
    inputs: tuple[str, ...]
    max_len: int
    readout: str
    tolerance: float | None
    dtype: str
    weights_digest: str
    definition_digest: str
    version: str = _VERSION

    @property
    def digest(self) -> str:
        """SHA-256 of all attributes."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def require(self, other: "Subject") -> None:
        """Refuse another subject.

        Raises:
            InputError: A subject with other attributes, all of which are named.
        """
        names = [
            each.name
            for each in fields(self)
            if getattr(self, each.name) != getattr(other, each.name)
        ]
        if names:
            raise InputError(
                "a certificate of "
                + ", ".join(f"{name} = {getattr(self, name)!r}" for name in names),
                "a certificate of "
                + ", ".join(f"{name} = {getattr(other, name)!r}" for name in names),
                "Verify this one: a certificate covers nothing else.",
            )

    def to_json(self) -> dict[str, Any]:
        """All attributes and the digest as JSON values."""
        return {**asdict(self), "inputs": list(self.inputs), "digest": self.digest}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Subject":
        """The subject that :meth:`to_json` wrote.

        Raises:
            InputError: Other attributes than these, or a digest that is not theirs.
        """
        expected = "the attributes of a subject with their digest"
        fix = "Verify the model again."
        try:
            named = {name: value for name, value in values.items() if name != "digest"}
            subject = cls(**{**named, "inputs": tuple(named["inputs"])})
            digest = subject.digest
        except (TypeError, KeyError) as error:
            raise InputError(f"a subject with {sorted(values)}", expected, fix) from error
        if values.get("digest") != digest:
            raise InputError(
                f"a subject with digest = {values.get('digest')!r}", f"{digest!r}", fix
            )
        return subject


def weights_digest(weights: Mapping[str, np.ndarray | torch.Tensor]) -> str:
    """SHA-256 of arrays or tensors by name, with shapes and dtypes."""
    digest = hashlib.sha256()
    for name, values in sorted(weights.items()):
        digest.update(
            f"{name} {str(values.dtype).removeprefix('torch.')} {list(values.shape)}\n".encode()
        )
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


class DefinitionDigest:
    """SHA-256 of the outputs that a definition asks for, which are added in their order."""

    def __init__(self, *facts: object) -> None:
        self._digest = hashlib.sha256(repr(facts).encode())

    def add(self, outputs: np.ndarray) -> None:
        """Add outputs."""
        self._digest.update(repr(outputs.shape).encode())
        self._digest.update(np.ascontiguousarray(outputs).data)

    def extend(self, blocks: Iterable[np.ndarray]) -> "DefinitionDigest":
        """Add all of some blocks of outputs, and return the digest itself."""
        for outputs in blocks:
            self.add(outputs)
        return self

    def hexdigest(self) -> str:
        """The digest of all outputs that were added."""
        return self._digest.hexdigest()
