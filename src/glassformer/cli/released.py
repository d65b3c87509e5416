"""A released model from a directory or the hub, with its tokenizer, for ``chat`` and ``generate --model``."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.checkpoints.decoders import load_decoder, read_decoder_config, require_device
from glassformer.checkpoints.hub import find_directory
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.data.harmony import STOPS
from glassformer.data.released_tokenizer import (
    ReleasedTokenizer,
    installed_tokenizer,
    named_tokenizer,
    tokenizer_beside,
)
from glassformer.errors import CheckpointError, InputError, require
from glassformer.kernels import native
from glassformer.kernels.rule import use_definition
from glassformer.models.decoder import Decoder
from glassformer.quantized import DenseFormat

GENERATION_FILE = "generation_config.json"

_ENDS = (*STOPS, "<|endoftext|>", "</s>")
# Of released gpt-oss models: o200k_harmony's ids, rounded up.
_HARMONY_VOCAB = 201088


@dataclass(frozen=True)
class Released:
    """A model's directory and what is known of it before its weights are loaded."""

    directory: Path
    vocab_size: int
    tokenizer: ReleasedTokenizer | None
    declared_ends: tuple[int, ...]
    """The end-of-text tokens that its files name."""
    stop_tokens: tuple[int, ...]
    """Those, and the tokenizer's special tokens that end a text."""
    max_seq_len: int

    def load(self, device: str = "auto", dense: DenseFormat | Literal["stored"] | None = None) -> Decoder:
        """The decoder, in evaluation mode; on a GPU if there is one and ``device`` is ``"auto"``.

        ``dense`` is that of :func:`~glassformer.checkpoints.decoders.load_decoder`, or ``"stored"`` for the weights as
        they are in the files. None is ``"lossless"`` on a processor with the C++ library, which computes the same
        faster, and ``"stored"`` elsewhere and for weights that cannot be held so.

        Raises:
            CheckpointError: Files that are missing, damaged, or of another architecture.
            InputError: An unknown device, or ``dense`` for a model that is no gpt-oss.
        """
        place = chosen_device(device)
        if sys.stderr.isatty():
            print(f"loading {self.directory} ...", file=sys.stderr)
        load = functools.partial(load_decoder, self.directory, device=place)
        library = native.library() if dense is None and place.type == "cpu" and not use_definition() else None
        if library is not None and library.level > 0:
            try:
                return load(dense="lossless").eval()
            except CheckpointError:
                raise
            except InputError:  # no gpt-oss, weights of another dtype, or too many exceptions
                pass
        return load(dense=None if dense == "stored" else dense).eval()


def find_released(source: str, tokenizer: str | None = None) -> Released:
    """Find a model's directory and tokenizer, without loading its weights.

    Args:
        source: A directory, or a model on the hub.
        tokenizer: What names the tokenizer, see :func:`~glassformer.data.released_tokenizer.named_tokenizer`; None: the
            one next to the weights, or for a model with gpt-oss's vocabulary an installed one.

    Raises:
        CheckpointError: A damaged ``config.json``, or that of another architecture.
        InputError: No such model or tokenizer, or a tokenizer with more tokens than the model.
    """
    directory = find_directory(source)
    config = read_json(directory / CONFIG_FILE)
    require(
        not {"training", "description"} <= config.keys(),
        f"{source}, the directory of a run",
        "a model's directory",
        "Use 'glassformer generate --run', or convert the run with 'glassformer convert'.",
    )
    decoder = read_decoder_config(directory)
    vocab_size = decoder.vocab_size
    found = tokenizer_beside(directory) if tokenizer is None else named_tokenizer(tokenizer)
    if found is None and vocab_size == _HARMONY_VOCAB:
        found = installed_tokenizer()
    if found is not None:
        found.require_fits(vocab_size)
    declared = _declared_ends(directory, config, vocab_size)
    named = [] if found is None else [found.specials[name] for name in _ENDS if name in found.specials]
    stops = tuple(sorted({*declared, *named}))
    return Released(directory, vocab_size, found, tuple(declared), stops, decoder.max_seq_len)


def require_tokenizer(released: Released) -> ReleasedTokenizer:
    """The model's tokenizer.

    Raises:
        InputError: None was found; says how to get one.
    """
    if released.tokenizer is None:
        advice = "Download tokenizer.json into it, or pass --tokenizer with a file or a model on the hub"
        if released.vocab_size == _HARMONY_VOCAB:
            advice += " (openai/gpt-oss-20b), or pip install 'glassformer[harmony]' with a connection"
        numbers = "'glassformer generate' works without one: --tokenizer numbers --prompt \"1 2 3\""
        raise InputError(f"{released.directory} without a tokenizer", "one with the weights", f"{advice}. {numbers}.")
    return released.tokenizer


def chosen_device(name: str) -> torch.device:
    """The device of this name; ``"auto"``: a GPU if there is one.

    Raises:
        InputError: A device that torch does not know or this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    require(name != "meta", f"device = {name!r}, which computes nothing", "'cpu', or 'cuda' with a GPU", "Use 'cpu'.")
    return require_device(name)


class Stopwatch:
    """Measures the time to the first token and the tokens per second after it."""

    def __init__(self, read: int) -> None:
        self.read, self.generated, self.seconds_to_first, self.seconds = read, 0, 0.0, 0.0

    def timed(self, tokens: Iterable[int]) -> Iterator[int]:
        """The same tokens."""
        began = time.perf_counter()
        for token in tokens:
            self.generated += 1
            self.seconds = time.perf_counter() - began
            if self.generated == 1:
                self.seconds_to_first = self.seconds
            yield token

    def __str__(self) -> str:
        """One line; empty if no token was generated."""
        if self.generated == 0:
            return ""
        line = f"{self.read} tokens read in {self.seconds_to_first:.1f} s, {self.generated} generated"
        later = self.seconds - self.seconds_to_first
        if self.generated > 1 and later > 0:
            # The first token is part of reading the prompt.
            line += f" in {self.seconds:.1f} s: {(self.generated - 1) / later:.1f} tokens/s"
        return line


def _declared_ends(directory: Path, config: dict[str, Any], vocab_size: int) -> list[int]:
    path = directory / GENERATION_FILE
    ends: list[Any] = []
    for settings in (config, read_json(path) if path.is_file() else {}):
        value = settings.get("eos_token_id")
        ends += value if isinstance(value, list) else [value]
    # The files of a small model may still name ids of the large model it was derived from.
    return sorted({end for end in ends if isinstance(end, int) and 0 <= end < vocab_size})
