"""Which of our sites an unknown name may have meant."""

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from glassformer.text import close_name

_TRANSFORMER_LENS = MappingProxyType(
    {
        "embed": "embedding",
        "resid_pre": "residual_before",
        "resid_mid": "residual_between",
        "resid_post": "residual",
        "ln1.hook_normalized": "attention_input",
        "ln2.hook_normalized": "ffn_input",
        "attn_out": "attention",
        "mlp_out": "ffn",
        "mlp.hook_post": "neurons",
        "post": "neurons",
        "rot_q": "q",
        "rot_k": "k",
        "attn_scores": "scores",
        "pattern": "weights",
        "z": "heads",
        "result": "heads",
    }
)
"""By TransformerLens's names, without their layer and ``hook_``."""
_OF_BLOCK = re.compile(r"(?:blocks\.(?P<layer>\d+)\.)?(?:attn\.)?(?:hook_)?(?P<name>.+)")


def meant_site(name: Any, known: Iterable[str]) -> str:
    """A sentence that says what an unknown name of a site may have meant: a slip, or a name of
    TransformerLens.
    """
    known = tuple(known)
    match = _OF_BLOCK.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return "Choose one of these."
    site = _TRANSFORMER_LENS.get(match["name"])
    if site is None and match["name"] in known:
        site = match["name"]
    if site in known:
        if match["layer"] is None:
            layer = ""
        else:
            layer = f" with layers={match['layer']}"
        return f"Did you mean '{site}'{layer}?"
    close = close_name(name, known)
    if close is None:
        return "Choose one of these."
    return f"Did you mean '{close}'?"
