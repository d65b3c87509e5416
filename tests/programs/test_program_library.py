"""The library's programs: what they say, beside plain Python, and their transformers on every
sequence.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from compiled_programs import compiled
from glassformer.programs import CompiledProgram, compile_program, verify_program
from glassformer.programs import library as lib
from glassformer.programs.enumeration import Batch
from refusals import refused

DTYPES = (torch.float64, torch.float32)
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "programs.md"


def holds_everywhere(model: CompiledProgram) -> None:
    certificate = verify_program(model)
    assert certificate.verdict == "holds", certificate
    assert certificate.rests_on == "every sequence"
    assert certificate.num_undefined == 0
    assert certificate.dtype == "float32" or certificate.largest_error < 1e-9


LARGE = (
    "recurrence",
    "shuffle-dyck-2",
    "shuffle-dyck-3",
    "machine",
    "addition",
    "dyck-1",
    "dyck-2",
    "dyck-3",
)


@pytest.mark.parametrize("name", [name for name in lib.PROGRAMS if name not in LARGE])
def test_programs_hold_on_every_short_sequence(name: str) -> None:
    example = lib.PROGRAMS[name]
    short = max(n for n in range(1, example.max_len + 1) if len(example.vocabulary) ** n <= 1500)
    for dtype in DTYPES:
        holds_everywhere(compiled(name, short, dtype))


def test_the_documentation_lists_the_models_of_todays_compiler() -> None:
    """Pictures show the same numbers: where this fails, web/pictures.py takes those of the program
    page anew.
    """
    listed = [
        line.split(" | ")
        for line in REFERENCE.read_text(encoding="utf-8").splitlines()
        if line[:3] == "| `"
    ]
    assert [each[0].strip("| `") for each in listed] == list(lib.PROGRAMS)
    for name, *columns in listed:
        model = compiled(name.strip("| `"))
        vocabulary = len(model.domains.vocabulary)
        most = model.domains.max_len
        sequences = sum(vocabulary**length for length in range(1, most + 1))
        heads = sum(len(names) for names in model.heads)
        sizes = (
            sequences,
            len(model.blocks),
            heads,
            model.embedding.embedding_dim,
            model.num_parameters,
        )
        assert columns[-6:] == [
            f"{vocabulary}, {most}",
            *(f"{size:,}" for size in sizes[:-1]),
            f"{sizes[-1]:,} |",
        ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", lib.PROGRAMS)
def test_programs_hold_on_every_sequence(name: str, dtype: torch.dtype) -> None:
    # In float32 the rounding of each sequence is followed, which takes minutes for the longest of
    # this one.
    shorter = name == "recurrence" and dtype == torch.float32
    holds_everywhere(
        compiled(name, lib.PROGRAMS[name].max_len - 1 if shorter else None, dtype=dtype)
    )


@pytest.mark.slow
def test_recurrences_of_another_modulus_hold_on_longer_sequences() -> None:
    holds_everywhere(
        compile_program(lib.recurrence(5), tuple(range(5)), 7, causal=True, dtype=torch.float32)
    )


def outputs(name: str, length: int) -> list[tuple[tuple[object, ...], list[object]]]:
    """All sequences of a length, each with the program's values."""
    example = lib.PROGRAMS[name]
    letters = np.array(list(itertools.product(range(len(example.vocabulary)), repeat=length)))
    codes, values = Batch(letters, example.vocabulary, example.causal).column(example.program)
    texts = [tuple(example.vocabulary[token] for token in row) for row in letters.tolist()]
    return [
        (text, [values[code] for code in row])
        for text, row in zip(texts, codes.tolist(), strict=True)
    ]


def test_mode_and_count_agree_with_a_counter() -> None:
    for text, found in outputs("mode", 5):
        counts = Counter(text)
        most = max(counts.values())
        assert set(found) == {
            next(each for each in sorted(text, key=text.index) if counts[each] == most)
        }
    assert all(found == [text.count("a")] * 4 for text, found in outputs("count", 4))


def is_nested(text: Sequence[object]) -> bool:
    """Whether nothing is left when pairs that hold nothing are removed again and again."""
    left = "".join(map(str, text))
    before = None
    while left != before:
        left, before = re.sub(r"\(\)|\[\]|\{\}", "", left), left
    return not left


@pytest.mark.parametrize(("name", "length"), [("dyck-1", 7), ("dyck-2", 5), ("dyck-3", 4)])
def test_dyck_agrees_with_the_removal_of_pairs(name: str, length: int) -> None:
    for text, found in outputs(name, length):
        assert found == [is_nested(text[: end + 1]) for end in range(length)], text


@pytest.mark.parametrize(("name", "order", "length"), [("induction", 1, 6), ("trigram", 2, 6)])
def test_followers_agree_with_a_search(name: str, order: int, length: int) -> None:
    for letters, found in outputs(name, length):
        text = "".join(map(str, letters))
        for place in range(length):
            before = (
                text[:place].rfind(text[place + 1 - order : place + 1])
                if place + 1 >= order
                else -1
            )
            assert found[place] == (None if before < 0 else text[before + order]), (text, place)


def test_lookup_agrees_with_a_dictionary() -> None:
    for text, found in outputs("lookup", 5):
        facts: dict[object, object] = {}
        for place, token in enumerate(text):
            if token in ("x", "y", "z"):
                if place and text[place - 1] in ("a", "b", "c"):
                    facts[text[place - 1]] = token
                assert found[place] is None
            else:
                assert found[place] == facts.get(token), (text, place)


