"""Interventions against independent computations: other weights, plain hooks, loops over queries
and keys.
"""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import small_models
from glassformer.generation import generate
from glassformer.handcraft.single_head import SingleHead
from glassformer.models import Decoder
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.captured import Captured
from glassformer.observe.edits import (
    add,
    change,
    forbid,
    force_experts,
    mean,
    patch,
    put,
    remove_sinks,
    scale,
    zero,
)
from glassformer.observe.hook_points import ROLES
from glassformer.observe.intervene import intervene
from processes import printed
from refusals import refused
from small_models import MODELS, decoder, encoder, encoder_decoder
from transformers_models import EXPERTS, NARROW, THEIRS

pytestmark = pytest.mark.usefixtures("without_gradients")

STREAMS = ("embedding", "residual_before", "residual_between", "residual", "logits")


def texts(rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(2, 20, (rows, length))


def run(model: nn.Module, tokens: Tensor) -> Tensor:
    """The output for some tokens, whatever the model's kind."""
    if type(model).__name__ == "EncoderDecoder":
        fields = model.config.fields_per_slot
        source = (
            tokens
            if fields == 1
            else tokens[:, : tokens.shape[1] // fields * fields].unflatten(1, (-1, fields))
        )
        return model(source, tokens[:, :5])
    if type(model).__name__ == "Encoder" and model.classifier is None:
        return model.hidden(tokens)
    out = model(tokens)
    return out if isinstance(out, Tensor) else next(iter(out.values()))


SUBJECTS: dict[str, Any] = {**MODELS, **THEIRS}


def made(name: str) -> tuple[nn.Module, float]:
    """The model, in float64 unless its experts have no such kernel, and the tolerance that its
    dtype allows.
    """
    model = SUBJECTS[name]().eval()
    return (model, 1e-5) if name in NARROW else (model.double(), 1e-12)


def learned(**changes: Any) -> Decoder:
    return small_models.learned(**changes).double()


def kinds(model: nn.Module) -> list[str]:
    roles = {point.role for point in find_hook_points(model)}
    own = (
        "embedding",
        "residual_before",
        "residual_between",
        "residual",
        "attention",
        "heads",
        "q",
        "k",
        "v",
        "ffn",
    )
    return [kind for kind in (*own, "router", "logits") if ROLES[kind] in roles]


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_patched_stream_gives_the_other_run_to_the_last_bit(name: str) -> None:
    (model, near), ours, theirs = made(name), texts(), texts()
    with capture(model, what=kinds(model)) as other:
        expected = run(model, theirs)
    plain = run(model, ours)
    assert not torch.equal(plain, expected)
    for site in kinds(model):
        with intervene(model, patch(site, other)), capture(model, what=site) as seen:
            patched = run(model, ours)
        if site in STREAMS:
            assert torch.equal(patched, expected)
        elif (name, site) != ("attention only", "ffn"):  # which adds nothing
            assert not torch.allclose(patched, plain)
        assert len(seen.records) == len(other.last(site)) > 0
        for at, values in seen.last(site).items():
            torch.testing.assert_close(values, other.last(site)[at], rtol=near, atol=near)
    assert torch.equal(run(model, ours), plain)


@pytest.mark.parametrize("name", SUBJECTS)
def test_its_own_values_change_nothing(name: str) -> None:
    (model, near), tokens = made(name), texts()
    exact = 0 if name in MODELS else near
    plain = run(model, tokens)
    with intervene(model):
        assert torch.equal(run(model, tokens), plain)
    asked = kinds(model)
    with capture(model, what=asked) as own:
        run(model, tokens)
    for site in asked:
        with intervene(model, patch(site, own)):
            torch.testing.assert_close(run(model, tokens), plain, rtol=exact, atol=exact)
    with intervene(
        model, change("weights", lambda weights: weights), change("scores", lambda scores: scores)
    ):
        torch.testing.assert_close(run(model, tokens), plain, rtol=near, atol=near)


def test_some_heads_of_a_change_are_captured_as_changed() -> None:
    model = learned(**EXPERTS)
    tokens = texts()
    edit = change("weights", lambda weights: weights.flip(1), layers=0, heads=(1, 3))
    with (
        intervene(model, edit),
        capture(model, layers=0) as whole,
        capture(model, layers=0, heads=[3]) as one,
    ):
        model(tokens)
    with capture(model, layers=0) as plain:
        model(tokens)
    name = "layers.0.attention"
    torch.testing.assert_close(
        one.weights[name][:, 0], plain.weights[name][:, 1], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        one.weights[name][:, 0], whole.weights[name][:, 3], rtol=1e-12, atol=1e-12
    )


def test_experts() -> None:
    model = learned(**EXPERTS)
    tokens = texts()
    name = "layers.1.ffn"
    with capture(model, what="choices", layers=1) as plain:
        model(tokens)
    choices = plain.last("choices")[name]
    expert = int(choices[0, 3, 0])
    with (  # the mixture's output is edited after its experts, whichever block is inside
        intervene(model, put("ffn", 0.25, layers=1)),
        intervene(model, zero("experts", layers=1, experts=expert)),
        capture(model, what="ffn", layers=1) as seen,
    ):
        model(tokens)
    assert (seen.last("ffn")[name] == 0.25).all()
    without = zero("router", layers=1, experts=expert, queries=3)
    with intervene(model, without), capture(model, what=("choices", "router"), layers=1) as seen:
        model(tokens)
    assert not (seen.last("choices")[name][:, 3] == expert).any()
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(seen.last("choices")[name][:, others], choices[:, others])
    with (
        intervene(model, force_experts((0, 2), layers=1)),
        capture(model, what=("choices", "shares", "ffn")) as seen,
    ):
        model(tokens)
    assert set(seen.last("choices")[name].unique().tolist()) == {0, 2}
    torch.testing.assert_close(seen.last("shares")[name].sum(-1), torch.ones(2, 7).double())
    assert set(seen.last("choices")["layers.0.ffn"].unique().tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("changes", [{}, EXPERTS])
def test_generation_with_a_cache_is_that_without(changes: dict[str, Any]) -> None:
    model = learned(**changes)
    prompt = texts(1, 6)
    vector = torch.randn(8).double()
    edits = (
        add("residual", vector, layers=1),
        zero("heads", layers=0, heads=1),
        change("v", lambda values: -values, layers=2, keys=slice(0, 8, 4)),
        forbid(queries=slice(5, None), keys=slice(3, 7, 3), layers=3),
    )
    with intervene(model, *edits):
        fast = generate(model, prompt, 8)[0]
        tokens = prompt
        for _ in range(8):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    assert fast == tokens[0, 6:].tolist()
    assert fast != generate(model, prompt, 8)[0]


def test_logits_of_a_generation_by_position() -> None:
    model = learned()
    prompt = texts(1, 6)
    best = torch.arange(50.0).double()
    with (
        intervene(model, put("logits", best, queries=slice(7, None))),
        capture(model, what="logits") as seen,
    ):
        written = generate(model, prompt, 4)[0]
    assert written == [*generate(model, prompt, 2)[0], 49, 49]
    assert [record.queries for record in seen.of("logits")["output"]] == [(5,), (6,), (7,), (8,)]


def test_positions_count_padding() -> None:
    model = learned(**EXPERTS)
    alone = texts(1, 6)
    vector = torch.randn(8).double()

    def edits(shift: int) -> tuple[Any, ...]:
        return (
            add("residual", vector, layers=1, queries=slice(3 + shift, None)),
            change("v", torch.neg, layers=2, keys=slice(1 + shift, None, 3)),
            forbid(queries=slice(4 + shift, None), keys=(2 + shift, 3 + shift)),
        )

    longer = texts(1, 9)
    with intervene(model, *edits(0)):
        expected = generate(model, alone, 6)
    with intervene(model, *edits(3)):
        found = generate(model, [alone[0].tolist(), longer[0].tolist()], 6)
    assert found[0] == expected[0] != generate(model, alone, 6)[0]


def test_edits_under_autocast() -> None:
    model = learned(**EXPERTS).float()
    tokens = texts()
    edits = (
        *(
            add("residual", torch.ones(8), layers=1),
            zero("heads", layers=0, heads=1),
            forbid(queries=3, keys=1),
        ),
        *(
            scale("weights", 0.5, layers=2),
            scale("q", 2.0, layers=3),
            zero("v", keys=2),
            zero("router", experts=1),
        ),
        *(scale("experts", 0.5), remove_sinks(layers=1), scale("residual_between", 2.0)),
    )
    with intervene(model, *edits):
        expected = model(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(tokens)
    assert found.dtype == torch.bfloat16
    assert (
        (found - expected).abs().max()
        < 0.03 * expected.abs().max()
        < (model(tokens) - expected).abs().max()
    )


@torch.enable_grad()
def test_gradients_flow_through_edits_of_every_site() -> None:
    model = learned(**EXPERTS)
    tokens = texts(1, 5)
    with capture(model, what=(*kinds(model), "weights")) as seen:
        model(tokens)
    for site in ("scores", "weights", "experts", *kinds(model)):
        wide = site not in ("scores", "weights", "experts", "router")
        size = seen.of(site)[next(iter(seen.of(site)))][0].values.shape[-1] if wide else 1
        vector = torch.full((size,), 0.1, dtype=torch.double, requires_grad=True)

        def loss(at: Tensor, site: str = site) -> Tensor:
            # what is the same for all keys changes nothing
            where = {"keys": 2} if site == "scores" else {}
            edit = change(
                site, lambda values: values + at if site == "scores" else values * (1 + at), **where
            )
            with intervene(model, edit):
                return model(tokens)[:, -1, :2]

        if site == "router":  # its choice jumps
            assert torch.autograd.grad(loss(vector).sum(), vector)[0].isfinite().all()
            continue
        assert torch.autograd.gradcheck(loss, vector, fast_mode=True), site
        assert torch.autograd.grad(loss(vector)[:, 0].sum(), vector)[0].abs().max() > 0, site


def test_edits_of_outer_blocks_come_first() -> None:
    model = learned()
    tokens = texts()
    one = torch.ones(8).double()

    def seen_after(*edits: Any) -> Tensor:
        with (
            intervene(model, edits[0]),
            intervene(model, edits[1]),
            capture(model, what="residual", layers=1) as seen,
        ):
            model(tokens)
        return seen.last("residual")["layers.1"]

    assert (seen_after(zero("residual", layers=1), add("residual", one, layers=1)) == 1).all()
    assert (seen_after(add("residual", one, layers=1), zero("residual", layers=1)) == 0).all()
    with (
        capture(model, what="residual", layers=1) as outside,
        intervene(model, zero("residual", layers=1)),
    ):
        model(tokens)
    assert not outside.last("residual")["layers.1"].any()


def test_nothing_is_left_behind() -> None:
    model = learned(**EXPERTS)
    tokens = texts()
    plain = model(tokens)

    def fail(values: Tensor) -> Tensor:
        raise ZeroDivisionError

    for site in (*kinds(model), "weights", "experts"):
        with pytest.raises(ZeroDivisionError), intervene(model, change(site, fail)):
            model(tokens)
        assert torch.equal(model(tokens), plain)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_an_attention_that_has_raised_edits_no_other() -> None:
    model = learned()
    tokens = texts()
    fails = [True]

    def halved(weights: Tensor) -> Tensor:
        if fails.pop() if fails else False:
            raise ZeroDivisionError
        return weights / 2

    with intervene(model, change("weights", halved, layers=2)):
        with pytest.raises(ZeroDivisionError):
            model(tokens)
        found = model(tokens)
        assert torch.equal(found, model(tokens))
    with intervene(model, scale("weights", 0.5, layers=2)):
        assert torch.equal(model(tokens), found)


def test_threads_with_edits_of_their_own() -> None:
    model = learned(**EXPERTS)
    tokens = texts()

    def edits(number: int) -> tuple[Any, ...]:
        vector = number * torch.ones(8).double()
        return (
            add("residual", vector, layers=1),
            zero("heads", heads=number),
            scale("weights", 0.5, layers=number),
        )

    def run(number: int) -> Tensor:
        with intervene(model, *edits(number)):
            return model(tokens)

    expected = [run(number) for number in range(4)]

    def work(number: int) -> bool:
        right = True
        for turn in range(6):
            with suppress(ZeroDivisionError), intervene(model, *edits(number)):
                right &= torch.equal(model(tokens), expected[number])
                if turn % 2:
                    raise ZeroDivisionError
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


COMPILED = """
import torch
from glassformer.errors import InputError
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene

torch.set_grad_enabled(False)
model, tokens = Decoder(DecoderConfig(50, 2, 8, 20, 4, 6)).eval(), torch.randint(50, (2, 7))
with intervene(model, zero("ffn")):
    expected = model(tokens)
model.layers[1].compile(backend="eager")
compiled = torch.compile(lambda x: model(x), backend="eager")
plain = compiled(tokens)
with intervene(model, zero("ffn")):
    torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(compiled(tokens), expected)
    try:
        torch.export.export(model, (tokens,))
        raise AssertionError
    except InputError as error:
        assert "exported or traced" in error.got
torch.testing.assert_close(compiled(tokens), plain)
assert not torch.allclose(plain, expected)
"""


@pytest.mark.slow
def test_compiled_parts_run_uncompiled() -> None:
    printed(COMPILED)


def test_functions_may_write_into_their_argument() -> None:
    model = learned()
    tokens = texts(1, 6)
    cache = model.new_cache(1, 8)
    model(tokens, cache=cache)
    before = cache.layers[0].keys[:, :, :6].clone()
    with intervene(model, change("k", lambda values: values.zero_(), layers=0)):
        model(tokens[:, :1], cache=cache)
    assert torch.equal(cache.layers[0].keys[:, :, :6], before)


def test_a_mean_is_that_of_all_calls() -> None:
    model = learned()
    with capture(model, what=("ffn", "k"), layers=1) as seen:
        model(texts(2, 5))
        model(texts(3, 7))
    means = mean("ffn", seen, layers=1), mean("k", seen, layers=1, heads=(0, 2))
    with intervene(model, *means), capture(model, what=("ffn", "k"), layers=1) as found:
        model(texts())
    (ffn,), (k,) = (seen.of(kind).values() for kind in ("ffn", "k"))
    expected = torch.cat([record.values.flatten(0, 1) for record in ffn]).mean(0)
    torch.testing.assert_close(found.last("ffn")["layers.1.ffn"], expected.expand(2, 7, 8))
    expected = torch.cat([record.values.transpose(1, 2).flatten(0, 1) for record in k]).mean(0)[
        [0, 2]
    ]
    torch.testing.assert_close(
        found.last("k")["layers.1.attention"][:, [0, 2], 0], expected.expand(2, 2, 6)
    )


def test_a_text_of_a_single_head() -> None:
    head = SingleHead(5, 4, 3).double()
    text = torch.randn(6, 5).double()
    expected = head(text)
    expected[3] = 0
    with intervene(head, zero("attention", queries=3)), capture(head, what="attention") as seen:
        assert torch.equal(head(text), expected)
    assert torch.equal(seen.records[0].values, expected[None])
    assert seen.records[0].queries == tuple(range(6))


def test_sinks_are_removed_in_float16_too() -> None:
    model = learned(**EXPERTS).half()
    tokens = texts()
    with (
        intervene(model, remove_sinks(), forbid(queries=2)),
        capture(model, what=("weights", "heads")) as seen,
    ):
        assert model(tokens).isfinite().all()
    for weights in seen.weights.values():
        sums = weights.sum(-1)
        assert not sums[:, :, 2].any()
        torch.testing.assert_close(
            sums[:, :, 3:], torch.ones_like(sums[:, :, 3:]), rtol=1e-2, atol=1e-2
        )
    assert not any(values[:, :, 2].any() for values in seen.last("heads").values())


@pytest.mark.parametrize("factor", [-1.0, 0.0, 2.0])
def test_scores_that_an_edit_made_infinite_stay_so(factor: float) -> None:
    model = decoder().double().eval()
    tokens = texts()
    scaled = scale("scores", factor, layers=0, heads=1)
    with intervene(model, forbid(layers=0, heads=1, keys=1, queries=slice(2, None)), scaled):
        expected = model(tokens)
    with intervene(
        model, put("scores", -torch.inf, layers=0, heads=1, keys=1, queries=slice(2, None)), scaled
    ):
        torch.testing.assert_close(model(tokens), expected)


def test_weights_of_scores_that_are_nan_are_nan() -> None:
    model = decoder().eval()
    tokens = texts()
    model.layers[0].attention.key.weight.fill_(torch.nan)
    for edits in ([], [scale("scores", 1.0, layers=0)]):
        with intervene(model, *edits), capture(model, layers=0) as seen:
            # torch's kernel takes few NaN for forbidden
            assert model(tokens).isnan().all() or not edits
        assert seen.weights["layers.0.attention"][:, :, 1:, 0].isnan().all()


def test_a_list_to_add_is_refused_with_what_to_pass() -> None:
    # In another process, because the type checker of the tests refuses it first.
    code = """if True:
        from glassformer.errors import InputError
        from glassformer.observe.edits import add, scale
        for edit in (add, scale):
            try:
                edit("residual", [1.0, 2.0])
            except InputError as error:
                print(error)
    """
    assert (
        printed(code).count("of type list; expected a tensor or a number. Pass torch.tensor") == 2
    )


def test_what_cannot_be_edited_is_refused() -> None:
    model = learned(**EXPERTS)
    tokens = texts()

    def tried(*edits: Any) -> None:
        with intervene(model, *edits):
            model(tokens)

    with refused("site = 'pixels'", expected="residual"):
        zero("pixels")
    with refused("heads of the site residual"):
        zero("residual", heads=1)
    with refused("neurons of an edit of neurons", fix="change"):
        zero("neurons", neurons=3)
    for edit, got in (
        (zero("heads", heads=4), "heads.*4"),
        (zero("ffn", queries=7), "queries.*7"),
        (zero("ffn", examples=2), "examples.*2"),
        (zero("router", experts=4), "experts.*4"),
        (zero("router"), "router.*no expert"),
        (zero("logits", queries=7), "queries.*7"),
        (add("ffn", torch.ones(9), layers=0), r"\[9\] for ffn at layers\.0\.ffn"),
        (put("ffn", torch.ones(9), layers=0), r"ffn at layers\.0\.ffn.*\[9\]"),
        (scale("ffn", float("nan")), "NaN"),
        (zero("ffn", queries=slice(50, 60)), "no call reached"),
        (forbid(queries=1, keys=-1), "no call reached"),  # a later key, which no query sees
        (forbid(keys=(2, 7)), "keys.*7"),
        (change("ffn", lambda values: None), "returns NoneType"),  # type: ignore[arg-type, return-value]
        (zero("q", queries=-8), "queries.*-8"),
        (force_experts(4), "experts.*4"),
    ):
        with refused(got):
            tried(edit)
    cache = model.new_cache(2, 8)  # with one, positions may belong to other calls
    for edit, got in (
        (zero("ffn", queries=(3, -20)), "ffn at queries.*-20"),
        (forbid(keys=(2, 9)), "scores at keys.*9"),
    ):
        cache.reset()
        with refused(got), intervene(model, edit):
            model(tokens, cache=cache)
    for wrong in (patch, mean):
        with refused("from Tensor", fix="put"):
            wrong("ffn", tokens)  # type: ignore[arg-type]
        with refused("of weights"):
            wrong("weights", Captured())
    other_models: tuple[tuple[Any, Any, str], ...] = (
        (model, [zero("ffn")], "of type list"),
        (nn.Linear(2, 2), zero("ffn"), "hook point"),
        (learned(), remove_sinks(), "sinks"),
        (learned(), zero("router"), "'experts'|router"),
        (torch.compile(model), zero("ffn"), "compiled"),
    )
    for network, edit, got in other_models:
        with refused(got), intervene(network, edit):
            pass
    classifier = encoder().eval()
    with refused("queries.*1"), intervene(classifier, zero("logits", queries=1)):
        run(classifier, tokens)
    other = copy.deepcopy(model)
    with capture(other, what="residual") as seen:
        other(tokens)
    for use in (patch, mean):
        with refused("residual from a run of another Decoder", fix="put"):
            tried(use("residual", seen))
    kept = pickle.loads(pickle.dumps(seen))  # stored runs do not know their model
    tried(patch("residual", kept))
    with capture(model, what="residual", layers=1) as seen:
        model(tokens)
    with refused(r"patch of residual at layers\.0"):
        tried(patch("residual", seen))
    with capture(model, what="residual", queries=(0, 1)) as seen:
        model(tokens)
    with refused("query.*2"):
        tried(patch("residual", seen))


def test_a_cross_attention_by_position() -> None:
    model = encoder_decoder().double().eval()
    source = texts()
    target = texts(2, 5)
    name = "decoder_layers.1.cross_attention"
    with (
        intervene(model, forbid(queries=2, keys=-1, modules=[name])),
        capture(model, [name]) as seen,
    ):
        model(source, target)
    weights = seen.weights[name]
    assert not weights[:, :, 2, 6].any()
    assert weights[:, :, 2, :6].all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5).double())


def test_a_factor_is_broadcast_or_refused() -> None:
    model = decoder(num_layers=1).eval()
    tokens = texts()
    with capture(model, what="ffn") as seen:
        model(tokens)
    factor = torch.randn(8)
    with intervene(model, scale("ffn", factor, layers=0)), capture(model, what="ffn") as scaled:
        model(tokens)
    torch.testing.assert_close(scaled[0, "ffn"], seen[0, "ffn"] * factor)
    for wrong in (torch.ones(3), torch.ones(1, 1, 1, 8)):
        with (
            refused("a factor of .* for ffn at", expected="broadcast"),
            intervene(model, scale("ffn", wrong)),
        ):
            model(tokens)
