"""Programs of the library as transformers."""

import torch

from glassformer.programs import CompiledProgram, compile_program
from glassformer.programs.library import PROGRAMS


def compiled(
    name: str, max_len: int | None = None, dtype: torch.dtype = torch.float64
) -> CompiledProgram:
    """The library's program of this name, for its own greatest length or another."""
    example = PROGRAMS[name]
    length = example.max_len if max_len is None else max_len
    return compile_program(
        example.program, example.vocabulary, length, causal=example.causal, dtype=dtype
    )
