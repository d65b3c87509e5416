"""What belongs to a language model besides its weights, as files in Hugging Face's form."""

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

    A tokenizer of numbers has no file: who loads the model names it.

    Args:
        directory: Of the model's weights.
        tokenizer: Of the model.
        template: Its chat template; None: it has none.
        stop_tokens: Tokens that end a text or a turn.
        bos: Name of the token that begins a text; None: the template's, or the tokenizer's.
        eos: Name of the token that ends one; None: the template's.
        rule: Keys of ``generation_config.json`` for its sampling rule; None: it has none of its
            own.
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
    # Of another class transformers takes the vocabulary only, and splits texts as the class does.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(tokenizer.begin),
    }
    settings |= {
        f"{kind}_token": name for kind, name in (("bos", bos), ("eos", eos)) if name is not None
    }
    write_text(directory / TOKENIZER_FILE, tokenizer.json())
    write_text(directory / "tokenizer_config.json", json.dumps(settings, indent=2))
    if template is not None:
        write_text(directory / "chat_template.jinja", template.text)
