"""Every family against transformers: logits, gradients, caches, and files that come back bit for
bit.
"""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import family_models
import numpy as np
import pytest
import torch
from family_models import (
    FAMILIES,
    LONGEST,
    VOCAB,
    as_float64,
    no_rounding,
    random_model,
    stored_model,
)
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from glassformer.checkpoints import families
from glassformer.checkpoints.decoders import (
    load_decoder,
    read_decoder_config,
    save_decoder,
    write_decoder,
)
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.families.gguf_metadata import gguf_entries, read_gguf_config
from glassformer.checkpoints.families.table import Family, canonical
from glassformer.checkpoints.families.tensor_names import (
    HEAD_BY_HEAD,
    NEIGHBOURS,
    SHIFTED,
    SWAPPED_HALVES,
    TRANSPOSED,
)
from glassformer.checkpoints.store import open_model
from glassformer.errors import CheckpointError
from glassformer.layers.options import Linear, Llama3, LongRope, Yarn
from glassformer.models import Decoder, DecoderConfig
from glassformer.processor_time import Budget
from refusals import refused

FEW = range(2)
MANY = range(40)
# Windows, and the original length of rescaled rotations, are shorter.
LENGTH = 40

every_family = pytest.mark.parametrize("family", FAMILIES)


def some_tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCAB, (2, length))


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def weight_of(model: Any, name: str, of: Callable[[Tensor], Tensor | None]) -> Tensor:
    """A tensor of a model in memory, or its gradient, by the name that it has in files."""
    parameters = dict(model.named_parameters())
    name = name.replace("embed_out.", "lm_head.").replace("block_sparse_moe.gate", "mlp.gate")
    if ".experts." in name:
        layer, _, rest = name.partition(".experts.")
        expert, matrix, _ = rest.split(".")
        # Mixtral's files have names of their own.
        layer = layer.replace("block_sparse_moe", "mlp")
        matrix = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(matrix, matrix)
        packed = of(
            parameters[
                f"{layer}.experts.{'down_proj' if matrix == 'down_proj' else 'gate_up_proj'}"
            ]
        )
        one = packed[int(expert)]
        half = len(one) // 2
        return {"gate_proj": one[:half], "up_proj": one[half:], "down_proj": one}[matrix]
    found = of(parameters[name])
    assert found is not None, name
    return found


def check_logits(family: str, seed: int, directory: Path) -> None:
    model = stored_model(family, seed, directory)
    tokens = some_tokens()
    with torch.no_grad():
        logits = model(tokens).logits
        assert logits.std() > 0.1
        # Of logits of 10; transformers' own kernels differ by as much.
        bound = 5e-5 * max(1, largest(logits) / 10)
        assert largest(load_decoder(directory).eval()(tokens) - logits) <= bound
    ours = load_decoder(directory, dtype=torch.float64)
    theirs = as_float64(model)
    with no_rounding():
        wanted = theirs(tokens).logits
        torch.nn.functional.cross_entropy(wanted.flatten(0, 1), tokens.flatten()).backward()
    got = ours.eval()(tokens)
    torch.nn.functional.cross_entropy(got.flatten(0, 1), tokens.flatten()).backward()
    # nanochat normalises after the rotation, whose cosines and sines are float32 numbers on both
    # sides.
    assert largest(got - wanted) <= (1e-6 if family == "nanochat" else 1e-10)
    gradients = {name: each.grad for name, each in ours.named_parameters()}
    row = families.family_of(json.loads((directory / "config.json").read_text())["model_type"])
    for entry in row.entries(ours.config):
        if entry.theirs:
            read = entry.read(
                lambda name: weight_of(theirs, name, lambda parameter: parameter.grad)
            )
            for name, gradient in read.items():
                shift = 1 if SHIFTED in entry.parts else 0
                bound = 1e-6 if family == "nanochat" else 1e-8
                assert largest(gradients[name] - (gradient - shift)) <= bound, name


