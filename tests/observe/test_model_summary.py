"""Summaries of models: all their parameters, in the order of computation, with shapes and residual sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from glassformer.models.decoder import Decoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.model_summary import (
    Stack,
    block_steps,
    block_summary,
    count_parameters,
    describe,
    describe_block,
    norm_part,
    stack_of,
)
from refusals import refused
from small_models import EXPERTS, MODELS, SLOTS, called, decoder, encoder, encoder_decoder, run

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
        assert len(named) >= 3
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
                around = parts[index - part.skips : index]
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
    with refused("layer = 2", expected="0 to 1"):
        describe_block(encoder_decoder(), 2, stack="encoder")
    for model in (encoder(), decoder()):
        with refused("stack = 'decoder' for"):
            stack_of(model, "decoder")
    with refused("stack = 'both'"):
        stack_of(encoder_decoder(), "both")  # type: ignore[arg-type]


def stacks(model: nn.Module) -> list[Stack]:
    return [
        stack_of(model, name) for name in (("encoder", "decoder") if isinstance(model, EncoderDecoder) else (None,))
    ]


@every_model
def test_the_parameters_of_a_block_are_all_there_are(name: str) -> None:
    for stack in stacks(MODELS[name]()):
        counts = [sum(weight.numel() for weight in layer.parameters()) for layer in stack.layers]
        for layer, count in enumerate(counts):
            assert sum(part.parameters for part in block_steps(stack, layer)) == count
        summary = block_summary(stack)
        assert sum(part.parameters for part in summary) == sum(counts)
        assert {part.times for part in summary} == {len(counts)}


@every_model
def test_steps_stand_in_the_order_in_which_they_are_computed(name: str) -> None:
    model = MODELS[name]()
    order = called(model)
    for stack in stacks(model):
        for parts in (block_summary(stack), block_steps(stack, 0)):
            named = [part.module for part in parts if part.module]
            assert len(named) >= 2
            assert [order.index(module) for module in named] == sorted(order.index(module) for module in named)


@every_model
def test_residual_paths_go_around_what_they_add_to(name: str) -> None:
    """Each sum with everything that its path goes around, run as described, gives the block's own result."""
    model = MODELS[name]().eval()
    for stack in stacks(model):
        x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
        rotation = {"rotation": model.rotary.rotation(5)} if isinstance(model, Decoder) else {}
        entered, stream = [], x
        for index, part in enumerate(block_summary(stack)):
            entered.append(stream)
            if part.kind == "sum":
                stream = stream + entered[index - part.skips]
            elif part.reads is not None:
                stream = model.get_submodule(part.module)(stream, memory)
            else:
                options = rotation if part.kind == "attention" else {}
                stream = model.get_submodule(part.module)(stream, **options)
        read = (memory,) if stack.memory_position else ()
        torch.testing.assert_close(stream, stack.layers[0](x, *read, **rotation), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["course", "two stacks", "slots"])
def test_shapes_are_those_that_pass(name: str) -> None:
    model, given = MODELS[name](), {}
    for own, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, own=own: given.update({own: output}))
    run(model, 7, 5)
    checked = 0
    for stack in stacks(model):
        for part in block_steps(stack, 1):
            if part.module and not part.module.endswith(("query", "key")):
                places = {
                    "batch": 7,
                    stack.position: 4 if stack.memory_position else 5,
                }  # no other name
                sizes = part.output_shape
                for place, size in places.items():
                    sizes = sizes.replace(place, str(size))
                assert sizes == str(list(given[part.module].shape))
                checked += 1
    assert checked >= 5


def test_a_cross_attention_reads_the_other_stack() -> None:
    reading = stack_of(encoder_decoder(fields_per_slot=3))
    assert [part.name for part in block_summary(reading) if part.reads == 0] == ["Cross-attention"]
    (keys,) = (part for part in block_steps(reading, 0) if part.reads == 0)
    assert keys.output_shape == "2 x 2 x [batch, slot, 4]"
    assert keys.parameters == 2 * (8 * 8 + 8)
    for model in (encoder(), decoder()):
        assert all(part.reads is None for part in block_summary(stack_of(model)))


def test_each_block_says_its_own_window() -> None:
    stack = stack_of(decoder(**EXPERTS))
    details = ["\n".join(line for part in block_steps(stack, layer) for line in part.details) for layer in range(4)]
    assert ["itself and the 8 before" in text for text in details] == [False, True, False, True]


def test_shared_weights_count_once() -> None:
    layer = nn.Linear(3, 4)
    assert count_parameters([layer, layer]) == count_parameters([nn.ModuleList([layer]), layer]) == 16
    norm = norm_part([nn.LayerNorm(5), nn.LayerNorm(5)], "there", "[5]", "Last ")
    assert (norm.name, norm.parameters, norm.module, norm.output_shape) == ("Last LayerNorm", 20, "there", "[5]")


def test_packed_weights_count_as_unpacked() -> None:
    sizes = {"hidden_dim": 32, "ff_dim": 64, "num_experts": 3, "ff_bias": True}
    dense, packed = decoder(**sizes), decoder(**sizes, expert_format="mxfp4")
    assert count_parameters([packed]) == count_parameters([dense])
    summaries = [block_summary(next(iter(stacks(model)))) for model in (dense, packed)]
    assert summaries[0] == summaries[1]
