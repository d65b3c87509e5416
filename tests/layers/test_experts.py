import copy
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer import kernels
from glassformer.kernels.options import Clamp
from glassformer.layers.experts import (
    MixtureOfExperts,
    Router,
    Routing,
    balance_loss,
    collect_routing,
)
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from refusals import refused


def expert_output(moe: MixtureOfExperts, expert: int, token: Tensor) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        bias = getattr(moe, f"{name}_bias")
        out = getattr(moe, name)[expert] @ x
        return out if bias is None else out + bias[expert]

    gate = linear("gate", token)
    up = linear("up", token)
    if moe.clamp is None:
        inside = gate * torch.sigmoid(gate) * up
    else:
        gate = gate.clamp(max=moe.clamp.limit)
        up = up.clamp(-moe.clamp.limit, moe.clamp.limit)
        inside = gate * torch.sigmoid(moe.clamp.alpha * gate) * (up + 1)
    return linear("down", inside)


def one_token_at_a_time(moe: MixtureOfExperts, x: Tensor) -> tuple[Tensor, list[int]]:
    """The definition: each token chooses, weighs by a softmax over the chosen scores, and adds up.
    And the load.
    """
    outputs = []
    load = [0] * moe.num_experts
    for token in x.reshape(-1, x.shape[-1]):
        scores = moe.router.score(token)
        chosen = scores.argsort(descending=True)[: moe.top_k].tolist()
        weights = torch.softmax(torch.stack([scores[e] for e in chosen]), 0)
        outputs.append(
            sum(w * expert_output(moe, e, token) for w, e in zip(weights, chosen, strict=True))
        )
        for e in chosen:
            load[e] += 1
    return torch.stack(outputs).view(x.shape), load


def make(**options: Any) -> MixtureOfExperts:
    moe = MixtureOfExperts(
        **{"hidden_dim": 8, "ff_dim": 12, "num_experts": 4, "top_k": 2} | options
    )
    for name, weight in moe.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    return moe


SIZES = {
    "hidden_dim": st.sampled_from([1, 6, 8, 16]),
    "ff_dim": st.sampled_from([1, 10, 12, 16]),
    "num_experts": st.integers(1, 6),
    "bias": st.booleans(),
    "clamp": st.sampled_from([None, Clamp(), Clamp(alpha=1.0, limit=0.5)]),
}


