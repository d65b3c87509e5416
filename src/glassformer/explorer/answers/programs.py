"""Run a compiled program on a text, and show its parts, heads, residual stream and proof."""

import math
from collections.abc import Sequence
from contextlib import suppress
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
"""Largest number of sequences that are all run for a proof."""
MOST_RUN = 100_000
"""Largest number of sequences that are all run for a proof if the bound is no proof."""
MOST_SECONDS = 60.0
"""Processor time after which a proof is undecided."""
_MOST_NEAREST = 3
"""Largest number of equally near values of a variable that are named."""
_MOST_POSSIBLE = 10**300
_EXPECTED = "a compiled program"


def program(runs: Runs, ask: m.AskProgram) -> m.Program:
    """Return the parts, heads and residual stream of a compiled program on the text of a run."""
    run = runs.of(ask.run)
    loaded = of_kind(LoadedProgram, runs.model(run.message.ask.model), "program", _EXPECTED)
    model = loaded.model
    ids = run.inputs[0]
    _check_length(model, ids.shape[1])
    with loaded.lock:
        numbers, stream, records = _captured_run(model, ids)
    if not (numbers.isfinite().all() and stream.isfinite().all()):
        raise InputError(
            got="numbers that are not finite",
            expected="finite weights",
            fix="Compile the program again.",
        )
    tokens = [model.domains.vocabulary[token] for token in ids[0].tolist()]
    outputs = model.decode(numbers.tolist())
    definition = None
    if model.program is not None:
        with suppress(InputError):  # a mean of values that have none
            definition = model.program(tokens, causal=model.domains.causal)
    agrees = None
    if definition is not None:
        pairs = zip(outputs, definition, strict=True)
        agrees = [agree(model, output, expected) for output, expected in pairs]
    return m.Program(
        stages=stages(model),
        parts=_parts(model, tokens),
        heads=_heads(model, records),
        variables=_variables(model, stream),
        stream=stream.tolist(),
        outputs=words_of(outputs),
        definition=None if definition is None else words_of(definition),
        right=agrees,
        num_parameters=model.num_parameters,
    )


def _check_length(model: CompiledProgram, length: int) -> None:
    """Refuse a text whose attention weights and residual stream are too many numbers."""
    num_heads = sum(map(len, model.heads))
    count = length * (num_heads * length + len(stages(model)) * model.embedding.embedding_dim)
    if count > m.MOST_PROGRAM_NUMBERS:
        raise InputError(
            got=f"{length} tokens, with {count:,} numbers",
            expected=f"at most {m.MOST_PROGRAM_NUMBERS:,}",
            fix="Shorten the text.",
        )


@torch.no_grad()
def _captured_run(
    model: CompiledProgram, ids: Tensor
) -> tuple[
    Float[Tensor, " position"],
    Float[Tensor, "stage position coordinate"],
    dict[tuple[str, int], Tensor],
]:
    """Return a model's output, its residual stream, and what was captured by kind and layer."""
    records: dict[tuple[str, int], Tensor] = {}
    with evaluating(model):
        if len(model.layers) == 0:
            numbers = model(ids)[0].double()
        else:
            kinds = ["weights", "residual_between", "residual"]
            if any(block.attention.sinks is not None for block in model.blocks):
                kinds.append("sinks")
            with capture(model, what=kinds) as captured:
                numbers = model(ids)[0].double()
            for record in captured.records:
                records[record.what, record.layer] = record.values[0].double()
        embedding = (model.embedding(ids)[0] + model.positions.weight[: ids.shape[1]]).double()
    stream = [embedding]
    for layer in range(len(model.layers)):
        stream += [records["residual_between", layer], records["residual", layer]]
    return numbers, torch.stack(stream), records


def proof(runs: Runs, ask: m.AskProof) -> m.Proof:
    """Prove or refute that a compiled program is its definition, once for the same weights."""
    loaded = of_kind(LoadedProgram, runs.model(ask.model), "proof", _EXPECTED)
    key = "proof", weights_stamp(loaded)
    message: m.Proof | None = runs.derived.get(key)
    if message is None:
        with loaded.lock:  # no other thread watches or edits the model meanwhile
            model = deepcopy(loaded.model)
        certificate = verify_program(model, limit=QUICKLY_RUN, seconds=MOST_SECONDS)
        if certificate.verdict == "undecided":
            certificate = verify_program(model, limit=MOST_RUN, seconds=MOST_SECONDS)
        message = _proof(certificate, model)
        runs.derived.put(key, message, 10_000)
    return message