@every_family
@pytest.mark.parametrize("seed", FEW)
def test_logits_and_gradients_are_transformers(family: str, seed: int, tmp_path: Path) -> None:
    check_logits(family, seed, tmp_path)


@pytest.mark.slow
@every_family
def test_logits_and_gradients_of_many_configurations(family: str, tmp_path: Path) -> None:
    for seed in MANY:
        check_logits(family, seed, tmp_path / str(seed))


@every_family
@torch.no_grad()
def test_padded_batches_and_caches(family: str, tmp_path: Path) -> None:
    """A text padded on the left has transformers' logits, and tokens one by one have those of the
    text at once.
    """
    model = as_float64(stored_model(family, 0, tmp_path))
    decoder = load_decoder(tmp_path, dtype=torch.float64).eval()
    tokens = some_tokens(12)
    real = torch.ones(2, 12, dtype=torch.bool)
    real[1, :5] = False
    with no_rounding():
        # Angles at other positions are other float32 numbers; learned positions count real tokens.
        places = (
            (real.cumsum(1) - 1).clamp(min=0)
            if family in ("gpt2", "gpt_neo")
            else torch.arange(12).expand(2, 12)
        )
        wanted = model(tokens, attention_mask=real.long(), position_ids=places).logits
    bound = 1e-6 if family == "nanochat" else 1e-10
    assert largest((decoder(tokens, key_padding=real) - wanted)[real]) <= bound
    cache = decoder.new_cache(2)
    pieces = [
        decoder(tokens[:, start:stop], cache=cache) for start, stop in ((0, 5), (5, 6), (6, 12))
    ]
    assert largest(torch.cat(pieces, 1) - decoder(tokens)) <= 1e-10


