"""Loading and saving decoders as directories: of every family, in our own layout, or of a run.

A directory holds ``config.json`` and ``model.safetensors``, or the latter in pieces with an index;
that of a run holds directories of weights.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import (
    check_sizes,
    config_errors,
    empty_decoder,
    read_decoder,
    require_no_nan,
    require_room,
)
from glassformer.checkpoints.families import FAMILIES, Family, family_in, family_of
from glassformer.checkpoints.families.files import (
    decoder_in_memory,
    family_for,
    in_family,
    open_family,
    with_experts,
)
from glassformer.checkpoints.families.gpt_oss import GPT_OSS, OPENAI
from glassformer.checkpoints.hub import find_directory
from glassformer.checkpoints.lazy import LazyDecoder, LazyTensor, in_numbers
from glassformer.checkpoints.shards import SHARD_BYTES, WEIGHT_FILES, write_tensors
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    DTYPES,
    FLOATS,
    FileTensor,
    check_tensors,
    read_json,
    run_weights,
    stored_tensors,
)
from glassformer.errors import CheckpointError, InputError
from glassformer.files import Written, local_path, new_directory, write_text
from glassformer.layers.quantized import Pack
from glassformer.layers.quantized.packed import PACKED
from glassformer.models import Decoder, DecoderConfig

Experts = Literal["dense", "mxfp4"]
# Settings of the released models' files that a decoder does not have.
_RELEASED = {"eos_token_id": 200002, "pad_token_id": 199999}
_RELEASED_VOCABULARY = 201088
OWN = "glassformer-decoder"
"""``model_type`` of the directories that :func:`save_decoder` writes in our own layout."""
COPIED_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("generation_config.json", "chat_template.jinja", "LICENSE", "USAGE_POLICY"),
)
"""Files in Hugging Face's directories that stay valid in another layout."""


def _is_decoder(directory: Path) -> bool:
    try:
        content = read_json(directory / CONFIG_FILE)
        require_kind(content, directory)
        return not is_run(content) and bool(stored_tensors(directory))
    except CheckpointError:
        return False


DECODER_DIRECTORY = Written(
    "weights of a decoder", (CONFIG_FILE, *WEIGHT_FILES, *COPIED_FILES), _is_decoder
)
LAYOUTS = ("glassformer", *(family.model_type for family in FAMILIES))
"""Layouts that :func:`save_decoder` writes."""


def load_decoder(
    source: str | Path,
    *,
    dtype: torch.dtype | None = None,
    experts: Experts | None = None,
    pack: Pack | None = None,
    device: str | torch.device = "cpu",
    allow_nonfinite: bool = False,
) -> Decoder:
    """Load the decoder of a directory, or of a model on the Hugging Face hub, in evaluation mode.

    It computes the logits of Hugging Face's class for the model. Tensors are read one by one, so
    that loading takes little more memory than the decoder.

    Args:
        source: A directory, or else a model on the hub such as ``"openai/gpt-oss-20b"``. Its
            ``config.json`` is that of one of
            :data:`~glassformer.checkpoints.families.FAMILIES`, of :func:`save_decoder`, or of a
            decoder's run. A run gives its best weights, or before the first evaluation its latest.
        dtype: Dtype of all weights but packed ones; None: as the embedding is stored. Use
            ``torch.float32`` to compare closely.
        experts: ``"mxfp4"`` keeps experts packed, without a gradient, or packs them (which rounds).
            ``"dense"`` keeps or expands them. None: as they are stored. Experts are converted while
            they are read.
        pack: Kind in which linear layers are packed, for inference only, except experts and an
            output that is the embedding. ``"Q8_0"``: 8 bits and a scale for 32 weights, which
            rounds; about half of bfloat16 is read for each token. None: as they are stored.
        device: Device of the decoder. On ``"meta"`` it has shapes and no numbers, though the files
            are read.
        allow_nonfinite: Allow weights that are infinite or NaN, which is an error otherwise.
    """
    _check_options(dtype, experts, pack)
    place = require_device(device)
    directory = find_directory(source)
    directory, content = within_run(directory, read_json(directory / CONFIG_FILE))
    stored = open_decoder(
        directory, content, stored_tensors(directory), allow_nonfinite=allow_nonfinite
    )
    if experts is not None:
        with config_errors(directory / CONFIG_FILE):
            stored = with_experts(stored, experts)
    return read_decoder(stored, directory, dtype=dtype, device=place, pack=pack)


def _check_options(dtype: torch.dtype | None, experts: str | None, pack: str | None) -> None:
    """Refuse options that :func:`load_decoder` does not have."""
    for name, value, choices in (
        ("experts", experts, get_args(Experts)),
        ("pack", pack, get_args(Pack)),
    ):
        if value not in (None, *choices):
            raise InputError(
                got=f"{name} = {value!r}",
                expected=f"one of {choices} or None",
                fix="Use one of these.",
            )
    if dtype is not None and dtype not in FLOATS.values():
        raise InputError(
            got=f"dtype = {dtype}",
            expected=f"one of {', '.join(map(str, FLOATS.values()))}",
            fix="Leave it out to keep what is stored.",
        )


