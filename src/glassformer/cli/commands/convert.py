"""``glassformer convert``: weights in one layout to another."""

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.checkpoints.decoders import (
    COPIED_FILES,
    DECODER_DIRECTORY,
    family_to_write,
    write_decoder,
)
from glassformer.checkpoints.families.files import with_experts
from glassformer.checkpoints.families.gpt_oss import OPENAI
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.store import Stored, open_model
from glassformer.cli import writing
from glassformer.cli.flags import ConvertFlags
from glassformer.cli.terminal import say
from glassformer.data.chat_template import ChatTemplate, template_from_gguf
from glassformer.data.gguf_tokenizer import (
    byte_vocabulary,
    gguf_vocabulary,
    has_tokenizer,
    tokenizer_from_gguf,
)
from glassformer.data.released_tokenizer import ReleasedTokenizer, tokenizer_places
from glassformer.errors import InputError
from glassformer.files import (
    any_file,
    lies_inside,
    require_replaceable,
    require_replaceable_directory,
)
from glassformer.generation.model_files import write_model_files
from glassformer.generation.model_rule import BY_DEFAULT, generation_config, gguf_sampling, rule_of
from glassformer.generation.sampling import SamplingRule
from glassformer.text import byte_size

_DECOMPOSED = "e\N{COMBINING ACUTE ACCENT}"
_KEPT_SETTINGS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache"),
    *("initializer_range", "output_router_logits", "router_aux_loss_coef"),
)


def convert(flags: ConvertFlags) -> list[str]:
    """Convert; return lines that describe the result."""
    if os.path.lexists(flags.out) and not flags.replace:
        raise InputError(
            got=f"{flags.out}, which exists",
            expected="a new one",
            fix="Choose another, or pass --replace, which removes it as a whole.",
        )
    if flags.out.suffix.lower() == ".gguf":
        require_replaceable(flags.out, any_file)
        return _convert_to_gguf(flags)
    require_replaceable_directory(flags.out.resolve(), DECODER_DIRECTORY)
    return _convert_to_directory(flags)


def _convert_to_directory(flags: ConvertFlags) -> list[str]:
    """Write a directory, tensor by tensor."""
    stored = open_model(flags.source, tokenizer=flags.tokenizer)
    decoder = stored.decoder
    if flags.experts is not None:
        decoder = with_experts(decoder, "mxfp4" if flags.experts == "mxfp4" else "dense")
    family = family_to_write(decoder, flags.to)
    settings = {name: stored.content[name] for name in _KEPT_SETTINGS if name in stored.content}
    if family is None or family is OPENAI:  # their config.json has no such settings
        settings = {}
    with writing(flags.out):
        size = write_decoder(
            decoder,
            flags.out,
            flags.to,
            settings,
            replace=flags.replace,
            beside=partial(_write_other_files, flags, stored),
        )
    if family is None:
        layout = "glassformer's own layout"
    elif family is OPENAI:
        layout = f"{family.name} in OpenAI's layout"
    else:
        layout = family.name
    return [f"{flags.out}: {layout}, {byte_size(size)}{_growth(stored, size)}"]


def _growth(stored: Stored, size: int) -> str:
    """Return a clause that says why a file is larger than its packed source."""
    if not stored.packing or size <= stored.nbytes:
        return ""
    return f", expanded from {byte_size(stored.nbytes)} in {stored.packing}"


def _write_other_files(flags: ConvertFlags, stored: Stored, directory: Path) -> None:
    """Write the files besides the weights: tokenizer, chat template, ends and sampling rule."""
    if stored.layout == "GGUF" and flags.tokenizer is None:
        if has_tokenizer(stored.content):
            _write_tokenizer_of_gguf(stored, directory)
        return
    if flags.tokenizer is None and stored.tokenizer_name == "bytes":  # a run on the bytes of a text
        _write_tokenizer(byte_vocabulary(), "bytes", directory)
    for file in _other_files(stored.path):
        shutil.copyfile(file, directory / file.name)
    if flags.tokenizer is not None:
        write_model_files(
            directory,
            stored.require_tokenizer(),
            stored.chat_template,
            stored.stop_tokens,
            rule=_own_settings(stored),
        )


