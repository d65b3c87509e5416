"""Suggest which site an unknown name may have meant."""

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
"""Sites by TransformerLens's names, without their layer and ``hook_``."""
_LENS_NAME = re.compile(r"(?:blocks\.(?P<layer>\d+)\.)?(?:attn\.)?(?:hook_)?(?P<name>.+)")


def meant_site(name: Any, known: Iterable[str]) -> str:
    """Return the hint for an unknown site: a name close to it, or its name in TransformerLens."""
    known = tuple(known)
    match = _LENS_NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return "Choose one of these."
    site = _TRANSFORMER_LENS.get(match["name"])
    if site is None and match["name"] in known:
        site = match["name"]
    if site in known:
        layer = match["layer"]
        selection = "" if layer is None else f" with layers={layer}"
        return f"Did you mean '{site}'{selection}?"
    close = close_name(name, known)
    if close is None:
        return "Choose one of these."
    return f"Did you mean '{close}'?"
