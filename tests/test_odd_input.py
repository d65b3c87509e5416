"""Files, prompts and tensors that once were taken for others: they are read as they are meant, or
refused.
"""

from typing import Any

import pytest
import torch
from transformers import Phi3Config

from glassformer.checkpoints.families import family_in, family_of_gguf
from glassformer.checkpoints.families.gguf_metadata import read_gguf_config
from glassformer.generation.decoding import Continuation, generate
from glassformer.kernels.attention import attention, definition
from glassformer.kernels.pattern import Pattern
from glassformer.kernels.swiglu import definition as plain_swiglu
from glassformer.kernels.swiglu import swiglu
from glassformer.layers.options import Linear, LongRope
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

SIZES = {
    "block_count": 1,
    "context_length": 8192,
    "embedding_length": 32,
    "feed_forward_length": 64,
}


def from_gguf(
    name: str = "llama", factors: dict[str, list[float]] | None = None, **changes: Any
) -> DecoderConfig:
    keys = SIZES | {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5} | changes
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": each for key, each in keys.items() if each != ""
    }
    return read_gguf_config(
        family_of_gguf(metadata), metadata, {"token_embd.weight": [64, 32]}, factors or {}
    )


def test_a_factor_of_a_gguf_file_without_its_type_is_linear() -> None:
    assert from_gguf(**{"rope.scaling.factor": 8.0}).rope_scaling == Linear(8.0)
    assert (
        from_gguf(**{"rope.scaling.factor": 8.0, "rope.scaling.type": "none"}).rope_scaling is None
    )
    assert from_gguf().rope_scaling is None


@pytest.mark.parametrize("key", ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"])
def test_further_factors_of_a_gguf_file_are_refused(key: str) -> None:
    given = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 1024,
    }
    assert from_gguf(**given, **{f"rope.scaling.{key}": 1.0}) == from_gguf(**given)
    with refused(key):
        from_gguf(**given, **{f"rope.scaling.{key}": 2.0})


def test_a_gguf_file_lacks_what_llama_cpp_requires() -> None:
    with refused("no llama.attention.layer_norm_rms_epsilon"):
        from_gguf(**{"attention.layer_norm_rms_epsilon": ""})
    with refused("no gptneox.use_parallel_residual"):
        from_gguf("gptneox")
    with refused("no gpt-oss.attention.sliding_window"):
        from_gguf("gpt-oss")
    with refused("rope_factors_long.weight alone"):
        from_gguf("phi3", {"rope_factors_long.weight": [2.0] * 4})


def from_config(**fields: Any) -> DecoderConfig:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    content = sizes | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | fields
    family = family_in(content)
    return family.read_config(content)


def test_fields_of_directories_that_a_family_does_not_use() -> None:
    factors = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "factor": 4.0,
    }
    # as in released files
    phi4 = {
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "unsloth_fixed": True,
    }
    phi3 = from_config(
        model_type="phi3", max_position_embeddings=16384, rope_scaling=factors, **phi4
    )
    assert (
        phi3.rope_scaling.original_max_seq_len
        == Phi3Config().original_max_position_embeddings
        == 4096
    )
    experts = {
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }
    released = from_config(
        model_type="qwen3_moe", max_window_layers=48, sliding_window=None, **experts
    )
    assert released.window is None


def test_prompts_on_both_sides_of_the_border_of_long_factors() -> None:
    scaling = LongRope((1.0,) * 4, (4.0,) * 4, 8)
    model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8, max_seq_len=64, rope_scaling=scaling)).eval()
    short = [3, 1, 4]
    long = list(range(12))
    with refused("prompts of 3 and 12"):
        generate(model, [short, long], 2)
    assert generate(model, [short, short[:2]], 2)[0] == generate(model, [short], 2)[0]


def test_prompts_beyond_the_border_of_long_factors_are_read_with_these() -> None:
    scaling = LongRope((1.0,) * 4, (4.0,) * 4, 600)
    model = Decoder(
        DecoderConfig(50, 2, 32, 64, 4, 8, max_seq_len=2000, rope_scaling=scaling)
    ).eval()
    prompt = torch.randint(50, (1400,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = int(model(torch.tensor([prompt]))[0, -1].argmax())
    assert generate(model, [prompt], 1) == [[expected]]
    replies = Continuation(model)
    for length in (20, 590, 700, 1400):
        (token,) = replies.reply(prompt[:length], 1)
    assert token == expected


@pytest.mark.parametrize("window", [None, 4])
def test_a_text_that_grows_past_the_border_of_long_factors_is_read_anew(window: int | None) -> None:
    torch.manual_seed(3)
    scaling = LongRope((1.0,) * 4, (4.0,) * 4, 12)
    model = Decoder(
        DecoderConfig(7, 2, 32, 64, 4, 8, window=window, max_seq_len=64, rope_scaling=scaling)
    ).eval()

    def uncached(text: list[int], count: int) -> list[int]:
        for _ in range(count):
            text = [*text, int(model(torch.tensor([text]))[0, -1].argmax())]
        return text[-count:]

    replies = Continuation(model)
    with torch.no_grad():
        for length in (9, 11, 12, 13, 10):
            prompt = [3, 1, 4, 3, 1, 4, 3, 1, 4, 3, 1, 4, 3][:length]
            expected = uncached(prompt, 12)
            assert generate(model, [prompt, prompt], 12) == [expected, expected]
            assert generate(model, [prompt], 12) == [expected]
            assert [*replies.reply(prompt, 12)] == expected
            assert [*replies.reply(prompt, 1)] == expected[:1]  # the cache had other keys by then


def test_a_reply_that_another_has_followed_ends() -> None:
    model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8)).eval()
    replies = Continuation(model)
    prompts = ([3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5])
    first, second = (replies.reply(prompt, 8) for prompt in prompts)
    next(first)
    begun = next(second)
    with refused("another has followed"):
        next(first)
    assert [begun, *second] == generate(model, [prompts[1]], 8)[0]


@pytest.mark.parametrize("queries", [0, 1, 40])
@pytest.mark.parametrize("keys", [0, 40])
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_without_queries_or_keys_or_of_shared_keys(
    queries: int, keys: int, texts: int, has_sinks: bool, without_type_checks: None
) -> None:
    q = torch.randn(2, 4, queries, 16, requires_grad=True)
    k, v = torch.randn(2, texts, 4, keys, 16)
    sinks = torch.randn(4) if has_sinks else None
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    wanted = definition(q, k, v, None if sinks is None else sinks.view(1, -1, 1), allowed, 0.3)
    torch.testing.assert_close(attention(q, k, v, Pattern(), 0.3, sinks), wanted, equal_nan=True)


def test_a_gate_of_another_dtype() -> None:
    gate = torch.randn(3, 8, dtype=torch.bfloat16)
    up = torch.randn(3, 8)
    torch.testing.assert_close(swiglu(gate, up), plain_swiglu(gate, up), rtol=0, atol=0)
