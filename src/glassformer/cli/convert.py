"""``glassformer convert``: weights in one layout to another that computes the same logits."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from glassformer.checkpoints.decoders import layout_for, load_decoder, read_decoder_config, save_decoder
from glassformer.checkpoints.families import family_of
from glassformer.checkpoints.gguf import gguf_config, load_gguf
from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.gpt_oss import stored_model
from glassformer.checkpoints.gpt_oss_config import layout_of
from glassformer.checkpoints.gpt_oss_export import gpt_oss_from_decoder, remark
from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout
from glassformer.checkpoints.gpt_oss_writing import PlannedModel, with_experts, write_gpt_oss
from glassformer.checkpoints.mixtral import mixtral_lacks
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.cli import TEXT
from glassformer.cli.flags import ConvertFlags
from glassformer.cli.runs import find_trained
from glassformer.cli.sizes import on_disk
from glassformer.cli.terminal import say
from glassformer.data.chat_template import template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, gguf_vocabulary, tokenizer_from_gguf
from glassformer.data.released_tokenizer import tokenizer_places
from glassformer.errors import require
from glassformer.files import lies_inside, new_directory, write_text
from glassformer.generation.language_model import find_model, find_place
from glassformer.models import Decoder, DecoderConfig

_KEPT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "o200k_base.tiktoken",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "LICENSE",
    "USAGE_POLICY",
)
"""Files in Hugging Face's directories that stay valid in another layout."""
_DECOMPOSED = "e\N{COMBINING ACUTE ACCENT}"
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_KEPT_SETTINGS = (
    *_TOKENS,
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
    "use_cache",
)


def convert(flags: ConvertFlags) -> list[str]:
    """Convert; return lines that describe the result."""
    require(flags.replace or not flags.out.exists(), f"{flags.out}, which exists", "a new one", "Pass --replace.")
    if flags.out.suffix == ".gguf":
        return _convert_to_gguf(flags)
    run = find_trained(Path(flags.source)) if Path(flags.source).is_dir() else None
    if run is not None:
        _require_equivalent(run.config, flags)
        return _write(run.load(), flags)
    place = find_place(flags.source)
    if isinstance(place, GgufFile):
        _require_equivalent(gguf_config(place)[1], flags)
        return _write(load_gguf(place, hold="dense"), flags, beside=partial(_write_tokenizer, place))
    directory = place
    config = read_json(directory / CONFIG_FILE)
    form = read_decoder_config(directory)
    _require_equivalent(form, flags)
    if layout_of(config) is not None and flags.to != "glassformer":
        with stored_model(directory, config) as model:
            return _write_gpt_oss(with_experts(model, flags.experts), flags, config, directory)

    def beside(draft: Path) -> None:
        for file in _kept_files(directory):
            shutil.copyfile(file, draft / file.name)

    decoder = load_decoder(directory, experts=_experts_to_load(form, flags))
    return _write(decoder, flags, {name: config[name] for name in _TOKENS if name in config}, beside)


def _convert_to_gguf(flags: ConvertFlags) -> list[str]:
    """Write one file, with the tokenizer and the chat template of the source, or the tokenizer of a run on bytes."""
    run = find_trained(Path(flags.source)) if Path(flags.source).is_dir() else None
    vocabulary: Mapping[str, Any] | None = None
    template, notes = None, []
    if run is not None:
        decoder, vocabulary = run.load(), byte_vocabulary() if run.kind == TEXT else None
    else:
        place = find_place(flags.source)
        if isinstance(place, GgufFile):
            decoder, vocabulary = load_gguf(place), place.metadata
        else:
            found = find_model(flags.source)
            if found.tokenizer is not None:
                ends = (*found.declared_ends, *found.stop_tokens)
                vocabulary = gguf_vocabulary(found.tokenizer, found.config.vocab_size, ends)
                if found.tokenizer.encode(_DECOMPOSED) != tokenizer_from_gguf(vocabulary).encode(_DECOMPOSED):
                    notes.append("Its texts are no longer normalised to NFC, for which GGUF has no key.")
            template = None if found.chat_template is None else found.chat_template.text
            decoder = load_decoder(place)
    write_gguf(decoder, flags.out, kind=flags.kind, tokenizer=vocabulary, chat_template=template)
    if vocabulary is None:
        notes.append("It has no tokenizer: llama.cpp takes token ids.")
    return [f"{flags.out}: GGUF in {flags.kind}, {on_disk(flags.out.stat().st_size)}", *notes]


def _write_tokenizer(file: GgufFile, directory: Path) -> None:
    """Tokenizer and chat template of a GGUF file beside the weights, as Hugging Face has them."""
    tokenizer = tokenizer_from_gguf(file.metadata, file.path.name)
    template = template_from_gguf(file.metadata, file.path.name)
    assert tokenizer.json is not None
    settings: dict[str, Any] = {"add_bos_token": bool(tokenizer.begin)}
    for name in ("bos", "eos"):
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int):
            settings[f"{name}_token"] = tokenizer.token_bytes(token).decode(errors="replace")
    write_text(directory / "tokenizer.json", tokenizer.json())
    write_text(directory / "tokenizer_config.json", json.dumps(settings, indent=2))
    if template is not None:
        write_text(directory / "chat_template.jinja", template.text)


