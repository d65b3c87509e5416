"""``glassformer convert``: weights in one layout to another that computes the same logits."""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.checkpoints.assembly import StoredDecoder
from glassformer.checkpoints.decoders import (
    COPIED_FILES,
    DECODER_DIRECTORY,
    Experts,
    family_to_write,
    is_run,
    load_decoder,
    open_decoder,
    write_decoder,
)
from glassformer.checkpoints.families.files import decoder_in_memory, with_experts
from glassformer.checkpoints.families.gpt_oss import OPENAI
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.cli import writing
from glassformer.cli.flags import ConvertFlags
from glassformer.cli.terminal import say
from glassformer.data.chat_template import ChatTemplate, template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, gguf_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.released_tokenizer import tokenizer_places
from glassformer.errors import require
from glassformer.files import any_file, lies_inside, require_replaceable, require_replaceable_directory
from glassformer.generation.language_model import find_model, find_place, require_tokenizer
from glassformer.generation.model_files import write_model_files
from glassformer.generation.model_rule import BY_DEFAULT, generation_config, gguf_sampling
from glassformer.generation.sampling import SamplingRule
from glassformer.text import byte_size

_DECOMPOSED = "e\N{COMBINING ACUTE ACCENT}"
_KEPT_SETTINGS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache"),
    *("initializer_range", "output_router_logits", "router_aux_loss_coef"),
)


def convert(flags: ConvertFlags) -> list[str]:
    """Convert; return lines that describe the result."""
    out, to_gguf = flags.out, flags.out.suffix.lower() == ".gguf"
    fix = "Choose another, or pass --replace, which removes it as a whole."
    require(flags.replace or not os.path.lexists(out), f"{out}, which exists", "a new one", fix)
    if to_gguf:
        require_replaceable(out, any_file)
        return _convert_to_gguf(flags)
    require_replaceable_directory(out.resolve(), DECODER_DIRECTORY)
    place = find_place(flags.source)
    if isinstance(place, GgufFile):
        if flags.tokenizer is None:
            beside = partial(_write_tokenizer, place.metadata, place.path.name, rule=_rule_settings(flags))
        else:
            beside = partial(_write_named_tokenizer, flags)
        return _write(decoder_in_memory(load_gguf(place, hold="dense")), flags, beside=beside)
    config = read_json(place / CONFIG_FILE)

    def files(draft: Path) -> None:
        tokenizer = find_model(place).tokenizer if is_run(config) else None
        if tokenizer is not None and tokenizer.json is not None:
            _write_tokenizer(byte_vocabulary(), tokenizer.source, draft)
        for file in _kept_files(place):
            shutil.copyfile(file, draft / file.name)
        if flags.tokenizer is not None:
            _write_named_tokenizer(flags, draft)

    with open_decoder(place) as stored:
        return _write(stored, flags, {name: config[name] for name in _KEPT_SETTINGS if name in config}, files)


def _write(
    stored: StoredDecoder,
    flags: ConvertFlags,
    settings: Mapping[str, Any] | None = None,
    beside: Callable[[Path], None] = lambda draft: None,
) -> list[str]:
    """Write a directory, with more ``settings`` in a family's ``config.json``, and the files of ``beside``."""
    experts: Experts | None = {"mxfp4": "mxfp4", "bfloat16": "dense", None: None}[flags.experts]
    if experts is not None:
        stored = with_experts(stored, experts)
    family = family_to_write(stored, flags.to)
    if family is None or family is OPENAI:  # whose config.json has no such settings
        settings = None
    with writing(flags.out):
        size = write_decoder(stored, flags.out, flags.to, settings, replace=flags.replace, beside=beside)
    name = "glassformer's own layout" if family is None else family.name
    where = " in OpenAI's layout" if family is OPENAI else ""
    return [f"{flags.out}: {name}{where}, {byte_size(size)}"]


