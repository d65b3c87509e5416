import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from glassformer import kernels
from glassformer.errors import InputError
from glassformer.generation import generate, native_step, stream
from glassformer.generation.native_step import DecodingStep, _Plan
from glassformer.kernels import native
from glassformer.kernels.native import Library
from glassformer.kernels.options import Clamp
from glassformer.kernels.packed import KINDS, encode
from glassformer.layers import feedforward, options
from glassformer.layers.attention import editing, watching
from glassformer.layers.cache import Cache, LayerCache
from glassformer.layers.experts import collect_routing
from glassformer.layers.feedforward import Linear, SwiGLU
from glassformer.layers.norms import RMSNorm
from glassformer.layers.options import Yarn
from glassformer.layers.quantized.packed import PackedEmbedding, PackedExperts, PackedLinear
from glassformer.models import Decoder, DecoderConfig
from glassformer.models.block_config import Norms
from glassformer.models.building import build_block
from refusals import refused
from torch_settings import defaults, threads

pytestmark = pytest.mark.usefixtures("library", "fast_forms")

Run = tuple[Tensor, Tensor | None, int]
VOCAB = 61
BASE = DecoderConfig(
    vocab_size=VOCAB,
    num_layers=2,
    hidden_dim=32,
    ff_dim=64,
    num_heads=4,
    head_dim=8,
    max_seq_len=64,
)
MIXTURE = dataclasses.replace(
    BASE,
    num_experts=4,
    window=5,
    sinks=True,
    ff_bias=True,
    attention_bias=True,
    clamp=Clamp(),
    num_kv_heads=2,
)


