"""Programs over sequences, compiled into the weights of transformers, and verified."""

from glassformer.programs.certificate import ProgramCertificate, verify_program
from glassformer.programs.compiler import compile_program
from glassformer.programs.language import (
    Selector,
    Variable,
    aggregate,
    elementwise,
    everything,
    indices,
    pick,
    select,
    selector_width,
    tokens,
)
from glassformer.programs.model import CompiledProgram

__all__ = [
    "CompiledProgram",
    "ProgramCertificate",
    "Selector",
    "Variable",
    "aggregate",
    "compile_program",
    "elementwise",
    "everything",
    "indices",
    "pick",
    "select",
    "selector_width",
    "tokens",
    "verify_program",
]