def _convert_to_gguf(flags: ConvertFlags) -> list[str]:
    """Write one file, with the tokenizer and the chat template of the source."""
    vocabulary: dict[str, Any] | None = None
    template, notes = None, []
    place = find_place(flags.source)
    if isinstance(place, GgufFile) and flags.tokenizer is None:
        decoder, vocabulary = load_gguf(place), dict(place.metadata) if has_tokenizer(place.metadata) else None
    else:
        found = find_model(flags.source, flags.tokenizer)
        if found.tokenizer is not None and found.tokenizer.json is not None:
            # The template's bos_token and eos_token are known by their ids there.
            named = found.chat_template or ChatTemplate("")
            bos, eos = (found.tokenizer.specials.get(name or "") for name in (named.bos, named.eos))
            ends = [each for each in (eos, *found.declared_ends, *found.stop_tokens) if each is not None]
            vocabulary = gguf_vocabulary(found.tokenizer, found.config.vocab_size, ends)
            if bos is not None:
                vocabulary.setdefault("tokenizer.ggml.bos_token_id", bos)
            if found.tokenizer.encode(_DECOMPOSED) != tokenizer_from_gguf(vocabulary).encode(_DECOMPOSED):
                notes.append("Its texts are no longer normalised to NFC, for which GGUF has no key.")
        template = None if found.chat_template is None else found.chat_template.text
        decoder = load_gguf(place) if isinstance(place, GgufFile) else load_decoder(place)
    kind = flags.kind or "F16"
    rule = _own_rule(flags)
    with writing(flags.out):
        write_gguf(
            decoder,
            flags.out,
            kind=kind,
            tokenizer=vocabulary,
            chat_template=template,
            sampling=None if rule is None else gguf_sampling(rule),
            overwrite=flags.replace,
        )
    if vocabulary is None:
        notes.append("It has no tokenizer: llama.cpp takes token ids.")
    elif vocabulary.get("tokenizer.ggml.model") == "gpt2" and "tokenizer.ggml.eos_token_id" not in vocabulary:
        notes.append("It names no token that ends a text: llama.cpp then takes token 11 for one.")
    return [f"{flags.out}: GGUF in {kind}, {byte_size(flags.out.stat().st_size)}", *notes]


def _own_rule(flags: ConvertFlags) -> SamplingRule | None:
    """The sampling rule that the model brings; None: the default."""
    sampling = find_model(flags.source, flags.tokenizer).sampling
    return None if sampling.source == BY_DEFAULT else sampling.rule


def _rule_settings(flags: ConvertFlags) -> dict[str, Any] | None:
    """The sampling rule that the model brings, as keys of ``generation_config.json``."""
    rule = _own_rule(flags)
    return None if rule is None else generation_config(rule)


def _write_named_tokenizer(flags: ConvertFlags, directory: Path) -> None:
    """The tokenizer that a user names, and the chat template that comes with it."""
    found = find_model(flags.source, flags.tokenizer)
    tokenizer = require_tokenizer(found)
    write_model_files(directory, tokenizer, found.chat_template, found.stop_tokens, rule=_rule_settings(flags))


def _write_tokenizer(
    metadata: Mapping[str, Any], source: str, directory: Path, *, rule: Mapping[str, Any] | None = None
) -> None:
    """Tokenizer, ends, chat template and sampling rule of a GGUF file beside the weights, as Hugging Face has them."""
    if not has_tokenizer(metadata):
        return
    tokenizer, template = tokenizer_from_gguf(metadata, source), template_from_gguf(metadata, source)

    def named(kind: str) -> str | None:
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return tokenizer.token_bytes(token).decode(errors="replace") if isinstance(token, int) else None

    names = {kind: named(kind) for kind in ("bos", "eos")}
    write_model_files(directory, tokenizer, template, tokenizer.ends, **names, rule=rule)


def main(flags: ConvertFlags) -> int:
    """Convert, and print what was written."""
    for line in convert(flags):
        say(line)
    return 0


def _kept_files(directory: Path) -> list[Path]:
    """Each file from the nearest directory that has it, as for tokenizers; links out of it are not followed."""
    kept: dict[str, Path] = {}
    for place in tokenizer_places(directory):
        for name in COPIED_FILES:
            if (place / name).is_file() and lies_inside(place / name):
                kept.setdefault(name, place / name)
    return list(kept.values())
