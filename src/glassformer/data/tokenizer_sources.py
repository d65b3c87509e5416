"""Finding a released model's tokenizer: in the directory of its weights, on the hub, or in an installed package."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

from glassformer.data.released_tokenizer import HARMONY_SPECIALS, ReleasedTokenizer, from_ranks, read_tokenizer
from glassformer.errors import InputError, first_line, require
from glassformer.files import lies_inside

TOKENIZER_FILES = ("tokenizer.json", "o200k_base.tiktoken")
"""Names of a tokenizer's file, the preferred one first."""
ENCODINGS_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
"""The environment variable with the directory of openai-harmony's vocabulary."""

_WAYS = (
    "a directory or file with tokenizer.json or o200k_base.tiktoken, or the name of a model on the hub such as "
    "openai/gpt-oss-20b"
)


def tokenizer_places(directory: Path) -> list[Path]:
    """The directories to search for a model's tokenizer: its own, and for one named ``original`` also its parent.

    The hub's copies of gpt-oss have OpenAI's layout in a folder of that name and the tokenizer above it.
    """
    resolved = directory.resolve()
    return [directory, resolved.parent] if resolved.name == "original" else [directory]


def tokenizer_beside(directory: Path) -> ReleasedTokenizer | None:
    """The tokenizer in the directories of :func:`tokenizer_places`; None if there is none.

    Raises:
        InputError: A damaged file, or a link out of the directory (but for those of the hub's cache).
    """
    for place in tokenizer_places(directory):
        for name in TOKENIZER_FILES:
            file = place / name
            if file.is_file():
                require(
                    lies_inside(file),
                    f"{file}, a link to {file.resolve()}",
                    "files in the directory itself",
                    "Pass the tokenizer's file if you trust it, or copy it into the directory.",
                )
                return read_tokenizer(file)
    return None


def named_tokenizer(name: str) -> ReleasedTokenizer:
    """The tokenizer that a user names: a file, a directory with one, or a model on the hub.

    Raises:
        InputError: None of these, a damaged file, or no connection.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        found = tokenizer_beside(path)
        if found is None:
            files = " or ".join(TOKENIZER_FILES)
            raise InputError(f"{path} without a tokenizer", files, "Pass the tokenizer's file.")
        return found
    if path.exists() or path.suffix in (".json", ".tiktoken"):
        return read_tokenizer(path)
    require(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None, f"the tokenizer {name!r}", _WAYS, "Check the name.")
    from huggingface_hub import hf_hub_download  # takes a third of a second to import, and is rarely needed

    try:
        return read_tokenizer(hf_hub_download(name, TOKENIZER_FILES[0]))
    except (OSError, ValueError) as error:  # the hub's own errors are kinds of these
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the tokenizer {name!r}, which is not a file and could not be loaded from the hub ({first_line(error)})",
            _WAYS,
            "Check the name and the connection, or download the file and pass its path.",
        ) from error


def installed_tokenizer() -> ReleasedTokenizer | None:
    """o200k_harmony, gpt-oss's tokenizer; None if this machine does not have it.

    It is loaded from the directory in ``TIKTOKEN_ENCODINGS_BASE``, or else by tiktoken: from its cache, or with a
    download of 3.6 MB.

    Raises:
        InputError: A damaged file.
    """
    folder = os.environ.get(ENCODINGS_VARIABLE)
    if folder and (path := Path(folder) / TOKENIZER_FILES[1]).is_file():
        return read_tokenizer(path)
    try:
        engine = importlib.import_module("tiktoken").get_encoding("o200k_base")
    except Exception:  # no package, or no connection in any of its forms
        return None
    ranks = {engine.decode_single_token_bytes(token): token for token in range(min(HARMONY_SPECIALS.values()))}
    return from_ranks(ranks, HARMONY_SPECIALS, source="tiktoken's o200k_harmony")
