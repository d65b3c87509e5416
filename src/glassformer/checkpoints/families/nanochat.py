"""nanochat: norms without weights, one of them after the embedding, and a rotation in the other direction.

Norms of queries and keys come after the rotation there; without weights the two commute.

Source: Karpathy 2025, nanochat.
"""

from __future__ import annotations

from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import NAMES, Family, bias, write_bias
from glassformer.checkpoints.families.tensor_names import ABSENT, SWAPPED_HALVES

_NORMS = ("embedding_norm", "attention_norm", "attention.query_norm", "attention.key_norm", "ffn_norm", "final_norm")
_NAMES = NAMES | dict.fromkeys(_NORMS, ABSENT) | {"ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"}


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    cap = file.get("final_logit_softcapping", 15.0)
    capped = {"logit_cap": None if cap is None else file.number("final_logit_softcapping", 15.0)}
    return capped | bias(file, found)


NANOCHAT = Family(
    name="nanochat",
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    fixed={"hidden_act": "relu2"},
    parts={"embedding_norm": True, "qk_norm": "head", "activation": "relu2", "gated": False},
    # YaRN's factor on cosines and sines, which the norms after them would undo, is not among these.
    rope=Rope(kinds=("default", "linear", "llama3")),
    read=_read,
    write=lambda config: {"final_logit_softcapping": config.logit_cap} | write_bias(config),
    names={ours: theirs for ours, theirs in _NAMES.items() if ours != "ffn.gate"},
    forms=dict.fromkeys(("attention.query", "attention.key"), SWAPPED_HALVES),
)
