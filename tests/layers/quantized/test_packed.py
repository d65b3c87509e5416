import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_gpt_oss import GPT_OSS_TINY
from torch import Tensor, nn

from glassformer.checkpoints import assembly
from glassformer.checkpoints.description import describe
from glassformer.errors import CheckpointError
from glassformer.generation.decoding import generate
from glassformer.kernels import plain
from glassformer.kernels.options import Clamp
from glassformer.kernels.packed import KINDS, encode
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.quantized.packed import PackedEmbedding, PackedExperts, PackedLinear
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.circuits import composition_scores, ov_circuit, qk_circuit, token_vectors
from glassformer.observe.edits import add, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch
from glassformer.observe.sweep import ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused


def draw(blocks: Tensor, kind: str, seed: int = 0) -> None:
    """Fill packed bytes at random; weights become about as large as those of a new layer of 256
    inputs.
    """
    blocks.random_(256, generator=torch.Generator().manual_seed(seed))
    row = KINDS[kind]
    cut = blocks.unflatten(-1, (-1, row.nbytes))
    for at, value in zip(
        row.halves, (0.01, -0.075) if row.block == 32 else (0.00005, 0.0003), strict=False
    ):
        cut[..., at : at + 2] = torch.tensor([value], dtype=torch.float16).view(torch.uint8)
    if kind == "Q8_0":
        cut[..., :2] = torch.tensor([0.001], dtype=torch.float16).view(torch.uint8)
    if kind == "MXFP4":
        cut[..., 0] = 122


def filled(layer: nn.Module, seed: int = 0) -> nn.Module:
    """With random blocks."""
    draw(layer.blocks, layer.kind, seed)
    return layer


def test_a_layer_computes_with_its_expanded_weights() -> None:
    layer = filled(PackedLinear(64, 5, "Q8_0", bias=True))
    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    table = filled(PackedEmbedding(7, 64, "Q8_0"))
    numbers = torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(table(numbers), table.weight[numbers])
    with pytest.raises(IndexError):
        table(torch.tensor([7]))


def test_blocks_survive_what_users_do_with_layers() -> None:
    layer = filled(PackedLinear(64, 5, "Q8_0"))
    expected = layer.weight
    for changed in (
        copy.deepcopy(layer),
        copy.deepcopy(layer).bfloat16(),
        copy.deepcopy(layer).double().eval(),
    ):
        assert torch.equal(changed.weight, expected)
    other = PackedLinear(64, 5, "Q8_0")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, expected)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    assert list(layer.state_dict()) == ["blocks"]
    assert not list(layer.parameters())
    assert "kind=Q8_0" in repr(layer)
    assert "5, 64, kind=Q8_0" in repr(PackedEmbedding(5, 64, "Q8_0"))


def test_widths_that_blocks_do_not_fill_are_refused() -> None:
    with refused("a width of 100", expected="256"):
        PackedLinear(100, 5, "Q4_K")
    with refused("IQ2_XS", expected=", ".join(KINDS)):
        PackedEmbedding(5, 64, "IQ2_XS")


def packed_and_expanded() -> tuple[Decoder, Decoder]:
    """A small decoder of Q4_1 and Q6_K blocks, its output the embedding, and the same with the
    matrices they hold.
    """
    sizes = {"vocab_size": 48, "hidden_dim": 256, "ff_dim": 256, "num_heads": 4, "head_dim": 64}
    dense = Decoder(
        DecoderConfig(num_layers=2, num_kv_heads=2, max_seq_len=32, tied_output=True, **sizes)
    ).eval()
    packed = copy.deepcopy(dense)
    for seed, (name, layer) in enumerate(dense.named_modules()):
        if isinstance(layer, nn.Linear) and name != "output":
            kind = "Q6_K" if name.endswith(("value", "down", "query")) else "Q4_1"
            blocks = filled(PackedLinear(layer.in_features, layer.out_features, kind), seed)
            packed.set_submodule(name, blocks)
            layer.weight.data = blocks.weight
    packed.embedding = filled(PackedEmbedding(48, 256, "Q6_K"))
    packed.output = PackedLinear(256, 48, "Q6_K")
    packed.output.blocks = packed.embedding.blocks
    dense.embedding.weight.data = packed.embedding.weight
    return packed.eval().requires_grad_(False), dense.requires_grad_(False)


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 5]


