"""The models that are compared: ours, and Hugging Face's with the same weights."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import GptOssConfig, GptOssForCausalLM, MixtralConfig, MixtralForCausalLM

from glassformer.generation import generate
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig

VOCAB = 512
MAX_SEQ_LEN = 4096
WINDOW = 128
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": MAX_SEQ_LEN,
}
CONFIG = DecoderConfig(
    vocab_size=VOCAB,
    num_layers=4,
    hidden_dim=256,
    ff_dim=512,
    num_heads=8,
    head_dim=32,
    num_kv_heads=2,
    max_seq_len=MAX_SEQ_LEN,
)


@dataclass(frozen=True)
class Contestant:
    """One model with what is timed."""

    name: str
    model: nn.Module
    logits: Callable[[Tensor], Tensor]
    prefill: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, int], object]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy


def ours(name: str, decoder: Decoder) -> Contestant:
    """Our model."""

    def prefill(tokens: Tensor) -> Tensor:
        cache = decoder.new_cache(*tokens.shape)
        return decoder.output(decoder.hidden(tokens, cache=cache, last=1))

    def decode(tokens: Tensor, new: int) -> list[list[int]]:
        return generate(decoder, tokens, new)

    return Contestant(name, decoder, decoder, prefill, decode, cross_entropy)


def theirs(name: str, model: MixtralForCausalLM | GptOssForCausalLM) -> Contestant:
    """A model of Hugging Face, used as its documentation says."""

    def decode(tokens: Tensor, new: int) -> Tensor:
        mask = torch.ones_like(tokens)
        return model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )

    return Contestant(
        name,
        model,
        lambda tokens: model(tokens, use_cache=False).logits,
        lambda tokens: model(tokens, use_cache=True, logits_to_keep=1).logits,
        decode,
    )


def mixtral_pair() -> tuple[Contestant, Contestant]:
    """Ours and Mixtral, with the same weights."""
    torch.manual_seed(0)
    config = MixtralConfig(**SIZES, rms_norm_eps=1e-5, attn_implementation="sdpa")
    peer = MixtralForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as directory:
        peer.save_pretrained(directory)
        decoder = Decoder.from_pretrained(directory).eval()
    return ours("glassformer", decoder), theirs("Mixtral", peer)


def in_windows(contestant: Contestant) -> Contestant:
    """Ours with a window on every second layer: the same weights, another function, less work."""
    decoder = contestant.model
    assert isinstance(decoder, Decoder)
    windowed = Decoder(dataclasses.replace(decoder.config, window=WINDOW, windowed_layers="even"))
    windowed.load_state_dict(decoder.state_dict())
    return ours("glassformer, windowed", windowed.eval())


def windowed_pair() -> tuple[Contestant, Contestant]:
    """Ours in the form of gpt-oss, and GptOss, with equal weights and windows."""
    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"] * 2
    peer = GptOssForCausalLM(
        GptOssConfig(**SIZES, sliding_window=WINDOW, layer_types=layers)
    ).eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if name.endswith(("bias", "sinks")):
                weight.normal_(std=0.1)
    rope = peer.config.rope_parameters
    yarn = Yarn(
        rope["factor"],
        rope["original_max_position_embeddings"],
        rope["beta_fast"],
        rope["beta_slow"],
    )
    config = dataclasses.replace(
        CONFIG,
        window=WINDOW,
        windowed_layers="even",
        num_experts=8,
        sinks=True,
        attention_bias=True,
        ff_bias=True,
        clamp=Clamp(),
        rope_base=rope["rope_theta"],
        rope_scaling=yarn,
    )
    decoder = Decoder(config)
    decoder.load_state_dict(_from_gpt_oss(peer.state_dict()))
    return ours("glassformer, gpt-oss form", decoder.eval()), theirs("GptOss", peer)


_NAMES = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.sinks": "attention.sinks",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.router": "ffn.router.score",
    "model.layers": "layers",
}


def _from_gpt_oss(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of GptOss under our names.

    Its experts are [expert, in, out] with gate and up in turns.
    """
    our_weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for old, new in _NAMES.items():
            name = name.replace(old, new)
        layer = name.rpartition(".mlp.")[0]
        if name.endswith("gate_up_proj"):
            our_weights[f"{layer}.ffn.gate"] = tensor[..., 0::2].transpose(1, 2)
            our_weights[f"{layer}.ffn.up"] = tensor[..., 1::2].transpose(1, 2)
        elif name.endswith("gate_up_proj_bias"):
            our_weights[f"{layer}.ffn.gate_bias"] = tensor[..., 0::2]
            our_weights[f"{layer}.ffn.up_bias"] = tensor[..., 1::2]
        elif name.endswith("down_proj"):
            our_weights[f"{layer}.ffn.down"] = tensor.transpose(1, 2)
        elif name.endswith("down_proj_bias"):
            our_weights[f"{layer}.ffn.down_bias"] = tensor
        else:
            our_weights[name] = tensor
    return our_weights
