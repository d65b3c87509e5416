"""GGUF files that are written: read back bit for bit, by the package ``gguf``, and by transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from family_models import stored_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from glassformer.checkpoints.decoders import load_decoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.families.table import canonical
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, tokenizer_from_gguf
from glassformer.kernels.packed import encode
from glassformer.layers.options import Llama3, LongRope
from glassformer.layers.quantized.packed import PackedEmbedding, PackedLinear
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

PLAIN = DecoderConfig(
    vocab_size=256,
    num_layers=2,
    hidden_dim=64,
    ff_dim=96,
    num_heads=4,
    head_dim=16,
    num_kv_heads=2,
    max_seq_len=128,
)
EXAONE = {"norm_place": "after", "qk_norm": "head"}


def tokens() -> Tensor:
    return torch.randint(0, PLAIN.vocab_size, (2, 40))


def stored(path: Path, name: str) -> Tensor:
    return read_gguf(path).tensors[name].read()


def test_q8_0_has_the_bits_of_the_reference() -> None:
    weights = torch.randn(400, 64) * torch.randn(400, 1).exp() ** 3
    weights[0], weights[1], weights[2] = 0, torch.arange(64) / 64 - 0.5, 1e-30
    weights[3, 1:] = torch.arange(63) / 2  # 63.5 of the largest 127: halves
    weights[3, 0] = 127
    expected = gguf.quants.quantize(weights.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert encode("Q8_0", weights).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", None), ("F16", torch.float16), ("BF16", torch.bfloat16)]
)
@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16])
def test_weights_come_back(
    kind: Any, dtype: torch.dtype | None, held: torch.dtype, tmp_path: Path
) -> None:
    decoder = Decoder(PLAIN).to(held)
    write_gguf(decoder, tmp_path / "a.gguf", kind=kind)
    back = load_gguf(tmp_path / "a.gguf", dtype=torch.float32)
    assert (back.config, back.family) == (canonical(PLAIN), "llama")
    for name, weight in decoder.state_dict().items():
        cast = weight.to(dtype) if dtype and weight.dim() > 1 else weight
        assert torch.equal(back.state_dict()[name], cast.float()), name


def test_norms_beside_bfloat16_keep_their_digits(tmp_path: Path) -> None:
    config = replace(
        PLAIN, norm_place="both", activation="gelu_tanh", qk_norm="head", tied_output=True
    )
    decoder = Decoder(replace(config, embedding_scale=8.0)).bfloat16()
    for name, parameter in decoder.named_parameters():
        if "norm" in name:  # Gemma's, which are 1 + w
            parameter.data = 1 + torch.randn(parameter.shape).bfloat16().float()
    write_gguf(decoder, tmp_path / "a.gguf", kind="BF16")
    file = read_gguf(tmp_path / "a.gguf")
    back = load_gguf(file)
    x = tokens()
    assert back.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(back(x), decoder(x))
    assert describe(file.path).held == sum(each.nbytes for each in back.parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_q8_0_is_held_in_blocks_or_expanded(tied: bool, tmp_path: Path) -> None:
    config = replace(PLAIN, tied_output=tied, attention_bias=True)
    decoder = Decoder(config)
    for name, parameter in decoder.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    write_gguf(decoder, tmp_path / "a.gguf", kind="Q8_0")
    packed, dense = (
        load_gguf(tmp_path / "a.gguf", hold=hold).eval() for hold in ("blocks", "dense")
    )
    assert isinstance(packed.embedding, PackedEmbedding)
    assert isinstance(packed.output, PackedLinear)
    assert (packed.output.blocks.data_ptr() == packed.embedding.blocks.data_ptr()) == tied
    for name, weight in decoder.named_parameters():
        module, _, part = name.rpartition(".")
        wanted = weight
        if weight.dim() > 1:
            rounded = gguf.quants.quantize(weight.detach().numpy(), gguf.GGMLQuantizationType.Q8_0)
            wanted = torch.from_numpy(
                gguf.quants.dequantize(rounded, gguf.GGMLQuantizationType.Q8_0)
            )
        for held in (packed, dense):
            assert torch.equal(getattr(held.get_submodule(module), part), wanted), name
    x = tokens()
    torch.testing.assert_close(packed(x), dense(x), rtol=1e-4, atol=1e-5)
    write_gguf(packed, tmp_path / "b.gguf", kind="F32")
    assert torch.equal(load_gguf(tmp_path / "b.gguf")(x), dense(x))


def test_a_tied_output_beside_packed_layers(tmp_path: Path) -> None:
    """Rows of 40 are float16, those of 96 blocks."""
    decoder = Decoder(replace(PLAIN, hidden_dim=40, tied_output=True))
    write_gguf(decoder, tmp_path / "a.gguf", kind="Q8_0")
    held = load_gguf(tmp_path / "a.gguf")
    assert isinstance(held.layers[0].ffn.down, PackedLinear)
    assert held.output.weight is held.embedding.weight
    kinds = {name: each.kind for name, each in read_gguf(tmp_path / "a.gguf").tensors.items()}
    expected = {
        "token_embd.weight": "F16",
        "blk.0.ffn_down.weight": "Q8_0",
        "output_norm.weight": "F32",
    }
    assert {name: kinds[name] for name in expected} == expected


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_read_by_the_package_and_by_transformers(kind: Any, tmp_path: Path) -> None:
    decoder = Decoder(PLAIN).eval()
    write_gguf(
        decoder,
        tmp_path / "a.gguf",
        kind=kind,
        tokenizer=byte_vocabulary(),
        chat_template="{{ x }}",
    )
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    types = {each.name: each.tensor_type.name for each in reader.tensors}
    assert types["blk.1.attn_q.weight"] == kind
    named = "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType[named]
    assert reader.fields["tokenizer.chat_template"].contents() == "{{ x }}"
    peer = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="a.gguf", dtype=torch.float32
    ).eval()
    x = tokens()
    with torch.no_grad():
        ours = load_gguf(tmp_path / "a.gguf", hold="dense", dtype=torch.float32).eval()
        assert (peer(x).logits - ours(x)).abs().max() <= 2e-5


def test_a_model_of_bytes_has_a_vocabulary_of_bytes(tmp_path: Path) -> None:
    write_gguf(Decoder(PLAIN), tmp_path / "a.gguf", tokenizer=byte_vocabulary())
    tokenizer = tokenizer_from_gguf(read_gguf(tmp_path / "a.gguf").metadata)
    for text in ("plain", "zażółć 中文 🙂\n\t\x00", ""):
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text


def test_the_name_by_which_llama_cpp_splits_texts_stays(tmp_path: Path) -> None:
    write_gguf(
        Decoder(PLAIN),
        tmp_path / "a.gguf",
        tokenizer=byte_vocabulary() | {"general.name": "Phi-3", "a": 1},
    )
    found = read_gguf(tmp_path / "a.gguf").metadata
    assert (found["general.name"], "a" in found) == ("Phi-3", False)


def test_llamas_queries_and_keys_are_stored_as_neighbours_biases_too(tmp_path: Path) -> None:
    decoder = Decoder(replace(PLAIN, attention_bias=True))
    torch.nn.init.normal_(decoder.layers[0].attention.key.bias)
    write_gguf(decoder, tmp_path / "a.gguf", kind="F32")
    order = torch.arange(16).view(2, 8).T.flatten()
    for part in ("weight", "bias"):
        for name, ours in (("q", "query"), ("k", "key")):
            rows = getattr(getattr(decoder.layers[0].attention, ours), part)
            wanted = torch.cat([head[order] for head in rows.split(16)])
            assert torch.equal(stored(tmp_path / "a.gguf", f"blk.0.attn_{name}.{part}"), wanted)


@pytest.mark.parametrize("parts", [{}, EXAONE])
def test_frequencies_of_llama_3_are_divided_by_the_factors(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    released = replace(PLAIN, **parts, rope_base=500000.0, rope_scaling=Llama3(8.0))
    write_gguf(Decoder(released), tmp_path / "a.gguf")
    factors = stored(tmp_path / "a.gguf", "rope_freqs.weight")
    assert (factors[0], factors[-1]) == (1, 8)
    assert load_gguf(tmp_path / "a.gguf").config.rope_scaling == Llama3(8.0)
    given = LongRope((1.0, 1.5) * 4, (1.0, 1.5) * 4, 2**30)
    decoder = Decoder(replace(PLAIN, rope_scaling=given)).eval()
    write_gguf(decoder, tmp_path / "a.gguf", kind="F32")
    x = tokens()
    assert torch.equal(load_gguf(tmp_path / "a.gguf")(x), decoder(x))
    assert load_gguf(tmp_path / "a.gguf").config.rope_scaling == given


def test_gemmas_norms_are_stored_plus_one(tmp_path: Path) -> None:
    seed = next(seed for seed in range(60) if gemma(seed, tmp_path) is not None)
    model = gemma(seed, tmp_path)
    for place, name in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
    ):
        norm = getattr(model.model.layers[0], place).weight
        assert torch.equal(stored(tmp_path / "a.gguf", f"blk.0.{name}.weight"), norm + 1)


def gemma(seed: int, directory: Path) -> Any:
    model = stored_model("gemma3_text", seed, directory / str(seed))
    try:
        write_gguf(load_decoder(directory / str(seed)), directory / "a.gguf", kind="F32")
    except ValueError:
        return None
    return model


OTHER_VOCABULARY = {"tokenizer.ggml.tokens": ["a", "b"]}


@pytest.mark.parametrize(
    ("parts", "options", "got"),
    [
        ({}, {"kind": "Q4_K"}, "kind = 'Q4_K'"),
        ({"sinks": True}, {}, "layers.0.attention.sinks"),
        ({"window": 8, "windowed_layers": "all"}, {}, "window = 8"),
        ({"ff_dim": 0}, {}, "ff_dim = 0"),
        ({"unrotated_layers": (0,)}, {}, "unrotated_layers"),
        ({"activation": "relu2", "gated": False}, {}, "relu2"),
        ({"attention_scale": 0.5}, {}, "attention_scale = 0.5"),
        ({"logit_cap": 15.0}, {}, "logit_cap = 15.0"),
        # Named is what the nearest architecture lacks: Qwen3's, then OLMo's.
        (EXAONE | {"num_layers": 64}, {}, "norm_place = 'after'"),
        (EXAONE | {"window": 8, "unrotated_layers": (0,)}, {}, "unrotated_layers"),
        ({"learned_positions": True}, {}, "learned_positions"),
        ({"embedding_norm": True}, {}, "embedding_norm"),
        (
            {"qk_norm": "head", "num_experts": 4, "activation": "silu", "window": 8},
            {},
            "window = 8",
        ),
        ({}, {"tokenizer": OTHER_VOCABULARY}, "2 tokens for a model of 256"),
        ({}, {"tokenizer": object()}, "tokenizer = <object"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_parts_that_no_family_has(
    parts: dict[str, Any], options: dict[str, Any], got: str, tmp_path: Path
) -> None:
    with refused(got):
        write_gguf(Decoder(replace(PLAIN, **parts)), tmp_path / "a.gguf", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e8])
def test_weights_that_a_kind_cannot_hold(kind: Any, weight: float, tmp_path: Path) -> None:
    decoder = Decoder(PLAIN)
    with torch.no_grad():
        decoder.layers[1].ffn.up.weight[3, 5] = weight
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")
    if weight == 1e8 and kind in ("F32", "BF16"):
        write_gguf(decoder, path, kind=kind, overwrite=True)
        return
    with refused("blk.1.ffn_up.weight"):
        write_gguf(decoder, path, kind=kind, overwrite=True)
    assert path.read_bytes() == b"old"