def gradients(model: Decoder, tokens: Tensor) -> Tensor:
    """With respect to activations of every kind that has one."""
    with (
        torch.enable_grad(),
        capture(model, what=("weights", "q", "residual", "ffn"), retain_grad=True) as seen,
    ):
        start = torch.zeros(1, 1, 256, requires_grad=True)
        with intervene(model, add("residual_before", start, layers=0)):
            metric(model(tokens)).sum().backward()
    found = [start.grad, *(record.grad for record in seen.records)]
    return torch.cat([grad.flatten() for grad in found if grad is not None])


def changed(model: Decoder, tokens: Tensor) -> Tensor:
    with intervene(model, zero("heads", layers=1, heads=2), zero("ffn", layers=0, queries=3)):
        return model(tokens)


def activations(model: Decoder, tokens: Tensor) -> Tensor:
    with capture(
        model, what=("weights", "q", "k", "v", "heads", "attention", "ffn", "residual", "logits")
    ) as seen:
        model(tokens)
    return torch.cat([record.values.flatten() for record in seen.records])


def circuits(model: Decoder, tokens: Tensor) -> Tensor:
    found = [
        *token_vectors(model),
        qk_circuit(model, 1, 3, distance=2).matrix,
        ov_circuit(model, 0, 1).matrix,
    ]
    return torch.cat(
        [each.flatten() for each in (*found, composition_scores(model, samples=2).k.nan_to_num())]
    )


OBSERVED: dict[str, Callable[[Decoder, Tensor], Tensor]] = {
    "logits": lambda model, tokens: model(tokens),
    "activations": activations,
    "intervention": changed,
    "gradients": gradients,
    "ablation sweep": lambda model, tokens: ablation_sweep(model, tokens, metric).effects,
    "patch sweep": lambda model, tokens: (
        patch_sweep(model, tokens, tokens.flip(1), metric, site="residual").effects
    ),
    "attribution": lambda model, tokens: attribution_sweep(model, None, tokens, metric).effects,
    "path": lambda model, tokens: (
        path_patch(model, tokens, tokens.flip(1), metric, Sender(0, 1), Receiver(1, 2, "q")).effects
    ),
    "lens": logit_lens,
    "direct logits": lambda model, tokens: direct_logits(model, tokens, 3, 5).values,
    "circuits": circuits,
}


@pytest.mark.parametrize("what", OBSERVED)
@torch.no_grad()
def test_what_observes_does_not_know_how_weights_are_stored(what: str) -> None:
    (packed, dense), tokens = packed_and_expanded(), torch.randint(48, (2, 9))
    got = OBSERVED[what](packed, tokens)
    wanted = OBSERVED[what](dense, tokens)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


# ---- mixtures of experts -------------------------------------------------------------------------


KINDS_OF_EXPERTS = [
    {"gate": "Q4_K", "up": "Q4_K", "down": "Q6_K"},
    {"gate": "Q8_0", "up": "Q4_1", "down": "MXFP4"},
]
CLAMPS = [None, Clamp(alpha=1.0, limit=0.5)]


def mixture(kinds: dict[str, str], **options: Any) -> tuple[PackedExperts, MixtureOfExperts]:
    """With random blocks, and the dense mixture of the same weights."""
    sizes = {"hidden_dim": 256, "ff_dim": 512, "num_experts": 4, "top_k": 2, **options}
    packed = PackedExperts(**sizes, kinds=kinds)
    for name, kind in kinds.items():
        draw(getattr(packed, f"{name}_blocks"), kind, seed=len(name))
    for weight in packed.parameters():
        nn.init.normal_(weight, std=0.3)
    dense = MixtureOfExperts(**sizes)
    state = packed.state_dict()
    for name in kinds:
        state[name] = packed.packed_weights()[name].dense()
        del state[f"{name}_blocks"]
    dense.load_state_dict(state)
    return packed, dense


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kinds", KINDS_OF_EXPERTS)
@pytest.mark.parametrize("tokens", [1, 3, 80])
def test_packed_experts_are_those_of_the_dense_mixture(
    kinds: dict[str, str], bias: bool, clamp: Clamp | None, tokens: int
) -> None:
    packed, dense = mixture(kinds, bias=bias, clamp=clamp)
    x = torch.randn(1, tokens, 256)
    with torch.no_grad():
        expected = copy.deepcopy(dense).double()(x.double())
        scale = float(expected.abs().max())
        assert scale > 0.01
        assert float((packed(x) - expected).abs().max()) <= 1e-5 * scale
        with plain():
            assert float((packed(x) - expected).abs().max()) <= 1e-5 * scale
        narrow = copy.deepcopy(packed).bfloat16()
        weights, indices, _ = packed.router.choose(x[0])
        rounded = narrow.mix(x[0].bfloat16(), weights.bfloat16(), indices)
        assert rounded.dtype == torch.bfloat16
        assert float((rounded - expected[0]).abs().max()) <= 0.03 * scale
        assert torch.equal(packed.mix(x[0], weights, indices).view(x.shape), packed(x))


