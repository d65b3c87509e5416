"""The experts of a run are those that the routers chose in a forward pass of one's own."""

import numpy as np
import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.answers.experts import _layer, experts
from glassformer.explorer.answers.forward import Routed
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.loading.loaded_model import LoadedModel
from refusals import refused


def test_experts_are_the_routers_choices(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="decoder", text="1 2 3 4 5 6 7")).message.run
    found = experts(runs, m.AskExperts(run=run))
    assert (found.num_experts, found.top_k) == (3, 2)
    scores: list[torch.Tensor] = []
    routers = [block.get_submodule("ffn.router.score") for block in loaded.model.layers]
    hooks = [
        each.register_forward_hook(lambda _, __, out: scores.append(out.reshape(-1, 3)))
        for each in routers
    ]
    with torch.no_grad():
        loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    for hook in hooks:
        hook.remove()
    for layer, (told, score) in enumerate(zip(found.layers, scores, strict=True)):
        best, choices = score.topk(2)
        assert told.layer == layer
        assert told.choices == choices.tolist()
        np.testing.assert_allclose(told.shares, best.softmax(-1), atol=2e-6)
        np.testing.assert_allclose(told.probabilities, score.softmax(-1), atol=2e-6)
        counts = [choices.flatten().tolist().count(expert) / 14 for expert in range(3)]
        assert told.load == pytest.approx(counts)
        assert sum(told.load) == pytest.approx(1)


def test_a_model_without_experts_is_refused(by_name: dict[str, LoadedModel]) -> None:
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="lookup", text="4")).message.run
    with refused("no experts"):
        experts(runs, m.AskExperts(run=run))


def test_a_long_answer_has_no_probabilities(
    by_name: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="decoder", text="1 2 3 4 5 6 7")).message.run
    whole = experts(runs, m.AskExperts(run=run))
    # tokens, layers, experts, and two numbers for each of two choices
    numbers = 7 * 2 * (3 + 2 * 2)
    bound = "glassformer.explorer.answers.experts.MOST_EXPERT_NUMBERS"
    monkeypatch.setattr(bound, numbers)
    assert experts(runs, m.AskExperts(run=run)) == whole
    monkeypatch.setattr(bound, numbers - 1)
    short = experts(runs, m.AskExperts(run=run))
    bare = [layer.model_copy(update={"probabilities": []}) for layer in whole.layers]
    assert short == whole.model_copy(update={"layers": bare})
    assert [layer.probabilities for layer in short.layers] == [[], []]
    assert [layer.load for layer in short.layers] == [layer.load for layer in whole.layers]
    monkeypatch.setattr(bound, 7 * 2 * 2 * 2)
    assert experts(runs, m.AskExperts(run=run)) == short
    monkeypatch.setattr(bound, 7 * 2 * 2 * 2 - 1)
    with refused(fix="Shorten the text to 6 tokens"):
        experts(runs, m.AskExperts(run=run))


def test_the_largest_answer_has_some_megabytes() -> None:
    """Of a mixture of 64 layers and 128 experts, as few tokens as fill it: every number is written
    out in full.
    """
    tokens = m.MOST_EXPERT_NUMBERS // (64 * (128 + 8))
    kept = Routed(
        0, torch.rand(tokens, 128), torch.randint(128, (tokens, 4)), torch.rand(tokens, 4)
    )
    told = _layer(kept, True)
    assert 64 * len(told.model_dump_json()) < 12_000_000
