"""``glassformer convert``: weights in one layout to another that computes the same logits."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.checkpoints.assembly import StoredDecoder
from glassformer.checkpoints.decoders import Experts, is_run, load_decoder, open_decoder, write_decoder
from glassformer.checkpoints.families import family_of
from glassformer.checkpoints.families.files import decoder_in_memory, equivalent, layout_for, with_experts
from glassformer.checkpoints.families.gpt_oss import OPENAI
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.cli import writing
from glassformer.cli.flags import ConvertFlags
from glassformer.cli.terminal import on_disk, say
from glassformer.data.chat_template import ChatTemplate, template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, gguf_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.released_tokenizer import tokenizer_places
from glassformer.errors import require
from glassformer.files import lies_inside, write_text
from glassformer.generation.language_model import find_model, find_place

_KEPT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("generation_config.json", "chat_template.jinja", "LICENSE", "USAGE_POLICY"),
)
"""Files in Hugging Face's directories that stay valid in another layout."""
_DECOMPOSED = "e\N{COMBINING ACUTE ACCENT}"
_KEPT_SETTINGS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache"),
    *("initializer_range", "output_router_logits", "router_aux_loss_coef"),
)


def convert(flags: ConvertFlags) -> list[str]:
    """Convert; return lines that describe the result."""
    out, to_gguf = flags.out, flags.out.suffix.lower() == ".gguf"
    fix = "Choose another, or pass --replace, which removes it as a whole."
    require(flags.replace or not out.exists(), f"{out}, which exists", "a new one", fix)
    if out.exists():
        weights = (out / CONFIG_FILE).is_file() and not is_run(read_json(out / CONFIG_FILE))
        earlier = out.is_file() if to_gguf else out.is_dir() and (weights or not any(out.iterdir()))
        require(earlier, f"--replace for {out}", "an empty directory, or weights and no run", "Choose another.")
    if to_gguf:
        return _convert_to_gguf(flags)
    place = find_place(flags.source)
    if isinstance(place, GgufFile):
        beside = partial(_write_tokenizer, place.metadata, place.path.name)
        return _write(decoder_in_memory(load_gguf(place, hold="dense")), flags, beside=beside)
    config = read_json(place / CONFIG_FILE)

    def files(draft: Path) -> None:
        tokenizer = find_model(place).tokenizer if is_run(config) else None
        if tokenizer is not None and tokenizer.json is not None:
            _write_tokenizer(byte_vocabulary(), tokenizer.source, draft)
        for file in _kept_files(place):
            shutil.copyfile(file, draft / file.name)

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
    if experts == "dense":
        stored = with_experts(stored, experts)
    named = flags.to not in (None, "huggingface")
    config = stored.config if experts is None else replace(stored.config, expert_format=experts)
    to = str(flags.to) if named else layout_for(config, stored.family)
    family = family_of(to)
    if experts == "mxfp4":
        stored = with_experts(stored if family is None else equivalent(family, stored), experts)
    kept = settings if settings and to not in ("glassformer", OPENAI.model_type) else {}
    with warnings.catch_warnings(record=True) as caught, writing(flags.out):
        warnings.simplefilter("always")
        size = write_decoder(stored, flags.out, to, kept, replace=flags.replace, beside=beside, progress=True)
    name = "glassformer's own layout" if family is None else family.name
    where = " in OpenAI's layout" if family is OPENAI else ""
    return [f"{flags.out}: {name}{where}, {on_disk(size)}", *(str(each.message) for each in caught)]


def _convert_to_gguf(flags: ConvertFlags) -> list[str]:
    """Write one file, with the tokenizer and the chat template of the source."""
    vocabulary: dict[str, Any] | None = None
    template, notes = None, []
    place = find_place(flags.source)
    if isinstance(place, GgufFile):
        decoder, vocabulary = load_gguf(place), dict(place.metadata) if has_tokenizer(place.metadata) else None
    else:
        found = find_model(flags.source)
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
        decoder = load_decoder(place)
    kind = flags.kind or "F16"
    with writing(flags.out):
        write_gguf(decoder, flags.out, kind=kind, tokenizer=vocabulary, chat_template=template)
    if vocabulary is None:
        notes.append("It has no tokenizer: llama.cpp takes token ids.")
    elif vocabulary.get("tokenizer.ggml.model") == "gpt2" and "tokenizer.ggml.eos_token_id" not in vocabulary:
        notes.append("It names no token that ends a text: llama.cpp then takes token 11 for one.")
    return [f"{flags.out}: GGUF in {kind}, {on_disk(flags.out.stat().st_size)}", *notes]


def _write_tokenizer(metadata: Mapping[str, Any], source: str, directory: Path) -> None:
    """Tokenizer, ends and chat template of a GGUF file beside the weights, as Hugging Face has them."""
    if not has_tokenizer(metadata):
        return
    tokenizer = tokenizer_from_gguf(metadata, source)
    template = template_from_gguf(metadata, source)
    assert tokenizer.json is not None
    # Of another class transformers takes the vocabulary only, and splits texts as the class does.
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": bool(tokenizer.begin)}
    for name in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int):
            settings[f"{name}_token"] = tokenizer.token_bytes(token).decode(errors="replace")
    write_text(directory / "generation_config.json", json.dumps({"eos_token_id": tokenizer.ends or None}))
    write_text(directory / "tokenizer.json", tokenizer.json())
    write_text(directory / "tokenizer_config.json", json.dumps(settings, indent=2))
    if template is not None:
        write_text(directory / "chat_template.jinja", template.text)


def main(flags: ConvertFlags) -> int:
    """Convert, and print what was written."""
    for line in convert(flags):
        say(line)
    return 0


def _kept_files(directory: Path) -> list[Path]:
    """Each file from the nearest directory that has it, as for tokenizers; links out of it are not followed."""
    kept: dict[str, Path] = {}
    for place in tokenizer_places(directory):
        for name in _KEPT_FILES:
            if (place / name).is_file() and lies_inside(place / name):
                kept.setdefault(name, place / name)
    return list(kept.values())