def test_copies_are_continued_from_the_separator_on() -> None:
    model = compiled("copy")
    for text in ("a", "ba", "cab"):
        written = [*text, "|"]
        for _ in range(len(text)):
            written.append(model.run(written)[-1])
        assert written == [*text, "|", *text]


@pytest.mark.parametrize(("base", "length"), [(2, 7), (3, 6)])
def test_addition_agrees_with_integers(base: int, length: int) -> None:
    vocabulary = tuple("0123456789"[:base] + "+=")
    letters = np.array(list(itertools.product(range(base + 2), repeat=length)))
    codes, values = Batch(letters, vocabulary, causal=True).column(lib.addition(base))
    sums = 0
    for row, found in zip(letters.tolist(), codes.tolist(), strict=True):
        text = "".join(vocabulary[token] for token in row)
        if text.count("+") != 1 or text.count("=") != 1 or text.index("+") > text.index("="):
            continue
        start = text.index("=")
        total = sum(int(part[::-1] or "0", base) for part in text[:start].split("+"))
        assert [values[code] for code in found[:start]] == [None] * start
        for place, code in enumerate(found[start:]):
            assert values[code] == total // base**place % base, text
        sums += 1
    assert sums > 500


@pytest.mark.slow
def test_addition_of_decimal_numbers_of_four_digits() -> None:
    model = compile_program(lib.addition(), tuple("0123456789+="), 14, causal=True)
    assert verify_program(model, limit=2000).num_wrong == 0
    for a, b in [
        (9999, 1),
        (0, 0),
        (9999, 9999),
        *np.random.default_rng(0).integers(0, 10_000, (20, 2)).tolist(),
    ]:
        text = f"{str(a)[::-1]}+{str(b)[::-1]}="
        for _ in range(5):
            text += str(model.run(text)[-1])
        assert int(text[:-6:-1]) == a + b


def test_recurrences_are_continued() -> None:
    for modulus in (2, 3, 5):
        program = lib.recurrence(modulus)
        length = 7 if modulus < 5 else 6
        firsts = itertools.product(range(modulus), repeat=4)
        rows = []
        for a, b, x, y in firsts:
            row = [x, y]
            while len(row) <= length:
                row.append((a * row[-2] + b * row[-1]) % modulus)
            rows.append(row)
        codes, values = Batch(np.array(rows)[:, :length], range(modulus), causal=True).column(
            program
        )
        for row, found in zip(rows, codes.tolist(), strict=True):
            assert [values[code] for code in found[3:]] == row[4:]
    assert lib.recurrence(3)([0, 0, 1, 1], causal=True) == [None] * 4


def step(memory: list[int], size: int) -> list[int]:
    """One step of the machine in plain Python."""

    def read(address: int) -> int:
        return memory[address] if address < len(memory) else 0

    counter = read(0)
    number = read(1)
    new = list(memory)
    code = read(counter)
    operand = read(counter + 1)
    name = lib.MACHINE[code] if code < len(lib.MACHINE) else "halt"
    go = (counter + 2) % size
    result = number
    if name == "halt":
        go = counter
    elif name == "jump" or (name == "jump if zero" and number == 0):
        go = operand
    elif name in ("load", "add", "sub"):
        old = 0 if name == "load" else number
        result = (old - read(operand) if name == "sub" else old + read(operand)) % size
    for address, value in enumerate((go, result)):
        if address < len(memory):
            new[address] = value
    if name == "store" and operand < len(memory):
        new[operand] = number
    return new


def test_the_machine_agrees_with_plain_python() -> None:
    for memory, found in outputs("machine", 5):
        assert found == step(list(memory), 6), memory  # type: ignore[arg-type]


LOAD, STORE, ADD, SUB, JUMP, JUMP_IF_ZERO = range(1, 7)
LOOP = [
    (JUMP_IF_ZERO, 20),
    (LOAD, 23),
    (ADD, 21),
    (STORE, 23),
    (LOAD, 22),
    (SUB, 24),
    (STORE, 22),
    (JUMP, 2),
]
MULTIPLY = [2, 0, *itertools.chain(*LOOP), 0, 0, 0, 5, 4, 0, 1]
"""Adds cell 21 to cell 23 as often as cell 22 says, which it counts down by cell 24; halts at cell
20.
"""


@pytest.mark.slow
def test_a_loop_of_the_compiled_step_multiplies() -> None:
    size = 32
    memory = list(MULTIPLY)
    memory[1] = memory[22]
    model = compile_program(lib.machine(size), tuple(range(size)), len(memory))
    for _ in range(100):
        after = model.run(memory)
        assert after == step(memory, size)
        if after == memory:
            break
        memory = after
    assert memory[23] == 5 * 4
    assert lib.MACHINE[memory[memory[0]]] == "halt"


def test_unusable_arguments_are_refused() -> None:
    with refused("pattern"):
        lib.detect(lib.tokens, "")
    with refused("order"):
        lib.follower(0)
    for base in (1, 11):
        with refused("base"):
            lib.addition(base)


def test_a_part_of_a_text_of_keys_is_no_key() -> None:
    facts = ["a", "ab", "a", "ab", ""]
    assert lib.lookup("ab")(facts, causal=True) == lib.lookup(["a", "b"])(facts, causal=True)
