import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor

from glassformer.observe.scrambling import scrambling_test
from refusals import refused
from small_models import encoder_decoder


def asked(source: Tensor) -> Tensor:
    """Logits that are the numbers that arrived, so that a test sees every order."""
    return source.float()


class Recorder:
    """Predicts the same for all orders, and keeps what it was asked."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = []

    def __call__(self, source: Tensor) -> Tensor:
        self.batches.append(source)
        return torch.ones(len(source), 2, 3)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
@pytest.mark.parametrize("fields", [1, 2])
def test_a_model_without_source_positions_passes_and_one_with_fails(
    fields: int, positions: str
) -> None:
    model = encoder_decoder(fields_per_slot=fields, source_positions=positions).eval()
    with torch.no_grad():
        model.output.weight.mul_(10)
    source = torch.randint(1, 14, (3, 9) if fields == 1 else (3, 9, fields))
    source[0, 4:], source[1, 5:] = 0, 0
    target = torch.tensor([[1, 5]])
    result = scrambling_test(
        lambda source: model(source, target.expand(len(source), -1)),
        source,
        model.real_source(source),
        max_orders=130,
    )
    assert [context.orders for context in result.contexts] == [24, 120, 130]
    assert [context.exhaustive for context in result.contexts] == [True, True, False]
    assert result.holds == (positions == "none")
    assert (result.largest_change <= 1e-5) == (positions == "none")
    assert (result.changed_tokens > 0) == (positions != "none")


def test_all_orders_are_tried_once_and_padding_stays() -> None:
    recorder = Recorder()
    source = torch.tensor([[10, 0, 11, 12, 0, 13]])
    result = scrambling_test(recorder, source, source != 0, batch_size=7)
    assert [len(batch) for batch in recorder.batches] == [7, 7, 7, 3]
    rows = torch.cat(recorder.batches)
    assert torch.equal(rows[0], source[0])
    assert (rows[:, [1, 4]] == 0).all()
    assert len({tuple(row) for row in rows.tolist()}) == 24 == math.factorial(4)
    assert (rows.sort(-1).values == source[0].sort().values).all()
    context = result.contexts[0]
    assert (context.positions, context.orders, context.exhaustive) == (4, 24, True)
    assert context.decided_tokens == 23 * 2
    assert result.holds


def test_beyond_the_limit_a_seeded_sample_of_different_orders() -> None:
    source = torch.arange(40)[None]
    drawn = []
    for seed in (0, 0, 1):
        recorder = Recorder()
        result = scrambling_test(recorder, source, max_orders=300, seed=seed)
        rows = torch.cat(recorder.batches)
        assert torch.equal(rows[0], source[0])
        assert len({tuple(row) for row in rows.tolist()}) == 300 == result.orders
        assert (rows.sort(-1).values == source).all()
        assert not result.exhaustive
        drawn.append(rows)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_limit_is_exactly_all_orders_of_seven() -> None:
    for count, orders, exhaustive in ((7, 5040, True), (8, 5040, False), (2, 2, True)):
        result = scrambling_test(
            lambda source: torch.ones(len(source), 1), torch.arange(count)[None]
        )
        assert (result.orders, result.exhaustive, result.holds) == (orders, exhaustive, True)


def test_changes_by_hand() -> None:
    """Of [5, 1, 9] the first position is the logit of token 0, against a constant 4.5 for token 1."""
    source = torch.tensor([[5, 1, 9], [2, 2, 2]])
    result = scrambling_test(
        lambda source: torch.stack([source[:, 0].float(), torch.full((len(source),), 4.5)], -1),
        source,
    )
    first, second = result.contexts
    assert first.largest_change == 4.0  # 5 to 1, and 5 to 9 alike
    assert first.worst_order == (1, 0, 2)
    assert first.changed_tokens == 2  # the two orders that begin with 1
    assert (second.largest_change, second.changed_tokens, second.orders) == (0.0, 0, 6)
    assert (result.largest_change, result.changed_tokens, result.orders, result.holds) == (
        4.0,
        2,
        12,
        False,
    )
    text = str(result)
    assert "FAILS: 2 contexts, all orders, 12 in all" in text
    assert "tokens changed 2 of 10" in text
    assert "worst order, in context 0: 1 0 2" in text
    assert json.loads(json.dumps(dataclasses.asdict(result)))["contexts"][0]["changed_tokens"] == 2


@pytest.mark.parametrize(("tolerance", "holds"), [(0.2, True), (0.05, False)])
def test_the_tolerance_is_for_logits_and_never_for_tokens(tolerance: float, holds: bool) -> None:
    source = torch.tensor([[0, 1]])

    def slightly(source: Tensor) -> Tensor:
        return torch.stack([source[:, 0] * 0.1 + 1, torch.zeros(len(source))], -1)

    assert scrambling_test(slightly, source, tolerance=tolerance).holds == holds
    tipping = scrambling_test(
        lambda source: slightly(source) - torch.tensor([1.05, 0.0]), source, tolerance=0.2
    )
    assert (tipping.changed_tokens, tipping.holds) == (1, False)


def test_models_are_asked_without_gradients() -> None:
    weight = torch.ones(1, requires_grad=True)
    grads = []
    scrambling_test(
        lambda source: grads.append((source * weight).requires_grad) or asked(source),
        torch.arange(3)[None],
    )
    assert set(grads) == {False}


def test_a_model_that_drops_at_random_is_told_apart_from_one_that_minds_the_order() -> None:
    dropout = torch.nn.Dropout(0.5)
    source = torch.arange(3)[None]
    with refused("read again", fix=r"model\.eval\(\)"):
        scrambling_test(lambda read: dropout(torch.ones(len(read), 1, 64)), source)
    assert scrambling_test(lambda read: dropout.eval()(torch.ones(len(read), 1, 64)), source).holds


@pytest.mark.usefixtures("without_type_checks")
def test_bad_calls_are_refused() -> None:
    source = torch.arange(6).view(2, 3)
    for changes, message in [
        ({"source": source[0]}, r"source of shape \[3\]"),
        ({"source": source[:, :0]}, r"source of shape \[2, 0\]"),
        ({"source": source[:0]}, r"source of shape \[0, 3\]"),
        ({"real": source[:, :2] > 0}, r"real of shape \[2, 2\]"),
        ({"real": source}, "real of .* dtype torch.int64"),
        ({"real": source < 1}, "the same in every order"),
        ({"real": source < 0}, "the same in every order"),
        ({"source": torch.ones_like(source)}, "the same in every order"),
        ({"max_orders": 1}, "max_orders = 1"),
        ({"max_orders": 0}, "max_orders = 0"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"tolerance": -1e-5}, "tolerance = -1e-05"),
        ({"predict": lambda source: torch.ones(1, 4)}, r"logits of shape \[1, 4\] for 6 sources"),
        ({"predict": lambda source: source[:, 0]}, r"logits of shape \[6\]"),
        ({"predict": lambda source: source * torch.nan}, "18 logits that are not finite"),
    ]:
        with refused(message):
            scrambling_test(**{"predict": asked, "source": source} | changes)