def main(flags: ConvertFlags) -> int:
    """Convert, and print what was written."""
    for line in convert(flags):
        say(line)
    return 0


def _require_equivalent(config: DecoderConfig, flags: ConvertFlags) -> None:
    """Refuse a decoder without an equivalent before its weights are read."""
    lacking = _mixtral_lacks(config, flags) if flags.to == "mixtral" else []
    require(
        not lacking,
        f"{flags.source} with {', '.join(lacking)}, to Mixtral",
        "a decoder that Mixtral can express",
        "Use --to gpt_oss, which has all of these, or --to glassformer.",
    )


def _mixtral_lacks(config: DecoderConfig, flags: ConvertFlags) -> list[str]:
    """The parts of the output that Mixtral lacks, regardless of how the experts are stored now."""
    packed = flags.experts == "mxfp4" or (flags.experts is None and config.expert_format == "mxfp4")
    return mixtral_lacks(replace(config, expert_format="dense")) + (["packed experts"] if packed else [])


def _layout(config: DecoderConfig, flags: ConvertFlags, family: str | None = None) -> str:
    """The layout to write; ``huggingface`` stands for the best of Hugging Face's."""
    if flags.to not in (None, "huggingface"):
        return str(flags.to)
    packed = flags.experts == "mxfp4" or (flags.experts is None and config.expert_format == "mxfp4")
    return "gpt_oss" if packed else layout_for(replace(config, expert_format="dense"), family)


def _experts_to_load(form: DecoderConfig, flags: ConvertFlags) -> Literal["dense", "mxfp4"] | None:
    """How to load a decoder's experts; for gpt-oss they are converted while writing."""
    to = _layout(form, flags)
    if flags.experts == "mxfp4":
        return "mxfp4" if to == "glassformer" else None
    # Packed experts with the plain SwiGLU must be unpacked before they are rewritten for gpt-oss.
    return "dense" if flags.experts and (to not in ("gpt_oss", "openai") or form.clamp is None) else None


def _write(
    decoder: Decoder,
    flags: ConvertFlags,
    tokens: Mapping[str, Any] | None = None,
    beside: Callable[[Path], None] = lambda draft: None,
) -> list[str]:
    """Write a directory, with ids of special ``tokens`` for a family's ``config.json``, and the files of ``beside``."""
    to = _layout(decoder.config, flags, decoder.family)
    with new_directory(flags.out, replace=flags.replace) as draft:
        if to in ("gpt_oss", "openai"):
            model = with_experts(gpt_oss_from_decoder(decoder), flags.experts)
            lines = _write_gpt_oss(model, replace(flags, out=draft, replace=True), tokens)
        else:
            lines = _write_layout(decoder, flags, to, draft, tokens)
        beside(draft)
    return [line.replace(str(draft), str(flags.out)) for line in lines]


def _write_layout(
    decoder: Decoder, flags: ConvertFlags, to: str, draft: Path, tokens: Mapping[str, Any] | None
) -> list[str]:
    stays = flags.experts is None or (flags.experts == "mxfp4") == (decoder.config.expert_format == "mxfp4")
    require(
        stays, f"--experts {flags.experts} for a run", "the experts as they are", "Convert what --to gpt_oss writes."
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_decoder(decoder, draft, layout=to, replace=True, config_extras=tokens if family_of(to) else None)
    size = sum(file.stat().st_size for file in draft.glob("*.safetensors"))
    return [_written(flags.out, to, size), *(str(each.message) for each in caught)]


def _write_gpt_oss(
    model: PlannedModel, flags: ConvertFlags, config: Mapping[str, Any] | None = None, directory: Path | None = None
) -> list[str]:
    layout: GptOssLayout = "openai" if flags.to == "openai" else "huggingface"
    size, written = write_gpt_oss(
        model,
        flags.out,
        layout,
        extras={name: config[name] for name in _KEPT_SETTINGS if config and name in config},
        beside=[] if directory is None else _kept_files(directory),
        replace=flags.replace,
        progress=True,
    )
    line = _written(flags.out, "gpt-oss in OpenAI's layout" if layout == "openai" else "gpt-oss", size)
    note = remark("It", written) if layout == "huggingface" else ""
    return [line, note] if note else [line]


def _kept_files(directory: Path) -> list[Path]:
    """Each file from the nearest directory that has it, as for tokenizers; links out of it are not followed."""
    kept: dict[str, Path] = {}
    for place in tokenizer_places(directory):
        for name in _KEPT_FILES:
            if (place / name).is_file() and lies_inside(place / name):
                kept.setdefault(name, place / name)
    return list(kept.values())


def _written(out: Path, layout: str, size: int) -> str:
    names = {"mixtral": "Mixtral", "glassformer": "glassformer's own layout"}
    family = family_of(layout)
    return f"{out}: {family.name if family else names.get(layout, layout)}, {on_disk(size)}"
