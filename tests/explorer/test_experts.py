"""The experts of a run are those that the routers chose in a forward pass of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import DecoderExhibit, Exhibit
from glassformer.explorer.experts import experts
from glassformer.explorer.runs import Runs
from glassformer.models.decoder import Decoder


def test_experts_are_the_routers_choices(by_name: dict[str, Exhibit]) -> None:
    exhibit = by_name["decoder"]
    assert isinstance(exhibit, DecoderExhibit)
    assert isinstance(exhibit.model, Decoder)
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="decoder", text="1 2 3 4 5 6 7")).message.run
    found = experts(runs, m.AskExperts(run=run))
    assert (found.num_experts, found.top_k) == (3, 2)
    scores: list[torch.Tensor] = []
    hooks = [
        block.get_submodule("ffn.router.score").register_forward_hook(
            lambda _, __, out: scores.append(out.reshape(-1, 3))
        )
        for block in exhibit.model.layers
    ]
    with torch.no_grad():
        exhibit.model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
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


def test_a_model_without_experts_is_refused(by_name: dict[str, Exhibit]) -> None:
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="lookup", text="4")).message.run
    with pytest.raises(InputError, match="no experts"):
        experts(runs, m.AskExperts(run=run))
