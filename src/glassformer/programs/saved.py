"""Compiled programs in JSON files: weights, and the purpose of every coordinate and head.

A file is data: it names the program's variables but does not contain the program, and nothing in it
is run::

    {"format": "glassformer program 1", "name": "histogram", "dtype": "float64",
     "vocabulary": ["a", "b"], "max_len": 5, "causal": false,
     "codes": [[1.0, 1], [2.0, 2]],
     "coordinates": [[0, "tokens", 0, 0, 1, [["a", -1.0], ...]]],
     "heads": [["select(tokens == tokens)"]], "num_heads": [1],
     "weights": {"embedding.weight": [[-1.0, 0.0], [1.0, 0.0]], ...}}

Weights are the shortest decimals that give the same bits. A token or value is a text, a whole
number, true, false or null; ``{"fraction": [1, 3]}``, ``{"float": 0.5}``, or ``{"tuple": [...]}``
of values.
"""

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Len
from jaxtyping import Float64
from pydantic import BeforeValidator
from torch import Tensor

from glassformer.config import config
from glassformer.errors import InputError
from glassformer.files import any_file, local_path, write_text
from glassformer.programs.certificate import network_of
from glassformer.programs.domains import Domains
from glassformer.programs.language import Value
from glassformer.programs.model import CompiledProgram, Coordinate, make_block
from glassformer.text import short, shown
from glassformer.untrusted import MAX_NUMBERS, in_file, parse_json, require_regular

FORMAT = "glassformer program 1"
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_FIX = "Write the file again, with 'glassformer program --out'."
_LARGEST_INT = 2**53
_LONGEST_NAME = 1000
_DEEPEST = 8


def _as_int(value: Any) -> Any:
    """Return a whole float as an int: all numbers of a JSON file are read as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _as_tuple(value: Any) -> Any:
    """Return a list as a tuple: JSON has no tuples."""
    if isinstance(value, list):
        return tuple(value)
    return value


_Whole = BeforeValidator(_as_int)
_Tuple = BeforeValidator(_as_tuple)
_Count = Annotated[int, _Whole, Ge(0)]
_Size = Annotated[int, _Whole, Ge(1)]
_Name = Annotated[str, Len(0, _LONGEST_NAME)]
_Values = list[Annotated[tuple[Any, float], _Tuple]]


@config
class _File:
    format: Literal["glassformer program 1"]
    name: _Name
    dtype: Literal["float64", "float32", "bfloat16"]
    vocabulary: list[Any]
    max_len: _Size
    causal: bool
    codes: list[Annotated[tuple[float, Any], _Tuple]] | None
    coordinates: list[
        Annotated[tuple[_Count, _Name, _Count, _Count, _Count, _Values | None], _Tuple]
    ]
    heads: list[list[_Name]]
    num_heads: list[_Size]
    weights: dict[str, list[float] | list[list[float]]]


def save_program(model: CompiledProgram, path: Path | str, *, overwrite: bool = False) -> None:
    """Write a compiled program so that :func:`load_program` gives the same bits and names.

    A file that is there already is replaced if it is a saved program, or with ``overwrite``, and
    atomically.
    """
    path = local_path(path)
    require_place(path)
    state = model.state_dict()
    dtype = str(model.output.weight.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise InputError(
            got=f"weights of {dtype}",
            expected=" or ".join(_DTYPES),
            fix="Convert them, or save it as safetensors.",
        )
    if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
        raise InputError(
            got="weights that are not finite",
            expected="finite weights",
            fix="Compile the program again.",
        )
    network_of(model)  # refuses settings that a file does not hold
    content = {
        "format": FORMAT,
        "name": model.name[:_LONGEST_NAME],
        "dtype": dtype,
        "vocabulary": [_plain(token) for token in model.domains.vocabulary],
        "max_len": model.domains.max_len,
        "causal": model.domains.causal,
        "codes": _plain_codes(model),
        "coordinates": [_plain_coordinate(coordinate) for coordinate in model.coordinates],
        "heads": [[name[:_LONGEST_NAME] for name in names] for names in model.heads],
        "num_heads": [block.attention.num_heads for block in model.blocks],
        "weights": {name: tensor.double().tolist() for name, tensor in state.items()},
    }
    text = json.dumps(content, allow_nan=False)
    entries = text.count(",") + 1
    if entries > MAX_NUMBERS:
        raise InputError(
            got=f"{entries:,} entries",
            expected=f"at most {MAX_NUMBERS:,}",
            fix="Save it as safetensors.",
        )
    replaces = any_file if overwrite else is_program_file
    write_text(path, f"{text}\n", replaces=replaces)


def _plain_codes(model: CompiledProgram) -> list[list[Any]] | None:
    if model.codes is None:
        return None
    return [[number, _plain(value)] for number, value in model.codes]


def _plain_coordinate(coordinate: Coordinate) -> list[Any]:
    values = None
    if coordinate.values is not None:
        values = [[_plain(value), number] for value, number in coordinate.values]
    return [
        coordinate.index,
        coordinate.name[:_LONGEST_NAME],
        coordinate.variable,
        coordinate.born,
        coordinate.read,
        values,
    ]


def require_place(path: Path) -> None:
    """Raise :class:`InputError` unless :func:`save_program` can use ``path``."""
    if path.suffix.lower() != ".json" or path.is_dir():
        raise InputError(
            got=shown(path),
            expected="a file whose name ends in .json",
            fix="Choose another name.",
        )


def load_program(path: Path | str) -> CompiledProgram:
    """Load a compiled program from a file of :func:`save_program`.

    The file does not have the definition: ``model.program`` is None. Assign it to verify the model
    with :func:`~glassformer.programs.certificate.verify_program`.
    """
    path = local_path(path)
    content = parse_json(path)
    with in_file(path):
        if not isinstance(content, dict):
            raise InputError(
                got="JSON that is not an object",
                expected='an object {"format": ...}',
                fix=_FIX,
            )
        if content.get("format") != FORMAT:
            raise InputError(
                got=f"format = {short(str(content.get('format')))}",
                expected=f"{FORMAT!r}",
                fix=_FIX,
            )
        return _model_from(_File(**content))


def is_program_file(path: Path) -> bool:
    """Return whether a file begins as :func:`save_program` begins it."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(64)
    except (OSError, InputError):
        return False


