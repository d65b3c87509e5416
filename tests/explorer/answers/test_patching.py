"""Patch sweeps over two texts, against runs of the model with one vector replaced."""

from itertools import product
from typing import Any

import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.answers import sweeping
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.observe.sweep import patch_steps
from refusals import refused

FIRST = "1 2 3 5 8 1 2 3"
SECOND = "1 2 4 5 8 1 2 3"


def swept(backend: Backend, **asked: Any) -> m.Patches:
    ask = m.AskPatches(ask=m.Ask(model="decoder", text=FIRST), second=SECOND, **asked)
    answer: m.Patches = backend.answer("patches", ask)
    while answer.done < answer.total:
        more: m.Patches = backend.answer("patches", ask.model_copy(update={"done": answer.done}))
        assert more.done > answer.done
        answer = more
    return answer


def replaced(model: Any, layer: int, position: int) -> torch.Tensor:
    """The logits after the second text with one vector as after the first, by a plain hook."""
    first, second = (
        torch.tensor([[int(each) for each in text.split()]]) for text in (FIRST, SECOND)
    )
    kept = []
    with torch.no_grad():
        with model.layers[layer].register_forward_hook(lambda *seen: kept.append(seen[-1].clone())):
            model(first)

        def put(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            output = output.clone()
            output[:, position] = kept[0][:, position]
            return output

        with model.layers[layer].register_forward_hook(put):
            return model(second)[0, -1].double()


@pytest.mark.parametrize("other", [None, 4])
def test_each_place_is_a_run_with_one_vector_replaced(
    small_backend: Backend, by_name: dict[str, LoadedModel], other: int | None
) -> None:
    answer = swept(small_backend, target=7, other=other)
    assert answer.tokens == FIRST.split()
    assert answer.second_tokens == SECOND.split()
    assert (len(answer.patched), answer.total) == (2, 16)

    def odds(logits: torch.Tensor) -> float:
        shares = logits.softmax(-1)
        return float((shares[7] / (1 - shares[7] if other is None else shares[other])).log())

    for layer, position in product(range(2), range(8)):
        wanted = odds(replaced(by_name["decoder"].model, layer, position))
        assert answer.patched[layer][position] == pytest.approx(wanted, abs=1e-5)
    # What comes before the first difference is alike; the last place of all brings everything back.
    assert answer.patched[0][1] == pytest.approx(answer.second, abs=1e-6)
    assert answer.patched[1][7] == pytest.approx(answer.first, abs=1e-5)
    assert abs(answer.first - answer.second) > 0.01


def test_a_click_on_a_place_is_the_same_run(
    small_backend: Backend, by_name: dict[str, LoadedModel]
) -> None:
    patch = m.PatchedPlace(text=FIRST, layer=0, position=5)
    answer = small_backend.answer(
        "whatif", m.AskWhatIf(ask=m.Ask(model="decoder", text=SECOND), patch=patch)
    )
    found = torch.tensor(
        [each.after for each in sorted(answer.outcomes, key=lambda each: each.id)]
    ).double()
    torch.testing.assert_close(
        found, replaced(by_name["decoder"].model, 0, 5).softmax(-1), rtol=0, atol=1e-6
    )
    assert answer.changes == ["after layer 0 at 1 (5): as for 1 in the other text"]
    assert answer.distance > 0


def test_texts_of_other_lengths_and_places_that_there_are_not_are_refused(
    small_backend: Backend,
) -> None:
    ask = m.Ask(model="decoder", text=FIRST)
    with refused("texts of 8 and 3 tokens"):
        small_backend.answer("patches", m.AskPatches(ask=ask, second="1 2 3"))
    with refused("two texts of an encoder-decoder"):
        small_backend.answer(
            "patches", m.AskPatches(ask=m.Ask(model="lookup", text="4"), second="5")
        )
    for place in ({"layer": 2, "position": 0}, {"layer": 0, "position": 8}):
        with refused("a patch"):
            small_backend.answer(
                "whatif", m.AskWhatIf(ask=ask, patch=m.PatchedPlace(text=SECOND, **place))
            )


def test_the_layers_where_places_seem_to_bring_back_most_come_first(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []

    def watched(*texts: Any, order: Any, **options: Any) -> Any:
        orders.append(order)
        return patch_steps(*texts, order=order, **options)

    class Guess:
        values = torch.tensor([[0.0] * 8, [0.0] * 7 + [5.0]])
        corrupted = 0.0

    monkeypatch.setattr(sweeping, "patch_steps", watched)
    monkeypatch.setattr(sweeping, "attribution_sweep", lambda *texts, **options: Guess)
    swept(small_backend, target=6)
    assert orders == [[1, 0]]
