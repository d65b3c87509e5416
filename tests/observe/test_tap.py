"""Taps against the formulas in plain torch, against edits, and in generation, nesting, threads and
errors.
"""

import threading
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from edit_cases import KINDS, Subject, _bent, drawn
from plain import Place as PlainPlace
from torch import Tensor, nn

from glassformer.generation import generate
from glassformer.observe.capture import capture
from glassformer.observe.edits import change, forbid, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.tap import Place, tap_places, tapped
from refusals import refused
from small_models import EXPERTS, decoder
from transformers_models import FAMILIES, logits_of

MODELS = (
    "decoder",
    "experts",
    "encoder",
    "encoder-decoder",
    "single head",
    "gpt2",
    "llama",
    "mixtral",
    "gpt-oss",
    "bert",
)
SMALL = {"decoder": decoder, "gpt2": FAMILIES["gpt2"]}


def small(kind: str = "decoder") -> nn.Module:
    return SMALL[kind]().double().eval()


def texts() -> Tensor:
    return torch.randint(1, 50, (2, 6))


def plain_place(place: Place) -> PlainPlace:
    return PlainPlace(place.site, place.layer, place.source, place.cross)


def same(subject: Subject, actual: Tensor, expected: Tensor) -> None:
    if subject.real is not None and actual.dim() == 3:
        actual = actual.masked_fill(~subject.real[..., None], 0.0)
        expected = expected.masked_fill(~subject.real[..., None], 0.0)
    torch.testing.assert_close(actual, expected, rtol=subject.near, atol=subject.near)


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_a_tap_at_each_place_gives_what_the_formula_gives(kind: str) -> None:
    subject = KINDS[kind](Random(3))
    record = subject.record()
    plain = subject.run()
    places = [place for place in tap_places(subject.model) if plain_place(place) in record]
    assert {plain_place(place) for place in places} == {
        place for place in record if place.site != "sinks"
    }
    for chosen in places:

        def visit(place: PlainPlace, tensor: Tensor, _: Any, chosen: Place = chosen) -> Tensor:
            return _bent(place.site, tensor) if place == plain_place(chosen) else tensor

        def tap(place: Place, value: Tensor, name: str = chosen.name) -> Tensor | None:
            return _bent(place.site, value) if place.name == name else None

        with tapped(subject.model, tap):
            output = subject.run()
        same(subject, output, subject.plainly(visit))
    assert torch.equal(subject.run(), plain)


@pytest.mark.parametrize("kind", [*MODELS, "packed"])
@torch.no_grad()
def test_a_tap_that_returns_nothing_sees_what_is_captured_and_changes_no_bit(kind: str) -> None:
    subject = KINDS[kind](Random(5))
    model = subject.model
    plain = subject.run()
    values: dict[tuple[str, str], Tensor] = {}
    positions: dict[tuple[str, str], Any] = {}

    def look(place: Place, value: Tensor) -> None:
        values[place.module, place.site] = value
        positions[place.module, place.site] = place.queries, place.keys
        assert len(place.axes) == value.dim()

    names = [place.name for place in tap_places(model)]
    assert len(set(names)) == len(names)
    with tapped(model, look):
        assert torch.equal(subject.run(), plain)
    sites = tuple(dict.fromkeys(place.site for place in tap_places(model)))
    with capture(model, what=sites) as seen:
        subject.run()
    assert {(record.name, record.what) for record in seen.records} == values.keys()
    for record in seen.records:
        value = values[record.name, record.what]
        expected = record.values
        if record.what == "scores":  # transformers' masks of numbers forbid with the lowest
            expected = expected.masked_fill(expected < -1e30, -torch.inf)
        torch.testing.assert_close(value, expected, rtol=subject.near, atol=subject.near)
        queries, keys = positions[record.name, record.what]
        assert queries == record.queries
        assert keys is None if record.keys is None else tuple(keys) == tuple(record.keys)