def _model_from(file: _File) -> CompiledProgram:
    domains = Domains(tuple(map(_value, file.vocabulary)), file.max_len, file.causal)
    dtype = _DTYPES[file.dtype]
    tensors = {name: _tensor(name, rows).to(dtype) for name, rows in file.weights.items()}
    # Sizes take no memory before they are compared with the sizes of the weights.
    with torch.device("meta"):
        model = _empty_model(file, domains, tensors)
    _require_shapes(model, tensors)
    model.load_state_dict(tensors, assign=True)
    model.name = file.name
    model.codes = _codes(file)
    model.heads = _heads(file)
    model.coordinates = _coordinates(file, model.embedding.embedding_dim)
    return model.eval()


def _empty_model(file: _File, domains: Domains, tensors: dict[str, Tensor]) -> CompiledProgram:
    """Return a model of the sizes that the weights and ``num_heads`` imply."""

    def size(name: str, axis: int) -> int:
        matrix = tensors.get(name)
        if matrix is not None and matrix.dim() == 2:
            return matrix.shape[axis]
        return 0

    width = size("embedding.weight", 1)
    if width == 0:
        raise InputError(
            got="no matrix embedding.weight",
            expected="the weights of a program",
            fix=_FIX,
        )
    blocks = []
    for layer, num_heads in enumerate(file.num_heads):
        query = f"layers.{layer}.attention.query.weight"
        rows = size(query, 0)
        if rows == 0 or rows % num_heads != 0:
            raise InputError(
                got=f"num_heads = {num_heads} in layer {layer} with {rows} rows of {query}",
                expected="a divisor of the number of rows",
                fix=_FIX,
            )
        block = make_block(
            width,
            num_heads,
            rows // num_heads,
            size(f"layers.{layer}.ffn.up.weight", 0),
            causal=file.causal,
            sinks=f"layers.{layer}.attention.sinks" in tensors,
        )
        blocks.append(block)
    return CompiledProgram(None, domains, width, blocks)