def _proof(certificate: ProgramCertificate, model: CompiledProgram) -> m.Proof:
    failure = None
    if certificate.counterexample is not None:
        sequence, position, expected, number = certificate.counterexample
        actual = value_in_words(number) if math.isfinite(number) else "not finite"
        failure = _failure(model, sequence, position, expected, actual)

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
    """Run a written program on a text, and compare it with the definition of a compiled program."""
    model = of_kind(LoadedProgram, runs.model(ask.model), "attempt", _EXPECTED).model
    task = model.program
    domains = model.domains
    if task is None:
        raise InputError(
            got="a model without its definition",
            expected="a program with it",
            fix="Choose one of the library.",
        )
    tokens = tokens_in(ask.text, domains.vocabulary)
    model.encode(tokens)
    fault = None
    outputs = None
    definition = None
    agrees = None
    failure = None
    compared = Comparison("undecided", 0, 0)
    with suppress(InputError):
        definition = task(tokens, causal=domains.causal)
    try:
        written = read_written(ask.program, domains.vocabulary)
        compared = compare(written, task, domains)
        outputs = written(tokens, causal=domains.causal)
    except InputError as error:
        fault = refusal_of(error)
    if outputs is not None and definition is not None:
        pairs = zip(outputs, definition, strict=True)
        agrees = [typed(output) == typed(value) for output, value in pairs]
    if compared.counterexample is not None:
        sequence, position, expected, value = compared.counterexample
        failure = _failure(model, sequence, position, expected, words_of([value])[0])
    return m.Attempt(
        tokens=[json_text(str(token)) for token in tokens],
        outputs=outputs and words_of(outputs),
        definition=definition and words_of(definition),
        right=agrees,
        verdict=compared.verdict,
        rests_on="every sequence" if compared.verdict == "holds" else "samples",
        num_checked=compared.num_run,
        num_possible=compared.num_possible,
        counterexample=failure,
        fault=fault,
    )


def _failure(
    model: CompiledProgram, sequence: Sequence[Value], position: int, expected: Value, actual: str
) -> m.ProgramFailure:
    single_letters = all(len(str(token)) == 1 for token in model.domains.vocabulary)
    separator = "" if single_letters else " "
    text = json_text(separator.join(map(str, sequence)))
    return m.ProgramFailure(
        text=text, position=position, wanted=words_of([expected])[0], found=actual
    )


def _parts(model: CompiledProgram, tokens: Sequence[Value]) -> list[m.ProgramPart]:
    if model.program is None:
        return []
    interpreter = Interpreter(tokens, model.domains.causal)
    parts = []
    for node in graph(model.program):
        values: list[str] = []
        with suppress(InputError):
            if isinstance(node.part, Selector):
                selected = interpreter.selected(node.part)
                for row in selected:
                    keys = [str(key) for key, is_selected in enumerate(row) if is_selected]
                    values.append(" ".join(keys))
            else:
                values = words_of(interpreter.values(node.part))
        domain = ""
        if not isinstance(node.part, Selector):
            domain = values_in_words(model.domains.of(node.part))
        parts.append(
            m.ProgramPart(
                name=part_name(node.part),
                kind=node.part.kind,
                sources=list(node.sources),
                domain=domain,
                values=values,
            )
        )
    return parts


def _heads(model: CompiledProgram, records: dict[tuple[str, int], Tensor]) -> list[m.ProgramHead]:
    heads = []
    for fields in heads_of(model):
        layer = fields["layer"]
        head = fields["head"]
        sinks = records.get(("sinks", layer))
        sink = None if sinks is None else sinks[head].tolist()
        heads.append(
            m.ProgramHead(**fields, weights=records["weights", layer][head].tolist(), sink=sink)
        )
    return heads


def heads_of(model: CompiledProgram) -> list[dict[str, Any]]:
    """Return the fields of each ``ProgramHead`` that do not depend on the text."""
    heads = []
    for layer, names in enumerate(model.heads):
        for head, name in enumerate(names):
            writes = [part_name(variable) for variable in written_by(model, layer, head)]
            heads.append(
                {"layer": layer, "head": head, "select": part_name(name), "writes": writes}
            )
    return heads


def _variables(
    model: CompiledProgram, stream: Float[Tensor, "stage position coordinate"]
) -> list[m.ProgramVariable]:
    variables = []
    for variable in stream_variables(model):
        places = [coordinate.index for coordinate in variable.coordinates]
        rows = stream[min(variable.born, len(stream) - 1)][:, places].tolist()
        values = []
        for row in rows:
            nearest = words_of(variable.decode(row))
            if len(nearest) > _MOST_NEAREST:
                values.append(f"one of {len(nearest)} values")
            elif nearest:
                values.append(" or ".join(nearest))
            elif abs(row[0]) < 1e-9:  # what attention leaves of 0
                values.append("0")
            else:
                values.append(f"{row[0]:.3g}")
        variables.append(
            m.ProgramVariable(
                name=part_name(variable.name),
                born=variable.born,
                read=variable.read,
                coordinates=places,
                values=values,
            )
        )
    return variables
