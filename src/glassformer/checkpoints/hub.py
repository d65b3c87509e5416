"""Models by their names: directories of this machine, or else of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from glassformer.checkpoints.tensor_files import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE
from glassformer.errors import InputError, first_line, require


def find_directory(source: str | Path) -> Path:
    """``source`` itself if it is a directory; or else a copy of that model of the hub, with its tokenizer's files.

    Raises:
        InputError: Neither, or no connection.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    name = str(source)
    fix = "Check the name and the connection, or download the files and pass their directory."
    require(
        re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None,
        f"{name!r}, which is no directory",
        "a directory with config.json and model.safetensors, or the name of a model on the hub",
        fix,
    )
    from huggingface_hub import snapshot_download  # takes a third of a second, and few come here

    weights = [WEIGHTS_FILE, INDEX_FILE, "model-*.safetensors"]
    pooling = ["modules.json", "1_Pooling/config.json"]
    files = [CONFIG_FILE, *pooling, *weights, "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    files += ["special_tokens_map.json", "chat_template.jinja", "generation_config.json", "LICENSE*", "USAGE_POLICY"]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (OSError, ValueError) as error:  # the hub's own errors are kinds of these
        raise InputError(
            f"{name!r}, which is no directory and could not be had from the hub ({first_line(error)})",
            "a directory with config.json and model.safetensors, or a model on the hub",
            fix,
        ) from error