def _require_shapes(model: CompiledProgram, tensors: dict[str, Tensor]) -> None:
    """Refuse weights of other names or shapes than the model's."""
    expected_shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted({*expected_shapes, *shapes}):
        shape = shapes.get(name)
        expected = expected_shapes.get(name)
        if shape != expected:
            raise InputError(
                got=f"{short(name)} of shape {shape}",
                expected=f"{expected or 'no such weight'}",
                fix=_FIX,
            )


def _codes(file: _File) -> list[tuple[float, Value]] | None:
    if file.codes is None:
        return None
    codes = [(number, _value(value)) for number, value in file.codes]
    numbers = [number for number, _ in codes]
    if not codes or numbers != sorted(set(numbers)):
        raise InputError(
            got="codes",
            expected="a value for each of ascending numbers",
            fix=_FIX,
        )
    return codes


def _heads(file: _File) -> tuple[tuple[str, ...], ...]:
    fits = len(file.heads) == len(file.num_heads) and all(
        len(names) <= num_heads for names, num_heads in zip(file.heads, file.num_heads, strict=True)
    )
    if not fits:
        raise InputError(
            got=f"heads = {short(str(file.heads))}",
            expected=f"names for at most {file.num_heads} heads",
            fix=_FIX,
        )
    return tuple(map(tuple, file.heads))


def _coordinates(file: _File, width: int) -> tuple[Coordinate, ...]:
    last = 2 * len(file.num_heads) + 1
    coordinates = []
    for index, name, variable, born, read, values in file.coordinates:
        if not (index < width and born <= read <= last):
            raise InputError(
                got=f"the coordinate {index} from time {born} to {read}",
                expected=f"one of {width}, and times from 0 to {last}",
                fix=_FIX,
            )
        listed = None
        if values is not None:
            listed = tuple((_value(value), number) for value, number in values)
        coordinates.append(Coordinate(index, name, variable, born, read, listed))
    return tuple(coordinates)


def _tensor(name: str, rows: list[float] | list[list[float]]) -> Float64[Tensor, "*shape"]:
    lengths = {len(row) if isinstance(row, list) else 1 for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(
            got=f"{short(name)} with rows of {sorted(lengths)[:3]}",
            expected="equal rows",
            fix=_FIX,
        )
    return torch.tensor(rows, dtype=torch.float64)


def _plain(value: Value) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) not in (int, float, Fraction, tuple):
        raise InputError(
            got=f"the value {value!r} of type {type(value).__name__}",
            expected="a type of Python's own",
            fix="Convert it.",
        )
    if isinstance(value, int):
        if abs(value) > _LARGEST_INT:
            raise InputError(
                got=f"the value {value}",
                expected="at most 2^53",
                fix="Use smaller numbers.",
            )
        return value
    if isinstance(value, Fraction):
        return {"fraction": [_plain(value.numerator), _plain(value.denominator)]}
    if isinstance(value, float):
        return {"float": value}
    return {"tuple": [_plain(item) for item in value]}


def _value(plain: Any, depth: int = 0) -> Value:
    """Return the value that :func:`_plain` wrote, with whole numbers read as floats."""
    if isinstance(plain, str) and any("\ud800" <= character <= "\udfff" for character in plain):
        raise InputError(
            got=f"the value {short(json.dumps(plain))}, half a character",
            expected="a text in Unicode",
            fix=_FIX,
        )
    if plain is None or isinstance(plain, bool | str):
        return plain
    if isinstance(plain, float) and plain.is_integer() and abs(plain) <= _LARGEST_INT:
        return int(plain)
    if isinstance(plain, dict) and len(plain) == 1 and depth < _DEEPEST:
        [(kind, inside)] = plain.items()
        if kind == "float" and isinstance(inside, float):
            return inside
        if kind == "tuple" and isinstance(inside, list):
            return tuple(_value(item, depth + 1) for item in inside)
        if kind == "fraction" and isinstance(inside, list) and len(inside) == 2:
            top = _value(inside[0], _DEEPEST)
            bottom = _value(inside[1], _DEEPEST)
            if type(top) is int and type(bottom) is int and bottom > 0:
                return Fraction(top, bottom)
    raise InputError(
        got=f"the value {short(json.dumps(plain))}",
        expected="a value as this format writes it",
        fix=_FIX,
    )
