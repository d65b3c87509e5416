"""``glassformer compile``: a program as a transformer, with what each part is for and the proof."""

import math

import torch

from glassformer.cli import writing
from glassformer.cli.flags import CompileFlags
from glassformer.cli.terminal import say
from glassformer.errors import require
from glassformer.files import require_absent
from glassformer.programs.certificate import verify_program
from glassformer.programs.compiler import compile_program
from glassformer.programs.language import typed
from glassformer.programs.library import Example, read_program
from glassformer.programs.model import CompiledProgram
from glassformer.programs.parts import describe
from glassformer.programs.saved import load_program, require_place, save_program
from glassformer.text import shown


def main(flags: CompileFlags) -> int:
    """Compile, print the parts and, if requested, the certificate, and write the transformer.

    Returns the exit status: 1 if a proof was requested and not found, otherwise 0.
    """
    out = flags.out
    if out is not None:
        require_place(out)
        require_absent(out, flags.overwrite)
    example = read_program(flags.program, flags.run_python)
    model = _model(flags, example)
    if flags.dtype is not None:
        model = model.to(getattr(torch, flags.dtype))
    say(describe(model))
    status = 0
    if flags.verify:
        certificate = verify_program(model, limit=flags.limit, seconds=flags.seconds or math.inf)
        say(f"\n{certificate}")
        status = 0 if certificate.verdict == "holds" else 1
        if certificate.verdict == "undecided" and certificate.num_run < (most := certificate.num_different):
            flag = f"--limit {most} or more" if flags.limit < most else f"more than --seconds {flags.seconds}"
            say(f"\nTo run them all, pass {flag}, or choose a smaller max_len.")
    if out is not None:
        with writing(out):
            save_program(model, out)
        say(f"\ntransformer: {shown(out)}")
    return status


def _model(flags: CompileFlags, example: Example) -> CompiledProgram:
    if flags.weights is None:
        return compile_program(example.program, example.vocabulary, example.max_len, causal=example.causal)
    model = load_program(flags.weights)
    found = model.domains
    wanted = typed(example.vocabulary), example.max_len, example.causal
    same = (typed(tuple(found.vocabulary)), found.max_len, found.causal) == wanted
    require(
        same,
        f"weights for {found.max_len} tokens of {list(found.vocabulary)}, {'' if found.causal else 'not '}causal",
        f"{example.max_len} tokens of {list(example.vocabulary)}, {'' if example.causal else 'not '}causal",
        "Use the weights of this program.",
    )
    model.program = example.program
    return model
