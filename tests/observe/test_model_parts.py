"""Descriptions of models: they say what the loaded model is, in the order in which it computes."""

from __future__ import annotations

import pytest
from small_models import MODELS, SLOTS, called, decoder, encoder, encoder_decoder
from torch import nn

from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.model_parts import describe, describe_block, stack_of
from refusals import refused

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_the_parameters_of_the_parts_are_all_there_are(name: str) -> None:
    model = MODELS[name]()
    assert sum(part.parameters for part in describe(model)) == sum(p.numel() for p in model.parameters())
    for stack in ("encoder", "decoder") if isinstance(model, EncoderDecoder) else (None,):
        for layer, own in enumerate(stack_of(model, stack).layers):
            parts = describe_block(model, layer, stack=stack)
            assert sum(part.parameters for part in parts) == sum(p.numel() for p in own.parameters())


@every_model
def test_parts_stand_in_the_order_in_which_they_are_computed(name: str) -> None:
    model = MODELS[name]()
    order = called(model)
    for parts in (describe(model), describe_block(model, 0)):
        named = [part.module for part in parts if part.module and part.module != "embedding"]
        assert len(named) >= 4
        assert [order.index(module) for module in named] == sorted(order.index(module) for module in named)


def test_an_encoder_decoder_is_two_stacks_of_which_the_second_reads_the_first() -> None:
    model = encoder_decoder(**SLOTS)
    parts = describe(model)
    assert [part.stack for part in parts] == sorted(part.stack for part in parts)
    read, reading = ([part for part in parts if part.stack == stack] for stack in (0, 1))
    assert (read[0].name, read[-1].name, reading[0].name, reading[-1].name) == ("Source", "Memory", "Target", "Logits")
    assert [part.name for part in parts if part.reads is not None] == ["Cross-attention"]
    assert {part.times for part in read if part.block} == {2}
    assert {part.times for part in reading if part.block} == {3}
    for side, own in ((read, model.encoder_layers), (reading, model.decoder_layers)):
        inside = sum(part.parameters for part in side if part.block)
        assert inside == sum(weight.numel() for weight in own.parameters())
    tables = {part.name: part for part in parts if part.kind == "embedding"}
    assert tables["Source embedding"].parameters == 2 * 50 * 8
    assert tables["Target embedding"].parameters == 30 * 8
    assert "Positions" not in {part.name for part in read}
    assert "Positions" in {part.name for part in reading}


def test_a_block_of_either_stack_is_described() -> None:
    model = encoder_decoder()
    own = describe_block(model, 2)
    assert own == describe_block(model, 2, stack="decoder")
    assert [part.name for part in own if part.stack == 0] == ["Memory"]
    assert sum(part.kind == "sum" for part in own) == 3
    other = describe_block(model, 1, stack="encoder")
    assert {part.stack for part in other} == {0}
    assert sum(part.kind == "sum" for part in other) == 2
    assert all(part.reads is None for part in other)


@every_model
def test_every_sum_goes_around_an_attention_or_a_feed_forward_network(name: str) -> None:
    for parts in (describe(MODELS[name]()), describe_block(MODELS[name]())):
        for index, part in enumerate(parts):
            if part.kind == "sum":
                around = parts[index - part.around : index]
                assert {each.kind for each in around} - {"norm"} in ({"attention"}, {"feed-forward"})
                assert {each.stack for each in around} == {part.stack}


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_described_is_refused() -> None:
    with refused("a Linear"):
        describe(nn.Linear(2, 2))
    with refused("layer = 3"):
        describe_block(encoder(), 3)
    with refused("layer = -1"):
        describe_block(encoder(), -1)
    with refused(r"layer = 2.*0 to 1"):
        describe_block(encoder_decoder(), 2, stack="encoder")
    for model in (encoder(), decoder()):
        with refused("stack = 'decoder' for"):
            stack_of(model, "decoder")
    with refused("stack = 'both'"):
        stack_of(encoder_decoder(), "both")  # type: ignore[arg-type]
