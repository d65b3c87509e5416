"""``glassformer generate``: continue a prompt with any model."""

import sys
from collections.abc import Iterator
from itertools import chain

from glassformer.checkpoints.store import build, open_model
from glassformer.cli.flags import GenerateFlags
from glassformer.cli.sampling import chosen_rule
from glassformer.cli.terminal import Stopwatch, text_or_input, write
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.errors import InputError
from glassformer.generation import stream
from glassformer.generation.loops import LoopDetector
from glassformer.kernels import native


def run(flags: GenerateFlags, stopwatch: Stopwatch | None = None) -> Iterator[str]:
    """Yield the prompt and the pieces of its continuation, which ``stopwatch`` measures."""
    text = text_or_input(flags.prompt)
    stored = open_model(flags.model, tokenizer=flags.tokenizer)
    rule = chosen_rule(flags, stored).rule
    tokenizer = stored.require_tokenizer()
    prompt = [*tokenizer.begin, *tokenizer.encode(text)]
    if not prompt:
        raise InputError(
            got="an empty prompt",
            expected="at least one character",
            fix="Begin the text.",
        )
    named_stop = (_token(name, tokenizer, stored.config.vocab_size) for name in flags.stop)
    stop = {*stored.stop_tokens, *named_stop}
    decoder = build(stored, device=flags.device, pack=flags.pack)
    if decoder.device.type == "cpu":
        native.library()  # prints its line on compiling before the prompt, not within the text
    steps = stream(decoder, [prompt], flags.max_new_tokens, rule=rule, stop_tokens=tuple(stop))
    stopwatch = stopwatch or Stopwatch()
    stopwatch.read = len(prompt)
    new_tokens = stopwatch.timed(token for (token,) in steps if token is not None)
    if flags.end_loops and tokenizer.json is not None:  # a sequence of numbers may well be periodic
        new_tokens = _until_loop(new_tokens, LoopDetector(tokenizer.is_number))
    # The stop token is not printed.
    return chain([text], tokenizer.stream(token for token in new_tokens if token not in stop))


def _until_loop(tokens: Iterator[int], loop: LoopDetector) -> Iterator[int]:
    """Yield ``tokens`` up to where the text repeats itself without end, and print a line then."""
    notice = "\n[ended: the text repeats itself without end; --no-end-loops goes on]"
    for token in tokens:
        yield token
        if loop.add(token):
            write(notice, sys.stderr)
            return


def _token(name: str, tokenizer: ReleasedTokenizer, vocab_size: int) -> int:
    """Return the token that ends a text, by its name or number."""
    if name in tokenizer.specials:
        return tokenizer.specials[name]
    if name.isdecimal() and len(name) < 20 and int(name) < vocab_size:
        return int(name)
    raise InputError(
        got=f"--stop {name} for {tokenizer.source}",
        expected=f"a number from 0 to {vocab_size - 1}, or the name of a special token",
        fix="Name one that the model has.",
    )


def main(flags: GenerateFlags) -> int:
    """Print the prompt and its continuation."""
    stopwatch = Stopwatch()
    pieces = run(flags, stopwatch)
    if flags.stream:
        for piece in pieces:
            write(piece)
    else:
        write("".join(pieces))
    print()
    if flags.speed:
        line = str(stopwatch)
        if stopwatch.generated == flags.max_new_tokens:
            line += f"; cut at --max-new-tokens {flags.max_new_tokens}"
        print(line, file=sys.stderr)
    return 0