@torch.no_grad()
def test_the_output_of_a_head_is_what_its_columns_multiply() -> None:
    model = small()
    tokens = texts()
    with tapped(model, lambda place, value: value * 0 if place.name == "layers.1.heads" else None):
        output = model(tokens)
    model.layers[1].attention.output.weight.zero_()
    torch.testing.assert_close(output, model(tokens), rtol=0, atol=0)


EDITS: dict[str, tuple[Any, Callable[[Place, Tensor], Tensor | None]]] = {
    "heads": (zero("heads"), lambda place, value: value * 0),
    "residual": (scale("residual", 0.5), lambda place, value: value * 0.5),
    "weights": (scale("weights", 0.5), lambda place, value: value * 0.5),
    "scores": (change("scores", lambda scores: scores * 0.5), lambda place, value: value * 0.5),
    "k": (scale("k", 0.5), lambda place, value: value.mul_(0.5)),
    "router": (change("router", torch.square), lambda place, value: value.square()),
    "experts": (scale("experts", 0.5), lambda place, value: value * 0.5),
    "logits": (scale("logits", -1.0), lambda place, value: -value),
}


@pytest.mark.parametrize("site", EDITS)
def test_generation_with_a_cache_is_that_of_the_edit_and_of_whole_texts(site: str) -> None:
    model = drawn(Random(2), decoder(**{**EXPERTS, "window": 3}))
    edit, tap = EDITS[site]
    prompt = [[5, 6, 7, 8]]
    calls: list[Place] = []

    def noted(place: Place, value: Tensor) -> Tensor | None:
        calls.append(place)
        return tap(place, value)

    with tapped(model, noted, sites=site):
        generated = generate(model, prompt, 6)
        text = list(prompt[0])
        for token in generated[0]:
            assert int(model(torch.tensor([text]))[0, -1].argmax()) == token
            text.append(token)
    with intervene(model, edit):
        assert generate(model, prompt, 6) == generated
        edited = model(torch.tensor([text]))
    assert not torch.allclose(edited, model(torch.tensor([text])))
    steps = [place for place in calls if place.layer == 0]
    ends = {(place.keys if place.queries is None else place.queries)[-1] for place in steps}
    assert ends == set(range(3, 9))
    assert len(steps) == 12
    for place in steps:
        for positions in (place.queries, place.keys):
            assert positions is None or positions == tuple(range(positions[0], positions[-1] + 1))


@pytest.mark.parametrize("kind", SMALL)
def test_gradients_flow_through_what_a_tap_returns(kind: str) -> None:
    model = small(kind)
    tokens = texts()
    factor = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for site in ("heads", "weights", "residual_between", "v", "logits"):
        with tapped(model, lambda place, value: value * factor, sites=site):
            (gradient,) = torch.autograd.grad(logits_of(model, tokens).sin().sum(), factor)
        with intervene(model, change(site, lambda value: value * factor)):
            (expected,) = torch.autograd.grad(logits_of(model, tokens).sin().sum(), factor)
        assert float(expected) != 0
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_taps_and_edits_act_in_the_order_of_their_blocks(kind: str) -> None:
    model = small(kind)
    tokens = texts()
    for site in ("heads", "weights", "q", "residual_between", "logits"):

        def doubled(place: Place, value: Tensor) -> Tensor:
            return value * 2

        def shifted(values: Tensor) -> Tensor:
            return values + (values != 0) * 0.25

        tap = partial(tapped, model, doubled, sites=site)
        edit = partial(intervene, model, change(site, shifted))
        for bend, outer, inner in (
            (lambda value: shifted(value * 2), tap, edit),
            (lambda value: shifted(value) * 2, edit, tap),
        ):
            with outer(), inner(), capture(model, what=site) as seen:
                output = logits_of(model, tokens)
            with intervene(model, change(site, bend)), capture(model, what=site) as expected:
                torch.testing.assert_close(output, logits_of(model, tokens))
            for name, values in expected.last(site).items():
                torch.testing.assert_close(seen.last(site)[name], values)


