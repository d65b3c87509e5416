"""The subject of a certificate: the weights, inputs and definition that it is about.

Two certificates with equal figures may be about different heads. A :class:`Subject` identifies the
head: weights and definition by their digests, the rest in words. Only equal subjects have the same
digest.
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

# The package itself cannot be imported here: it imports the modules above this one.
_VERSION: str = sys.modules["glassformer"].__version__


@dataclass(frozen=True)
class Subject:
    """The weights, inputs and definition of a certificate.

    Attributes:
        kind: The kind of model.
        definition: The name of the definition.
        inputs: The alphabet or vocabulary, as texts that differ where tokens differ, and other
            tokens in front.
        max_len: Length of the longest input.
        readout: The way of reading outputs.
        tolerance: The largest error that is allowed; None if only the readout counts.
        dtype: Number format of the weights and of the computation.
        weights_digest: SHA-256 of all weights with their names, shapes and dtypes.
        definition_digest: SHA-256 of the outputs that the definition asks for, on the inputs that
            were run.
        version: Version of glassformer that made the proof.
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
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def require(self, other: "Subject") -> None:
        """Refuse another subject.

        Raises:
            InputError: A subject with other attributes, all of which are named.
        """
        names = [attribute.name for attribute in fields(self)]
        names = [name for name in names if getattr(self, name) != getattr(other, name)]
        if names:
            certified = ", ".join(f"{name} = {getattr(self, name)!r}" for name in names)
            requested = ", ".join(f"{name} = {getattr(other, name)!r}" for name in names)
            raise InputError(
                got=f"a certificate of {certified}",
                expected=f"a certificate of {requested}",
                fix="Verify this one: a certificate covers nothing else.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return all attributes and the digest as JSON values."""
        return {**asdict(self), "inputs": list(self.inputs), "digest": self.digest}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Subject":
        """Return the subject that :meth:`to_json` wrote.

        Raises:
            InputError: Other attributes than a subject's, or a digest of other attributes.
        """
        try:
            attributes = {name: value for name, value in values.items() if name != "digest"}
            attributes["inputs"] = tuple(attributes["inputs"])
            subject = cls(**attributes)
            digest = subject.digest
        except (TypeError, KeyError) as error:
            raise InputError(
                got=f"a subject with {sorted(values)}",
                expected="the attributes of a subject with their digest",
                fix="Verify the model again.",
            ) from error
        if values.get("digest") != digest:
            raise InputError(
                got=f"a subject with digest = {values.get('digest')!r}",
                expected=f"{digest!r}",
                fix="Verify the model again.",
            )
        return subject


def weights_digest(weights: Mapping[str, np.ndarray | torch.Tensor]) -> str:
    """Return SHA-256 of arrays or tensors by name, with shapes and dtypes."""
    digest = hashlib.sha256()
    for name, values in sorted(weights.items()):
        dtype = str(values.dtype).removeprefix("torch.")
        digest.update(f"{name} {dtype} {list(values.shape)}\n".encode())
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
        """Add several blocks of outputs, and return the digest itself."""
        for outputs in blocks:
            self.add(outputs)
        return self

    def hexdigest(self) -> str:
        """Return the digest of all outputs that were added."""
        return self._digest.hexdigest()
