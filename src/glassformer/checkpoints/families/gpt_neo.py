"""GPT-Neo, as TinyStories (arXiv 2305.07759): GPT-2 with windows in turns and scores without a scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.gpt2 import GPT2
from glassformer.checkpoints.families.table import KEYS, windowed
from glassformer.checkpoints.families.tensor_names import ABSENT

_SIZES = {"num_layers": "num_layers", "num_heads": "num_heads", "norm_eps": "layer_norm_epsilon"}
_QKV = {f"attention.{ours}": f"attn.attention.{ours[0]}_proj" for ours in ("query", "key", "value")}
_OWN = _QKV | dict.fromkeys((f"{name}.bias" for name in _QKV), ABSENT) | {"attention.output": "attn.attention.out_proj"}


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    file.only("attention_layers", kinds := file.turns("attention_types", found["num_layers"], ("global", "local")))
    seen = windowed([kind == "local" for kind in kinds], file.whole("window_size", 256))
    return GPT2.read(file, found) | seen | {"attention_scale": 1.0}


GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    architecture="GPTNeoForCausalLM",
    keys={name: KEYS[name] for name in GPT2.keys} | _SIZES,
    defaults={"max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5, "intermediate_size": None},
    fixed={"activation_function": "gelu_new"},
    read=_read,
    write=lambda config: {
        "attention_types": [[["local" if config.layer_window(n) else "global"], 1] for n in range(config.num_layers)],
        "window_size": config.window or config.max_seq_len,
    },
    names=dict(GPT2.names) | _OWN,
    forms={},
    gguf=None,
)