@torch.no_grad()
def test_a_tap_of_weights_sees_edited_scores_of_an_inner_block() -> None:
    model = small()
    tokens = texts()
    rows: list[Tensor] = []

    def look(place: Place, value: Tensor) -> None:
        rows.append(value[:, :, -1, 0])

    with tapped(model, look, sites="weights"), intervene(model, forbid(queries=-1, keys=0)):
        output = model(tokens)
    assert all(float(row.abs().max()) == 0 for row in rows)
    with intervene(model, forbid(queries=-1, keys=0)):
        assert torch.equal(model(tokens), output)


@torch.no_grad()
def test_a_tap_in_which_the_model_fails_leaves_nothing() -> None:
    model = small()
    tokens = texts()
    plain = model(tokens)

    def fail(place: Place, value: Tensor) -> None:
        raise KeyError(place.name)

    for place in tap_places(model):
        with pytest.raises(KeyError), tapped(model, fail, sites=place.site):
            model(tokens)
        assert torch.equal(model(tokens), plain)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@torch.no_grad()
def test_a_tap_concerns_the_thread_of_its_block() -> None:
    model = small()
    tokens = texts()
    plain = model(tokens)
    outputs: dict[str, Tensor] = {}

    def run(name: str) -> None:
        outputs[name] = model(tokens)

    with tapped(model, lambda place, value: value * 0, sites="heads"):
        thread = threading.Thread(target=run, args=("other",))
        thread.start()
        thread.join()
        run("own")
    assert torch.equal(outputs["other"], plain)
    assert not torch.allclose(outputs["own"], plain)
    with refused("another thread"), tapped(model, lambda place, value: None):
        thread = threading.Thread(target=run, args=("other",))
        thread.start()
        thread.join()


def write(place: Place, value: Tensor) -> None:
    value.add_(1.0)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "shape": (lambda place, value: value[:1], "heads", r"\[1, .*layers.0.heads"),
    "broadcast": (lambda place, value: value.new_zeros(()), "heads", r"\[\] .*layers.0.heads"),
    "dtype": (lambda place, value: value.float(), "residual", "float32.*layers.0.residual"),
    "device": (lambda place, value: value.to("meta"), "ffn", "meta"),
    "number": (lambda place, value: 0.0, "ffn", "float for layers.0.ffn"),
    "NaN": (lambda place, value: value * torch.nan, "ffn", "NaN"),
    "infinity": (lambda place, value: value + torch.inf, "neurons", "infinity"),
    "masked": (lambda place, value: value + 1, "weights", "masks"),
    "probabilities": (lambda place, value: -value, "router", "negative probability"),
    "experts": (lambda place, value: value.flatten(0, 1), "experts", "layers.0.experts"),
    "written": (write, "heads", "writes into the tensor of layers.0.heads"),
    "a site": (lambda place, value: None, "wights", "sites = 'wights'"),
    "captured alone": (lambda place, value: None, "sinks", "sites = 'sinks'"),
    "no site": (lambda place, value: None, (), r"sites = \(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.inference_mode()
def test_what_does_not_fit_is_refused(name: str) -> None:
    tap, site, got = REFUSED[name]
    experts = site in ("router", "experts")
    model = (decoder(**EXPERTS) if experts else decoder()).double().eval()
    tokens = texts()
    plain = model(tokens)
    with refused(got), tapped(model, tap, sites=site):
        model(tokens)
    assert torch.equal(model(tokens), plain)


def test_other_models_and_blocks_without_a_run_are_refused() -> None:
    with refused("without places"), tapped(nn.Linear(2, 2), lambda place, value: None):
        pass
    with refused("no call reached"), tapped(decoder(), lambda place, value: None):
        pass
    with refused("compiled"), tapped(torch.compile(decoder()), lambda place, value: None):
        pass