@pytest.mark.slow
@every_family
@torch.no_grad()
def test_greedy_tokens_are_transformers(family: str, tmp_path: Path) -> None:
    model = stored_model(family, 0, tmp_path)
    decoder = load_decoder(tmp_path).eval()
    text = theirs = some_tokens(4)[:1]
    for _ in range(LONGEST - 4):
        text = torch.cat([text, decoder(text)[:, -1:].argmax(-1)], 1)
        theirs = torch.cat([theirs, model(theirs).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(text, theirs)


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saved_back_bit_for_bit(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = stored_model(family, 1, tmp_path / "theirs", dtype)
    decoder = load_decoder(tmp_path / "theirs")
    save_decoder(decoder, tmp_path / "ours", shard_bytes=4000)
    assert len(list((tmp_path / "ours").glob("model-*.safetensors"))) > 1
    wanted = load_file(tmp_path / "theirs" / "model.safetensors")
    got = {
        name: each
        for file in (tmp_path / "ours").glob("*.safetensors")
        for name, each in load_file(file).items()
    }
    assert got.keys() == wanted.keys()
    row = families.family_of(model.config.model_type)
    shifted = {entry.theirs[0] for entry in row.entries(decoder.config) if SHIFTED in entry.parts}
    for name, tensor in wanted.items():
        assert got[name].dtype == dtype
        if name in shifted and dtype == torch.float32:
            # What every program computes with is the sum, in float32.
            assert torch.equal(got[name] + 1, tensor + 1), name
        else:
            assert torch.equal(got[name], tensor), name
    assert read_decoder_config(tmp_path / "ours") == decoder.config
    save_decoder(decoder, tmp_path / "own", layout="glassformer")
    write_decoder(open_model(tmp_path / "theirs").decoder, tmp_path / "converted", "glassformer")
    for place in ("own", "converted"):
        for name, tensor in load_decoder(tmp_path / place).state_dict().items():
            assert tensor.dtype == decoder.state_dict()[name].dtype
            assert torch.equal(tensor, decoder.state_dict()[name])
    tokens = some_tokens()
    logits = []
    for directory in (tmp_path / "theirs", tmp_path / "ours"):
        options = {"dtype": dtype, "experts_implementation": "eager", "output_loading_info": True}
        read, told = type(model).from_pretrained(directory, **options)
        assert not any(
            told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        )
        with torch.no_grad():
            logits.append(read.eval()(tokens).logits)
    assert torch.equal(*logits)


@every_family
def test_described(family: str, tmp_path: Path) -> None:
    model = stored_model(family, 0, tmp_path)
    found = describe(tmp_path)
    assert found.config == read_decoder_config(tmp_path)
    assert found.total == sum(parameter.numel() for parameter in model.parameters())
    assert found.family != "glassformer"


TINY = {
    "vocab_size": 40,
    "num_layers": 2,
    "hidden_dim": 16,
    "ff_dim": 24,
    "num_heads": 2,
    "head_dim": 8,
}
EXAONE = {"norm_place": "after", "qk_norm": "head"}


@pytest.mark.parametrize(
    ("change", "layout"),
    [
        ({}, "llama"),
        ({"window": 4, "windowed_layers": "all"}, "mistral"),
        ({"attention_bias": "qkv"}, "qwen2"),
        ({"qk_norm": "head"}, "qwen3"),
        ({"window": 4, "windowed_layers": "odd"}, "smollm3"),
        ({"num_experts": 4}, "mixtral"),
        (EXAONE, "exaone4"),
        (EXAONE | {"window": 4, "unrotated_layers": (0,)}, "exaone4"),
        (EXAONE | {"unrotated_layers": (0, 1)}, "exaone4"),
        (EXAONE | {"window": 4}, "glassformer-decoder"),
        ({"sinks": True}, "glassformer-decoder"),
    ],
)
def test_a_decoder_is_written_as_the_first_fitting_family(
    change: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    decoder = Decoder(DecoderConfig(**TINY, **change)).eval()
    save_decoder(decoder, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == layout
    tokens = some_tokens(20)
    with torch.no_grad():
        assert largest(load_decoder(tmp_path / "saved").eval()(tokens) - decoder(tokens)) <= 1e-5


def test_a_family_names_what_it_lacks(tmp_path: Path) -> None:
    decoder = Decoder(DecoderConfig(**TINY, sinks=True, rope_base=500.0))
    with refused("sinks = True") as caught:
        save_decoder(decoder, tmp_path / "saved", layout="llama")
    assert "rope_base" not in caught.value.got


def test_small_weights_of_shifted_norms_come_back() -> None:
    """bfloat16 numbers of at least 2 ** -15 and zero; smaller ones to 2 ** -24, beyond which no
    program computes.
    """
    every = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[every.float() < 64]
    for weights in (every, -every):
        back = SHIFTED.write(SHIFTED.read(weights, None), None).bfloat16()  # type: ignore[arg-type]
        kept = (weights.abs().float() >= 2**-15) | (weights == 0)
        assert torch.equal(back[kept], weights[kept])
        assert largest(back.float() - weights.float()) <= 2**-24
        assert torch.equal(1 + back.float(), 1 + weights.float())


@pytest.mark.parametrize("form", [TRANSPOSED, NEIGHBOURS, SWAPPED_HALVES, HEAD_BY_HEAD])
@pytest.mark.parametrize("shape", [(48, 5), (48,)])
def test_forms_go_both_ways(form: Any, shape: tuple[int, ...]) -> None:
    config = DecoderConfig(**TINY)
    tensor = torch.randn(shape)
    assert torch.equal(form.write(form.read(tensor, config), config), tensor)
    assert not torch.equal(form.read(tensor, config), tensor) or (
        form is TRANSPOSED and len(shape) == 1
    )


LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
# Faults of config.json, and the field or value that the error names.
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"vocab_size": "40"}, "vocab_size"),
    ("llama", {"num_hidden_layers": None}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 2**50}, "num_hidden_layers"),
    ("llama", {"num_attention_heads": 0}, "num_attention_heads"),
    ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps"),
    ("llama", {"attention_bias": 1}, "attention_bias"),
    ("llama", {"mlp_bias": "no"}, "mlp_bias"),
    ("llama", {"sliding_window": 4}, "sliding_window"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": {}},
        "dynamic",
    ),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 1e4}}, "rope"),
    ("llama", {"rope_scaling": LINEAR | {"spiral": 1.0}, "rope_parameters": None}, "spiral"),
    (
        "llama",
        {"rope_scaling": YARN | {"attention_factor": 3.0}, "rope_parameters": None},
        "attention_factor",
    ),
    ("llama", {"rope_theta": 123.0}, "rope_theta"),
    (
        "llama",
        {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"rope_theta": 5.0}},
        "rope_theta = 5.0",
    ),
    ("llama", {"is_causal": False}, "is_causal = False"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters"),
    ("llama", {"value_embeddings": True}, "value_embeddings"),
    (
        "llama",
        {"quantization_config": {"quant_method": "gptq"}},
        "quantization_config = {'quant_method': 'gptq'}$",
    ),
    (
        "llama",
        {"quantization_config": {"ignore": ["lm_head"] * 200}},
        "quantization_config.{300,320}$",
    ),
    ("llama", {"model_type": "llama5"}, "llama5"),
    ("llama", {"model_type": "my_model", "auto_map": {"AutoModel": "code.Model"}}, "auto_map"),
    ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
    ("qwen3_moe", {"num_experts": 8}, "num_experts"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ("mixtral", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
    ("mixtral", {"num_local_experts": None}, "num_local_experts = None"),
    ("mixtral", {"num_experts_per_tok": 9}, "top_k = 9 with num_experts = 4"),
    ("mixtral", {"num_key_value_heads": 3}, "num_kv_heads = 3 with num_heads"),
    ("qwen2", {"layer_types": ["chunked_attention"]}, "layer_types"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": None},
        "without layer_types",
    ),
    ("phi3", {"partial_rotary_factor": 0.3}, "partial_rotary_factor"),
    ("gemma2", {"attn_logit_softcapping": "no"}, "attn_logit_softcapping"),
    ("gemma2", {"hidden_act": "gelu"}, "hidden_act"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3_text", {"rope_local_base_freq": 7.0}, "local base"),
    ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": YARN}, "original_max_position_embeddings": 8},
        "ings = 8",
    ),
    ("exaone4", {"attention_bias": True}, "attention_bias = True"),
    (
        "exaone4",
        {"layer_types": None, "sliding_window": 4, "sliding_window_pattern": "LLLG"},
        "sliding_window_pattern = 'LLLG'",
    ),
    (
        "exaone4",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": None},
        "sliding_window = None",
    ),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"activation_function": "relu"}, "activation_function"),
    ("gpt_neox", {"rotary_pct": 0.9}, "rotary_pct"),
]


