"""Forbidden edges: compared with memories from which tokens are left out, and with changed weights."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from glassformer.data.in_context_lookup import LookupConfig, sample
from glassformer.data.lookup import SOS, VOCAB, all_contexts, lookup_batch
from glassformer.labs.lookup.experiments.course_runs import build_course_model
from glassformer.labs.lookup.experiments.edges import FORBIDDEN, course_edges, slot_edges
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.training.in_context_lookup import MEASURING_SEED, InContextRecipe, build_model


@pytest.fixture(scope="module")
def course() -> EncoderDecoder:
    """A model of random weights, of which some answers are right."""
    model = build_course_model(3).eval()
    with torch.no_grad():
        model.output.weight.mul_(40)
        for word in ("RED", "BLUE", "GREEN"):
            model.output.bias[VOCAB[word]] += 40
        for attention in (model.decoder_layers[0].cross_attention, model.encoder_layers[0].attention):
            attention.output.weight.mul_(6)
            attention.query.weight.mul_(6)
    return model


def share(model: EncoderDecoder, mixed: bool, hidden: tuple[str, ...]) -> float:
    """The share of contexts answered right while the hidden tokens of the memory are padding."""
    source = torch.tensor([example.context for example in all_contexts()])
    parts = [source] if mixed else source.split(1, 1)
    memory = torch.cat([model.encode(part) for part in parts], 1)
    kept = torch.tensor([[role not in hidden for role in ("NAME", *example.order)] for example in all_contexts()])
    written = model.decode(torch.full((len(source), 1), SOS), memory, kept)[:, 0].argmax(-1).tolist()
    return sum(token == VOCAB[example.value] for token, example in zip(written, all_contexts(), strict=True)) / 72


@torch.no_grad()
def test_forbidding_tokens_is_leaving_them_out_of_the_memory(course: EncoderDecoder) -> None:
    found = course_edges(course, 3)
    assert found.seed == 3
    for name, hidden in FORBIDDEN.items():
        assert found.mixed[name] == pytest.approx(share(course, True, hidden)), name
        assert found.unmixed[name] == pytest.approx(share(course, False, hidden)), name
    assert len(set(found.mixed.values())) > 1
    # Without key and value the contexts are the same: at most one of the three facts is right.
    assert found.unmixed["key and value"] in (0, pytest.approx(1 / 3))


@torch.no_grad()
def test_a_removed_head_has_no_columns_in_the_output_matrix(course: EncoderDecoder) -> None:
    batch, shares = lookup_batch(all_contexts()), []
    for head in range(4):
        without = deepcopy(course)
        without.decoder_layers[0].cross_attention.output.weight[:, 16 * head : 16 * head + 16] = 0
        right = without(batch.source, batch.inputs)[:, 0].argmax(-1) == batch.targets[:, 0]
        shares.append(float(right.double().mean()))
    assert course_edges(course, 0).without_head == pytest.approx(shares)


DATA = LookupConfig(num_keys=16, num_values=16, max_facts=4, held_out=0.25)


@pytest.mark.parametrize("num_heads", [1, 2])
@torch.no_grad()
def test_forbidding_a_slot_is_leaving_it_out_of_the_memory(num_heads: int) -> None:
    recipe = InContextRecipe("tiny", "slots", DATA, hidden_dim=16, ff_dim=16, num_heads=num_heads)
    model = build_model(recipe, 2).eval()
    values = slice(DATA.first_value, DATA.first_value + DATA.num_values)
    model.output.weight.mul_(40)
    model.output.bias[values] += 40
    model.decoder_layers[0].cross_attention.output.weight.mul_(8)
    # The answer looks like the value that is read, so that some are right.
    model.output.weight[values] += 60 * model.source_embeddings[1].weight[values]
    facts = sample(DATA, 60, MEASURING_SEED + 1, split="unseen", num_facts=4)
    memory = model.encode(torch.stack([facts.keys, facts.values], -1))

    def answers(hidden: Tensor | None) -> list[int]:
        kept = torch.arange(4) != (-1 if hidden is None else hidden[:, None])
        return model.decode(facts.query[:, None], memory, kept.expand(60, 4))[:, 0].argmax(-1).tolist()

    def right(found: list[int]) -> list[bool]:
        return [answer == wanted for answer, wanted in zip(found, facts.answer.tolist(), strict=True)]

    found = slot_edges(model, recipe, 0, 60)
    blind, others = answers(facts.place), [right(answers((facts.place + step) % 4)) for step in (1, 2, 3)]
    assert (found.num_facts, found.num_questions) == (4, 60)
    assert found.intact == pytest.approx(sum(right(answers(None))) / 60)
    assert found.right == pytest.approx(sum(right(blind)) / 60)
    assert found.others == pytest.approx([sum(each) / 60 for each in others])
    assert found.any_other == pytest.approx(sum(map(all, zip(*others, strict=True))) / 60)
    elsewhere = [answer in row and answer != wanted for answer, row, wanted in
                 zip(blind, facts.values.tolist(), facts.answer.tolist(), strict=True)]  # fmt: skip
    assert found.of_another == pytest.approx(sum(elsewhere) / 60)
    assert 0 < found.intact != found.right
    if num_heads == 1:
        assert found.one_head == [found.right]
    else:
        assert len(found.one_head) == 2
        assert found.one_head != [found.right] * 2