def open_decoder(
    directory: Path,
    content: Mapping[str, Any],
    files: Mapping[str, FileTensor],
    *,
    allow_nonfinite: bool = False,
) -> LazyDecoder:
    """Return the decoder of a directory, checked against the headers of its files.

    No tensor is read.

    Args:
        directory: The directory.
        content: Content of its ``config.json``.
        files: Tensors of its files.
        allow_nonfinite: Allow weights that are infinite or NaN when they are read.
    """
    family = require_kind(content, directory)
    if family is None:
        return _open_own(directory, content, files, allow_nonfinite=allow_nonfinite)
    return open_family(family, directory, content, files, allow_nonfinite=allow_nonfinite)


def read_decoder_config(directory: Path | str) -> DecoderConfig:
    """Return the configuration of the decoder in a directory; only ``config.json`` is read.

    Missing fields have the default of the file's format. ``expert_format`` has no meaning here: it
    depends on the files of weights.
    """
    directory = local_path(directory)
    directory, content = within_run(directory, read_json(directory / CONFIG_FILE))
    family = require_kind(content, directory)
    with config_errors(directory / CONFIG_FILE):
        if family is None:
            return _own_config(content)
        return family.read_config(content)


def is_run(content: Mapping[str, Any]) -> bool:
    """Return whether this is the content of the ``config.json`` of a training run."""
    return {"training", "description"} <= content.keys()


def within_run(directory: Path, content: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """Return the directory of a run's weights, and their ``config.json`` in our own layout.

    A directory that is no run is returned as it is, with its content.
    """
    if not is_run(content):
        return directory, content
    description = content["description"]
    model = None
    if isinstance(description, dict):
        model = description.get("model")
    if not (isinstance(model, dict) and model.keys() <= _own_fields()):
        raise CheckpointError(
            f"{directory / CONFIG_FILE}, which describes no decoder",
            "a decoder's run",
            'Train it with description={"model": asdict(config)}. load_weights reads any run, '
            "classify classifiers.",
        )
    with config_errors(directory / CONFIG_FILE):
        _own_config(model)
    return run_weights(directory), {"model_type": OWN, **model}


def own_tensors(
    config: DecoderConfig, stored: Mapping[str, FileTensor], directory: Path
) -> dict[str, Tensor]:
    """Return the tensors of a decoder in our own layout, without numbers.

    The tensors of the files are checked against them.
    """
    check_sizes(config, stored, directory)
    with config_errors(directory / CONFIG_FILE):
        shapes = empty_decoder(config).state_dict()
    if config.tied_output:
        del shapes["output.weight"]
    in_bytes = {name for name, tensor in shapes.items() if not tensor.is_floating_point()}
    check_tensors(
        stored,
        {name: list(tensor.shape) for name, tensor in shapes.items()},
        directory,
        in_bytes=in_bytes,
    )
    return shapes


def save_decoder(
    decoder: Decoder,
    directory: str | Path,
    *,
    layout: str | None = None,
    replace: bool = False,
    shard_bytes: int = SHARD_BYTES,
    beside: Callable[[Path], None] = lambda directory: None,
) -> None:
    """Write a directory for :func:`load_decoder` and, in a family's layout, for other programs.

    It has neither a tokenizer nor the tokens that end a text: :meth:`LanguageModel.save
    <glassformer.generation.language_model.LanguageModel.save>` writes these too.

    Args:
        decoder: The decoder, on any device.
        directory: Directory to write. It is complete in the end or, whatever happens, as it was.
        layout: The ``model_type`` of a family that has exactly the decoder's parts, such as
            ``"llama"``; ``"openai"`` for gpt-oss in OpenAI's layout; ``"glassformer"`` for our own,
            which has every part. None: the family that the decoder was loaded from, or else the
            first that has exactly its parts, or else our own.
        replace: Replace the directory of another decoder as a whole. It may hold weights,
            configuration and tokenizer, and no other files.
        shard_bytes: Largest size of a file of weights; larger models have an index, too.
        beside: Function that writes other files into the directory.
    """
    if layout not in (None, *LAYOUTS):
        raise InputError(
            got=f"layout = {layout!r}",
            expected=f"one of {LAYOUTS} or None",
            fix="Use one of these.",
        )
    _require_exact(decoder)
    place = local_path(directory)
    stored = decoder_in_memory(decoder)
    write_decoder(stored, place, layout, replace=replace, shard_bytes=shard_bytes, beside=beside)


def _require_exact(decoder: Decoder) -> None:
    """Refuse packed weights that would be rounded.

    They are written expanded, in the dtype of the other weights.
    """
    is_packed = any(isinstance(module, PACKED) for module in decoder.modules())
    if is_packed and decoder.dtype != torch.float32:
        raise InputError(
            got=f"a decoder in {decoder.dtype} with packed weights",
            expected="packed weights in a decoder of float32, which holds them expanded",
            fix="Load it with dtype=torch.float32, or without pack=.",
        )


def write_decoder(
    stored: LazyDecoder,
    directory: Path,
    layout: str | None,
    extras: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
    shard_bytes: int = SHARD_BYTES,
    beside: Callable[[Path], None] = lambda directory: None,
) -> int:
    """Write a decoder as :func:`save_decoder` does, tensor by tensor; return its size in bytes.

    ``extras`` are settings for a family's ``config.json`` that the decoder does not have.
    """
    family = family_to_write(stored, layout)
    stored = in_numbers(stored)
    if family is None:
        content = {"model_type": OWN, **dataclasses.asdict(stored.config)}
        tensors = dict(stored.tensors)
        if stored.config.tied_output:
            tensors.pop("output.weight", None)
    else:
        content, tensors = in_family(family, stored)
    size = sum(tensor.nbytes for tensor in tensors.values())
    require_room(directory, size)
    settings = {**_settings(family, stored.config), **(extras or {})}
    replaces = DECODER_DIRECTORY if replace else None
    with new_directory(directory, replaces=replaces) as draft:
        write_text(draft / CONFIG_FILE, json.dumps({**settings, **content}, indent=2) + "\n")
        beside(draft)
        write_tensors(draft, tensors, shard_bytes=shard_bytes)
    return size


def family_to_write(stored: LazyDecoder, layout: str | None) -> Family | None:
    """Return the family of a layout of :func:`save_decoder`; None for our own layout."""
    if layout is None:
        return family_for(stored.config, stored.family)
    return family_of(layout)


def _settings(family: Family | None, config: DecoderConfig) -> dict[str, int | None]:
    """Return settings that programs would otherwise take from the family's first model."""
    if family is None or family is OPENAI:  # OpenAI's program refuses other fields
        return {}
    settings: dict[str, int | None] = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id")
    )
    if family is GPT_OSS and config.vocab_size == _RELEASED_VOCABULARY:
        settings |= _RELEASED
    return settings