def test_gradients_of_any_order_pass_through_packed_experts() -> None:
    packed, dense = mixture(KINDS_OF_EXPERTS[0], bias=True)
    x = torch.randn(5, 256, dtype=torch.float64)
    packed.double()
    dense.double()

    def derivatives(module: nn.Module) -> list[Tensor]:
        given = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(module(given).pow(2).sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), given)
        return [first.detach(), second]

    torch.testing.assert_close(derivatives(packed), derivatives(dense))
    jacobian = torch.func.jacrev(lambda row: packed(row[None])[0])(x[0])
    torch.testing.assert_close(jacobian, torch.func.jacrev(lambda row: dense(row[None])[0])(x[0]))
    packed(x).sum().backward()
    assert packed.router.score.weight.grad is not None


def test_experts_that_no_token_chose_are_not_read() -> None:
    packed, _ = mixture(KINDS_OF_EXPERTS[0])
    tokens = torch.randn(7, 256)
    indices = torch.tensor([[0, 2]]).expand(7, 2)
    weights = torch.rand(7, 2)
    expected = packed.mix(tokens, weights, indices)
    for name, buffer in packed.named_buffers():
        buffer[[1, 3]] = 255
        assert getattr(packed, name) is buffer
    assert torch.equal(packed.mix(tokens, weights, indices), expected)


@pytest.mark.usefixtures("library")
def test_a_token_is_independent_of_the_batch() -> None:
    packed, _ = mixture(KINDS_OF_EXPERTS[0], bias=True)
    tokens = torch.randn(9, 256)
    indices = torch.tensor([[0, 2], [1, 2], [3, 0]]).repeat(3, 1)
    weights = torch.rand(9, 2)
    together = packed.mix(tokens, weights, indices)
    for rows in (slice(0, 1), slice(4, 5), slice(3, 8)):
        alone = packed.mix(tokens[rows], weights[rows], indices[rows])
        torch.testing.assert_close(alone, together[rows], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(256,), (3, 256), (0, 256), (2, 0, 256)])
def test_leading_axes_of_packed_experts_are_free(shape: tuple[int, ...]) -> None:
    packed, _ = mixture(KINDS_OF_EXPERTS[0])
    assert packed(torch.randn(shape)).shape == shape
    assert packed.to("meta")(torch.empty(shape, device="meta")).shape == shape


@pytest.mark.slow
@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("tokens", [1, 6])
def test_one_graph_holds_packed_experts(tokens: int) -> None:
    packed, _ = mixture(KINDS_OF_EXPERTS[0], bias=True, clamp=Clamp())
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    x = torch.randn(tokens, 256)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), packed(x), rtol=0, atol=0)
    torch.testing.assert_close(compiled(x), packed(x), rtol=1e-4, atol=1e-4)


def test_packed_experts_under_autocast_and_in_copies() -> None:
    packed, dense = mixture(KINDS_OF_EXPERTS[0])
    x = torch.randn(20, 256)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert packed(x).dtype == dense(x).dtype == torch.bfloat16
    other = copy.deepcopy(packed)
    other.load_state_dict(packed.state_dict())
    assert torch.equal(other(x), packed(x))
    assert "gate=Q4_K" in repr(packed)
    assert {
        name: weight.kind for name, weight in packed.packed_weights().items()
    } == KINDS_OF_EXPERTS[0]
    assert {name: weight.shape for name, weight in packed.packed_weights().items()} == {
        name: list(getattr(dense, name).shape) for name in ("gate", "up", "down")
    }


def test_widths_that_blocks_of_experts_do_not_fill_are_refused() -> None:
    with refused("a width of 96", expected="256"):
        PackedExperts(256, 96, kinds=KINDS_OF_EXPERTS[0])


# ---- a gpt-oss whose linear layers are packed when it is loaded ----------------------------------