@given(
    sizes=st.fixed_dictionaries(SIZES),
    tokens=st.integers(1, 9) | st.just(40),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_loop_over_tokens(sizes: dict[str, Any], tokens: int, seed: int) -> None:
    """Outputs, loads and gradients; widths that fill the vector units of the machine and widths
    that do not.
    """
    torch.manual_seed(seed)
    moe = make(**sizes, top_k=1 + seed % sizes["num_experts"])
    x = torch.randn(1, tokens, sizes["hidden_dim"], requires_grad=True)
    upstream = torch.randn_like(x)
    inputs = [x, *moe.parameters()]
    theirs, load = one_token_at_a_time(moe, x)
    with collect_routing(moe) as routings:
        ours = moe(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert load_of(routings) == load
    ours_grad = torch.autograd.grad(ours, inputs, upstream, materialize_grads=True)
    theirs_grad = torch.autograd.grad(theirs, inputs, upstream, materialize_grads=True)
    for got, expected in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(moe(x), theirs, rtol=1e-5, atol=1e-5)


def test_under_autocast_it_is_near_float32() -> None:
    moe = make(hidden_dim=32, ff_dim=48)
    x = torch.randn(2, 20, 32)
    with torch.autocast("cpu", torch.bfloat16):
        low = moe(x)
    full = moe(x)
    close = (low.float() - full).abs().amax(-1) < 0.1
    assert close.float().mean() > 0.9
    low.float().sum().backward()
    gradients = [weight.grad for weight in moe.parameters()]
    assert all(
        each is not None and each.isfinite().all() and each.dtype == torch.float32
        for each in gradients
    )


def load_of(routings: list[Routing]) -> list[int]:
    """How many tokens chose each expert of the only mixture that ran."""
    (routing,) = routings
    return routing.indices.flatten().bincount(minlength=routing.scores.shape[-1]).tolist()


def poisoned(moe: MixtureOfExperts, expert: int) -> MixtureOfExperts:
    """Nobody chooses this expert, and whoever computed with it would get NaN."""
    with torch.no_grad():
        moe.router.score.bias[expert] = -1e4
        for name in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias"):
            getattr(moe, name)[expert] = float("nan")
    return moe


@pytest.mark.parametrize("tokens", [1, 2, 50])
@pytest.mark.parametrize("expert", [0, 2, 3])
@pytest.mark.usefixtures("fast_forms")
def test_an_expert_that_nobody_chose_is_never_run(tokens: int, expert: int) -> None:
    moe = poisoned(make(bias=True), expert)
    x = torch.randn(1, tokens, 8, requires_grad=True)
    with collect_routing(moe) as routings:
        out = moe(x)
    assert load_of(routings)[expert] == 0
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad.isfinite().all()
    for name, weight in moe.named_parameters():
        assert weight.grad.isfinite().all(), name
        if not name.startswith("router"):
            assert (weight.grad[expert] == 0).all(), name
    with torch.no_grad():
        assert moe(x).isfinite().all()


@pytest.mark.usefixtures("fast_forms")
def test_an_expert_runs_on_just_the_tokens_that_chose_it() -> None:
    """Only the token that chose the poisoned expert is poisoned."""
    moe = make(top_k=1)
    x = torch.randn(30, 8)
    chosen = moe.router(x)[1][:, 0]
    with torch.no_grad():
        moe.up[2] = float("nan")
    assert 0 < (chosen == 2).sum() < 30
    assert torch.equal(moe(x).isnan().any(-1), chosen == 2)


def test_the_same_input_gives_the_same_bits() -> None:
    moe = make(hidden_dim=32, ff_dim=64)
    x = torch.randn(4, 50, 32)
    first = moe(x)
    for _ in range(3):
        assert torch.equal(moe(x), first)


@pytest.mark.parametrize("packed", [False, True])
def test_an_expert_given_twice_counts_twice(packed: bool) -> None:
    dense = MixtureOfExperts(32, 32, 4).to(torch.float64)
    moe = PackedMixture.pack(dense) if packed else dense
    x = torch.randn(3, 32, dtype=torch.float64)
    indices = torch.tensor([[0, 0], [1, 2], [3, 3]])
    weights = torch.tensor([[0.25, 0.5], [1.0, 2.0], [-1.0, 3.0]], dtype=torch.float64)
    each = [moe.mix(x, weights[:, k, None], indices[:, k, None]) for k in range(2)]
    torch.testing.assert_close(moe.mix(x, weights, indices), each[0] + each[1])
    with kernels.plain():
        torch.testing.assert_close(moe.mix(x, weights, indices), each[0] + each[1])


@pytest.mark.parametrize("packed", [False, True])
def test_hooks_of_a_router_change_the_mixture(packed: bool) -> None:
    model = Decoder(DecoderConfig(9, 1, 32, 32, 1, 32, num_experts=4))
    model.layers[0].ffn = moe = (
        PackedMixture.pack(model.layers[0].ffn) if packed else model.layers[0].ffn
    )
    moe.router.register_forward_hook(lambda module, args, output: (0 * output[0], output[1]))
    assert not moe(torch.randn(3, 2, 32)).any()
    with refused("whose router has hooks"), capture(model, what="choices"):
        model(torch.tensor([[1]]))


def test_weights_without_memory_give_no_scores() -> None:
    with refused("an input on cpu for weights on meta"):
        Router(4, 3, 1).to("meta")(torch.ones(1, 4))


def test_leading_axes_are_free() -> None:
    moe = make()
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(moe(x), moe(x.view(30, 8)).view(x.shape))
    torch.testing.assert_close(moe(x[0, 0, 0]), moe(x)[0, 0, 0], rtol=1e-5, atol=1e-6)


def test_every_call_is_collected_and_leaves_nothing_on_the_module() -> None:
    moe = make(num_experts=5, top_k=3)
    before = set(vars(moe))
    with collect_routing(moe) as routings:
        moe(torch.randn(7, 11, 8))
        moe(torch.randn(2, 8))
    moe(torch.randn(2, 8))
    assert [(*routing.scores.shape, *routing.indices.shape) for routing in routings] == [
        (77, 5, 77, 3),
        (2, 5, 2, 3),
    ]
    assert set(vars(moe)) == before


def test_only_the_model_that_was_named_is_collected_in_the_thread_that_asked() -> None:
    moe = make()
    other = make()
    x = torch.randn(7, 8)
    with collect_routing(moe) as outer, collect_routing(nn.Sequential(moe)) as inner:
        copied = copy.deepcopy(moe)
        for module in (moe, other, copied):
            module(x)
        thread = threading.Thread(target=lambda: moe(x))
        thread.start()
        thread.join()
    assert len(outer) == len(inner) == 1
    assert torch.equal(outer[0].indices, inner[0].indices)
    assert moe.router.collectors == copied.router.collectors == ()


def test_blocks_that_end_in_another_order_leave_the_collectors_of_others() -> None:
    moe = make()
    x = torch.randn(7, 8)
    first = collect_routing(moe)
    second = collect_routing(moe)
    routings = first.__enter__()
    later_routings = second.__enter__()
    first.__exit__(None, None, None)
    moe(x)
    second.__exit__(None, None, None)
    assert (len(routings), len(later_routings)) == (0, 1)


def test_the_router() -> None:
    router = Router(8, 5, 3, bias=True)
    x = torch.randn(4, 6, 8)
    weights, indices = router(x)
    scores = router.score(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6))
    assert (weights.diff(dim=-1) <= 0).all()
    torch.testing.assert_close(weights, scores.gather(-1, indices).softmax(-1))
    not_chosen = scores.scatter(-1, indices, float("-inf")).amax(-1)
    assert (scores.gather(-1, indices).amin(-1) >= not_chosen).all()


@pytest.mark.parametrize("bias", [False, True])
def test_scores_that_bfloat16_cannot_tell_apart_are_told_apart(bias: bool) -> None:
    """The choice is that of float64 from the same rounded tokens and weights; rounded scores are
    often equal.
    """
    torch.manual_seed(0)
    router = Router(64, 32, 4, bias=bias).bfloat16()
    x = torch.randn(2000, 64).bfloat16()
    weights, indices, scores = router.choose(x)
    exact = copy.deepcopy(router).double().score(x.double())
    rounded = F.linear(x, router.score.weight, router.score.bias)
    assert (rounded.sort(-1).values.diff(dim=-1) == 0).any(-1).float().mean() > 0.1
    assert torch.equal(indices, exact.topk(4).indices)
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-5)
    assert weights.dtype == torch.bfloat16


