"""A compiled program on a text: its parts, its heads, its residual stream by variables, and its
proof.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.words import json_text, part_name, words_of
from glassformer.explorer.api import refusal_of
from glassformer.explorer.loading.loaded_model import LoadedProgram, of_kind, weights_stamp
from glassformer.modes import evaluating
from glassformer.observe.capture import capture
from glassformer.programs.certificate import ProgramCertificate, verify_program
from glassformer.programs.graph import graph, value_in_words, values_in_words
from glassformer.programs.language import Interpreter, Selector, Value, typed
from glassformer.programs.library import tokens_in
from glassformer.programs.model import CompiledProgram
from glassformer.programs.parts import agree, stages, stream_variables, written_by
from glassformer.programs.written import Comparison, compare, read_written

QUICKLY_RUN = 5_000
MOST_RUN = 100_000
"""So many sequences are all run for a proof; up to the second number where there are more and the
bound is no proof.
"""
MOST_SECONDS = 60.0
"""Processor time after which a proof is undecided."""
_MOST_ALIKE = 3
_MOST_POSSIBLE = 10**300
_EXPECTED = "a compiled program"


def program(runs: Runs, ask: m.AskProgram) -> m.Program:
    """The parts, heads and residual stream of a compiled program on the text of a run."""
    run = runs.of(ask.run)
    loaded = of_kind(LoadedProgram, runs.model(run.message.ask.model), "program", _EXPECTED)
    model = loaded.model
    ids = run.inputs[0]
    length = ids.shape[1]
    heads = sum(map(len, model.heads))
    numbers = length * (heads * length + len(stages(model)) * model.embedding.embedding_dim)
    most = m.MOST_PROGRAM_NUMBERS
    if not numbers <= most:
        raise InputError(
            got=f"{length} tokens, with {numbers:,} numbers",
            expected=f"at most {most:,}",
            fix="Shorten the text.",
        )
    if any(block.attention.sinks is not None for block in model.blocks):
        sinks = ["sinks"]
    else:
        sinks = []
    watched: AbstractContextManager[Any] = nullcontext()
    if len(model.layers) > 0:
        watched = capture(model, what=["weights", "residual_between", "residual", *sinks])
    with loaded.lock, torch.no_grad(), evaluating(model), watched as seen:
        output = model(ids)[0].double()
        embedding = (model.embedding(ids)[0] + model.positions.weight[:length]).double()
    found = {
        (each.what, each.layer): each.values[0].double() for each in (seen.records if seen else ())
    }
    inner = [
        found[what, layer]
        for layer in range(len(model.layers))
        for what in ("residual_between", "residual")
    ]
    stream: Float[Tensor, "stage position coordinate"] = torch.stack([embedding, *inner])
    finite = bool(output.isfinite().all()) and bool(stream.isfinite().all())
    if not finite:
        raise InputError(
            got="numbers that are not finite",
            expected="finite weights",
            fix="Compile the program again.",
        )
    given = [model.domains.vocabulary[number] for number in ids[0].tolist()]
    outputs = model.decode(output.tolist())
    definition = None
    if model.program is not None:
        with suppress(InputError):  # a mean of values that have none
            definition = model.program(given, causal=model.domains.causal)
    right = None
    if definition is not None:
        right = [agree(model, one, other) for one, other in zip(outputs, definition, strict=True)]
    return m.Program(
        stages=stages(model),
        parts=_parts(model, given),
        heads=_heads(model, found),
        variables=_variables(model, stream),
        stream=stream.tolist(),
        outputs=words_of(outputs),
        definition=None if definition is None else words_of(definition),
        right=right,
        num_parameters=model.num_parameters,
    )


def proof(runs: Runs, ask: m.AskProof) -> m.Proof:
    """Whether a compiled program gives what its definition gives; computed once for the same
    weights.
    """
    loaded = of_kind(LoadedProgram, runs.model(ask.model), "proof", _EXPECTED)
    key = "proof", weights_stamp(loaded)
    found: m.Proof | None = runs.derived.get(key)
    if found is None:
        with loaded.lock:  # while no answer of another thread watches or edits the model
            model = deepcopy(loaded.model)
        certificate = verify_program(model, limit=QUICKLY_RUN, seconds=MOST_SECONDS)
        if certificate.verdict == "undecided":
            certificate = verify_program(model, limit=MOST_RUN, seconds=MOST_SECONDS)
        found = _proof(certificate, model)
        runs.derived.put(key, found, 10_000)
    return found


def _proof(certificate: ProgramCertificate, model: CompiledProgram) -> m.Proof:
    failure = None
    if certificate.counterexample is not None:
        sequence, position, wanted, number = certificate.counterexample
        if math.isfinite(number):
            found = value_in_words(number)
        else:
            found = "not finite"
        failure = _failure(model, sequence, position, wanted, found)

    def finite(number: float) -> float | None:
        return number if math.isfinite(number) else None

    return m.Proof(
        verdict=certificate.verdict,
        rests_on=certificate.rests_on,
        dtype=certificate.dtype,
        num_checked=certificate.num_run,
        num_different=float(min(certificate.num_different, _MOST_POSSIBLE)),
        num_possible=float(min(certificate.num_possible, _MOST_POSSIBLE)),
        num_wrong=certificate.num_wrong,
        largest_error=finite(certificate.largest_error),
        bound=finite(certificate.bound),
        allowed=finite(certificate.allowed),
        counterexample=failure,
        reason=certificate.reason if certificate.verdict == "undecided" else "",
    )


def attempt(runs: Runs, ask: m.AskAttempt) -> m.Attempt:
    """What a written program gives on a text, and whether it gives what a compiled one is defined
    to give.
    """
    model = of_kind(LoadedProgram, runs.model(ask.model), "attempt", _EXPECTED).model
    task = model.program
    domains = model.domains
    if task is None:
        raise InputError(
            "a model without its definition", "a program with it", "Choose one of the library."
        )
    given = tokens_in(ask.text, domains.vocabulary)
    model.encode(given)
    fault = outputs = definition = right = failure = None
    compared = Comparison("undecided", 0, 0)
    with suppress(InputError):
        definition = task(given, causal=domains.causal)
    try:
        written = read_written(ask.program, domains.vocabulary)
        compared = compare(written, task, domains)
        outputs = written(given, causal=domains.causal)
    except InputError as error:
        fault = refusal_of(error)
    if outputs is not None and definition is not None:
        right = [typed(one) == typed(other) for one, other in zip(outputs, definition, strict=True)]
    if compared.counterexample is not None:
        sequence, position, wanted, value = compared.counterexample
        failure = _failure(model, sequence, position, wanted, words_of([value])[0])
    return m.Attempt(
        tokens=[json_text(str(token)) for token in given],
        outputs=outputs and words_of(outputs),
        definition=definition and words_of(definition),
        right=right,
        verdict=compared.verdict,
        rests_on="every sequence" if compared.verdict == "holds" else "samples",
        num_checked=compared.num_run,
        num_possible=compared.num_possible,
        counterexample=failure,
        fault=fault,
    )


def _failure(
    model: CompiledProgram, sequence: Sequence[Value], position: int, wanted: Value, found: str
) -> m.ProgramFailure:
    if all(len(str(token)) == 1 for token in model.domains.vocabulary):
        between = ""
    else:
        between = " "
    text = json_text(between.join(map(str, sequence)))
    return m.ProgramFailure(text=text, position=position, wanted=words_of([wanted])[0], found=found)


def _parts(model: CompiledProgram, given: Sequence[Value]) -> list[m.ProgramPart]:
    if model.program is None:
        return []
    interpreter = Interpreter(given, model.domains.causal)
    made = []
    for node in graph(model.program):
        values: list[str] = []
        with suppress(InputError):
            if isinstance(node.part, Selector):
                chosen = interpreter.selected(node.part)
                values = [
                    " ".join(str(key) for key, one in enumerate(row) if one) for row in chosen
                ]
            else:
                values = words_of(interpreter.values(node.part))
        if isinstance(node.part, Selector):
            domain = ""
        else:
            domain = values_in_words(model.domains.of(node.part))
        name = part_name(node.part)
        kind = node.part.kind
        sources = list(node.sources)
        made.append(
            m.ProgramPart(name=name, kind=kind, sources=sources, domain=domain, values=values)
        )
    return made


def _heads(model: CompiledProgram, found: dict[tuple[str, int], Tensor]) -> list[m.ProgramHead]:
    made = []
    for each in heads_of(model):
        layer = each["layer"]
        head = each["head"]
        sinks = found.get(("sinks", layer))
        sink = None if sinks is None else sinks[head].tolist()
        made.append(
            m.ProgramHead(**each, weights=found["weights", layer][head].tolist(), sink=sink)
        )
    return made


def heads_of(model: CompiledProgram) -> list[dict[str, Any]]:
    """The fields of each :class:`~glassformer.explorer.messages.ProgramHead` that no text changes."""
    made = []
    for layer, names in enumerate(model.heads):
        for head, name in enumerate(names):
            writes = [part_name(each) for each in written_by(model, layer, head)]
            made.append({"layer": layer, "head": head, "select": part_name(name), "writes": writes})
    return made


def _variables(
    model: CompiledProgram, stream: Float[Tensor, "stage position coordinate"]
) -> list[m.ProgramVariable]:
    made = []
    for variable in stream_variables(model):
        places = [each.index for each in variable.coordinates]
        rows = stream[min(variable.born, len(stream) - 1)][:, places].tolist()
        values = []
        for row in rows:
            alike = words_of(variable.decode(row))
            if len(alike) > _MOST_ALIKE:
                several = f"one of {len(alike)} values"
            else:
                several = " or ".join(alike)
            # What attention leaves of 0 is 0.
            values.append(several or ("0" if abs(row[0]) < 1e-9 else f"{row[0]:.3g}"))
        made.append(
            m.ProgramVariable(
                name=part_name(variable.name),
                born=variable.born,
                read=variable.read,
                coordinates=places,
                values=values,
            )
        )
    return made