def require_device(device: str | torch.device) -> torch.device:
    """Return the device of this name, which torch knows and this machine has."""
    fault = "which torch does not know"
    try:
        place = torch.device(device)
        fault = "which this machine does not have"
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f"device = {str(device)!r}, {fault}", "'cpu', or 'cuda' with a GPU", "Use 'cpu'."
        ) from error
    return place


def require_kind(config: Mapping[str, Any], directory: Path) -> Family | None:
    """Return the family of a directory; None for our own layout."""
    family = family_in(config)
    if family is not None or config.get("model_type") == OWN:
        return family
    remote = ""
    if "auto_map" in config:
        remote = ", whose code in auto_map is not run"
    known_types = sorted(family.model_type for family in FAMILIES if family is not OPENAI)
    raise CheckpointError(
        f"{directory / CONFIG_FILE} of the model_type {config.get('model_type')!r}{remote}",
        f"one of {', '.join(known_types)}, {OWN}, or OpenAI's configuration of gpt-oss",
        "Other architectures are not supported.",
    )


def _open_own(
    directory: Path,
    content: Mapping[str, Any],
    files: Mapping[str, FileTensor],
    *,
    allow_nonfinite: bool,
) -> LazyDecoder:
    """Return a decoder in our own layout, in the embedding's dtype.

    Norms with more digits keep them.
    """
    with config_errors(directory / CONFIG_FILE):
        config = _own_config(content)
    shapes = own_tensors(config, files, directory)
    dtype = FLOATS[files["embedding.weight"].kind]

    def read(name: str) -> Tensor:
        tensor = files[name].read(allow_nonfinite=allow_nonfinite)
        if name.endswith("_scales") and not allow_nonfinite:
            require_no_nan(tensor, files[name])
        return tensor

    tensors = {}
    for name, tensor in shapes.items():
        kind = files[name].kind
        loaded_dtype = dtype if tensor.is_floating_point() else tensor.dtype
        if "norm" in name:
            # Norms that were read as 1 + w have more digits than the embedding.
            loaded_dtype = torch.promote_types(dtype, DTYPES[kind])
        tensors[name] = LazyTensor(list(tensor.shape), kind, loaded_dtype, partial(read, name))
    return LazyDecoder(config, tensors, dtype, files=list(files.items()))


def _own_config(content: Mapping[str, Any]) -> DecoderConfig:
    names = _own_fields()
    fields = {name: value for name, value in content.items() if name in names}
    return DecoderConfig.from_json(json.dumps(fields))


def _own_fields() -> set[str]:
    return {field.name for field in dataclasses.fields(DecoderConfig)}
