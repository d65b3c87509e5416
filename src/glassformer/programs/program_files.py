"""Programs from Python files, and the tokens in a text.

A file defines ``program``, ``vocabulary`` and ``max_len``, and optionally ``causal`` and ``about``::

    import operator
    from glassformer.programs import select, selector_width, tokens

    program = selector_width(select(tokens, tokens, operator.eq), "histogram")
    vocabulary, max_len = "abcd", 5
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glassformer.errors import require
from glassformer.handcraft.python_files import require_permission, run_python_file
from glassformer.programs.domains import Domains
from glassformer.programs.language import Value, Variable
from glassformer.programs.library import PROGRAMS, Example
from glassformer.text import known_name, short, shown
from glassformer.untrusted import in_file


def read_program(name: Path | str, run_python: bool = False) -> Example:
    """A program of the library by its name, or the one that a Python file defines.

    Args:
        name: A name of :data:`~glassformer.programs.library.PROGRAMS`, or the path of a .py file.
        run_python: Whether a file may be run, with all permissions of the current user.
    """
    if str(name) in PROGRAMS:
        return PROGRAMS[str(name)]
    path = Path(name)
    got = f"the program {shown(path)}"
    require(path.suffix.lower() == ".py", got, "a .py file or a known name", known_name(str(name), tuple(PROGRAMS)))
    require_permission(path, run_python)
    made = run_python_file(path, ("program", "vocabulary", "max_len"))
    with in_file(path):
        program, vocabulary, causal = made["program"], made["vocabulary"], made.get("causal", False)
        got = f"program = {short(repr(program))}"
        require(isinstance(program, Variable), got, "a variable", "Build it from tokens and indices.")
        listed = isinstance(vocabulary, str | list | tuple | range)
        require(listed, f"vocabulary = {short(repr(vocabulary))}", "a text or a list of tokens", "Change it.")
        require(isinstance(causal, bool), f"causal = {short(repr(causal))}", "True or False", "Change it.")
        max_len = made["max_len"]
        require(type(max_len) is int, f"max_len = {short(repr(max_len))}", "a whole number", "Change it.")
        domains = Domains(vocabulary, max_len, causal)
        return Example(program, tuple(domains.vocabulary), max_len, str(made.get("about", "")), causal)


def tokens_in(text: str, vocabulary: Sequence[Value]) -> list[Value]:
    """The tokens in a text: its characters, if each token is one, otherwise its words.

    Spaces between characters are skipped where a space is no token.
    """
    names = {str(token): token for token in vocabulary}
    alike = len(names) == len(vocabulary)
    require(alike, f"the vocabulary {list(vocabulary)}", "tokens that are written differently", "Rename some.")
    letters = all(len(name) == 1 for name in names)
    pieces = [each for each in text if each in names or not each.isspace()] if letters else text.split()
    unknown = [piece for piece in pieces if piece not in names]
    expected = f"{'characters' if letters else 'words between spaces'} among {' '.join(names)}"
    require(len(pieces) > 0, "no tokens", expected, "Type some.")
    require(not unknown, f"the token {short(unknown[0]) if unknown else ''}", expected, "Use these.")
    return [names[piece] for piece in pieces]
