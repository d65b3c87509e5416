"""The Python source of the library's programs, to be shown beside the compiled models."""

import ast
from functools import cache
from pathlib import Path

from glassformer.programs import library


def program_source(name: str) -> str:
    """Return the expression that builds a program of the library, after the functions it uses.

    Example:
        >>> print(program_source("length"))
        length = selector_width(everything, "length")
    """
    text, definitions = _library()
    program = _program(definitions["PROGRAMS"], name)
    used: set[str] = set()
    unread: list[ast.AST] = [program]
    while unread:
        for node in ast.walk(unread.pop()):
            if isinstance(node, ast.Name) and node.id in definitions and node.id not in used:
                used.add(node.id)
                unread.append(definitions[node.id])
    pieces = [definition for name, definition in definitions.items() if name in used]
    if not isinstance(program, ast.Name):
        pieces.append(program)
    return "\n\n".join(ast.get_source_segment(text, piece) or "" for piece in pieces)


@cache
def _library() -> tuple[str, dict[str, ast.AST]]:
    """Return the text of the library, and its functions and values by name, in their order."""
    text = Path(library.__file__).read_text(encoding="utf-8")
    definitions: dict[str, ast.AST] = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.FunctionDef():
                definitions[statement.name] = statement
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                definitions[name] = statement
    return text, definitions


def _program(programs: ast.AST, name: str) -> ast.AST:
    """Return the first argument of the example of this name in the table of programs."""
    match programs:
        case ast.AnnAssign(value=ast.Dict(keys=names, values=examples)):
            for key, example in zip(names, examples, strict=True):
                match key, example:
                    case ast.Constant(value=str(known)), ast.Call(args=[program, *_]) if (
                        known == name
                    ):
                        return program
    raise KeyError(name)
