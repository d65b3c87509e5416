from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.kernels import mxfp4 as kernel_module
from glassformer.kernels.mxfp4 import Mxfp4Experts
from glassformer.kernels.options import Clamp
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.quantized import mxfp4
from glassformer.layers.quantized.packed_experts import PackedMixture
from refusals import refused

CLAMPS = [None, Clamp(), Clamp(alpha=1.0, limit=0.5)]


def make(**options: Any) -> PackedMixture:
    """Random codes and scales, so that every value of the format occurs."""
    mixture = PackedMixture(
        **{"hidden_dim": 64, "ff_dim": 32, "num_experts": 4, "top_k": 2} | options
    )
    for name, buffer in mixture.named_buffers():
        if name.endswith("blocks"):
            buffer.random_(0, 256)
        elif name.endswith("scales"):
            buffer.random_(120, 126)
    for weight in mixture.parameters():
        nn.init.normal_(weight, std=0.3)
    return mixture


def exactly(mixture: PackedMixture, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """In float64, by the dense mixture, which its own tests compare with a loop over tokens."""
    return mixture.unpack(torch.float64).mix(x.double(), weights.double(), indices).detach()


SIZES = {
    "hidden_dim": st.sampled_from([32, 96]),
    "ff_dim": st.sampled_from([32, 160]),
    "num_experts": st.integers(1, 6),
    "bias": st.booleans(),
    "clamp": st.sampled_from(CLAMPS),
}
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


@given(
    sizes=st.fixed_dictionaries(SIZES),
    tokens=st.integers(1, 9),
    dtype=DTYPES,
    seed=st.integers(0, 100),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_it_is_the_dense_mixture(
    path: str, sizes: dict[str, Any], tokens: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    mixture = make(**sizes, top_k=1 + seed % sizes["num_experts"]).to(dtype)
    x = torch.randn(1, tokens, sizes["hidden_dim"]).to(dtype)
    with torch.no_grad():
        out = mixture(x)
        weights, indices, _ = mixture.router.choose(x[0])
    assert out.dtype == dtype
    expected = exactly(mixture, x[0], weights, indices)
    # In bfloat16 the activation and the output are rounded to 8 bits.
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype] * float(
        expected.abs().max() + 1
    )
    torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=near)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_is_no_further_from_the_truth_than_expanded_weights(
    path: str, tokens: int, dtype: torch.dtype
) -> None:
    mixture = make(hidden_dim=512, ff_dim=512, num_experts=3, bias=True, clamp=Clamp()).to(dtype)
    for scales in (mixture.gate_up_scales, mixture.down_scales):
        scales.random_(117, 121)
    dense = mixture.unpack(dtype)
    x = torch.randn(tokens, 512).to(dtype)
    with torch.no_grad():
        weights, indices, _ = mixture.router.choose(x)
        ours = mixture(x).double()
        theirs = dense(x).double()
    truth = exactly(mixture, x, weights, indices)
    assert float((ours - truth).norm()) <= 1.2 * float((theirs - truth).norm())
    assert float((ours - truth).norm()) <= 4 * torch.finfo(dtype).eps * float(truth.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("library")
def test_with_the_kernel_a_token_is_independent_of_the_batch(dtype: torch.dtype) -> None:
    """So decoding with a cache gives the same bits as decoding without one."""
    mixture = make(hidden_dim=512, ff_dim=256, bias=True, clamp=Clamp()).to(dtype)
    assert mixture.down_scales[0].numel() >= kernel_module._LEAST_GROUPS
    x = torch.randn(9, 512).to(dtype)
    indices = torch.tensor([[0, 2], [1, 2], [3, 0]]).repeat(3, 1)
    weights = torch.rand(9, 2).to(dtype)

    def mixed(rows: slice) -> Tensor:
        return mixture.mix(x[rows], weights[rows], indices[rows])

    with torch.no_grad():
        together = mixed(slice(None))
        for rows in (slice(0, 1), slice(4, 5), slice(3, 8)):
            torch.testing.assert_close(mixed(rows), together[rows], rtol=0, atol=0)


def test_many_tokens_go_through_in_pieces(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = make(bias=True)
    x = torch.randn(2, 11, 64)
    with torch.no_grad():
        whole = mixture(x)
        monkeypatch.setattr(kernel_module, "_MOST_TOKENS", 5)
        torch.testing.assert_close(mixture(x), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_path_of_one_token_on_other_devices(bias: bool, clamp: Clamp | None) -> None:
    """Its operators are the same on the CPU, which does not take this path."""
    mixture = make(bias=bias, clamp=clamp, num_experts=5, top_k=3)
    x = torch.randn(1, 64)
    with torch.no_grad():
        weights, indices, _ = mixture.router.choose(x)
        tensors = {name: getattr(mixture, name) for name in Mxfp4Experts._fields}
        got = kernel_module._mix_one_token(Mxfp4Experts(**tensors), x, weights[0], indices[0])
        torch.testing.assert_close(got, mixture(x), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_on_a_gpu(tokens: int) -> None:
    mixture = make(bias=True, clamp=Clamp())
    x = torch.randn(tokens, 64)
    with torch.no_grad():
        expected = mixture(x)
        got = mixture.cuda()(x.cuda())
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("tokens", [1, 2, 50])
@pytest.mark.parametrize("expert", [0, 2, 3])
def test_an_expert_that_was_not_chosen_is_not_read(path: str, tokens: int, expert: int) -> None:
    """Its weights would give NaN."""
    if path == "plain":
        pytest.skip("the definition reads all experts")
    mixture = make(bias=True)
    with torch.no_grad():
        mixture.router.score.bias[expert] = -1e4
        mixture.gate_up_scales[expert] = mixture.down_scales[expert] = mxfp4.NAN_SCALE
        out = mixture(torch.randn(tokens, 64))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 5, 64), (0, 64), (2, 0, 64)])
def test_leading_axes_are_free(path: str, shape: tuple[int, ...]) -> None:
    mixture = make(bias=True)
    x = torch.randn(shape)
    with torch.no_grad():
        out = mixture(x)
        each = [mixture(row) for row in x.reshape(-1, 64)]
    assert out.shape == shape
    torch.testing.assert_close(
        out.view(-1, 64), torch.stack(each) if each else x.view(0, 64), rtol=1e-5, atol=1e-4
    )


def test_a_dense_mixture_packs_and_unpacks() -> None:
    dense = MixtureOfExperts(64, 96, 4, 2, bias=True, clamp=Clamp()).eval()
    for weight in dense.parameters():
        nn.init.normal_(weight, std=0.2)
    packed = PackedMixture.pack(dense)
    assert not packed.training
    again = packed.unpack(torch.float32)
    # as gpt-oss stores them
    rows = mxfp4.decode(packed.gate_up_blocks, packed.gate_up_scales, torch.float32)
    assert torch.equal(rows[:, 0::2], again.gate)
    assert torch.equal(rows[:, 1::2], again.up)
    for name in ("gate", "up", "down"):
        rounded = mxfp4.decode(*mxfp4.encode(getattr(dense, name)), torch.float32)
        torch.testing.assert_close(getattr(again, name).data, rounded, rtol=0, atol=0)
        torch.testing.assert_close(
            getattr(again, f"{name}_bias").data, getattr(dense, f"{name}_bias").data
        )
    twice = PackedMixture.pack(again).state_dict()
    assert twice.keys() == packed.state_dict().keys()
    for name, tensor in packed.state_dict().items():
        torch.testing.assert_close(twice[name], tensor, rtol=0, atol=0)
    x = torch.randn(20, 64)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), again(x), rtol=1e-5, atol=1e-4)
    again(x).sum().backward()  # what is unpacked can be trained
    assert all(weight.grad is not None for weight in again.parameters())
    for one, other in ((dense, packed), (packed, again)):  # what changes the one leaves the other
        assert not {each.data_ptr() for each in one.parameters()} & {
            each.data_ptr() for each in other.parameters()
        }


