"""Files of a language model besides its weights, in Hugging Face's form."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.checkpoints.store import GENERATION_CONFIG
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.released_tokenizer import TOKENIZER_FILE, ReleasedTokenizer
from glassformer.files import write_text


def write_model_files(
    directory: Path,
    tokenizer: ReleasedTokenizer,
    template: ChatTemplate | None,
    stop_tokens: Sequence[int],
    *,
    bos: str | None = None,
    eos: str | None = None,
    rule: Mapping[str, Any] | None = None,
) -> None:
    """Write a model's tokenizer, chat template, ends and sampling rule into its directory.

    A tokenizer of numbers has no file: users name it when they load the model.

    Args:
        directory: Directory of the model's weights.
        tokenizer: Tokenizer of the model.
        template: Chat template of the model, if it has one.
        stop_tokens: Tokens that end a text or a turn.
        bos: Name of the token that begins a text; None: the template's, or the tokenizer's.
        eos: Name of the token that ends a text; None: the template's.
        rule: Keys of ``generation_config.json`` for the model's sampling rule, if it has one.
    """
    write_text(
        directory / GENERATION_CONFIG,
        json.dumps({"eos_token_id": [*stop_tokens] or None, **(rule or {})}),
    )
    if tokenizer.json is None:
        return
    if bos is None and template is not None:
        bos = template.bos
    if bos is None and tokenizer.begin:
        bos = tokenizer.token_bytes(tokenizer.begin[0]).decode(errors="replace")
    if eos is None and template is not None:
        eos = template.eos
    # With another class, transformers takes the vocabulary only and splits texts as the class does.
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(tokenizer.begin),
    }
    if bos is not None:
        settings["bos_token"] = bos
    if eos is not None:
        settings["eos_token"] = eos
    write_text(directory / TOKENIZER_FILE, tokenizer.json())
    write_text(directory / "tokenizer_config.json", json.dumps(settings, indent=2))
    if template is not None:
        write_text(directory / "chat_template.jinja", template.text)
