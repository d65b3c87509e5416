"""``glassformer generate``: continue a prompt with any model."""

import sys
from collections.abc import Iterator
from itertools import chain

from glassformer.cli.flags import GenerateFlags
from glassformer.cli.terminal import Stopwatch, write
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.errors import require
from glassformer.generation import SamplingRule, stream
from glassformer.generation.language_model import find_model, require_tokenizer
from glassformer.kernels import native


def run(flags: GenerateFlags, stopwatch: Stopwatch | None = None) -> Iterator[str]:
    """The prompt and its continuation, in pieces, as they are generated; ``stopwatch`` measures it."""
    rule = SamplingRule(flags.temperature, flags.top_k, flags.top_p, flags.seed)
    found = find_model(flags.model, flags.tokenizer)
    tokenizer = require_tokenizer(found)
    prompt = [*tokenizer.begin, *tokenizer.encode(flags.prompt)]
    require(len(prompt) > 0, "an empty prompt", "at least one character", "Begin the text.")
    stop = {*found.stop_tokens, *(_token(each, tokenizer, found.config.vocab_size) for each in flags.stop)}
    dense = "stored" if flags.compile and flags.dense is None else flags.dense  # compiled steps call no C++
    decoder = found.load(flags.device, dense)
    if decoder.device.type == "cpu" and not flags.compile:
        native.library()  # what it says of compiling is printed before the prompt, not within
    steps = stream(
        decoder,
        [prompt],
        flags.max_new_tokens,
        rule=rule,
        stop_tokens=tuple(stop),
        compile=flags.compile,
        speculate=flags.speculate,
    )
    stopwatch = stopwatch or Stopwatch()
    stopwatch.read = len(prompt)
    new_tokens = stopwatch.timed(token for (token,) in steps if token is not None)
    # The stop token is not printed.
    return chain([flags.prompt], tokenizer.stream(token for token in new_tokens if token not in stop))


def _token(name: str, tokenizer: ReleasedTokenizer, vocab_size: int) -> int:
    """The token that ends a text, by its name or number."""
    if name in tokenizer.specials:
        return tokenizer.specials[name]
    known = name.isdecimal() and len(name) < 20 and int(name) < vocab_size
    expected = f"a number from 0 to {vocab_size - 1}, or the name of a special token"
    require(known, f"--stop {name} for {tokenizer.source}", expected, "Name one that the model has.")
    return int(name)


def main(flags: GenerateFlags) -> int:
    """Print the prompt and its continuation."""
    stopwatch = Stopwatch()
    pieces = run(flags, stopwatch)
    for piece in pieces if flags.stream else ["".join(pieces)]:
        write(piece)
    print()
    if flags.speed:
        print(stopwatch, file=sys.stderr)
    return 0
