"""Other orders of a source: what a set does not mind, and what an order-minding model does."""

from itertools import permutations

import pytest
import torch

from glassformer.explorer.answers.scrambling import MOST_ORDERS, scramble
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.messages import AskScramble
from refusals import refused


def logits(loaded: LoadedModel, units: list[str], text: str) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(loaded.source_tokens(units), loaded.target(text))


def test_a_set_is_the_same_in_every_order(by_name: dict[str, LoadedModel]) -> None:
    units = ["1", "2", "3", "4"]
    found = scramble(by_name["lookup"], AskScramble(model="lookup", text="4 2", source=units))
    assert (found.orders, found.exhaustive, found.holds, found.changed_tokens) == (
        24,
        True,
        True,
        0,
    )
    assert found.largest_change <= found.tolerance


def test_what_minds_the_order_is_told_by_how_much(by_name: dict[str, LoadedModel]) -> None:
    units = ["1", "2", "3", "4"]
    loaded = by_name["ordered"]
    found = scramble(loaded, AskScramble(model="ordered", text="4 2", source=units))
    before = logits(loaded, units, "4 2")
    orders = {
        order: logits(loaded, [units[place] for place in order], "4 2")
        for order in permutations(range(4))
    }
    changes = {order: float((after - before).abs().max()) for order, after in orders.items()}
    assert not found.holds
    assert found.largest_change == pytest.approx(max(changes.values()), rel=1e-4)
    assert changes[tuple(found.worst)] == pytest.approx(found.largest_change, rel=1e-4)


@pytest.mark.parametrize(("name", "holds"), [("lookup", True), ("ordered", False)])
def test_one_order_is_compared_with_the_given_one(
    name: str, holds: bool, by_name: dict[str, LoadedModel]
) -> None:
    units = ["1", "2", "3"]
    order = [2, 0, 1]
    found = scramble(by_name[name], AskScramble(model=name, text="4", source=units, order=order))
    change = (
        (logits(by_name[name], ["3", "1", "2"], "4") - logits(by_name[name], units, "4"))
        .abs()
        .max()
    )
    assert found.largest_change == pytest.approx(float(change), abs=1e-6)
    assert (found.orders, found.exhaustive, found.worst, found.holds) == (1, False, order, holds)


def test_of_many_orders_some_are_tried(by_name: dict[str, LoadedModel]) -> None:
    units = [str(number) for number in range(10)]
    found = scramble(by_name["lookup"], AskScramble(model="lookup", text="4", source=units))
    assert (found.orders, found.exhaustive, found.holds) == (MOST_ORDERS, False, True)
    assert sorted(found.worst) == list(range(10))


@pytest.mark.parametrize(
    ("source", "order", "words"),
    [
        (["1", "2"], [0, 0], "every number from 0 to 1 once"),
        (["1", "2"], [1, 2], "every number"),
        (["1", "1"], None, "the same in every order"),
        (["1"], None, "the same in every order"),
        ([], None, "1 to 16"),
        (["x"], None, "numbers"),
    ],
)
def test_what_cannot_be_scrambled_is_refused(
    source: list[str], order: list[int] | None, words: str, by_name: dict[str, LoadedModel]
) -> None:
    with refused(anywhere=words):
        scramble(
            by_name["lookup"], AskScramble(model="lookup", text="4", source=source, order=order)
        )


def test_other_models_read_no_source(by_name: dict[str, LoadedModel]) -> None:
    with refused(expected="reads a source"):
        scramble(by_name["decoder"], AskScramble(model="decoder", text="4", source=["1"]))
