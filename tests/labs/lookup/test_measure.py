"""What is measured of the course's model: compared with loops over contexts."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

from glassformer.data.lookup import VOCAB, all_contexts, lookup_batch
from glassformer.labs.lookup.course import build_course_model
from glassformer.labs.lookup.measure import (
    cross_attention,
    head_shares,
    heat_map,
    measure_course,
    measure_orders,
)
from glassformer.observe.exact_attention import attention_weights


def test_shares_of_heads_are_means_over_contexts() -> None:
    model, contexts = build_course_model(0).eval(), all_contexts()[::7]
    shares = head_shares(model, contexts)
    for head, found in enumerate(shares):
        key = value = alone = 0.0
        for example in contexts:
            row = cross_attention(model, [example])[0, head, 0]
            for place, token in enumerate(example.context):
                weight = float(row[place])
                key += weight * (token == VOCAB[example.key])
                value += weight * (token == VOCAB[example.value])
                alone += weight * (token in {VOCAB[w] for w in ("BLUE", "ALICE", "GREEN", "CHAIR")})
        assert found.key == pytest.approx(key / len(contexts), abs=1e-5)
        assert found.value == pytest.approx(value / len(contexts), abs=1e-5)
        assert found.alone == pytest.approx(alone / len(contexts), abs=1e-5)
        assert found.fact == found.key + found.value


def test_the_weights_are_those_of_the_cross_attention() -> None:
    model, contexts = build_course_model(1).eval(), all_contexts()[:3]
    batch, block = lookup_batch(contexts), model.decoder_layers[0]
    inside: list[torch.Tensor] = []
    hook = block.cross_attention.register_forward_pre_hook(lambda _, inputs: inside.extend(inputs))
    with torch.no_grad():
        model(batch.source, batch.inputs)
    hook.remove()
    x, memory = inside
    attention = block.cross_attention
    q, k = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in (attention.query(x), attention.key(memory)))
    torch.testing.assert_close(cross_attention(model, contexts), attention_weights(q, k).detach(), atol=1e-6, rtol=1e-5)


def test_a_heat_map_has_its_words() -> None:
    example = all_contexts()[0]
    shown = heat_map(build_course_model(0).eval(), example)
    assert shown.source == ["NAME", "COLOR", "RED", "ITEM", "BLUE"]
    assert shown.target == ["[SOS]", "BLUE"]
    assert torch.tensor(shown.weights).shape == (4, 2, 5)
    torch.testing.assert_close(torch.tensor(shown.weights).sum(-1), torch.ones(4, 2), atol=1e-5, rtol=0)


def test_orders_are_all_tried_without_positions_and_with() -> None:
    contexts = all_contexts()[:1]
    found = measure_orders(build_course_model(0).eval(), contexts)
    assert (found.contexts, found.orders, found.exhaustive) == (1, 120, True)
    assert found.decided_tokens == 119 * 2
    assert found.holds
    control = build_course_model(0, "sinusoidal").eval()
    failed = measure_orders(control, contexts)
    assert not failed.holds
    source = torch.tensor([list(order) for order in permutations(contexts[0].context)])
    with torch.no_grad():
        logits = control(source, torch.ones(120, 1, dtype=torch.int64))
    assert failed.largest_change >= float((logits - logits[0]).abs().max()) - 1e-5


@pytest.mark.slow
def test_a_course_run_is_measured(tmp_path: Path) -> None:
    measured = measure_course(0, tmp_path, epochs=2, num_samples=320, max_orders=4)
    assert (measured.epochs, measured.num_test, measured.num_parameters) == (2, 32, 86_414)
    assert measured.best_epoch == 2
    assert [epoch for epoch, *_ in measured.evaluations] == [1, 2]
    assert measured.scrambling.orders == 72 * 4
    assert not measured.scrambling.exhaustive
    assert measured.scrambling.holds
    assert len(measured.side_by_side) == 12
    assert measured.before != measured.after
