"""Compiled programs as loaded models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.explorer.loading.loaded_model import LoadedProgram, ModelEntry
from glassformer.explorer.messages import ModelCard, Origin
from glassformer.programs.compiler import compile_program
from glassformer.programs.domains import Domains
from glassformer.programs.library import PROGRAMS
from glassformer.programs.model import CompiledProgram
from glassformer.programs.saved import load_program
from glassformer.text import one_line

_LONGEST_TITLE, _LONGEST_TEXT = 60, 12


def library_entry(name: str, told: Mapping[str, Any]) -> ModelEntry:
    """A program of the library, compiled when it is opened.

    Args:
        name: Its name there.
        told: Its ``text`` and ``samples``, if there are any.
    """
    example = PROGRAMS[name]
    title = name.replace("-", " ").capitalize()
    about = f"{one_line(example.about).capitalize()}: a program compiled into a transformer. No weight was trained."
    domains = Domains(example.vocabulary, example.max_len, example.causal)
    card = program_card(f"program-{name}", domains, title, about, origin="shipped", **told)

    def opened() -> LoadedProgram:
        model = compile_program(example.program, example.vocabulary, example.max_len, causal=example.causal)
        return LoadedProgram(card, model)

    return ModelEntry(card, opened)


def program_model(
    model: CompiledProgram, name: str, title: str, *, origin: Origin, text: str | None = None
) -> LoadedProgram:
    """A compiled program in memory."""
    short = one_line(title, _LONGEST_TITLE)
    about = f"A program compiled into a transformer: {one_line(model.name, _LONGEST_TITLE)}."
    return LoadedProgram(program_card(name, model.domains, short, about, origin=origin, text=text), model)


def stored_program(path: Path, name: str, title: str) -> LoadedProgram:
    """A compiled program in a file, without its definition."""
    return program_model(load_program(path), name, title, origin="run")


def program_card(
    name: str,
    domains: Domains,
    title: str,
    about: str,
    *,
    origin: Origin,
    text: str | None = None,
    samples: Sequence[str] = (),
) -> ModelCard:
    """The card of a compiled program. Without a text, it begins with the vocabulary's tokens in their order."""
    words = [str(token) for token in domains.vocabulary]
    between = "" if all(len(word) == 1 for word in words) else " "
    first = between.join((words * _LONGEST_TEXT)[: min(domains.max_len, _LONGEST_TEXT)])
    listed = ", ".join(words) if len(words) <= 20 else f"{', '.join(words[:10])} ... {words[-1]}"
    return ModelCard(
        name=name,
        title=title,
        kind="program",
        about=about,
        views=["program"],
        text=first if text is None else text,
        samples=list(samples),
        input_help=f"1 to {domains.max_len} of the tokens {listed}{between and ', between spaces'}",
        words=words,
        origin=origin,
    )
