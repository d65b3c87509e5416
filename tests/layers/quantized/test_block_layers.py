import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from glassformer.kernels.blocks import KINDS
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.circuits import composition_scores, ov_circuit, qk_circuit, token_vectors
from glassformer.observe.edits import add, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch
from glassformer.observe.sweep import ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused


def filled(layer: nn.Module, seed: int = 0) -> nn.Module:
    """With random blocks whose weights are about as large as those of a new layer of 256 inputs."""
    generator, kind = torch.Generator().manual_seed(seed), KINDS[layer.kind]
    layer.blocks.random_(256, generator=generator)
    for at, value in zip(kind.halves, (0.01, -0.075) if kind.block == 32 else (0.00005,), strict=False):
        cut = layer.blocks.unflatten(1, (-1, kind.nbytes))[..., at : at + 2]
        cut[:] = torch.tensor([value], dtype=torch.float16).view(torch.uint8)
    return layer


def test_a_layer_computes_with_its_expanded_weights() -> None:
    layer, x = filled(BlockLinear(64, 5, "Q8_0", bias=True)), torch.randn(2, 3, 64)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    table, numbers = filled(BlockEmbedding(7, 64, "Q8_0")), torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(table(numbers), table.weight[numbers])
    with pytest.raises(IndexError):
        table(torch.tensor([7]))


def test_blocks_survive_what_users_do_with_layers() -> None:
    layer = filled(BlockLinear(64, 5, "Q8_0"))
    expected = layer.weight
    for changed in (copy.deepcopy(layer), copy.deepcopy(layer).bfloat16(), copy.deepcopy(layer).double().eval()):
        assert torch.equal(changed.weight, expected)
    other = BlockLinear(64, 5, "Q8_0")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, expected)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    assert list(layer.state_dict()) == ["blocks"]
    assert not list(layer.parameters())
    assert "kind=Q8_0" in repr(layer)
    assert "5, 64, kind=Q8_0" in repr(BlockEmbedding(5, 64, "Q8_0"))


def test_widths_that_blocks_do_not_fill_are_refused() -> None:
    with refused("a width of 100", expected="256"):
        BlockLinear(100, 5, "Q4_K")
    with refused("IQ2_XS", expected=", ".join(KINDS)):
        BlockEmbedding(5, 64, "IQ2_XS")


def packed_and_expanded() -> tuple[Decoder, Decoder]:
    """A small decoder of Q4_1 and Q6_K blocks, its output the embedding, and the same with the matrices they hold."""
    sizes = {"vocab_size": 48, "hidden_dim": 256, "ff_dim": 256, "num_heads": 4, "head_dim": 64}
    dense = Decoder(DecoderConfig(num_layers=2, num_kv_heads=2, max_seq_len=32, tied_output=True, **sizes)).eval()
    packed = copy.deepcopy(dense)
    for seed, (name, layer) in enumerate(dense.named_modules()):
        if isinstance(layer, nn.Linear) and name != "output":
            kind = "Q6_K" if name.endswith(("value", "down", "query")) else "Q4_1"
            blocks = filled(BlockLinear(layer.in_features, layer.out_features, kind), seed)
            packed.set_submodule(name, blocks)
            layer.weight.data = blocks.weight
    packed.embedding = filled(BlockEmbedding(48, 256, "Q6_K"))
    packed.output = BlockLinear(256, 48, "Q6_K")
    packed.output.blocks = packed.embedding.blocks
    dense.embedding.weight.data = packed.embedding.weight
    return packed.eval().requires_grad_(False), dense.requires_grad_(False)


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 3] - logits[:, -1, 5]


def gradients(model: Decoder, tokens: Tensor) -> Tensor:
    """With respect to activations of every kind that has one."""
    with torch.enable_grad(), capture(model, what=("weights", "q", "residual", "ffn"), retain_grad=True) as seen:
        start = torch.zeros(1, 1, 256, requires_grad=True)
        with intervene(model, add("residual_before", start, layers=0)):
            metric(model(tokens)).sum().backward()
    found = [start.grad, *(record.grad for record in seen.records)]
    return torch.cat([grad.flatten() for grad in found if grad is not None])


def changed(model: Decoder, tokens: Tensor) -> Tensor:
    with intervene(model, zero("heads", layers=1, heads=2), zero("ffn", layers=0, queries=3)):
        return model(tokens)


def activations(model: Decoder, tokens: Tensor) -> Tensor:
    with capture(model, what=("weights", "q", "k", "v", "heads", "attention", "ffn", "residual", "logits")) as seen:
        model(tokens)
    return torch.cat([record.values.flatten() for record in seen.records])


def circuits(model: Decoder, tokens: Tensor) -> Tensor:
    found = [*token_vectors(model), qk_circuit(model, 1, 3, distance=2).matrix, ov_circuit(model, 0, 1).matrix]
    return torch.cat([each.flatten() for each in (*found, composition_scores(model, samples=2).k.nan_to_num())])


OBSERVED: dict[str, Callable[[Decoder, Tensor], Tensor]] = {
    "logits": lambda model, tokens: model(tokens),
    "activations": activations,
    "intervention": changed,
    "gradients": gradients,
    "ablation sweep": lambda model, tokens: ablation_sweep(model, tokens, metric).effects,
    "patch sweep": lambda model, tokens: patch_sweep(model, tokens, tokens.flip(1), metric, site="residual").effects,
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
    got, wanted = OBSERVED[what](packed, tokens), OBSERVED[what](dense, tokens)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())
