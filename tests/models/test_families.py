"""The decoder in the form of each family, beside the class of ``transformers`` with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.generation.native_step import DecodingStep
from glassformer.layers.options import Linear, Llama3, LongRope, Yarn
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.edits import change, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import ablation_sweep
from refusals import refused

VOCAB, HIDDEN, LAYERS, HEADS, KV, HEAD, FF, LONGEST, WINDOW = 40, 64, 4, 4, 2, 16, 48, 96, 7
State = dict[str, Tensor]


class Wide(TorchFunctionMode):
    """float64 stays float64, where the classes of ``transformers`` convert it to float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func is Tensor.to and torch.float32 in (*args, *kwargs.values())):
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def llama(state: State, one: float, *, before: str = "input_layernorm", shift: bool = False) -> State:
    """Our names of a model with Llama's; ``one`` is 1 for weights and 0 for gradients."""
    names = {
        "embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "output": "lm_head",
    }
    parts = {
        "attention_norm": before,
        "ffn_norm": "post_attention_layernorm",
        "ffn.gate": "mlp.gate_proj",
        "ffn.up": "mlp.up_proj",
        "ffn.down": "mlp.down_proj",
        "ffn.router.score": "mlp.gate",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
    }
    if before != "input_layernorm" or shift:  # Gemma, OLMo 2
        parts |= {
            "attention_post_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "ffn_post_norm": "post_feedforward_layernorm",
        }
    for layer in range(LAYERS):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in parts.items()}
    found = {}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in state:
                values = state[f"{theirs}.{kind}"]
                found[f"{ours}.{kind}"] = values + one if shift and "norm" in ours else values
    return found


def qwen3_moe(state: State, one: float) -> State:
    found = llama(state, one)
    for layer in range(LAYERS):
        experts = f"model.layers.{layer}.mlp.experts"
        gate, up = state[f"{experts}.gate_up_proj"].chunk(2, dim=1)
        found |= {f"layers.{layer}.ffn.gate": gate, f"layers.{layer}.ffn.up": up}
        found[f"layers.{layer}.ffn.down"] = state[f"{experts}.down_proj"]
    return found


def phi3(state: State, one: float) -> State:
    found = llama(state, one)
    for layer in range(LAYERS):
        rows = state[f"model.layers.{layer}.self_attn.qkv_proj.weight"].split([HEADS * HEAD, KV * HEAD, KV * HEAD])
        for name, weight in zip(("query", "key", "value"), rows, strict=True):
            found[f"layers.{layer}.attention.{name}.weight"] = weight
        gate, up = state[f"model.layers.{layer}.mlp.gate_up_proj.weight"].chunk(2)
        found |= {f"layers.{layer}.ffn.gate.weight": gate, f"layers.{layer}.ffn.up.weight": up}
    return found


