"""``glassformer run-program``: the outputs of a compiled program beside those of its definition."""

from pathlib import Path

from glassformer.cli.flags import RunProgramFlags
from glassformer.cli.terminal import say
from glassformer.programs.compiler import compile_program
from glassformer.programs.graph import value_in_words
from glassformer.programs.library import read_program, tokens_in
from glassformer.programs.parts import agree
from glassformer.programs.saved import load_program


def main(flags: RunProgramFlags) -> int:
    """Run, and print a line for each position: exit status 1 if transformer and definition differ, otherwise 0."""
    path = Path(flags.program)
    if path.suffix.lower() == ".json":
        model = load_program(path)
    else:
        example = read_program(flags.program, flags.run_python)
        model = compile_program(example.program, example.vocabulary, example.max_len, causal=example.causal)
    given = tokens_in(" ".join(flags.text), model.domains.vocabulary)
    found = model.run(given)
    rows: list[tuple[str, ...]]
    rows = [
        ("token", "transformer"),
        *((str(token), value_in_words(value)) for token, value in zip(given, found, strict=True)),
    ]
    agreed = True
    if model.program is not None:
        wanted = model.program(given, causal=model.domains.causal)
        same = [agree(model, a, b) for a, b in zip(found, wanted, strict=True)]
        agreed = all(same)
        shown = [
            f"{value_in_words(value)}{'' if right else '  differs'}" for value, right in zip(wanted, same, strict=True)
        ]
        rows = [(*row, more) for row, more in zip(rows, ("definition", *shown), strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0 if agreed else 1
