"""Changes of a model asked for by the page, against plain changes of its weights and masks."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers import sweeping
from glassformer.explorer.answers.runs import SizedCache
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.saving.recorded_answers import whole_sweep
from glassformer.models.encoder import Encoder
from glassformer.observe.capture import capture
from glassformer.observe.edits import forbid
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, ffn_logits, logit_lens
from glassformer.observe.partial_runs import Runner
from refusals import refused
from small_models import decoder as small_decoder
from small_models import encoder, encoder_decoder
from transformers_models import FAMILIES, bert_classifier

TEXT = "1 2 3 5 8 1 2 3"
ASK = m.Ask(model="decoder", text=TEXT)
TOKENS = torch.tensor([[int(each) for each in TEXT.split()]])


def whatif(
    backend: Backend, text: str = TEXT, model: str = "decoder", changes: Any = None, **asked: Any
) -> m.WhatIf:
    return backend.answer(
        "whatif", m.AskWhatIf(ask=m.Ask(model=model, text=text, changes=changes), **asked)
    )


def after(answer: m.WhatIf) -> torch.Tensor:
    return torch.tensor([each.after for each in sorted(answer.outcomes, key=lambda each: each.id)])


def probabilities(model: torch.nn.Module, place: int = -1) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(TOKENS)
    return logits[0, place].softmax(-1)


@pytest.fixture
def decoder(by_name: dict[str, LoadedModel]) -> Any:
    loaded = by_name["decoder"]
    return deepcopy(loaded.model)


def test_without_changes_nothing_changes(small_backend: Backend, decoder: Any) -> None:
    answer = whatif(small_backend)
    shipped = Backend(bundled())
    nothing = m.Steering(layer=0, toward=3, away=None, strength=0.0)
    # which wrote two tokens
    assert whatif(shipped, "", "lookup-course", steer=nothing).distance == 0
    assert (answer.distance, answer.changes, answer.place, answer.kind) == (0, [], 7, "token")
    assert answer.offers == ["heads", "edges", "steer", "experts", "sweep", "lens", "contributions"]
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)


def test_a_removed_head_is_zeroed_columns(small_backend: Backend, decoder: Any) -> None:
    answer = whatif(small_backend, removed=[m.RemovedHead(part="self", layer=1, head=0)])
    decoder.layers[1].attention.output.weight.data[:, :8] = 0
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.changes == ["layer 1, head 0 removed"]
    assert answer.distance > 1e-4


def test_a_forbidden_edge_is_a_mask(small_backend: Backend, decoder: Any) -> None:
    edge = m.ForbiddenEdge(part="self", layer=None, head=None, query=7, key=7)
    answer = whatif(small_backend, forbidden=[edge])
    assert answer.changes == ["every layer, every head: 3 (7) may not attend to 3 (7)"]
    assert answer.distance > 1e-4
    one = [
        m.ForbiddenEdge(part="self", layer=layer, head=head, query=7, key=7)
        for layer in (0, 1)
        for head in (0, 1)
    ]
    torch.testing.assert_close(
        after(whatif(small_backend, forbidden=one)), after(answer), rtol=0, atol=1e-6
    )
    with intervene(decoder, forbid(7, 7)):
        torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    some = [m.ForbiddenEdge(part="self", layer=1, head=1, query=7, key=key) for key in (5, 6)]
    with intervene(decoder, forbid(7, (5, 6), layers=1, heads=1)):
        expected = probabilities(decoder)
    torch.testing.assert_close(
        after(whatif(small_backend, forbidden=some)), expected, rtol=0, atol=1e-6
    )


def test_attention_after_changes(small_backend: Backend, decoder: Any) -> None:
    removed = [m.RemovedHead(part="self", layer=0, head=1)]
    forbidden = [m.ForbiddenEdge(part="self", layer=1, head=0, query=7, key=6)]
    ask = ASK.model_copy(update={"changes": m.Changes(removed=removed, forbidden=forbidden)})
    run = small_backend.answer("run", ask)
    decoder.layers[0].attention.output.weight.data[:, 8:] = 0
    with torch.no_grad(), intervene(decoder, forbid(7, 6, heads={1: 0})), capture(decoder) as seen:
        decoder(TOKENS)
    for layer in range(2):
        tile = m.AskTile(run=run.run, part="self", layer=layer, head=0)
        found = np.frombuffer(small_backend.answer("weights", tile), "<f4").reshape(8, 8)
        np.testing.assert_allclose(found, list(seen.weights.values())[layer][0, 0], atol=1e-6)
    assert found[7, 6] == 0
    assert small_backend.answer("run", ASK).run != run.run
    with refused("a run with changes"):
        whatif(small_backend, changes=ask.changes)


def test_changes_keep_the_tokens_that_an_encoder_decoder_wrote(small_backend: Backend) -> None:
    steer = m.Changes(steer=m.Steering(layer=0, toward=3, away=None, strength=50.0))
    asks = [m.Ask(model="lookup", text="4", changes=changes) for changes in (None, steer)]
    run, changed = (small_backend.answer("run", ask) for ask in asks)
    assert changed.tokens == run.tokens
    assert changed.said != run.said


@pytest.mark.parametrize("strength", [0.0, 0.5, -2.0])
def test_steering_adds_a_direction_to_the_stream(
    small_backend: Backend, decoder: Any, strength: float
) -> None:
    answer = whatif(small_backend, steer=m.Steering(layer=0, toward=3, away=5, strength=strength))

    def add(_: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        rows = decoder.output.weight * decoder.final_norm.weight
        direction = (rows[3] - rows[5]) / (rows[3] - rows[5]).norm()
        return output + strength * output.norm(dim=-1).median() * direction

    decoder.layers[0].register_forward_hook(add)
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.changes == [f"steered after layer 0 by {strength:g} toward 3 and away from 5"]


def test_a_forbidden_expert_has_no_score(small_backend: Backend, decoder: Any) -> None:
    answer = whatif(small_backend, swaps=[m.ReplacedExpert(layer=0, expert=1, instead=None)])

    def forbid(_: Any, args: Any, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(-1, torch.tensor(1), -1e30)

    decoder.layers[0].ffn.router.score.register_forward_hook(forbid)
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.distance > 1e-4


def test_a_sweep_removes_each_head(small_backend: Backend) -> None:
    found = whole_sweep(small_backend, m.AskSweep(ask=ASK, target=4))
    (stack,) = found.stacks
    for layer, head in product(range(2), range(2)):
        answer = whatif(
            small_backend, target=4, removed=[m.RemovedHead(part="self", layer=layer, head=head)]
        )
        odds = torch.logit(after(answer).double())[4]
        assert stack.after[layer][head] == pytest.approx(float(odds), abs=1e-5)
    assert found.before == pytest.approx(
        float(torch.logit(after(whatif(small_backend)).double())[4]), abs=1e-5
    )
    assert (found.done, found.total, stack.exact) == (4, 4, [[True, True], [True, True]])


def test_a_sweep_may_compare_two_outcomes(small_backend: Backend) -> None:
    found = whole_sweep(small_backend, m.AskSweep(ask=ASK, target=4, other=5))
    answer = whatif(small_backend, target=4, removed=[m.RemovedHead(part="self", layer=1, head=0)])
    assert found.stacks[0].after[1][0] == pytest.approx(
        float((after(answer)[4] / after(answer)[5]).log()), abs=1e-4
    )
    with refused("target = other = 4"):
        small_backend.answer("sweep", m.AskSweep(ask=ASK, target=4, other=4))


def test_a_sweep_is_an_estimate_first_and_ends_unasked(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 0.0)
    monkeypatch.setattr(sweeping, "_TOKENS_AT_ONCE", 1)
    ask = m.AskSweep(ask=ASK, target=2)
    with patch.object(Runner, "run", autospec=True, side_effect=Runner.run) as runs:
        first = small_backend.answer("sweep", ask)
        assert (first.done, first.stacks[0].exact) == (0, [[False, False], [False, False]])
        assert all(each is not None for row in first.stacks[0].after for each in row)
        count = runs.call_count
        # Between the slices the model answers other calls, and nothing computes.
        assert (
            whatif(small_backend, removed=[m.RemovedHead(part="self", layer=0, head=0)]).distance
            > 0
        )
        assert runs.call_count == count
        seen = [first.done]
        while seen[-1] < first.total:
            more = small_backend.answer("sweep", ask.model_copy(update={"done": seen[-1]}))
            seen.append(more.done)
        # Each answer says more than its caller knew; an equal one would not be asked for again.
        assert seen == [0, 1, 2, 3, 4]
        count = runs.call_count
        small_backend.answer("sweep", ask)
        assert runs.call_count == count


@pytest.mark.parametrize("known", [None, 0], ids=["estimated", "exact"])
def test_a_click_interrupts_a_sweep(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch, known: int | None
) -> None:
    """A sweep that is in the middle of a forward pass computes on only after the answer, and as if
    alone.
    """
    monkeypatch.setattr(sweeping, "SLICE", 0.0)
    ask = m.AskSweep(ask=ASK, target=3)
    alone = whole_sweep(small_backend, ask)
    small_backend.runs.derived = SizedCache(1 << 20)
    loaded = small_backend.model("decoder")
    if known is not None:
        small_backend.answer("sweep", ask)
    order: list[str] = []
    asking: list[threading.Thread] = []

    def click() -> None:
        with loaded.lock:  # once for all, so that the sweep cannot go on between two of its parts
            whatif(small_backend, removed=[m.RemovedHead(part="self", layer=0, head=1)])

    def block(*_: Any) -> None:
        order.append("click" if threading.current_thread() in asking else "sweep")
        if not asking:
            asking.append(threading.Thread(target=click))
            asking[0].start()
            while loaded.lock._waiting == 0 and asking[0].is_alive():
                time.sleep(0.001)

    with loaded.model.layers[0].register_forward_hook(block):
        small_backend.answer("sweep", ask.model_copy(update={"done": known}))
    asking[0].join()
    assert order[:2] == ["sweep", "click"]
    interrupted = whole_sweep(small_backend, ask)
    assert interrupted.stacks[0].exact == alone.stacks[0].exact
    # Where a module has a hook, heads are removed one by one instead of several at once.
    found, expected = (torch.tensor(each.stacks[0].after) for each in (interrupted, alone))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_of_a_large_sweep_layers_that_matter_are_exact(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "MOST_SWEPT", 1.0)
    found = whole_sweep(small_backend, m.AskSweep(ask=ASK, target=7))
    assert (found.done, found.total) == (2, 2)
    assert sorted(found.stacks[0].exact) == [[False, False], [True, True]]
    monkeypatch.setattr(sweeping, "MOST_HELD", 0.0)
    found = whole_sweep(small_backend, m.AskSweep(ask=ASK, target=8))
    assert found.stacks[0].after[0] == [None, None]


def test_the_limit_of_a_sweep_counts_what_each_token_needs(
    small_backend: Backend, decoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without embedding and output
    weights = sum(weight.numel() for weight in decoder.layers.parameters())
    for target, share, total in ((9, 1.0, 4), (10, 0.99, 2)):
        monkeypatch.setattr(sweeping, "MOST_SWEPT", share * weights * len(TEXT.split()) * 4)
        found = whole_sweep(small_backend, m.AskSweep(ask=ASK, target=target))
        assert (found.done, found.total) == (total, total)


def test_a_lens_is_the_projection_of_each_stage(small_backend: Backend, decoder: Any) -> None:
    found = small_backend.answer("lens", m.AskLens(ask=ASK, target=4))
    expected = logit_lens(decoder, TOKENS)[:, 0].softmax(-1)
    torch.testing.assert_close(torch.tensor(found.targets), expected[..., 4], rtol=0, atol=1e-6)
    torch.testing.assert_close(
        torch.tensor(found.probabilities), expected.amax(-1), rtol=0, atol=1e-6
    )
    assert found.names == [[str(each) for each in row] for row in expected.argmax(-1).tolist()]
    assert (found.stages, found.positions) == (["embedding", "layer 0", "layer 1"], TEXT.split())


def test_contributions_sum_to_the_logit(small_backend: Backend, decoder: Any) -> None:
    ask = m.AskContributions(ask=ASK, place=4, target=4, other=2)
    found = small_backend.answer("contributions", ask)
    expected = direct_logits(decoder, TOKENS, 4, 2, query=4)
    assert [part.name for part in found.parts] == list(expected.names)
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-5)
    assert found.total == pytest.approx(float(expected.total[0]), abs=1e-6)


def test_what_a_network_adds_names_tokens_and_neurons() -> None:
    model = small_decoder(num_layers=2).eval()
    backend = Backend([wrap_model(model, [3, 1, 4])])
    ask = m.Ask(model="given", text="3 1 4 1 5")
    parts = backend.answer("contributions", m.AskContributions(ask=ask, place=3)).parts
    found = backend.answer("ffn", m.AskFfn(ask=ask, place=3, layer=1))
    (part,) = (part.value for part in parts if part.name == "layer 1 ffn")
    assert found.value == pytest.approx(part, abs=1e-4)
    values = ffn_logits(model, torch.tensor([[3, 1, 4, 1, 5]]), 1, found.target, query=3).logits[0]
    assert [each.id for each in found.raised] == values.argsort(descending=True)[:8].tolist()
    assert [each.id for each in found.lowered] == values.argsort()[:8].tolist()
    assert found.neurons is not None
    assert [each.value for each in found.neurons] == sorted(
        (each.value for each in found.neurons), key=abs, reverse=True
    )
    with refused("the feed-forward network of layer 2"):
        backend.answer("ffn", m.AskFfn(ask=ask, layer=2))


def test_what_a_mixture_adds_is_the_sum_of_its_experts(small_backend: Backend) -> None:
    parts = small_backend.answer("contributions", m.AskContributions(ask=ASK)).parts
    found = small_backend.answer("ffn", m.AskFfn(ask=ASK, layer=0))
    experts = sum(part.value for part in parts if part.kind == "expert" and part.layer == 0)
    assert found.value == pytest.approx(experts, abs=1e-4)
    assert found.neurons is None


def test_what_a_hook_adds_is_a_part_of_its_own(small_backend: Backend) -> None:
    loaded = small_backend.model("decoder")
    more = torch.arange(loaded.model.config.hidden_dim)
    with loaded.model.layers[0].register_forward_hook(lambda block, given, output: output + more):
        found = small_backend.answer("contributions", m.AskContributions(ask=ASK))
    (added,) = [part for part in found.parts if part.kind == "interventions"]
    assert abs(added.value) > 1e-3
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-5)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"removed": [m.RemovedHead(part="self", layer=2, head=0)]}, "a removed head: layer = 2"),
        ({"removed": [m.RemovedHead(part="self", layer=0, head=2)]}, "a removed head: head = 2"),
        (
            {"removed": [m.RemovedHead(part="cross", layer=0, head=0)]},
            "a removed head: part = 'cross'",
        ),
        (
            {"forbidden": [m.ForbiddenEdge(part="self", layer=0, head=0, query=8, key=0)]},
            "query = 8",
        ),
        ({"forbidden": [m.ForbiddenEdge(part="self", layer=0, head=0, query=0, key=8)]}, "key = 8"),
        (
            {"steer": m.Steering(layer=2, toward=0, away=None, strength=1.0)},
            "the steering: layer = 2",
        ),
        ({"steer": m.Steering(layer=0, toward=3, away=3, strength=1.0)}, "toward = away = 3"),
        ({"steer": m.Steering(layer=0, toward=11, away=None, strength=1.0)}, "toward = 11"),
        ({"swaps": [m.ReplacedExpert(layer=0, expert=3, instead=None)]}, "expert = 3"),
        (
            {"swaps": [m.ReplacedExpert(layer=0, expert=1, instead=1)]},
            "a replaced expert that stays",
        ),
        ({"target": 11}, "target = 11"),
        ({"place": 8}, "place = 8"),
    ],
)
def test_what_does_not_exist_is_refused(
    small_backend: Backend, asked: dict[str, Any], got: str
) -> None:
    with refused(got):
        whatif(small_backend, **asked)


def test_a_replaced_expert_hands_its_tokens_on(small_backend: Backend, decoder: Any) -> None:
    answer = whatif(small_backend, swaps=[m.ReplacedExpert(layer=0, expert=1, instead=2)])

    def redirect(_: Any, args: Any, scores: torch.Tensor) -> torch.Tensor:
        moved = scores.softmax(-1)
        for row in moved:
            if 1 in row.topk(decoder.config.top_k).indices:
                row[2] += row[1]
            row[1] = 0
        return moved.log()

    decoder.layers[0].ffn.router.score.register_forward_hook(redirect)
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.changes == ["layer 0: expert 1 replaced by 2"]
    assert answer.distance > 1e-4


@pytest.mark.parametrize("place", [0, 3, 7])
def test_an_earlier_place_is_judged_by_what_it_sees(
    small_backend: Backend, decoder: Any, place: int
) -> None:
    answer = whatif(
        small_backend, place=place, removed=[m.RemovedHead(part="self", layer=0, head=1)]
    )
    decoder.layers[0].attention.output.weight.data[:, 8:] = 0
    torch.testing.assert_close(
        after(answer), probabilities(decoder, place=place), rtol=0, atol=1e-6
    )
    later = m.ForbiddenEdge(part="self", layer=None, head=None, query=7, key=0)
    if place < 7:
        assert whatif(small_backend, place=place, forbidden=[later]).distance == 0
    else:  # a query without any key is answered
        edges = [m.ForbiddenEdge(part="self", layer=None, head=None, query=0, key=0)]
        assert 0 <= whatif(small_backend, forbidden=edges).distance <= 1


def test_an_encoder_decoder_has_three_stacks(
    small_backend: Backend, by_name: dict[str, LoadedModel]
) -> None:
    loaded: Any = by_name["lookup"]
    ask = m.Ask(model="lookup", text="4", source=["1", "2", "3"])
    head = m.RemovedHead(part="cross", layer=0, head=1)
    edge = m.ForbiddenEdge(part="cross", layer=0, head=0, query=0, key=2)
    answer = small_backend.answer("whatif", m.AskWhatIf(ask=ask, removed=[head], forbidden=[edge]))
    changes = ["head 1 removed", "head 0: 5 (0) may not attend to 3 (2)"]
    assert answer.changes == [f"cross-attention, layer 0, {each}" for each in changes]
    model = deepcopy(loaded.model)
    cross = model.decoder_layers[0].cross_attention
    cross.output.weight.data[:, 8:] = 0  # of head 0 alone
    source = loaded.source_tokens(["1", "2", "3"])
    target = loaded.target("4")
    with torch.no_grad():
        memory = model.encode(source)
        expected = model.decode(target, memory, torch.tensor([[True, True, False]]))[0, -1].softmax(
            -1
        )
    torch.testing.assert_close(after(answer), expected, rtol=0, atol=1e-6)
    found = whole_sweep(small_backend, m.AskSweep(ask=ask))
    assert [stack.part for stack in found.stacks] == ["encoder", "decoder", "cross"]
    assert "contributions" not in answer.offers  # its blocks are post-norm


def test_contributions_of_an_encoder_decoder_name_the_stack_of_a_head() -> None:
    model = encoder_decoder(num_decoder_layers=1, norm_first=True, final_norm=True).eval()
    backend = Backend([wrap_model(model, [3], source=[4, 5, 6])])
    ask = m.Ask(model="given", text="3", source=["4", "5", "6"])
    found = backend.answer("contributions", m.AskContributions(ask=ask))
    heads = [(part.part, part.layer, part.number) for part in found.parts if part.kind == "head"]
    assert heads == [(part, 0, head) for part in ("decoder", "cross") for head in (0, 1)]
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-5)


@pytest.fixture(scope="module")
def classifier() -> Encoder:
    torch.manual_seed(3)
    model = encoder(hidden_dim=16, num_classes=3, norm_first=True).eval()
    model.classifier.weight.data.normal_()
    return model


def test_a_classifier_has_classes_and_no_place(classifier: Encoder) -> None:
    backend = Backend([wrap_model(classifier, [3, 4, 5, 6])])
    removed = [m.RemovedHead(part="self", layer=0, head=1)]
    answer = whatif(backend, "3 4 5 6", "given", removed=removed, target=2)
    assert (answer.kind, answer.place, answer.target) == ("class", None, 2)
    model = deepcopy(classifier)
    model.layers[0].attention.output.weight.data[:, 8:] = 0
    with torch.no_grad():
        expected = model(torch.tensor([[3, 4, 5, 6]]))[0].softmax(-1)
    torch.testing.assert_close(after(answer), expected, rtol=0, atol=1e-6)
    with refused("place = 0 of a classifier"):
        whatif(backend, "3 4 5 6", "given", place=0)
    found = backend.answer("lens", m.AskLens(ask=m.Ask(model="given", text="3 4 5 6")))
    assert found.positions == [""]
    before = sorted(whatif(backend, "3 4 5 6", "given").outcomes, key=lambda each: each.id)
    assert found.probabilities[-1] == [pytest.approx(max(each.before for each in before))]


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "bert"])
def test_models_of_transformers_offer_what_they_have(family: str) -> None:
    make = bert_classifier if family == "bert" else FAMILIES[family]
    backend = Backend([wrap_model(make(), [3, 4, 5, 6])])
    assert "whatif" in backend.catalogue().models[0].views
    ask = m.Ask(model="given", text="3 4 5 6")
    answer = whatif(
        backend, ask.text, "given", removed=[m.RemovedHead(part="self", layer=1, head=1)]
    )
    assert answer.distance > 0
    everything = ["heads", "edges", "steer", "experts", "sweep", "lens", "contributions"]
    without = {
        "gpt2": {"experts"},
        "mixtral": set(),
        "bert": {"steer", "experts", "lens", "contributions"},
    }
    assert answer.offers == [offer for offer in everything if offer not in without[family]]
    found = whole_sweep(backend, m.AskSweep(ask=ask, target=answer.target))
    odds = torch.logit(after(answer).double())[answer.target]
    assert found.stacks[0].after[1][1] == pytest.approx(float(odds), abs=1e-4)
    edge = m.ForbiddenEdge(part="self", layer=0, head=1, query=3, key=1)
    assert whatif(backend, ask.text, "given", forbidden=[edge]).distance > 0
    if "steer" in answer.offers:
        steer = m.Steering(layer=0, toward=7, away=None, strength=5.0)
        steered = {
            each.id: each for each in whatif(backend, ask.text, "given", steer=steer).outcomes
        }
        assert steered[7].after > steered[7].before
    edge = m.ForbiddenEdge(part="self", layer=None, head=None, query=0, key=0)
    with suppress(InputError):  # a query without any key may have no finite output
        assert whatif(backend, ask.text, "given", forbidden=[edge]).distance <= 1
    if "lens" not in answer.offers:
        for call, request in (
            ("lens", m.AskLens(ask=ask)),
            ("contributions", m.AskContributions(ask=ask)),
        ):
            with refused("of 'given'"):
                backend.answer(call, request)


def test_threads_change_only_their_own_run(small_backend: Backend) -> None:
    heads = [(layer, head) for layer in (0, 1) for head in (0, 1)]

    def one(place: tuple[int, int] | None) -> list[float]:
        removed = (
            [] if place is None else [m.RemovedHead(part="self", layer=place[0], head=place[1])]
        )
        return after(whatif(small_backend, removed=removed)).tolist()

    asked: list[tuple[int, int] | None] = [*heads, None] * 8
    alone = {place: one(place) for place in (*heads, None)}
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, asked)) == [alone[place] for place in asked]


def test_heads_and_encoders_of_vectors_have_no_output(small_backend: Backend) -> None:
    with refused("'identity', a head"):
        whatif(small_backend, "AB", "identity")
    backend = Backend([wrap_model(encoder(num_classes=None), [3, 4])])
    assert backend.catalogue().models[0].views == ["attention"]
    with refused("predicts no tokens or classes"):
        whatif(backend, "3 4", "given")