def gpt2(state: State, one: float) -> State:
    found = {"embedding.weight": state["transformer.wte.weight"], "positions.weight": state["transformer.wpe.weight"]}
    for kind in ("weight", "bias"):
        found[f"final_norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
        for layer in range(LAYERS):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            for name, part in (("attention_norm", "ln_1"), ("ffn_norm", "ln_2")):
                found[f"{ours}.{name}.{kind}"] = state[f"{theirs}.{part}.{kind}"]
            for name, part in (("attention.output", "attn.c_proj"), ("ffn.up", "mlp.c_fc"), ("ffn.down", "mlp.c_proj")):
                found[f"{ours}.{name}.{kind}"] = state[f"{theirs}.{part}.{kind}"].t()
            for name, rows in zip("qkv", state[f"{theirs}.attn.c_attn.{kind}"].t().chunk(3), strict=True):
                names = {"q": "query", "k": "key", "v": "value"}
                found[f"{ours}.attention.{names[name]}.{kind}"] = rows
    found["output.weight"] = found["embedding.weight"]
    return found


def gpt_neox(state: State, one: float) -> State:
    found = {"embedding.weight": state["gpt_neox.embed_in.weight"], "output.weight": state["lm_head.weight"]}
    parts = {
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attention.output": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    }
    for kind in ("weight", "bias"):
        found[f"final_norm.{kind}"] = state[f"gpt_neox.final_layer_norm.{kind}"]
        for layer in range(LAYERS):
            for ours, theirs in parts.items():
                found[f"layers.{layer}.{ours}.{kind}"] = state[f"gpt_neox.layers.{layer}.{theirs}.{kind}"]
            packed = state[f"gpt_neox.layers.{layer}.attention.query_key_value.{kind}"].unflatten(0, (HEADS, 3, HEAD))
            for at, name in enumerate(("query", "key", "value")):
                found[f"layers.{layer}.attention.{name}.{kind}"] = packed[:, at].flatten(0, 1)
    return found


def gpt_neo(state: State, one: float) -> State:
    found = {"embedding.weight": state["transformer.wte.weight"], "positions.weight": state["transformer.wpe.weight"]}
    parts = {
        "attention_norm": "ln_1",
        "ffn_norm": "ln_2",
        "attention.query": "attn.attention.q_proj",
        "attention.key": "attn.attention.k_proj",
        "attention.value": "attn.attention.v_proj",
        "attention.output": "attn.attention.out_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        found[f"final_norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
        for layer in range(LAYERS):
            for ours, theirs in parts.items():
                missing = torch.zeros(HEADS * HEAD, dtype=torch.float64)
                name = f"transformer.h.{layer}.{theirs}.{kind}"
                found[f"layers.{layer}.{ours}.{kind}"] = state.get(name, missing)
    found["output.weight"] = found["embedding.weight"]
    return found


def nanochat(state: State, one: float) -> State:
    names = {name.replace(".fc1.", ".up_proj.").replace(".fc2.", ".down_proj."): name for name in state}
    found = llama({new: state[name] for new, name in names.items()}, one)
    for layer in range(LAYERS):
        for name in ("query", "key"):  # it rotates in the other direction
            weight = found[f"layers.{layer}.attention.{name}.weight"].unflatten(0, (-1, 2, HEAD // 2))
            found[f"layers.{layer}.attention.{name}.weight"] = weight.flip(1).flatten(0, 2)
    return found


@dataclass(frozen=True)
class Family:
    kind: str
    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]
    mapped: Callable[[State, float], State] = llama
    left_out: tuple[str, ...] = ()
    """Our weights without a counterpart."""
    tolerance: float = 1e-10


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}
_LONG = {"short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0], "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]}
_SHORT, _FAR = tuple(_LONG["short_factor"]), tuple(_LONG["long_factor"])
_TURNING = {"rope_type": "longrope", **_LONG, "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
_PHI = {"sliding_window": WINDOW, "max_position_embeddings": LONGEST}
_EVERY_OTHER = ["sliding_attention", "full_attention"] * 2
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_WINDOWED = {"window": WINDOW, "windowed_layers": (0, 2)}
_GEMMA = {
    "norm_place": "both",
    "activation": "gelu_tanh",
    "embedding_scale": HIDDEN**0.5,
    "tied_output": True,
    "attention_scale": 24.0**-0.5,
    **_WINDOWED,
}
_LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
_NEO = {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW, "intermediate_size": FF}

FAMILIES: dict[str, Family] = {
    "llama": Family("Llama", {"rope_parameters": _PLAIN}, {}),
    "llama 3": Family(
        "Llama",
        {"rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 16}, "tie_word_embeddings": True},
        {"rope_base": 500.0, "rope_scaling": Llama3(8.0, 16), "tied_output": True},
    ),
    "mistral": Family("Mistral", {"sliding_window": WINDOW}, {"window": WINDOW, "windowed_layers": "all"}),
    "qwen2": Family("Qwen2", {"rope_parameters": _PLAIN}, {"attention_bias": "qkv"}),
    "qwen3": Family("Qwen3", {"rope_parameters": _PLAIN}, {"qk_norm": "head"}),
    "qwen3 moe": Family(
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": FF, "norm_topk_prob": True},
        {"qk_norm": "head", "num_experts": 4, "top_k": 2},
        qwen3_moe,
    ),
    "smollm3": Family(
        "SmolLM3",
        {"tie_word_embeddings": False, "no_rope_layers": [1, 0, 1, 0], "rope_parameters": _PLAIN},
        {"unrotated_layers": (1, 3)},
    ),
    "phi-3": Family("Phi3", _PHI, {"window": WINDOW, "windowed_layers": "all"}, phi3),
    "phi-4-mini, short": Family(
        "Phi3",
        {**_PHI, "sliding_window": None, "rope_parameters": _TURNING, "original_max_position_embeddings": 32},
        {"rotary_dim": 12, "rope_scaling": LongRope(_SHORT, _FAR, 32, math.sqrt(1 + math.log(3) / math.log(32)))},
        phi3,
    ),
    "phi-4-mini, long": Family(
        "Phi3",
        {**_PHI, "sliding_window": None, "rope_parameters": _TURNING, "original_max_position_embeddings": 8},
        {"rotary_dim": 12, "rope_scaling": LongRope(_SHORT, _FAR, 8, math.sqrt(1 + math.log(12) / math.log(8)))},
        phi3,
    ),
    "gemma 2": Family(
        "Gemma2",
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 2.0,
        },
        {**_GEMMA, "attention_cap": 0.5, "logit_cap": 2.0},
        partial(llama, shift=True),
    ),
    "gemma 3": Family(
        "Gemma3",
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": _EVERY_OTHER,
            "rope_parameters": {"full_attention": _LINEAR, "sliding_attention": {**_PLAIN, "rope_theta": 100.0}},
        },
        {**_GEMMA, "qk_norm": "head", "rope_base": 1000.0, "rope_scaling": Linear(8.0), "local_rope_base": 100.0},
        partial(llama, shift=True),
    ),
    "olmo 2": Family("Olmo2", {}, {"norm_place": "after", "qk_norm": "all"}, partial(llama, before="")),
    "olmo 3": Family(
        "Olmo3",
        {
            "sliding_window": WINDOW,
            "layer_types": _EVERY_OTHER,
            "rope_parameters": {"full_attention": _YARN, "sliding_attention": _PLAIN},
        },
        {
            "norm_place": "after",
            "qk_norm": "all",
            "rope_scaling": Yarn(4.0, 16, truncate=True),
            "local_rope_base": 10000.0,
            **_WINDOWED,
        },
        partial(llama, before=""),
    ),
    "gpt-2": Family(
        "GPT2",
        {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": FF, "n_positions": LONGEST},
        {
            "norm": "layer",
            "num_kv_heads": None,
            "gated": False,
            "activation": "gelu_tanh",
            "attention_bias": True,
            "ff_bias": True,
            "learned_positions": True,
            "tied_output": True,
        },
        gpt2,
    ),
    "pythia": Family(
        "GPTNeoX",
        {"rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.25}, "use_parallel_residual": True},
        {
            "norm": "layer",
            "num_kv_heads": None,
            "parallel": True,
            "gated": False,
            "activation": "gelu",
            "attention_bias": True,
            "ff_bias": True,
            "rotary_dim": 4,
        },
        gpt_neox,
    ),
    "gpt-neo": Family(
        "GPTNeo",
        {"num_layers": LAYERS, "num_heads": HEADS, **_NEO},
        {
            "norm": "layer",
            "num_kv_heads": None,
            "gated": False,
            "activation": "gelu_tanh",
            "attention_bias": True,
            "ff_bias": True,
            "learned_positions": True,
            "tied_output": True,
            "attention_scale": 1.0,
            "window": WINDOW,
            "windowed_layers": "odd",
        },
        gpt_neo,
        left_out=("query.bias", "key.bias", "value.bias"),
    ),
    "nanochat": Family(
        "NanoChat",
        {"final_logit_softcapping": 1.5},
        {
            "qk_norm": "head",
            "gated": False,
            "activation": "relu2",
            "embedding_norm": True,
            "logit_cap": 1.5,
        },
        nanochat,
        left_out=("norm.weight",),
        tolerance=1e-7,  # it normalises after the rotation, whose cosines and sines are float32
    ),
}


def pair(family: Family, seed: int = 0) -> tuple[Decoder, nn.Module]:
    """Ours and theirs in float64, with the same random weights."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "max_position_embeddings": LONGEST,
        "head_dim": HEAD,
        "pad_token_id": 0,
    }
    sizes |= {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": FF}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": KV}
    if family.kind in ("GPT2", "GPTNeo"):
        sizes = {name: sizes[name] for name in ("vocab_size", "hidden_size", "max_position_embeddings", "pad_token_id")}
    if family.kind in ("GPTNeoX", "Phi3", "Olmo2", "Olmo3"):
        del sizes["head_dim"]
    made = "Gemma3TextConfig" if family.kind == "Gemma3" else f"{family.kind}Config"
    eager = "eager" if family.kind in ("Gemma2", "GPTNeo") else "sdpa"
    config = getattr(transformers, made)(
        **{**sizes, **family.theirs}, attn_implementation=eager, experts_implementation="eager"
    )
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "resid_dropout", "embed_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    theirs = getattr(transformers, "GPT2LMHeadModel" if family.kind == "GPT2" else f"{family.kind}ForCausalLM")(
        config
    ).eval()
    theirs.get_input_embeddings().padding_idx = None  # or the padding's row gets no gradient
    for weight in theirs.parameters():
        weight.data = torch.randn_like(weight, dtype=torch.float64) * (
            weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.3
        )
    eps = next(
        float(getattr(config, name))
        for name in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
        if hasattr(config, name)
    )
    fields: dict[str, Any] = {"num_kv_heads": KV, "max_seq_len": LONGEST, "norm_eps": eps, **family.ours}
    ours = Decoder(DecoderConfig(VOCAB, LAYERS, HIDDEN, FF, HEADS, HEAD, **fields)).double().eval()
    state = family.mapped({name: weight.detach() for name, weight in theirs.state_dict().items()}, 1.0)
    if ours.config.tied_output:
        state["output.weight"] = state["embedding.weight"]
    missing, unexpected = ours.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith(family.left_out) for name in missing), missing
    return ours, theirs


def logits_of(theirs: nn.Module, tokens: Tensor, real: Tensor | None = None) -> Tensor:
    given = {} if real is None else {"attention_mask": real.long(), "position_ids": (real.cumsum(1) - 1).clamp(min=0)}
    with Wide():
        found: Tensor = theirs(tokens, use_cache=False, **given).logits
    return found


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(name: str) -> None:
    family = FAMILIES[name]
    ours, theirs = pair(family)
    tokens = torch.randint(VOCAB, (2, 24))
    torch.testing.assert_close(ours(tokens), logits_of(theirs, tokens), rtol=0, atol=family.tolerance)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_left_padded_texts_are_those_of_transformers(name: str) -> None:
    ours, theirs = pair(FAMILIES[name])
    tokens, real = torch.randint(VOCAB, (3, 24)), torch.arange(24) >= torch.tensor([0, 9, 20])[:, None]
    found, expected = ours(tokens, key_padding=real), logits_of(theirs, tokens, real)
    # Rotary positions of a padded text are shifted, so angles have other last bits in float32.
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10 if ours.positions is not None else 3e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunks", [[1] * 24, [5, 11, 1, 7]])
@torch.no_grad()
def test_cached_logits_are_the_uncached_ones(name: str, chunks: list[int]) -> None:
    if "long" in name:
        chunks = [9, *[1] * 15] if len(chunks) > 4 else [12, 12]
    ours, _ = pair(FAMILIES[name])
    tokens, real = torch.randint(VOCAB, (2, 24)), torch.arange(24) >= torch.tensor([0, 3])[:, None]
    cache = ours.new_cache(2)
    start, parts = 0, []
    for new in chunks:
        piece = slice(start, start + new)
        parts.append(ours(tokens[:, piece], cache=cache, key_padding=real[:, piece]))
        start += new
    expected = ours(tokens, key_padding=real)
    torch.testing.assert_close(torch.cat(parts, 1)[real], expected[real], rtol=0, atol=1e-10)
    last = ours.logits(ours.hidden(tokens, key_padding=real, last=3))
    torch.testing.assert_close(last, expected[:, -3:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_transformers(name: str) -> None:
    family = FAMILIES[name]
    ours, theirs = pair(family)
    tokens = torch.randint(VOCAB, (2, 24))
    direction = torch.randn(2, 24, VOCAB, dtype=torch.float64) / 24
    (ours(tokens) * direction).sum().backward()
    with Wide():
        (theirs(tokens, use_cache=False).logits * direction).sum().backward()
    gradients = {each: weight.grad for each, weight in theirs.named_parameters()}
    expected = family.mapped({each: found for each, found in gradients.items() if found is not None}, 0.0)
    for each, weight in ours.named_parameters():
        if each.endswith(family.left_out) and family.left_out:
            continue
        assert weight.grad is not None, each
        torch.testing.assert_close(weight.grad, expected[each], rtol=1e-8, atol=100 * family.tolerance, msg=each)


@torch.no_grad()
def test_captured_and_edited_scores_are_capped() -> None:
    ours, theirs = pair(FAMILIES["gemma 2"])
    tokens = torch.randint(VOCAB, (1, 24))
    with capture(
        ours, what=("scores", "weights", "logits", "attention", "residual_before", "residual_between")
    ) as seen:
        logits = ours(tokens)
    with Wide():
        expected = theirs(tokens, output_attentions=True, use_cache=False).attentions
    for layer, weights in enumerate(expected):
        found = seen.last("weights")[f"layers.{layer}.attention"]
        torch.testing.assert_close(found, weights[..., -found.shape[-1] :], rtol=0, atol=1e-10)
        scores = seen.last("scores")[f"layers.{layer}.attention"]
        assert scores.abs()[scores > -torch.inf].max() <= 0.5
        before, between, added = (
            next(value for each, value in seen.last(kind).items() if each.startswith(f"layers.{layer}"))
            for kind in ("residual_before", "residual_between", "attention")
        )
        torch.testing.assert_close(between, before + added, rtol=0, atol=1e-12)
    torch.testing.assert_close(next(iter(seen.last("logits").values())), logits, rtol=0, atol=0)
    unchanged = change("scores", lambda scores: scores.clone(), layers=[1], heads=[2])
    with intervene(ours, unchanged):
        torch.testing.assert_close(ours(tokens), logits, rtol=0, atol=1e-10)
    with intervene(ours, change("scores", torch.zeros_like, layers=[0])), capture(ours, what="weights") as flat:
        ours(tokens)
    uniform = flat.last("weights")["layers.0.attention"][0, 0, -1]
    torch.testing.assert_close(uniform[-WINDOW:], torch.full((WINDOW,), 1 / WINDOW, dtype=torch.float64))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_native_step_computes_every_family(name: str) -> None:
    ours, _ = pair(FAMILIES[name])
    ours = ours.float()
    tokens, cache = torch.randint(VOCAB, (1, 12)), ours.new_cache(1)
    ours(tokens[:, :9], cache=cache)
    step = DecodingStep(ours, cache)
    found = torch.cat([step(tokens[:, at : at + 1]) for at in (9, 10, 11)], dim=1)
    # Factors that depend on the length of the text take the ordinary pass.
    assert (step._plan is None) == isinstance(ours.config.rope_scaling, LongRope)
    torch.testing.assert_close(found, ours(tokens)[:, 9:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gemma 2", "olmo 3", "pythia", "nanochat", "gpt-2"])
@torch.no_grad()
def test_sweeps_and_lenses_are_right_or_refused(name: str) -> None:
    ours, _ = pair(FAMILIES[name])
    tokens = torch.randint(VOCAB, (2, 9))
    logits = ours(tokens)
    torch.testing.assert_close(logit_lens(ours, tokens)[-1], logits, rtol=0, atol=1e-12)
    for site in ("attention", "ffn"):
        swept = ablation_sweep(ours, tokens, lambda logits: logits[:, 0, 3], site=site, by=("layer", "position"))
        with intervene(ours, zero(site, layers=[1], queries=[4])):
            expected = ours(tokens)[:, -1, 3].mean()
        torch.testing.assert_close(swept.values[1, 4], expected, rtol=0, atol=1e-10)
    normed = ours.config.norm_place != "before"
    if normed or ours.config.logit_cap is not None:
        with refused("norms after its parts, or with capped logits"):
            direct_logits(ours, tokens, 3)
    else:
        found = direct_logits(ours, tokens, 3)
        torch.testing.assert_close(found.values.sum(0), logits[:, -1, 3], rtol=0, atol=1e-10)
    swept = ablation_sweep(ours, tokens, lambda logits: logits[:, 0, 3], site="heads")
    with intervene(ours, zero("heads", layers=1, heads=2)):
        torch.testing.assert_close(swept.values[1, 2], ours(tokens)[:, -1, 3].mean(), rtol=0, atol=1e-10)
    if ours.config.parallel:
        with refused("residual_between"), capture(ours, what="residual_between"):
            pass
