"""The source that is shown of a program of the library builds that program."""

import ast

import pytest

from glassformer.programs import library
from glassformer.programs.graph import graph
from glassformer.programs.source import program_source


@pytest.mark.parametrize("name", library.PROGRAMS)
def test_the_source_builds_the_program(name: str) -> None:
    *definitions, program = ast.parse(program_source(name)).body
    names = dict(vars(library))
    for known in library.PROGRAMS:
        names.pop(known.replace("-", "_"), None)
    exec(compile(ast.Module(definitions, []), name, "exec"), names)
    if isinstance(program, ast.Expr):
        built = eval(compile(ast.Expression(program.value), name, "eval"), names)
    else:
        exec(compile(ast.Module([program], []), name, "exec"), names)
        built = names[name]
    wanted = library.PROGRAMS[name].program
    assert [(str(part), type(part)) for part in graph(built)] == [
        (str(part), type(part)) for part in graph(wanted)
    ]