@pytest.mark.parametrize(("family", "change", "named"), FAULTS)
def test_faulty_configurations_name_the_field(
    family: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    stored_model(family, 3, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with refused(named, error=CheckpointError):
        load_decoder(tmp_path)


@pytest.mark.parametrize("given", [0.5, 0.25])
def test_pythias_rotation_is_said_twice_as_transformers_4_wrote_it(
    given: float, tmp_path: Path
) -> None:
    seed = next(
        n
        for n in range(20)
        if random_model("gpt_neox", n).config.rope_parameters["rope_type"] == "default"
    )
    model = stored_model("gpt_neox", seed, tmp_path)
    tokens = some_tokens()
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    del content["rope_parameters"]
    content |= {
        "rotary_pct": 0.5,
        "rotary_emb_base": 100,
        "rope_theta": 100.0,
        "rope_scaling": None,
    }
    file.write_text(json.dumps(content | {"partial_rotary_factor": given}))
    if given != content["rotary_pct"]:
        with refused("partial_rotary_factor = 0.25 and rotary_pct = 0.5", error=CheckpointError):
            load_decoder(tmp_path)
        return
    with torch.no_grad():
        logits = type(model).from_pretrained(tmp_path)(tokens).logits
        assert largest(load_decoder(tmp_path).eval()(tokens) - logits) < 1e-4


def test_fields_of_released_models_that_change_nothing(tmp_path: Path) -> None:
    """GPT-2 medium has the first, and configurations written in full or by hand the others."""
    model = stored_model("gpt2", 0, tmp_path)
    tokens = some_tokens()
    file = tmp_path / "config.json"
    inert = {"predict_special_tokens": True, "n_special": 0, "num_beam_groups": 1, "author": "A"}
    file.write_text(json.dumps(json.loads(file.read_text()) | inert))
    with torch.no_grad():
        logits = type(model).from_pretrained(tmp_path)(tokens).logits
        assert largest(load_decoder(tmp_path).eval()(tokens) - logits) < 1e-4


def test_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    seed = next(
        seed for seed in range(20) if random_model("llama", seed).config.tie_word_embeddings
    )
    stored_model("llama", seed, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    load_decoder(tmp_path)
    tensors["lm_head.weight"][3, 3] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with refused("lm_head.weight", error=CheckpointError):
        load_decoder(tmp_path)


def test_the_second_name_of_a_window_counts_for_nothing_as_in_transformers(tmp_path: Path) -> None:
    """The released Gemma 2 of 9 billion weights has both."""
    model = stored_model("gemma2", 3, tmp_path)
    file = tmp_path / "config.json"
    tokens = some_tokens()
    content = json.loads(file.read_text()) | {"sliding_window": 5, "sliding_window_size": 9}
    file.write_text(json.dumps(content))
    theirs = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        assert largest(load_decoder(tmp_path).eval()(tokens) - theirs(tokens).logits) < 1e-4


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("gpt2", "transformer."),
        ("gpt_neox", "gpt_neox."),
        ("qwen3", "model."),
        ("gemma2", "model."),
    ],
)
def test_masks_and_short_names(family: str, base: str, tmp_path: Path) -> None:
    """Of old files, and of models that were saved without their output, such as Qwen3's embeddings."""
    model = stored_model(family, 0, tmp_path)
    tokens = some_tokens()
    tensors = load_file(tmp_path / "model.safetensors")
    whole = load_decoder(tmp_path).state_dict()
    short = {name.removeprefix(base): tensor for name, tensor in tensors.items()}
    save_file(
        short | {"h.0.attn.bias": torch.ones(4, 4)},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    decoder = load_decoder(tmp_path).eval()
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, whole[name])
    with torch.no_grad():
        assert (
            largest(decoder(tokens) - type(model).from_pretrained(tmp_path)(tokens).logits) < 1e-4
        )
    twice = next(name for name in tensors if name.startswith(base))
    save_file(short | {twice: tensors[twice].clone()}, tmp_path / "model.safetensors")
    with refused(f"{twice.removeprefix(base)} twice", error=CheckpointError):
        load_decoder(tmp_path)


VALUES: list[Any] = [None, True, False, "", "silu", [], [0], {}, {"rope_type": "yarn"}]
VALUES += [0, 1, -1, 3, 2**31, 2**63, 0.5, -1.5, 1e300]


def damaged(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """With one thing changed or left out."""
    place = config = copy.deepcopy(config)
    if isinstance(config.get("rope_parameters"), dict) and rng.random() < 0.3:
        place = config["rope_parameters"]
    name = rng.choice(
        [*place, "rope_scaling", "rope_theta", "sliding_window", "layer_types", "head_dim"]
    )
    place[name] = rng.choice(VALUES)
    if rng.random() < 0.2:
        del place[name]
    return config


@every_family
def test_damaged_configurations_load_or_are_refused(family: str, tmp_path: Path) -> None:
    """Within a second of the processor: one CheckpointError, or a decoder that computes."""
    rng = random.Random(family)
    stored_model(family, 2, tmp_path)
    file = tmp_path / "config.json"
    refusals = 0
    whole = json.loads(file.read_text())
    for _ in range(40):
        file.write_text(json.dumps(damaged(whole, rng)))
        budget = Budget(1)
        try:
            load_decoder(tmp_path)
        except CheckpointError:
            refusals += 1
        assert not budget.is_over()
    assert refusals > 10


def test_unknown_names_are_refused_by_the_table() -> None:
    assert families.family_of("bloom") is None
    assert families.family_of(None) is None
    assert families.family_of_gguf({}) is None
    assert families.family_of_gguf({"general.architecture": np.arange(2)}) is None
    assert {family.model_type for family in families.FAMILIES} == set(family_models.CLASSES) | {
        "gpt_oss",
        "openai",
    }


# GGUF: keys and names alone. Files are read elsewhere.


def gguf_of(config: DecoderConfig, architecture: str, **more: Any) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for this configuration."""
    keys = {
        "block_count": config.num_layers,
        "context_length": config.max_seq_len,
        "embedding_length": config.hidden_dim,
        "feed_forward_length": config.ff_dim,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": config.rope_base,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    return {"general.architecture": architecture} | {
        f"{architecture}.{key}": (keys | more)[key] for key in keys | more
    }


def gguf_shapes(family: Family, config: DecoderConfig) -> dict[str, list[int]]:
    return {
        name: shape
        for entry in gguf_entries(family, config, ())
        for name, shape in entry.shapes().items()
    }


SMALL = DecoderConfig(**TINY, num_kv_heads=1, max_seq_len=64, window=None)
GEMMA = {
    "norm_place": "both",
    "activation": "gelu_tanh",
    "embedding_scale": 4.0,
    "tied_output": True,
}
GGUFS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {}, {}),
    ("llama", {"num_experts": 4, "top_k": 2}, {"expert_count": 4, "expert_used_count": 2}),
    ("llama", {"attention_bias": True, "ff_bias": True}, {}),
    (
        "llama",
        {"rope_scaling": Linear(4.0)},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    ("llama", {"rope_scaling": Linear(4.0)}, {"rope.scale_linear": 4.0}),  # files of 2023
    ("qwen2", {"attention_bias": "qkv", "tied_output": True}, {}),
    ("qwen3", {"qk_norm": "head"}, {}),
    ("qwen3", {"qk_norm": "head"}, {"pooling_type": 3}),  # Qwen3's embeddings
    (
        "qwen3moe",
        {"qk_norm": "head", "num_experts": 4, "top_k": 1},
        {
            "expert_count": 4,
            "expert_used_count": 1,
            "expert_feed_forward_length": 24,
            "feed_forward_length": 99,
        },
    ),
    # Of Ollama's converter.
    (
        "qwen3moe",
        {"qk_norm": "head", "num_experts": 4, "top_k": 1},
        {
            "expert_count": 4,
            "expert_used_count": 1,
            "feed_forward_length": 99,
            "norm_top_k_prob": True,
        },
    ),
    ("llama", {"head_dim": 10}, {"attention.head_dim": 10}),
    ("smollm3", {"num_layers": 5, "unrotated_layers": (3,)}, {}),
    ("phi3", {"rotary_dim": 6}, {"rope.dimension_count": 6, "attention.sliding_window": 0}),
    ("phi3", {"window": 9, "windowed_layers": "all"}, {"attention.sliding_window": 9}),
    (
        "gemma2",
        GEMMA | {"window": 9, "windowed_layers": "even", "attention_cap": 50.0, "logit_cap": 30.0},
        {
            "attention.sliding_window": 9,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    # What it does not say: every sixth layer sees all, the local base is 10000, and only 27B has
    # another scale.
    (
        "gemma3",
        GEMMA
        | {"num_layers": 7, "window": 9, "windowed_layers": (0, 1, 2, 3, 4, 6), "qk_norm": "head"}
        | {"rope_base": 1e6, "local_rope_base": 10000.0, "rope_scaling": Linear(8.0)},
        {"attention.sliding_window": 9, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    ("olmo2", {"norm_place": "after", "qk_norm": "all"}, {}),
    (
        "olmo2",
        {"norm_place": "after", "qk_norm": "all", "window": 9, "windowed_layers": "odd"}
        | {"rope_scaling": Yarn(4.0, 16, truncate=True), "local_rope_base": 10000.0},
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [False, True]}
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        }
        | {"rope.scaling.yarn_attn_factor": 1.1386294},
    ),
    ("exaone4", EXAONE, {}),
    # Without a pattern every fourth layer sees all; a layer without a window does not rotate.
    (
        "exaone4",
        EXAONE
        | {"num_layers": 5, "window": 9, "windowed_layers": (0, 1, 2, 4), "unrotated_layers": (3,)},
        {"attention.sliding_window": 9},
    ),
    (
        "exaone4",
        EXAONE | {"window": 9, "windowed_layers": "odd", "unrotated_layers": (0,)},
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [False, True]},
    ),
]


@pytest.mark.parametrize(("architecture", "change", "keys"), GGUFS)
def test_gguf_keys_and_names(
    architecture: str, change: dict[str, Any], keys: dict[str, Any]
) -> None:
    config = canonical(replace(SMALL, **change))
    family = families.family_of_gguf({"general.architecture": architecture})
    assert family is not None
    metadata = gguf_of(config, architecture, **keys)
    shapes = gguf_shapes(family, config)
    assert read_gguf_config(family, metadata, shapes, {}) == config
    # Also of rows of bytes, every tensor comes back.
    state = Decoder(config).state_dict()
    bytes_of = {name: each.contiguous().view(torch.uint8) for name, each in state.items()}
    for entry in gguf_entries(family, config, shapes):
        stored = dict(zip(entry.theirs, entry.write(bytes_of), strict=True))
        for name, tensor in entry.read(stored.__getitem__).items():
            assert torch.equal(tensor.view(state[name].dtype), state[name]), name
    with refused(r"logit_scale = 3\.0"):
        read_gguf_config(family, metadata | {f"{architecture}.logit_scale": 3.0}, shapes, {})


def test_gguf_packed_names() -> None:
    config = canonical(replace(SMALL, num_experts=4))
    family = families.LLAMA
    state = Decoder(config).state_dict()
    apart = {
        name: tensor
        for entry in gguf_entries(family, config, ())
        for name, tensor in zip(entry.theirs, entry.write(state), strict=True)
    }
    packed = dict(apart)
    for layer in range(2):
        at = f"blk.{layer}."
        packed[f"{at}attn_qkv.weight"] = torch.cat(
            [packed.pop(f"{at}attn_{each}.weight") for each in "qkv"]
        )
        both = [packed.pop(f"{at}ffn_{each}_exps.weight") for each in ("gate", "up")]
        packed[f"{at}ffn_gate_up_exps.weight"] = torch.cat(both, 1)
    for entry in gguf_entries(family, config, packed):
        for name, tensor in entry.read(packed.__getitem__).items():
            assert torch.equal(tensor, state[name]), name


def test_gguf_factors_of_frequencies() -> None:
    """Llama 3's are recognised, others are kept as they are; Phi-3's are two lists."""
    config = canonical(replace(SMALL, head_dim=64, rope_base=500000.0))
    shapes = gguf_shapes(families.LLAMA, config)
    turns = 8192 / (2 * torch.pi) / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    kept = ((turns - 1) / 3).clamp(0, 1)
    released = (1 / (kept + (1 - kept) / 32)).tolist()
    metadata = gguf_of(config, "llama")

    def scaling(factors: dict[str, list[float]]) -> Any:
        return read_gguf_config(families.LLAMA, metadata, shapes, factors).rope_scaling

    assert scaling({"rope_freqs.weight": released}) == Llama3(32.0, 8192)
    other = [1.0] * 30 + [3.0, 5.0]
    assert scaling({"rope_freqs.weight": other}).short == tuple(other)
    assert scaling({"rope_freqs.weight": [1.0] * 32}) is None
    with refused("31 factors in rope_freqs"):
        scaling({"rope_freqs.weight": [1.0] * 31})
    both = {"rope_factors_short.weight": [2.0] * 32, "rope_factors_long.weight": other}
    metadata["llama.rope.scaling.attn_factor"] = 1.19
    assert scaling(both) == LongRope((2.0,) * 32, tuple(other), 64, 1.19)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"attention.head_count": 0}, "head_count"),
        ({"attention.head_count_kv": [1, 2]}, "head_count_kv"),
        ({"block_count": 2**31}, "block_count"),
        ({"embedding_length": "wide"}, "embedding_length"),
        ({"attention.value_length": 4}, "value_length"),
        ({"rope.dimension_count": 4}, "dimension_count"),
        ({"attention.sliding_window": 4}, "sliding_window"),
        ({"attention.causal": False}, "causal"),
        ({"rope.scaling.type": "dynamic", "rope.scaling.factor": 2.0}, "scaling.type"),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 2.0,
                "rope.scaling.yarn_attn_factor": 1.2,
            },
            "yarn_attn",
        ),
        ({"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0}, "rope.scale_linear"),
        ({"norm_top_k_prob": False}, "norm_top_k_prob"),
        ({"rope.freq_base": float("nan")}, "freq_base"),
        ({"rope.scaling.type": np.arange(2), "rope.scaling.factor": 2.0}, "scaling.type"),
        ({"attention.sliding_window_pattern": 2.5}, "sliding_window_pattern"),
        ({"attention.head_count": ["2", "2"]}, "head_count"),
        ({"an.unknown.array": np.arange(2)}, "an.unknown.array"),
    ],
)
def test_gguf_keys_that_are_refused(keys: dict[str, Any], named: str) -> None:
    with refused(named):
        read_gguf_config(
            families.LLAMA, gguf_of(SMALL, "llama", **keys), gguf_shapes(families.LLAMA, SMALL), {}
        )


@pytest.mark.parametrize(
    "start", ["language_model.model.", "language_model.", "model.language_model."]
)
def test_the_text_of_a_model_that_also_sees(start: str, tmp_path: Path) -> None:
    """As the released Gemma 3 of 4B: fields that are as in transformers are left out."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 7,
    }
    text |= {
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 4,
        "vocab_size": VOCAB,
    }
    sees = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    sees |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    config = Gemma3Config(
        text_config=text, vision_config=sees, mm_tokens_per_image=1, image_token_index=VOCAB - 1
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("language_model.model.", start): each for name, each in state.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    content = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": sees,
        "eos_token_id": [1, 106],
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    tokens = some_tokens().clamp(max=VOCAB - 2)
    with torch.no_grad():
        assert largest(load_decoder(tmp_path).eval()(tokens) - model(tokens).logits) < 5e-5
    found = describe(tmp_path)
    count = sum(each.numel() for each in model.model.language_model.parameters())
    assert (found.family, found.total) == ("Gemma 3", count)
    (tmp_path / "config.json").write_text(
        json.dumps(content | {"text_config": {**text, "model_type": "llama"}})
    )
    with refused("model_type = 'llama'"):
        load_decoder(tmp_path)


def test_olmo_3_is_written_in_the_words_of_transformers_4_too(tmp_path: Path) -> None:
    yarn = Yarn(4.0, 16)
    config = DecoderConfig(
        50, 4, 32, 48, 4, 8, norm_place="after", qk_norm="all", rope_base=777.0, rope_scaling=yarn
    )
    config = replace(config, window=5, windowed_layers=(0, 1, 2), local_rope_base=777.0)
    save_decoder(Decoder(config), tmp_path / "model", layout="olmo3")
    told = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (told["rope_theta"], told["rope_scaling"]["factor"]) == (777.0, 4.0)
    assert told["rope_parameters"]["full_attention"] == told["rope_scaling"] | {"rope_theta": 777.0}
    assert load_decoder(tmp_path / "model").config == canonical(config)
