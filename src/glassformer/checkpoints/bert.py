"""Encoders from directories of weights: those of Hugging Face's BERT family, and our own.

A directory holds ``config.json`` and ``model.safetensors``, or the latter in pieces with an index.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from glassformer.checkpoints.assembly import config_errors
from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.hub import find_directory
from glassformer.checkpoints.lazy import in_memory
from glassformer.checkpoints.shards import WEIGHT_FILES, write_tensors
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    read_json,
    read_tensors,
    stored_tensors,
)
from glassformer.errors import CheckpointError, InputError
from glassformer.files import Written, local_path, new_directory, write_text
from glassformer.models.encoder import Encoder, EncoderConfig, Pooling
from glassformer.untrusted import json_value, read_text

# Prefixes of tensors of heads, which are not part of an encoder.
_HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.", "lm_head.")

OWN = "glassformer-encoder"
"""``model_type`` of the directories that :func:`save_encoder` writes."""
FAMILY = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
"""Every ``model_type`` of the BERT family that is read, and a possible prefix of its names."""


# Our names and Hugging Face's, without ".weight" and ".bias".
_OUTSIDE = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
_INSIDE = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_MODE = "pooling_mode_"
_POOLINGS = {f"{_MODE}mean_tokens": "mean", f"{_MODE}cls_token": "cls", f"{_MODE}max_tokens": "max"}
_MODULES = ("Transformer", "Normalize", "Pooling")
"""The modules of sentence-transformers that an encoder with its pooling replaces."""
_NO_WEIGHTS = ("embeddings.position_ids", "embeddings.token_type_ids")


def _is_own(directory: Path) -> bool:
    try:
        return read_json(directory / CONFIG_FILE).get("model_type") == OWN
    except CheckpointError:
        return False


ENCODER_DIRECTORY = Written(
    "an encoder that was saved before", (CONFIG_FILE, *WEIGHT_FILES), _is_own
)


def load_encoder(
    source: str | Path,
    *,
    num_classes: int | None = None,
    pooling: Pooling | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    dtype: torch.dtype = torch.float32,
    allow_nonfinite: bool = False,
) -> Encoder:
    """Load the encoder of a directory, or of a model on the Hugging Face hub.

    It is on the CPU and in evaluation mode. It computes the same hidden states as Hugging Face's
    ``BertModel``, ``RobertaModel`` or ``XLMRobertaModel``.

    Args:
        source: A directory, or else a model on the hub such as
            ``"sentence-transformers/all-MiniLM-L6-v2"``.
        num_classes: Number of classes of a new head, drawn from torch's generator; None: the stored
            head if it is ours. Heads of Hugging Face's classes are not read.
        pooling: Pooling of hidden states; None: the stored one, or else the mean. It is required
            if sentence-transformers stored another kind, several kinds, or a dense layer after it.
        dropout: Dropout; None: as stored.
        attention_dropout: Dropout of attention; None: as stored. More than 0 disables the fused
            kernel in training, which is slower.
        dtype: Dtype of the weights, whatever it is in the file.
        allow_nonfinite: Allow weights that are infinite or NaN, which is an error otherwise.

    Source: Devlin et al. 2018, arXiv 1810.04805; Liu et al. 2019, arXiv 1907.11692 (RoBERTa); the
    layout is Hugging Face's.
    """
    directory = find_directory(source)
    stored = read_json(directory / CONFIG_FILE)
    with config_errors(directory / CONFIG_FILE):
        config = read_encoder_config(stored)
    is_own = stored["model_type"] == OWN
    clean: Callable[[str], str] = str
    if not is_own:
        clean = partial(_cleaned, FAMILY[stored["model_type"]])
        if pooling is None:
            pooling = _stored_pooling(directory)
    tensors = stored_tensors(directory, clean)
    _check_classes(num_classes, config, tensors, is_own=is_own)
    new_head = config.num_classes is None and num_classes is not None
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "pooling": pooling,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    config = dataclasses.replace(config, **changes)
    # Checked before the encoder is made: a million layers would take minutes.
    if config.num_layers > len(tensors):
        raise InputError(
            got=f"{CONFIG_FILE} with {config.num_layers} layers with {len(tensors)} tensors",
            expected="the tensors of each layer",
            fix=f"Take {CONFIG_FILE} and the weights from the same place.",
        )
    with torch.device("meta"):  # weights are read, so drawing them would be wasted time and memory
        encoder = Encoder(config)
    names: dict[str, tuple[str, list[int]]] = {}
    for name, tensor in encoder.state_dict().items():
        if new_head and name.startswith("classifier."):
            continue
        hf_name = name if is_own else _hf_name(name)
        names[name] = (hf_name, list(tensor.shape))
    first_position = 0
    if not is_own:
        ignored = {name for name in tensors if name in _NO_WEIGHTS or name.startswith(_HEADS)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in ignored}
        first_position = _first_position(stored["model_type"], config.pad_id)
        names["positions.weight"][1][0] += first_position
    state = read_tensors(tensors, names, dtype, allow_nonfinite=allow_nonfinite)
    if first_position:
        state["positions.weight"] = state["positions.weight"][first_position:].clone()
    if new_head and config.num_classes is not None:
        weight = torch.empty(config.num_classes, config.hidden_dim, dtype=dtype)
        state["classifier.weight"] = weight.normal_(std=Encoder.HEAD_STD)
        state["classifier.bias"] = weight.new_zeros(config.num_classes)
    encoder.load_state_dict(state, assign=True)
    return encoder.eval()


def _check_classes(
    num_classes: int | None, config: EncoderConfig, tensors: Collection[str], *, is_own: bool
) -> None:
    """Refuse a new head for an encoder that has one."""
    has_head = any(name.startswith("classifier.") for name in tensors)
    if not has_head or num_classes in (None, config.num_classes):
        return
    fix = "Leave it out, save_encoder(), and add one to that."
    if is_own:
        fix = "Leave num_classes out to keep the head."
    raise InputError(
        got=(
            f"num_classes = {num_classes} for an encoder with a head of "
            f"{config.num_classes or 'another kind'}"
        ),
        expected=f"{config.num_classes}",
        fix=fix,
    )


def save_encoder(encoder: Encoder, directory: Path | str, *, replace: bool = False) -> None:
    """Write a directory that :func:`load_encoder` reads.

    It is complete in the end or, whatever happens, as it was. With ``replace``, the directory of
    another encoder is replaced as a whole.
    """
    replaces = ENCODER_DIRECTORY if replace else None
    with new_directory(local_path(directory), replaces=replaces) as draft:
        write_encoder(encoder, draft)


def write_encoder(encoder: Encoder, draft: Path) -> None:
    """Write the files of an encoder into an existing directory.

    The directory is a draft of :func:`~glassformer.files.new_directory`.
    """
    content = {"model_type": OWN, **dataclasses.asdict(encoder.config)}
    write_text(draft / CONFIG_FILE, json.dumps(content, indent=2) + "\n")
    write_tensors(draft, {name: in_memory(tensor) for name, tensor in encoder.state_dict().items()})


def read_encoder_config(content: Mapping[str, Any]) -> EncoderConfig:
    """Return the configuration of the encoder for the content of a ``config.json``.

    It is that of :func:`save_encoder`, or of the BERT family. Missing fields have BERT's defaults.
    """
    kind = content.get("model_type")
    if kind == OWN:
        own_fields = {name: content[name] for name in content if name != "model_type"}
        return EncoderConfig.from_json(json.dumps(own_fields))
    fix = "Take another model."
    if not isinstance(kind, str) or kind not in FAMILY:
        raise InputError(
            got=f"model_type = {kind!r}",
            expected=f"one of {', '.join(map(repr, FAMILY))}",
            fix=fix,
        )
    file = Fields(content)
    file.only("position_embedding_type", "absolute")
    file.only("is_decoder", False)
    file.only("add_cross_attention", False)
    activation = file.get("hidden_act", "gelu")
    if activation not in ("gelu", "relu"):
        raise InputError(
            got=f"hidden_act = {activation!r}",
            expected="'gelu' or 'relu'",
            fix=fix,
        )
    padding = 0 if kind == "bert" else 1
    if file.get("pad_token_id") is not None:
        padding = file.whole("pad_token_id")
    return EncoderConfig(
        vocab_size=file.whole("vocab_size", 30522),
        num_layers=file.whole("num_hidden_layers", 12),
        hidden_dim=file.whole("hidden_size", 768),
        ff_dim=file.whole("intermediate_size", 3072),
        num_heads=file.whole("num_attention_heads", 12),
        max_seq_len=file.whole("max_position_embeddings", 512) - _first_position(kind, padding),
        activation=activation,
        norm_eps=file.number("layer_norm_eps", 1e-12),
        final_norm=False,
        positions="learned",
        scale_embeddings=False,
        embedding_norm=True,
        token_types=file.whole("type_vocab_size", 2),
        dropout=file.number("hidden_dropout_prob", 0.1),
        attention_dropout=file.number("attention_probs_dropout_prob", 0.1),
        ff_dropout=0.0,
        pad_id=padding,
    )


def _first_position(model_type: object, padding: int) -> int:
    """Return the first row of positions that is looked up.

    RoBERTa counts positions from after the padding token.
    """
    return 0 if model_type == "bert" else padding + 1


def _stored_pooling(directory: Path) -> Pooling:
    """Return the pooling of sentence-transformers; by default the mean."""
    fix = (
        'Choose one yourself, for example pooling="mean"; vectors then differ from those of the '
        "original."
    )
    path = directory / "modules.json"
    modules = []
    if path.is_file():
        modules = _modules(path)
    unknown_modules = [
        kind
        for kind, place in modules
        if kind not in _MODULES or (kind == "Pooling" and place != "1_Pooling")
    ]
    if unknown_modules:
        raise InputError(
            got=f"{path} with {', '.join(unknown_modules)}",
            expected=f"nothing but {', '.join(_MODULES)} of 1_Pooling",
            fix=fix,
        )
    path = directory / "1_Pooling" / CONFIG_FILE
    content = {}
    if path.is_file() or "Pooling" in dict(modules):
        content = read_json(path)
    modes = _pooling_modes(content)
    for pooling in get_args(Pooling):
        if modes == [pooling]:
            return pooling
    raise InputError(
        f"{path} with the pooling {' and '.join(map(str, modes)) or 'of no kind'}",
        f"one of {', '.join(get_args(Pooling))}",
        fix,
    )


def _pooling_modes(content: Mapping[str, Any]) -> list[Any]:
    """Return the kinds of pooling in the configuration of sentence-transformers."""
    modes: Any = content.get("pooling_mode")
    if modes is None:  # older files: a boolean for each kind, with the mean as default
        has_modes = any(name.startswith(_MODE) for name in content)
        flags = {f"{_MODE}mean_tokens": not has_modes} | dict(content)
        modes = [name for name, value in flags.items() if name.startswith(_MODE) and value]
    if not isinstance(modes, list):
        modes = [modes]
    return [_POOLINGS.get(str(mode), mode) for mode in modes]


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return the kind of each module and its folder."""
    try:
        modules = json_value(read_text(path, inside=True))
        return [
            (str(module["type"]).rpartition(".")[2], str(module.get("path", "")))
            for module in modules
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}, which cannot be read ({error!r})",
            "a list of modules, each with its type",
            "Download it again.",
        ) from error


def _hf_name(our_name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    name, _, end = our_name.rpartition(".")
    if name in _OUTSIDE:
        return f"{_OUTSIDE[name]}.{end}"
    _, layer, inside = name.split(".", 2)
    return f"encoder.layer.{layer}.{_INSIDE[inside]}.{end}"


def _cleaned(prefix: str, name: str) -> str:
    """Return a name without its prefix, in today's spelling."""
    name = name.removeprefix(prefix)
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")
