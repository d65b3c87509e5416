"""GPT-2, GPT-Neo, GPT-NeoX and nanochat."""

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import KEYS, NAMES, Family, bias, windowed, write_bias
from glassformer.checkpoints.families.tensor_names import (
    ABSENT,
    HEAD_BY_HEAD,
    SWAPPED_HALVES,
    TRANSPOSED,
)
from glassformer.models import DecoderConfig

_QKV = ("attention.query", "attention.key", "attention.value")

# LayerNorm, learned positions, packed projections stored as [in, out]. Source: Radford et al. 2019,
# "Language Models are Unsupervised Multitask Learners".
GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    keys={
        "vocab_size": "vocab_size",
        "num_layers": "n_layer",
        "hidden_dim": "n_embd",
        "num_heads": "n_head",
        "ff_dim": "n_inner",
        "max_seq_len": "n_positions",
        "norm_eps": "layer_norm_epsilon",
        "dropout": "attn_pdrop",
        "tied_output": "tie_word_embeddings",
    },
    defaults={"n_positions": 1024, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "n_inner": None},
    tied=True,
    fixed={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    parts={
        "norm": "layer",
        "attention_bias": True,
        "ff_bias": True,
        "activation": "gelu_tanh",
        "gated": False,
        "learned_positions": True,
    },
    rope=None,
    read=lambda file, fields: {"ff_dim": fields["ff_dim"] or 4 * fields["hidden_dim"]},
    names={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "attention_norm": "ln_1",
        "ffn_norm": "ln_2",
        **dict.fromkeys(_QKV, "attn.c_attn"),
        "attention.output": "attn.c_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    prefix="transformer.h.{}.",
    base="transformer.",
    forms=dict.fromkeys(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"), TRANSPOSED),
    gguf="gpt2",
)


def _read_gpt_neo(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    kinds = file.turns("attention_types", fields["num_layers"], ("global", "local"))
    file.only("attention_layers", kinds)
    windows = windowed([kind == "local" for kind in kinds], file.whole("window_size", 256))
    return GPT2.read(file, fields) | windows | {"attention_scale": 1.0}


def _write_gpt_neo(config: DecoderConfig) -> dict[str, Any]:
    attention_types = []
    for layer in range(config.num_layers):
        kind = "local" if config.layer_window(layer) else "global"
        attention_types.append([[kind], 1])
    return {
        "attention_types": attention_types,
        "window_size": config.window or config.max_seq_len,
    }


# GPT-Neo, as TinyStories (arXiv 2305.07759): GPT-2 with windows in turns and unscaled scores.
GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    architecture="GPTNeoForCausalLM",
    keys={name: KEYS[name] for name in GPT2.keys}
    | {"num_layers": "num_layers", "num_heads": "num_heads", "norm_eps": "layer_norm_epsilon"},
    defaults={
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "intermediate_size": None,
    },
    fixed={"activation_function": "gelu_new"},
    read=_read_gpt_neo,
    write=_write_gpt_neo,
    names=dict(GPT2.names)
    | {f"attention.{name}": f"attn.attention.{name[0]}_proj" for name in ("query", "key", "value")}
    | dict.fromkeys((f"{name}.bias" for name in _QKV), ABSENT)
    | {"attention.output": "attn.attention.out_proj"},
    forms={},
    gguf=None,
)

# GPT-NeoX and Pythia: attention and feed-forward network side by side, rotation of a quarter of
# each head. The GELU is exact, as in transformers; llama.cpp approximates it by tanh. Source: Black
# et al. 2022, arXiv 2204.06745; Biderman et al. 2023, arXiv 2304.01373.
_PACKED = "attention.query_key_value"
GPT_NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    keys={name: key for name, key in KEYS.items() if name not in ("num_kv_heads", "head_dim")}
    | {"norm_eps": "layer_norm_eps"},
    defaults={"layer_norm_eps": 1e-5, "max_position_embeddings": 2048},
    # Names in transformers 4.46 to 4.57.
    aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    fixed={"hidden_act": "gelu"},
    parts={"norm": "layer", "ff_bias": True, "activation": "gelu", "gated": False},
    rope=Rope(base_key="rotary_emb_base", fraction=0.25, fraction_key="rotary_pct"),
    read=lambda file, fields: {
        "parallel": file.flag("use_parallel_residual", True),
        "attention_bias": file.flag("attention_bias", True),
    },
    write=lambda config: {
        "use_parallel_residual": config.parallel,
        "attention_bias": config.attention_bias,
    },
    names={
        "embedding": "gpt_neox.embed_in",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **dict.fromkeys(_QKV, _PACKED),
        "attention.output": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
        "final_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    prefix="gpt_neox.layers.{}.",
    base="gpt_neox.",
    forms={_PACKED: HEAD_BY_HEAD},
    gguf="gptneox",
)


def _read_nanochat(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    cap = None
    if file.get("final_logit_softcapping", 15.0) is not None:
        cap = file.number("final_logit_softcapping", 15.0)
    return {"logit_cap": cap} | bias(file, fields)


# nanochat: norms without weights, one of them after the embedding, and a rotation in the other
# direction. Norms of queries and keys come after the rotation there; without weights the two
# commute. Source: Karpathy 2025, nanochat.
_NORMS = (
    "embedding_norm",
    "attention_norm",
    "attention.query_norm",
    "attention.key_norm",
    "ffn_norm",
    "final_norm",
)
NANOCHAT = Family(
    name="nanochat",
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    fixed={"hidden_act": "relu2"},
    parts={"embedding_norm": True, "qk_norm": "head", "activation": "relu2", "gated": False},
    # YaRN's factor on cosines and sines, which the norms after them would undo, is not among these.
    rope=Rope(kinds=("default", "linear", "llama3")),
    read=_read_nanochat,
    write=lambda config: {"final_logit_softcapping": config.logit_cap} | write_bias(config),
    names={module: name for module, name in NAMES.items() if module != "ffn.gate"}
    | dict.fromkeys(_NORMS, ABSENT)
    | {"ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"},
    forms=dict.fromkeys(_QKV[:2], SWAPPED_HALVES),
)
