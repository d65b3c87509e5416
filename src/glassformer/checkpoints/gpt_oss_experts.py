"""gpt-oss's experts from MXFP4 to numbers and back, one expert at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from glassformer.checkpoints.gpt_oss_writing import PlannedModel
from glassformer.checkpoints.shards import Planned
from glassformer.errors import CheckpointError, InputError, require
from glassformer.quantized import mxfp4

ExpertKind = Literal["mxfp4", "bfloat16"]


def with_experts(model: PlannedModel, kind: ExpertKind | None) -> PlannedModel:
    """The same model with its experts packed, which rounds, or as numbers in bfloat16, which does not; None: as they
    are.

    Raises:
        InputError: Another kind, widths that are no multiples of 32, or, when read, numbers that MXFP4 lacks.
    """
    kinds = get_args(ExpertKind)
    require(kind is None or kind in kinds, f"experts = {kind!r}", " or ".join(map(repr, kinds)), "Use one of these.")
    packed = model.config.expert_format == "mxfp4"
    if kind is None or (kind == "mxfp4") == packed:
        return model
    config = replace(model.config, expert_format="dense" if packed else "mxfp4")
    other = _expanded if packed else _packed
    experts = [
        {matrix: replace(planned, weights=other(*planned.weights)) for matrix, planned in layer.items()}
        for layer in model.experts
    ]
    return replace(model, config=config, experts=experts)


def _expanded(blocks: Planned, scales: Planned) -> tuple[Planned]:
    experts, rows, groups = scales.shape

    def matrices() -> Iterator[Tensor]:
        for codes, exponents in zip(blocks.parts(), scales.parts(), strict=True):
            for one, its_exponents in zip(codes, exponents, strict=True):
                yield mxfp4.decode(one, its_exponents, torch.bfloat16)

    return (Planned([experts, rows, groups * mxfp4.GROUP], torch.bfloat16, matrices),)


def _packed(experts: Planned) -> tuple[Planned, Planned]:
    count, rows, width = experts.shape
    shape = [count, rows, width // mxfp4.GROUP]
    # Encoding gives exponents with the codes, a sixteenth of their size; they are written next.
    kept: list[Tensor] = []

    def encoded() -> Iterator[tuple[Tensor, Tensor]]:
        for matrix in experts.parts():
            try:
                yield mxfp4.encode(matrix.contiguous())
            except InputError as error:
                raise CheckpointError(f"{experts.source} with {error.got}", error.expected, error.fix) from error

    def blocks() -> Iterator[Tensor]:
        kept.clear()
        for codes, exponents in encoded():
            kept.append(exponents)
            yield codes

    def scales() -> Iterable[Tensor]:
        ready = list(kept) if len(kept) == count else [exponents for _, exponents in encoded()]
        kept.clear()
        return ready

    return Planned([*shape, mxfp4.GROUP_BYTES], torch.uint8, blocks), Planned(shape, torch.uint8, scales)