def _convert_to_gguf(flags: ConvertFlags) -> list[str]:
    """Write one file, with the tokenizer and the chat template of the source."""
    stored = open_model(flags.source, tokenizer=flags.tokenizer)
    notes: list[str] = []
    template = None
    if stored.layout == "GGUF" and flags.tokenizer is None:
        vocabulary = dict(stored.content) if has_tokenizer(stored.content) else None
    else:
        vocabulary = _vocabulary(stored)
        if stored.chat_template is not None:
            template = stored.chat_template.text
        if vocabulary is not None and _loses_nfc(stored.require_tokenizer(), vocabulary):
            notes.append("Its texts are no longer normalised to NFC, for which GGUF has no key.")
    kind = flags.kind or "F16"
    rule = _own_rule(stored)
    with writing(flags.out):
        write_gguf(
            stored.decoder,
            flags.out,
            kind=kind,
            tokenizer=vocabulary,
            chat_template=template,
            sampling=None if rule is None else gguf_sampling(rule),
            overwrite=flags.replace,
        )
    if vocabulary is None:
        notes.append("It has no tokenizer: llama.cpp takes token ids.")
    elif (
        vocabulary.get("tokenizer.ggml.model") == "gpt2"
        and "tokenizer.ggml.eos_token_id" not in vocabulary
    ):
        notes.append("It names no token that ends a text: llama.cpp then takes token 11 for one.")
    size = flags.out.stat().st_size
    return [f"{flags.out}: GGUF in {kind}, {byte_size(size)}{_growth(stored, size)}", *notes]


def _vocabulary(stored: Stored) -> dict[str, Any] | None:
    """Return the keys of GGUF for a model's tokenizer; None if it has none that a file can hold."""
    tokenizer = stored.tokenizer
    if tokenizer is None or tokenizer.json is None:
        return None
    # The template's bos_token and eos_token are known by their ids in GGUF.
    template = stored.chat_template or ChatTemplate("")
    bos = tokenizer.specials.get(template.bos or "")
    eos = tokenizer.specials.get(template.eos or "")
    ends = [end for end in (eos, *stored.declared_ends, *stored.stop_tokens) if end is not None]
    vocabulary = gguf_vocabulary(tokenizer, stored.config.vocab_size, ends)
    if bos is not None:
        vocabulary.setdefault("tokenizer.ggml.bos_token_id", bos)
    return vocabulary


def _loses_nfc(tokenizer: ReleasedTokenizer, vocabulary: Mapping[str, Any]) -> bool:
    return tokenizer.encode(_DECOMPOSED) != tokenizer_from_gguf(vocabulary).encode(_DECOMPOSED)


def _own_rule(stored: Stored) -> SamplingRule | None:
    """Return the sampling rule in a model's files; None if they have none."""
    model_rule = rule_of(stored)
    return None if model_rule.source == BY_DEFAULT else model_rule.rule


def _own_settings(stored: Stored) -> Mapping[str, Any] | None:
    """Return the rule of :func:`_own_rule` as the content of a generation_config.json."""
    rule = _own_rule(stored)
    return None if rule is None else generation_config(rule)


def _write_tokenizer_of_gguf(stored: Stored, directory: Path) -> None:
    settings = _own_settings(stored)
    _write_tokenizer(stored.content, stored.settings_file, directory, rule=settings)


def _write_tokenizer(
    metadata: Mapping[str, Any],
    source: str,
    directory: Path,
    *,
    rule: Mapping[str, Any] | None = None,
) -> None:
    """Write tokenizer, ends, chat template and sampling rule of GGUF in Hugging Face's form."""
    tokenizer = tokenizer_from_gguf(metadata, source)
    template = template_from_gguf(metadata, source)

    def name(kind: str) -> str | None:
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(token, int):
            return tokenizer.token_bytes(token).decode(errors="replace")
        return None

    write_model_files(
        directory, tokenizer, template, tokenizer.ends, bos=name("bos"), eos=name("eos"), rule=rule
    )


def main(flags: ConvertFlags) -> int:
    """Convert, and print what was written."""
    for line in convert(flags):
        say(line)
    return 0


def _other_files(directory: Path) -> list[Path]:
    """Return the tokenizer's files, each from the nearest directory that has it.

    Links that leave the directory are not followed.
    """
    nearest: dict[str, Path] = {}
    for place in tokenizer_places(directory):
        for name in COPIED_FILES:
            if (place / name).is_file() and lies_inside(place / name):
                nearest.setdefault(name, place / name)
    return list(nearest.values())