def test_what_it_holds() -> None:
    """The names and shapes of gpt-oss's checkpoints; a quarter of bfloat16's bytes, and a sixteenth
    more for scales.
    """
    mixture = PackedMixture(64, 96, 5, 2, bias=True).to(torch.bfloat16)
    shapes = {name: (tuple(each.shape), each.dtype) for name, each in mixture.state_dict().items()}
    assert shapes == {
        "router.score.weight": ((5, 64), torch.bfloat16),
        "router.score.bias": ((5,), torch.bfloat16),
        "gate_up_blocks": ((5, 192, 2, 16), torch.uint8),
        "gate_up_scales": ((5, 192, 2), torch.uint8),
        "gate_up_bias": ((5, 192), torch.bfloat16),
        "down_blocks": ((5, 64, 3, 16), torch.uint8),
        "down_scales": ((5, 64, 3), torch.uint8),
        "down_bias": ((5, 64), torch.bfloat16),
    }
    dense = sum(weight.numel() for weight in (MixtureOfExperts(64, 96, 5, 2).gate,) * 3)
    packed = sum(each.nbytes for name, each in mixture.named_buffers())
    assert packed == dense * 17 // 32
    assert {name for name, each in mixture.named_parameters() if each.requires_grad} == {
        "router.score.weight",
        "router.score.bias",
    }
    with torch.no_grad():
        assert bool((mixture(torch.randn(3, 64).bfloat16()) == 0).all())  # until weights are loaded


def test_a_backward_pass_is_refused() -> None:
    mixture = make()
    x = torch.randn(3, 64, requires_grad=True)
    out = mixture(x)  # looking is allowed
    with refused("backward pass through packed experts"):
        out.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(mixture(x), out.detach(), rtol=0, atol=0)


def test_transforms_are_those_of_the_dense_mixture() -> None:
    packed = make(bias=True)
    dense = packed.unpack(torch.float32)
    x = torch.randn(3, 64)

    def gradients(mixture: nn.Module) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: mixture(row[None]).square().sum()))(x)

    torch.testing.assert_close(gradients(packed), gradients(dense), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("tokens", [1, 6])
def test_one_graph_holds_it(tokens: int) -> None:
    mixture = make(bias=True, clamp=Clamp())
    compiled = torch.compile(mixture, backend="aot_eager", fullgraph=True)
    x = torch.randn(tokens, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), mixture(x), rtol=0, atol=0)


def test_under_autocast_it_computes_in_that_dtype() -> None:
    mixture = make()
    x = torch.randn(20, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = mixture(x)
    assert low.dtype == torch.bfloat16
    with torch.no_grad():
        full = mixture(x)
    close = (low.float() - full).abs().amax(-1) < 0.05 * full.abs().max()
    assert close.float().mean() > 0.8  # rounding may swap two nearly equal scores


def test_widths_that_groups_do_not_fill_are_refused() -> None:
    for name, width in (("hidden_dim", 48), ("ff_dim", 33)):
        with refused(f"{name} = {width}"):
            PackedMixture(**{"hidden_dim": 64, "ff_dim": 32, name: width})
