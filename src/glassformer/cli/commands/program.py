"""``glassformer program``: print a program's transformer, its proof, or its outputs on a text."""

import math
from collections.abc import Sequence

import torch

from glassformer.cli import writing
from glassformer.cli.flags import ProgramFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError
from glassformer.files import local_path, require_absent
from glassformer.programs.certificate import verify_program
from glassformer.programs.compiler import compile_program
from glassformer.programs.graph import value_in_words
from glassformer.programs.language import typed
from glassformer.programs.library import Example, read_program, tokens_in
from glassformer.programs.model import CompiledProgram
from glassformer.programs.parts import agree, describe
from glassformer.programs.saved import load_program, require_place, save_program
from glassformer.text import shown


def main(flags: ProgramFlags) -> int:
    """Print the parts or the outputs on a text; prove and write the transformer if requested.

    Returns the exit status: 1 if the transformer and the program differ or if no proof was found,
    otherwise 0.
    """
    if flags.out is not None:
        require_place(flags.out)
        require_absent(flags.out, flags.overwrite)
    model = _model(flags)
    if flags.dtype is not None:
        model = model.to(getattr(torch, flags.dtype))
    status = 0
    if not flags.text:
        say(describe(model))
    elif not _run(model, " ".join(flags.text)):
        status = 1
    if flags.verify and not _verify(model, flags):
        status = 1
    if flags.out is not None:
        with writing(flags.out):
            save_program(model, flags.out, overwrite=flags.overwrite)
        say(f"\ntransformer: {shown(flags.out)}")
    return status


def _model(flags: ProgramFlags) -> CompiledProgram:
    if local_path(flags.program).suffix.lower() == ".json":
        if flags.verify or flags.weights is not None:
            raise InputError(
                got=f"--verify or --weights for {flags.program}, which holds no definition",
                expected="a name of the library or a Python file",
                fix=f"Name the program, and pass --weights {flags.program}.",
            )
        return load_program(flags.program)
    example = read_program(flags.program, flags.run_python)
    if flags.weights is None:
        return compile_program(
            example.program, example.vocabulary, example.max_len, causal=example.causal
        )
    model = load_program(flags.weights)
    _require_domains(model, example)
    model.program = example.program
    return model


def _require_domains(model: CompiledProgram, example: Example) -> None:
    """Refuse weights that were compiled for other sequences than those of the program."""
    domains = model.domains
    of_program = (typed(example.vocabulary), example.max_len, example.causal)
    of_weights = (typed(tuple(domains.vocabulary)), domains.max_len, domains.causal)
    if of_weights != of_program:
        causality = {True: "causal", False: "not causal"}
        raise InputError(
            got=(
                f"weights for {domains.max_len} tokens of {list(domains.vocabulary)}, "
                f"{causality[domains.causal]}"
            ),
            expected=(
                f"{example.max_len} tokens of {list(example.vocabulary)}, "
                f"{causality[example.causal]}"
            ),
            fix="Use the weights of this program.",
        )


def _run(model: CompiledProgram, text: str) -> bool:
    """Print a line for each position; return whether transformer and definition agree.

    Without a definition they do.
    """
    tokens = tokens_in(text, model.domains.vocabulary)
    outputs = model.run(tokens)
    columns = [
        ["token", *map(str, tokens)],
        ["transformer", *map(value_in_words, outputs)],
    ]
    agrees = [True]
    if model.program is not None:
        defined_values = model.program(tokens, causal=model.domains.causal)
        pairs = zip(outputs, defined_values, strict=True)
        agrees = [agree(model, output, value) for output, value in pairs]
        column = ["definition"]
        for value, same in zip(defined_values, agrees, strict=True):
            note = "" if same else "  differs"
            column.append(value_in_words(value) + note)
        columns.append(column)
    _print_table(columns)
    return all(agrees)


def _print_table(columns: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        say("  ".join(cells).rstrip())


def _verify(model: CompiledProgram, flags: ProgramFlags) -> bool:
    """Print the certificate; return whether it holds."""
    certificate = verify_program(model, limit=flags.limit, seconds=flags.seconds or math.inf)
    say(f"\n{certificate}")
    if certificate.verdict == "undecided" and certificate.num_run < certificate.num_different:
        flag = f"more than --seconds {flags.seconds}"
        if flags.limit < certificate.num_different:
            flag = f"--limit {certificate.num_different} or more"
        say(f"\nTo run them all, pass {flag}, or choose a smaller max_len.")
    return certificate.verdict == "holds"