def test_under_autocast_the_shares_add_up_to_one() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        weights, _ = Router(16, 8, 3)(torch.randn(50, 16))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(50))


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_balance_loss_is_switchs_formula_and_trains_the_router(top_k: int) -> None:
    moe = make(num_experts=3, top_k=top_k)
    x = torch.randn(2, 15, 8)
    with collect_routing(moe) as routings:
        moe(x)
    loss = balance_loss(routings)
    probabilities = moe.router.score(x).softmax(-1).view(-1, 3)
    chosen = moe.router(x)[1].flatten()
    share = torch.tensor([(chosen == e).float().mean() for e in range(3)])
    torch.testing.assert_close(loss, 3 * (share * probabilities.mean(0)).sum())
    loss.backward()
    assert moe.router.score.weight.grad.abs().sum() > 0


def test_the_balance_loss_of_nothing_is_refused() -> None:
    with refused("no routings"):
        balance_loss([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 5}, "top_k = 5 with num_experts = 4"),
        ({"top_k": 0}, "top_k = 0"),
        ({"num_experts": 0}, "num_experts = 0"),
        ({"hidden_dim": -1}, "hidden_dim = -1"),
        ({"ff_dim": 0}, "ff_dim = 0"),
        ({"ff_dim": 2.5}, "ff_dim = 2.5"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    for kind in (MixtureOfExperts, PackedMixture):
        with refused(message):
            kind(**{"hidden_dim": 32, "ff_dim": 32, "num_experts": 4, "top_k": 2} | arguments)
    for mixture in (MixtureOfExperts(32, 32, 4), PackedMixture(32, 32, 4)):
        with refused("input of width 7", expected="hidden_dim = 32"):
            mixture(torch.zeros(2, 7))


def test_eight_experts_of_which_a_token_takes_two_by_default() -> None:
    mixture = MixtureOfExperts(4, 4)
    assert (len(mixture.gate), mixture.router.top_k) == (8, 2)
