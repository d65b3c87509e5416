"""``glassformer generate``: continue a prompt with the model of a run."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro

from glassformer.cli.runs import read_run
from glassformer.cli.training_data import RECURRENCE
from glassformer.errors import require, require_positive
from glassformer.generation import SamplingRule, stream
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.training import load_weights
from glassformer.training.run_directory import RunDirectory


@dataclass(frozen=True)
class GenerateFlags:
    """Continue a prompt with the best model of a run that 'glassformer train' made; prints both in one.

    Raises:
        InputError: A number out of its range.
    """

    run: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory of the run."""

    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT")]
    """What to continue: a text, or numbers as in "1 2 3" for a run on the recurrence."""

    max_new_tokens: int = 200
    """Tokens to add: bytes of a text, or numbers."""

    temperature: float = 0.8
    """Divides the logits: 0 always takes the most likely token, 1 leaves the model's distribution as it is."""

    top_k: int | None = None
    """Choose among this many most likely tokens only. None: among all."""

    top_p: float = 1.0
    """Choose among the most likely tokens that together reach this probability."""

    seed: int | None = None
    """The same seed gives the same text. None: another one each time."""

    stream: bool = True
    """Print each token as soon as it is chosen, or all at the end."""

    compile: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compile the step first: half a minute or so, then about 1.5 times as fast. Needs a C++ compiler."""

    def __post_init__(self) -> None:
        require_positive(max_new_tokens=self.max_new_tokens)
        _ = self.rule

    @property
    def rule(self) -> SamplingRule:
        """How tokens are chosen."""
        return SamplingRule(self.temperature, self.top_k, self.top_p, self.seed)


def run(flags: GenerateFlags) -> Iterator[str]:
    """The prompt and what follows it, in pieces, as they are generated.

    Raises:
        InputError: No run there, or none with weights yet; a prompt that is empty or has tokens that the model does not
            know; more tokens than it can read.
    """
    stored = read_run(flags.run)
    kind = stored.data["kind"]
    prompt = encode(flags.prompt, kind, stored.model.vocab_size)
    model = _load_model(flags.run, stored.model)
    steps = stream(model, [prompt], flags.max_new_tokens, rule=flags.rule, compile=flags.compile)
    new_tokens = (token for (token,) in steps if token is not None)
    return decode(chain(prompt, new_tokens), kind)


def encode(prompt: str, kind: str, vocab_size: int) -> list[int]:
    """The tokens of ``prompt``: its UTF-8 bytes, or for the recurrence the numbers in it.

    Raises:
        InputError: A prompt without tokens, or of something else than numbers in the vocabulary.
    """
    if kind != RECURRENCE:
        # What the shell passed on that is no UTF-8 stays the bytes it was.
        tokens = list(prompt.encode("utf-8", errors="surrogateescape"))
        require(len(tokens) > 0, "an empty prompt", "at least one character", "Begin the text: --prompt Once.")
        return tokens
    numbers = prompt.split()
    require(
        len(numbers) > 0 and all(number.isdecimal() and int(number) < vocab_size for number in numbers),
        f"the prompt {prompt!r}",
        f"whole numbers from 0 to {vocab_size - 1}",
        'Separate them by spaces: --prompt "1 2 3".',
    )
    return [int(number) for number in numbers]


def decode(tokens: Iterable[int], kind: str) -> Iterator[str]:
    """Text for ``tokens``, piece by piece: each character as soon as its last byte is there, or each number.

    Bytes that are no UTF-8 become the replacement character.
    """
    if kind == RECURRENCE:
        yield from (f" {token}" if index else f"{token}" for index, token in enumerate(tokens))
        return
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield from (decoder.decode(bytes([token])) for token in tokens)
    yield decoder.decode(b"", final=True)


def main(arguments: Sequence[str], prog: str) -> int:
    """Parse ``arguments``, print the prompt and its continuation; return the exit status."""
    flags = tyro.cli(GenerateFlags, prog=prog, args=arguments)
    pieces = run(flags)
    for piece in pieces if flags.stream else ["".join(pieces)]:
        print(piece, end="", flush=True)
    print()
    return 0


def _load_model(directory: Path, config: DecoderConfig) -> Decoder:
    """The best model of a run; before its first evaluation, that of the latest checkpoint."""
    run = RunDirectory(directory)
    saved = [run.best] if run.best.is_dir() else run.checkpoints()
    require(
        len(saved) > 0,
        f"--run {directory}, which has no weights yet",
        "a run with a checkpoint",
        f"Train first: glassformer train --run {shlex.quote(str(directory))} --resume.",
    )
    model = Decoder(config)
    load_weights(model, saved[-1])
    return model