def decoder(config: DecoderConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> Decoder:
    """With random numbers also where a new decoder has zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.normal_(
                    float(name.endswith(("norm.weight", "key_weights"))), 0.5, generator=generator
                )
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
        for name, packed in model.named_buffers():
            packed.random_(
                *((121, 126) if name.endswith("scales") else (0, 256)), generator=generator
            )
    return model.to(dtype).eval()


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of texts of each native step."""
    counts: list[int] = []

    def decode_step(library: Any, weights: Any, tokens: Tensor, *others: Any) -> Tensor | None:
        counts.append(len(tokens))
        return real(library, weights, tokens, *others)

    real = native_step.decode_step
    with patch.context() as here:
        here.setattr(native_step, "decode_step", decode_step)
        yield counts


def linear_layers(model: Decoder) -> list[tuple[nn.Module, str, Linear]]:
    """Those of attention and the output, with their owners and names."""
    owners = (model, *(block.attention for block in model.layers))
    return [
        (owner, name, part)
        for owner in owners
        for name, part in owner.named_children()
        if type(part) is Linear
    ]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def read(step: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    return torch.stack([step(part) for part in tokens.split(1, dim=1)], dim=1)


def ordinarily(model: Decoder, cache: Cache) -> Callable[[Tensor], Tensor]:
    def step(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(tokens, cache=cache)[:, -1]

    return step


@st.composite
def configs(draw: st.DrawFn, expert_format: str = "dense") -> DecoderConfig:
    packed = expert_format == "mxfp4"
    kv_heads = draw(st.integers(1, 3))
    group = draw(st.integers(1, 5))
    experts = draw(st.integers(1, 6))
    ff_dim = 32 * draw(st.integers(1, 3)) if packed else draw(st.integers(0, 80))
    flags = {
        name: draw(st.booleans())
        for name in ("key_weights", "sinks", "attention_bias", "tied_output")
    }
    return DecoderConfig(
        vocab_size=VOCAB,
        num_layers=draw(st.integers(1, 3)),
        hidden_dim=32 * draw(st.integers(1, 3)) if packed else draw(st.integers(8, 80)),
        ff_dim=ff_dim,
        num_heads=group * kv_heads,
        head_dim=2 * draw(st.integers(1, 40)),
        num_kv_heads=draw(st.sampled_from([kv_heads, None])),
        window=draw(st.none() | st.integers(1, 30)),
        windowed_layers=draw(st.sampled_from(["odd", "even", "all"])),
        num_experts=experts if packed or (ff_dim and draw(st.booleans())) else None,
        top_k=draw(st.integers(1, experts)),
        expert_format=expert_format,
        ff_bias=ff_dim > 0 and draw(st.booleans()),
        clamp=draw(st.sampled_from([None, Clamp(), Clamp(1.5, 0.5)])) if ff_dim else None,
        rope_layout=draw(st.sampled_from(["half-split", "interleaved"])),
        rope_scaling=draw(st.sampled_from([None, Yarn(4.0, 16)])),
        max_seq_len=64,
        norm_eps=draw(st.sampled_from([1e-5, 1e-2])),
        **flags,
    )


@st.composite
def of_families(draw: st.DrawFn) -> DecoderConfig:
    """Forms of other families than gpt-oss's."""
    kv_heads = draw(st.integers(1, 3))
    group = draw(st.integers(1, 3))
    head_dim = 4 * draw(st.integers(1, 9))
    learned = draw(st.booleans())
    place = draw(st.sampled_from(["before", "after", "both"]))
    window = draw(st.none() | st.integers(1, 30))
    rotation: dict[str, Any] = {"learned_positions": True}
    if not learned:
        scalings = [None, Yarn(4.0, 16), options.Linear(4.0), options.Llama3(8.0, 16)]
        rotation = {
            "rotary_dim": head_dim // 2,
            "rope_scaling": draw(st.sampled_from(scalings)),
            "local_rope_base": draw(st.sampled_from([None, 100.0])) if window else None,
            "unrotated_layers": draw(st.sampled_from([(), (0,)])),
        }
    return DecoderConfig(
        vocab_size=VOCAB,
        num_layers=draw(st.integers(1, 3)),
        hidden_dim=draw(st.integers(8, 60)),
        ff_dim=draw(st.integers(1, 60)),
        num_heads=group * kv_heads,
        head_dim=head_dim,
        num_kv_heads=kv_heads,
        window=window,
        attention_bias=draw(st.sampled_from([False, True, "qkv"])),
        ff_bias=draw(st.booleans()),
        qk_norm=draw(st.sampled_from([None, "head", "all"])),
        attention_scale=draw(st.sampled_from([None, 0.2])),
        attention_cap=draw(st.sampled_from([None, 2.0])),
        logit_cap=draw(st.sampled_from([None, 3.0])),
        activation=draw(st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2"])),
        gated=draw(st.booleans()),
        embedding_scale=draw(st.sampled_from([1.0, 5.5])),
        embedding_norm=draw(st.booleans()),
        norm=draw(st.sampled_from(["rms", "layer"])),
        norm_place=place,
        parallel=place == "before" and draw(st.booleans()),
        tied_output=draw(st.booleans()),
        max_seq_len=64,
        **rotation,
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Tokens, which of the first ones are real, and how many are read before the steps."""
    batch = draw(st.integers(1, 9))
    prompt = draw(st.integers(1, 20))
    steps = draw(st.integers(1, 20))
    real = None
    if draw(st.booleans()):
        start = torch.tensor(
            draw(st.lists(st.integers(0, prompt - 1), min_size=batch, max_size=batch))
        )
        real = torch.arange(prompt) >= start[:, None]
    return drawn(batch, prompt + steps), real, prompt


def both(model: Decoder, run: Run) -> tuple[Tensor, Tensor, list[Cache]]:
    """Logits of the steps, natively and in the ordinary way, and the caches."""
    tokens, real, prompt = run
    caches = [model.new_cache(*tokens.shape) for _ in range(2)]
    for cache in caches:
        with torch.inference_mode():
            model(tokens[:, :prompt], cache=cache, key_padding=real)
    natively = DecodingStep(model, caches[0])
    expected = ordinarily(model, caches[1])
    return read(natively, tokens[:, prompt:]), read(expected, tokens[:, prompt:]), caches


def relative(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the root mean square of what is expected."""
    return float((got.detach() - expected).abs().max() / expected.double().square().mean().sqrt())


@given(config=configs() | of_families(), run=runs(), seed=st.integers(0, 99))
@settings(max_examples=120, derandomize=True)  # two experts may be closer than rounding
def test_logits_and_cache_are_those_of_the_forward_pass(
    config: DecoderConfig, run: Run, seed: int
) -> None:
    model = decoder(config, seed=seed)
    with pytest.MonkeyPatch.context() as patch, counted(patch) as counts:
        got, expected, (ours, theirs) = both(model, run)
    tokens, real, prompt = run
    batch, length = tokens.shape
    # Learned positions count real tokens, which the native step does not.
    assert counts == (
        [] if config.learned_positions and real is not None else [batch] * (length - prompt)
    )
    exact = decoder(config, seed=seed).double()
    padding = (
        None
        if real is None
        else torch.cat([real, torch.ones_like(tokens[:, prompt:]).bool()], dim=1)
    )
    reference = exact(tokens, key_padding=padding)[:, prompt:].detach()
    assert relative(got, reference) < 1e-5 + 2 * relative(expected, reference)
    assert ours.length == theirs.length
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert (mine.length, mine.in_order) == (other.length, other.in_order)
        torch.testing.assert_close(mine.keys, other.keys, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(mine.values, other.values, atol=1e-4, rtol=1e-5)


class Rounded(LayerCache):
    """Numbers of float32 that are rounded to bfloat16."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().append(k.bfloat16().float(), v.bfloat16().float())


@given(config=configs() | configs("mxfp4"), run=runs(), seed=st.integers(0, 99))
@settings(max_examples=60, derandomize=True)  # two experts may be closer than rounding
def test_bfloat16_weights_and_cache_are_used_in_float32(
    config: DecoderConfig, run: Run, seed: int
) -> None:
    """Up to roundings of keys and values that fall to the other side; packed experts also round
    their tokens.
    """
    narrow = decoder(config, torch.bfloat16, seed)
    wide = decoder(config, torch.bfloat16, seed).float()
    for name, norm in narrow.named_modules():
        if seed % 2 and isinstance(norm, RMSNorm):  # which may have more digits than the rest
            with torch.no_grad():
                wide.get_submodule(name).weight.mul_(1 + 2**-12)
            norm.weight = nn.Parameter(wide.get_submodule(name).weight.detach().clone())
    tokens, _, prompt = run
    tokens = tokens[:, prompt:]
    cache = narrow.new_cache(*tokens.shape)
    reference = wide.new_cache(*tokens.shape)
    for layer in reference.layers:
        layer.__class__ = Rounded
    with pytest.MonkeyPatch.context() as patch, counted(patch) as counts:
        got = read(DecodingStep(narrow, cache), tokens)
    assert counts == [tokens.shape[0]] * tokens.shape[1]
    assert relative(got, read(ordinarily(wide, reference), tokens)) < 1e-2


@pytest.mark.parametrize(
    "config", [BASE, MIXTURE, dataclasses.replace(MIXTURE, expert_format="mxfp4")]
)
def test_bfloat16_logits_are_no_worse_than_those_of_the_forward_pass(config: DecoderConfig) -> None:
    errors: list[Tensor] = []
    for seed in range(16):
        model = decoder(config, torch.bfloat16, seed)
        tokens = drawn(4, 40, seed=seed)
        got, expected, _ = both(model, (tokens, None, 4))
        reference = decoder(config, torch.bfloat16, seed).double()(tokens)[:, 4:]
        errors.append(torch.stack([(each - reference).square().mean() for each in (got, expected)]))
    ours, theirs = torch.stack(errors).mean(0).sqrt()
    assert ours <= theirs


@pytest.mark.parametrize("config", [BASE, dataclasses.replace(MIXTURE, expert_format="mxfp4")])
def test_layers_of_8_bits_are_those_of_the_forward_pass(
    config: DecoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(config, torch.bfloat16)
    exact = decoder(config, torch.bfloat16).double()
    tokens = drawn(3, 24)
    for (owner, name, linear), (_, _, wide) in zip(
        linear_layers(model), linear_layers(exact), strict=True
    ):
        wide.weight.data = in_8_bits(owner, name, linear).weight.double()
    with counted(monkeypatch) as counts:
        got, expected, _ = both(model, (tokens, None, 4))
    assert counts == [3] * 20
    reference = exact(tokens)[:, 4:].detach()
    assert (got - reference).square().mean() <= (expected - reference).square().mean()


def draw_blocks(blocks: Tensor, kind: str) -> None:
    """Fill packed bytes at random."""
    blocks.random_(256)
    cut = blocks.unflatten(-1, (-1, KINDS[kind].nbytes))
    for at in KINDS[kind].halves:
        # Codes of 8 bits are greater: larger weights would make rounding grow from layer to layer.
        scale = 0.001 if kind == "Q8_0" else 0.01
        cut[..., at : at + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0"])
def test_layers_and_tables_of_blocks_are_those_of_the_forward_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(
        dataclasses.replace(
            BASE, hidden_dim=64, ff_dim=96, num_heads=4, num_kv_heads=2, head_dim=16
        )
    )

    def drawn_blocks(layer: PackedLinear | PackedEmbedding) -> nn.Module:
        draw_blocks(layer.blocks, kind)
        return layer.eval()

    for owner, name, linear in linear_layers(model):
        bias = linear.bias is not None
        setattr(
            owner,
            name,
            drawn_blocks(PackedLinear(linear.in_features, linear.out_features, kind, bias=bias)),
        )
    model.embedding = drawn_blocks(PackedEmbedding(VOCAB, 64, kind))
    model.output = PackedLinear(64, VOCAB, kind).eval()
    model.output.blocks = model.embedding.blocks
    with counted(monkeypatch) as counts:
        got, expected, _ = both(model, (drawn(3, 24), None, 4))
    assert counts == [3] * 20
    assert relative(got, expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_experts_are_those_of_the_forward_pass(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(dataclasses.replace(MIXTURE, hidden_dim=64), dtype)
    kinds = {"gate": "Q8_0", "up": "Q4_1", "down": "Q5_0"}
    for block in model.layers:
        packed = PackedExperts(64, 64, 4, 2, kinds=kinds, bias=True, clamp=Clamp())
        packed.router = block.ffn.router
        for name, kind in kinds.items():
            draw_blocks(getattr(packed, f"{name}_blocks"), kind)
            setattr(packed, f"{name}_bias", getattr(block.ffn, f"{name}_bias"))
        block.ffn = packed.eval()
    with counted(monkeypatch) as counts:
        got, expected, _ = both(model, (drawn(3, 24), None, 4))
    assert counts == [3] * 20
    if dtype == torch.float32:
        assert relative(got, expected) < 1e-5
    reference = copy.deepcopy(model).double()(drawn(3, 24))[:, 4:].detach()
    assert (got - reference).square().mean() <= 1.01 * (expected - reference).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["dense", "mixture", "packed"])
def test_bits_are_those_of_each_text_alone(
    form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "packed" and dtype == torch.float32:
        pytest.skip("packed experts of float32 models take the ordinary way")
    config = {
        "dense": BASE,
        "mixture": MIXTURE,
        "packed": dataclasses.replace(MIXTURE, expert_format="mxfp4"),
    }[form]
    monkeypatch.setattr(native_step, "_PRODUCTS_PER_THREAD", 1)
    model = decoder(config, dtype)
    tokens = drawn(7, 24)

    def logits(texts: Tensor) -> Tensor:
        with counted(monkeypatch) as counts:
            found = read(DecodingStep(model, model.new_cache(*texts.shape)), texts)
        assert counts == [len(texts)] * 24
        return found

    expected = logits(tokens)
    for number in (1, 2, 3, 4):
        with threads(number):
            assert torch.equal(logits(tokens), expected)
            assert torch.equal(logits(tokens[2:3]), expected[2:3])


def test_every_instruction_set_gives_the_same(
    at_level: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", lambda: at_level)
    for config in (MIXTURE, dataclasses.replace(BASE, head_dim=70, hidden_dim=37, ff_dim=29)):
        got, expected, _ = both(decoder(config), (drawn(3, 40), None, 20))
        assert relative(got, expected) < 1e-5


# ---- what takes the ordinary way -----------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class OwnLinear(nn.Linear):
    pass


def in_8_bits(owner: nn.Module, name: str, linear: nn.Linear) -> PackedLinear:
    """``owner``'s linear layer ``name``, replaced by its weights in Q8_0."""
    packed = PackedLinear(
        linear.in_features, linear.out_features, "Q8_0", bias=linear.bias is not None
    )
    packed.blocks = encode("Q8_0", linear.weight)
    packed.bias = linear.bias
    setattr(owner, name, packed.eval())
    return packed


def parametrized(model: Decoder) -> None:
    parametrize.register_parametrization(model.layers[0].attention.key, "weight", Doubled())


def post_norm(model: Decoder) -> None:
    config = model.config
    torch.manual_seed(0)
    norms = Norms(config.norm_eps, "rms", "sum")
    window = config.layer_window(1)
    block = build_block(config.hidden_dim, config.attention, config.network, norms, window=window)
    model.layers[1] = block.eval()


# Handles of hooks, patches and blocks last as long as the context.
ORDINARY: dict[str, Callable[[Decoder], Any]] = {
    "hook": lambda model: model.layers[1].ffn.register_forward_hook(
        lambda module, args, output: 2 * output
    ),
    "pre-hook": lambda model: model.output.register_forward_pre_hook(lambda module, args: None),
    "global hook": lambda model: nn.modules.module.register_module_forward_hook(
        lambda *arguments: None
    ),
    "module of another class": lambda model: setattr(
        model.layers[1].ffn.gate, "__class__", OwnLinear
    ),
    "parametrization": parametrized,
    "post-norm block": post_norm,
    "norm without weights": lambda model: setattr(
        model, "final_norm", nn.LayerNorm(32, elementwise_affine=False)
    ),
    "another forward": lambda model: setattr(model.final_norm, "forward", lambda x: 2 * x),
    "another hidden": lambda model: setattr(
        model, "hidden", lambda *args, **more: 2 * Decoder.hidden(model, *args, **more)
    ),
    "compiled": lambda model: setattr(
        model.layers[0], "_compiled_call_impl", model.layers[0]._call_impl
    ),
    "another method": lambda model: mock.patch.object(SwiGLU, "forward", lambda self, x: 2 * x),
    "watching": lambda model: watching(lambda call: None),
    "editing": lambda model: editing(lambda call: dataclasses.replace(call, scale=0.0)),
    "collecting": lambda model: collect_routing(model),
    "definitions": lambda model: kernels.plain(),
    "autocast": lambda model: torch.autocast("cpu", torch.bfloat16),
}


CHANGES: dict[str, Callable[[Decoder], Any]] = {
    "in place": lambda model: model.layers[0].attention.value.weight.data.mul_(2),
    "data": lambda model: setattr(
        model.final_norm.weight, "data", 3 * model.final_norm.weight.data
    ),
    "parameter": lambda model: setattr(
        model.output, "weight", nn.Parameter(-model.output.weight.data)
    ),
    "sinks": lambda model: setattr(model.layers[1].attention, "sinks", nn.Parameter(torch.ones(4))),
    "first sinks": lambda model: setattr(
        model.layers[1].attention, "sinks", nn.Parameter(torch.ones(4))
    ),
    "state": lambda model: model.load_state_dict(
        decoder(MIXTURE, seed=1).state_dict(), assign=True
    ),
    "module": lambda model: setattr(model.layers, "1", decoder(MIXTURE, seed=2).layers[1]),
    "training": lambda model: model.train(),
}


@pytest.mark.parametrize("name", [*ORDINARY, *CHANGES])
@pytest.mark.filterwarnings("ignore")
def test_a_changed_model_is_used_from_the_next_step_on_in_the_ordinary_way_if_something_could_tell(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = (ORDINARY | CHANGES)[name]
    dense = name in (*ORDINARY, "first sinks") and name != "collecting"  # which reads routers
    config = BASE if dense else MIXTURE
    tokens = drawn(2, 10)
    counts = []
    logits = []
    for natively in (True, False):
        if not natively:
            monkeypatch.setattr(native, "look", lambda: (None, ""))
        model = decoder(config)
        step = DecodingStep(model, model.new_cache(2, 10))
        with counted(monkeypatch) as steps:
            read(step, tokens[:, :5])
            scope = change(model)
            with scope if isinstance(scope, AbstractContextManager) else nullcontext():
                logits.append(read(step, tokens[:, 5:]))
        counts.append(steps)
    assert counts == [[2] * (5 if name in ORDINARY else 10), []]
    if name != "autocast":  # which rounds
        assert relative(*logits) < 1e-5


def test_experts_of_equal_scores_are_those_that_the_forward_pass_takes() -> None:
    model = decoder(dataclasses.replace(BASE, num_experts=8))
    with torch.no_grad():
        model.layers[1].ffn.router.score.weight[2:].zero_()
    expected = read(ordinarily(model, model.new_cache(2)), drawn(2, 5))
    assert relative(read(DecodingStep(model, model.new_cache(2)), drawn(2, 5)), expected) < 1e-5


def test_factors_that_depend_on_the_length_take_the_ordinary_way() -> None:
    model = decoder(
        dataclasses.replace(BASE, rope_scaling=options.LongRope((1.0,) * 4, (2.0,) * 4, 16))
    )
    assert _Plan.of(model, model.new_cache(1, 8)) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_take_the_ordinary_way(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(BASE).to(dtype)
    with counted(monkeypatch) as counts:
        assert DecodingStep(model, model.new_cache(1))(drawn(1, 1)).dtype == dtype
    assert counts == []


def test_torchs_defaults_change_nothing() -> None:
    model = decoder(BASE)
    tokens = drawn(2, 6)
    cache = model.new_cache(2)
    expected = read(DecodingStep(model, model.new_cache(2)), tokens)
    with defaults(torch.bfloat16):
        found = read(DecodingStep(model, cache), tokens)
    assert relative(found, expected) < 1e-5


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_type_checks")
def test_refused_tokens_leave_the_cache_as_it_was() -> None:
    model = decoder(BASE)
    cache = model.new_cache(2, 10)
    real = torch.tensor([[False, True], [True, True]])
    with torch.inference_mode():
        model(drawn(2, 2), cache=cache, key_padding=real)
    step = DecodingStep(model, cache)
    for tokens, message in (
        (torch.tensor([[0], [VOCAB]]), rf"\[0, {VOCAB}\)"),
        (torch.tensor([[-1], [0]]), rf"\[0, {VOCAB}\)"),
        (drawn(2, 9), "at most 10"),
        (drawn(3, 1), "as the cache was made for"),
        (torch.zeros(2, 1), "int64"),
        (drawn(2, 0), "at least one"),
    ):
        keys = [layer.keys.clone() for layer in cache.layers]
        with refused(anywhere=message):
            step(tokens)
        assert cache.length == 2
        assert torch.equal(cache.padding, real)
        assert all(
            torch.equal(layer.keys, before)
            for layer, before in zip(cache.layers, keys, strict=True)
        )
    assert read(step, drawn(2, 8)).shape == (2, 8, VOCAB)


@pytest.mark.parametrize(
    "place",
    ["embedding.weight", "layers.0.attention.value.weight", "layers.0.ffn.router.score.weight"],
)
def test_nan_and_infinity_spread_as_in_the_forward_pass(place: str) -> None:
    for number in (float("nan"), float("inf")):
        model = decoder(MIXTURE)
        model.get_parameter(place).data[3, 1] = number
        got, expected, _ = both(model, (torch.tensor([[1, 2, 3, 4, 5, 6]]), None, 2))
        assert torch.equal(got.isfinite(), expected.isfinite())


def test_a_model_that_nothing_can_change_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    is_current = _Plan.is_current
    monkeypatch.setattr(_Plan, "is_current", lambda self: looks.append(None) or is_current(self))
    model = decoder(BASE)
    prompt = drawn(1, 3)
    with counted(monkeypatch) as counts:
        texts = generate(model, prompt, 6)
        assert (len(looks), counts) == (1, [1] * 5)
        assert [list(text) for text in zip(*stream(model, prompt, 6), strict=True)] == texts
    assert len(looks) > 5


@pytest.mark.parametrize("name", ["embedding", "positions"])
def test_a_table_is_never_read_beyond_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are checked against the configuration, which a table in another's place need not
    follow.
    """
    learned = {"learned_positions": True, "rope_scaling": None} if name == "positions" else {}
    model = decoder(dataclasses.replace(BASE, tied_output=False, max_seq_len=16, **learned))
    setattr(model, name, nn.Embedding(3, BASE.hidden_dim))
    with counted(monkeypatch) as counts, pytest.raises((InputError, IndexError)):
        read(DecodingStep(model, model.new_cache(1)), torch.full((1, 5), 9))
    assert counts == []


@pytest.mark.parametrize("kind", ["SwiGLU", "MLP"])
def test_an_activation_that_the_native_step_does_not_know_takes_the_ordinary_way(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activate(x: Tensor, activation: str) -> Tensor:
        return x.sin() if activation == "sine" else known(x, activation)

    known = feedforward.activate
    monkeypatch.setattr(feedforward, "activate", activate)
    model = decoder(dataclasses.replace(BASE, gated=kind == "SwiGLU"))
    for block in model.layers:
        block.ffn.activation = "sine"
    with counted(monkeypatch) as counts:
        got, expected, _ = both(model, (drawn(3, 24), None, 12))
    assert counts == []
    assert relative(got, expected) < 1e-5
