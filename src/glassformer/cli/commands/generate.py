"""``glassformer generate``: continue a prompt with the model of a run or of a directory."""

import codecs
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from glassformer.cli import RECURRENCE, TEXT
from glassformer.cli.flags import GenerateFlags
from glassformer.cli.runs import read_run
from glassformer.cli.terminal import Stopwatch, write
from glassformer.cli.training_data import BYTES
from glassformer.errors import InputError, require
from glassformer.generation import SamplingRule, stream
from glassformer.generation.language_model import chosen_device, find_model, require_tokenizer
from glassformer.models.decoder import Decoder
from glassformer.text import short


@dataclass(frozen=True)
class _Task:
    """A prompt in tokens, what continues it, and how tokens are shown."""

    prompt: list[int]
    load: Callable[[], Decoder]
    decode: Callable[[Iterable[int]], Iterator[str]]
    stop_tokens: Sequence[int] = ()


def run(flags: GenerateFlags, watch: Callable[[Stopwatch], None] = lambda _: None) -> Iterator[str]:
    """The prompt and its continuation, in pieces, as they are generated.

    Args:
        flags: What to continue and how.
        watch: Receives the stopwatch of this text before it starts.
    """
    rule = SamplingRule(flags.temperature, flags.top_k, flags.top_p, flags.seed)
    task = _of_run(flags, flags.run) if flags.run is not None else _of_model(flags)
    steps = stream(
        task.load(),
        [task.prompt],
        flags.max_new_tokens,
        rule=rule,
        stop_tokens=task.stop_tokens,
        compile=flags.compile,
        speculate=flags.speculate,
    )
    stopwatch = Stopwatch(len(task.prompt))
    watch(stopwatch)
    new_tokens = stopwatch.timed(token for (token,) in steps if token is not None)
    # The stop token is not printed.
    shown = (token for token in new_tokens if token not in task.stop_tokens)
    return task.decode(chain(task.prompt, shown))


def _of_run(flags: GenerateFlags, directory: Path) -> _Task:
    trainings = directory / "trainings"
    if trainings.is_dir():
        names = ", ".join(sorted(each.name for each in trainings.iterdir() if each.is_dir()))
        fix = f"Use --run {trainings}/NAME: {names}."
        raise InputError(f"--run {directory}, a lab of several runs", "one of its runs", fix)
    trained = read_run(directory)
    kind = trained.data["kind"]
    got, fix = f"--run {directory}, a run on data of kind {kind!r}", "Read other runs from Python, with load_weights."
    require(kind in (TEXT, RECURRENCE), got, "a run on a text or the recurrence", fix)
    source = f"a run on {'the recurrence' if kind == RECURRENCE else 'bytes'}"
    place = chosen_device(flags.device)
    return _without_tokenizer(flags, kind, trained.model.vocab_size, lambda: trained.load().to(place), source)


def _of_model(flags: GenerateFlags) -> _Task:
    plain = {"bytes": TEXT, "numbers": RECURRENCE}.get(flags.tokenizer or "")
    released = find_model(flags.model or "", None if plain else flags.tokenizer)
    vocab_size = released.config.vocab_size
    dense = "stored" if flags.compile and flags.dense is None else flags.dense  # compiled steps call no C++
    load = functools.partial(released.load, flags.device, dense)
    if plain is not None:
        got, fix = f"--tokenizer bytes for a model of vocab_size = {vocab_size}", "Use the model's own tokenizer."
        require(plain == RECURRENCE or vocab_size <= BYTES, got, f"a model of at most {BYTES} tokens", fix)
        return _without_tokenizer(flags, plain, vocab_size, load, f"--tokenizer {flags.tokenizer}")
    tokenizer = require_tokenizer(released)
    prompt = [*tokenizer.begin, *tokenizer.encode(flags.prompt)]
    require(len(prompt) > 0, "an empty prompt", "at least one character", "Begin the text: --prompt Once.")
    stop = [
        tokenizer.specials[each] if each in tokenizer.specials else _number(each, vocab_size, tokenizer.source)
        for each in flags.stop
    ]

    def shown(tokens: Iterable[int]) -> Iterator[str]:
        """Without the tokens that start every text."""
        return tokenizer.stream(islice(tokens, len(tokenizer.begin), None))

    return _Task(prompt, load, shown, [*released.stop_tokens, *stop])


def _without_tokenizer(
    flags: GenerateFlags, kind: str, vocab_size: int, load: Callable[[], Decoder], source: str
) -> _Task:
    stop = [_number(each, vocab_size, source) for each in flags.stop]
    return _Task(encode(flags.prompt, kind, vocab_size), load, functools.partial(decode, kind=kind), stop)


def _number(stop: str, vocab_size: int, source: str) -> int:
    expected = f"a number from 0 to {vocab_size - 1}, or the name of a special token"
    require(is_below(stop, vocab_size), f"--stop {stop} for {source}", expected, "Name one that the model has.")
    return int(stop)


def is_below(text: str, most: int) -> bool:
    """Whether ``text`` is a whole number from 0 to ``most - 1``."""
    return text.isdecimal() and len(text) < 20 and int(text) < most


def encode(prompt: str, kind: str, vocab_size: int) -> list[int]:
    """The tokens of ``prompt``: its UTF-8 bytes, or for the recurrence the numbers in it."""
    if kind != RECURRENCE:
        # Bytes from the shell that are not UTF-8 are kept.
        tokens = list(prompt.encode("utf-8", errors="surrogateescape"))
        require(len(tokens) > 0, "an empty prompt", "at least one character", "Begin the text: --prompt Once.")
        got, fix = f"the byte {max(tokens)} for a model of vocab_size = {vocab_size}", "Use the model's own tokenizer."
        require(max(tokens) < vocab_size, got, "bytes that it knows", fix)
        return tokens
    numbers = prompt.split()
    fix, known = 'Separate them by spaces: --prompt "1 2 3".', all(is_below(number, vocab_size) for number in numbers)
    require(bool(numbers) and known, f"the prompt {short(prompt)}", f"whole numbers from 0 to {vocab_size - 1}", fix)
    return [int(number) for number in numbers]


def decode(tokens: Iterable[int], kind: str) -> Iterator[str]:
    """Text for ``tokens``, piece by piece: each character as soon as its last byte is there, or each number.

    Bytes that are not UTF-8 become the replacement character.
    """
    if kind == RECURRENCE:
        yield from (f" {token}" if index else f"{token}" for index, token in enumerate(tokens))
        return
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield from (decoder.decode(bytes([token])) for token in tokens)
    yield decoder.decode(b"", final=True)


def main(flags: GenerateFlags) -> int:
    """Print the prompt and its continuation."""
    stopwatches: list[Stopwatch] = []
    pieces = run(flags, stopwatches.append)
    for piece in pieces if flags.stream else ["".join(pieces)]:
        write(piece)
    print()
    if flags.speed:
        print(*stopwatches, sep="\n", file=sys.stderr)
    return 0