@torch.no_grad()
def test_a_decoder_in_8_bits(directory: Path) -> None:
    eight = Decoder.from_pretrained(directory, pack="Q8_0").eval()
    exact = Decoder.from_pretrained(directory, dtype=torch.float32).eval()
    names = {name for name, module in eight.named_modules() if isinstance(module, PackedLinear)}
    attention = {
        f"layers.{i}.attention.{name}"
        for i in range(4)
        for name in ("query", "key", "value", "output")
    }
    assert names == {"output", *attention}
    tokens = torch.randint(GPT_OSS_TINY.vocab_size, (2, 30))
    expected = exact(tokens)
    assert (eight(tokens).float() - expected).square().mean().sqrt() < 0.1 * expected.std()
    wide = Decoder.from_pretrained(directory, pack="Q8_0", dtype=torch.float32).eval()
    for name in names:  # the layers are those of the checkpoint, encoded
        layer = wide.get_submodule(name)
        original = exact.get_submodule(name)
        assert torch.equal(layer.blocks, encode("Q8_0", original.weight))
        atol = original.weight.abs().max().item() / 126
        torch.testing.assert_close(layer.weight, original.weight, rtol=0, atol=atol)
    (text,) = generate(eight, [[1, 2, 3]], max_new_tokens=5)
    assert len(text) == 5
    held = sum(each.nbytes for each in eight.state_dict().values())
    assert held == describe(directory).memory(2, packed=True, pack="Q8_0")


@torch.no_grad()
@pytest.mark.parametrize("layout", ["llama", "gpt2", "glassformer"])
def test_other_families_hold_their_linear_layers_so(tmp_path: Path, layout: str) -> None:
    sizes = {
        "num_layers": 2,
        "hidden_dim": 128,
        "ff_dim": 256,
        "num_heads": 4,
        "head_dim": 32,
        "tied_output": True,
    }
    old = {"norm": "layer", "gated": False, "activation": "gelu_tanh", "learned_positions": True}
    biases = {"attention_bias": True, "ff_bias": True}
    config = DecoderConfig(
        97, **sizes, **(old | biases if layout == "gpt2" else {"num_kv_heads": 2})
    )
    Decoder(config).bfloat16().save_pretrained(tmp_path / "model", layout=layout)
    held = Decoder.from_pretrained(tmp_path / "model", pack="Q8_0", dtype=torch.float32).eval()
    stored = Decoder.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    inside = 6 if layout == "gpt2" else 7
    assert sum(isinstance(module, PackedLinear) for module in held.modules()) == 2 * inside
    tokens = torch.arange(30)[None]
    logits = stored(torch.arange(30)[None])
    away = (held(tokens) - logits).square().mean().sqrt() / logits.std()
    assert 1e-4 < away < 0.03
    sizes = [
        each.nbytes
        for name, each in held.bfloat16().state_dict().items()
        if name != "output.weight"
    ]
    assert describe(tmp_path / "model").memory(2, pack="Q8_0") == pytest.approx(
        sum(sizes), rel=0.05
    )


def test_packed_weights_are_saved_expanded_where_nothing_is_rounded(
    directory: Path, tmp_path: Path
) -> None:
    narrow = Decoder.from_pretrained(directory, pack="Q8_0")
    with refused(got="torch.bfloat16 with packed weights"):
        narrow.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    wide = Decoder.from_pretrained(directory, pack="Q8_0", dtype=torch.float32)
    wide.save_pretrained(tmp_path / "saved")
    again = Decoder.from_pretrained(tmp_path / "saved")
    assert torch.equal(again.output.weight, wide.output.weight)


def test_refusals(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(got="int4", expected=r"one of \('Q8_0',\) or None"):
        Decoder.from_pretrained(directory, pack="int4")
    config = DecoderConfig(8, num_layers=1, hidden_dim=48, ff_dim=32, num_heads=2, head_dim=16)
    Decoder(config).save_pretrained(tmp_path / "narrow")
    with refused(got="a width of 48"):
        Decoder.from_pretrained(tmp_path / "narrow", pack="Q8_0")
    decoder = Decoder(
        DecoderConfig(8, num_layers=1, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=16)
    )
    nn.init.constant_(decoder.output.weight, 1e30)
    decoder.save_pretrained(tmp_path / "large")
    with refused(got="output.weight of .* with weights beyond Q8_0", error=CheckpointError):
        Decoder.from_pretrained(tmp_path / "large", pack="Q8_0")
    size = sum(
        each.nbytes
        for each in Decoder.from_pretrained(directory, pack="Q8_0").state_dict().values()
    )
    monkeypatch.setattr(assembly, "available_memory", lambda: size)
    Decoder.from_pretrained(directory, pack="Q8_0")
    monkeypatch.setattr(assembly, "available_memory", lambda: size - 1)
    with refused(got="whose weights take", error=CheckpointError):
        Decoder.from_pretrained(directory, pack="Q8_0")
