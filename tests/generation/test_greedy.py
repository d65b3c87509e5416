from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.errors import InputError
from glassformer.generation import greedy_decode
from glassformer.models import EncoderDecoder, EncoderDecoderConfig
from refusals import refused


def make(seed: int = 0, **changes: Any) -> EncoderDecoder:
    """A model that is sure of itself, so that rounding decides nothing."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "max_source_len": 8,
        "max_target_len": 9,
        "target_vocab_size": 6,
        "dropout": 0.4,
    }
    model = EncoderDecoder(EncoderDecoderConfig(12, 16, 24, 2, 1, 2, **sizes | changes)).eval()
    with torch.no_grad():
        model.output.weight.mul_(50)
    return model


@torch.no_grad()
def by_hand(
    model: EncoderDecoder, source: Tensor, count: int, start: int, end: int | None
) -> list[int]:
    """One source at a time, without its padding, every step from the start."""
    model.eval()
    source = source[source != model.config.pad_id][None]
    written: list[int] = []
    while len(written) < count and (end is None or end not in written):
        target = torch.tensor([[start, *written]])
        logits = model(source, target, None, torch.ones_like(target, dtype=torch.bool))
        written.append(int(logits[0, -1].argmax()))
    return written + [model.config.pad_id] * (count - len(written))


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    count=st.integers(1, 9),
    end=st.sampled_from([None, 2, 3, 4, 5]),
    seed=st.integers(0, 10),
)
@settings(max_examples=10, deadline=None)
def test_it_is_the_argmax_of_each_step(
    lengths: list[int], count: int, end: int | None, seed: int
) -> None:
    model = make(seed)
    source = torch.randint(1, 12, (len(lengths), 8)).where(
        torch.arange(8) < torch.tensor(lengths)[:, None], 0
    )
    tokens = greedy_decode(model, source, count, 1, end)
    expected = torch.tensor([by_hand(model, row, count, 1, end) for row in source])
    assert torch.equal(tokens, expected[:, : tokens.shape[1]])
    assert (expected[:, tokens.shape[1] :] == 0).all()
    ended = end is not None and bool((expected == end).any(1).all())
    assert tokens.shape[1] == (int((expected == end).int().argmax(1).max()) + 1 if ended else count)


def test_the_cached_logits_are_those_of_the_whole_target(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    source = torch.randint(1, 12, (3, 8))
    source[1, 3:] = 0
    seen: list[Tensor] = []
    decode = model.decode
    monkeypatch.setattr(
        model, "decode", lambda *arguments: seen.append(decode(*arguments)) or seen[-1]
    )
    tokens = greedy_decode(model, source, 9, 1)
    assert [logits.shape[1] for logits in seen] == [1] * 9
    target = torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
    with torch.no_grad():
        whole = model(source, target, None, torch.ones_like(target, dtype=torch.bool))
    assert (torch.cat(seen[:9], dim=1) - whole).abs().max() <= 1e-5


def test_masks_and_slots_reach_the_model() -> None:
    model = make(fields_per_slot=2)
    source = torch.randint(1, 12, (2, 5, 2))
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    padded = source.masked_fill(~real[..., None], 0)
    assert torch.equal(
        greedy_decode(model, source, 6, 1, source_real=real), greedy_decode(model, padded, 6, 1)
    )
    assert torch.equal(
        greedy_decode(model, source[1:, :2], 6, 1), greedy_decode(model, padded, 6, 1)[1:]
    )


def test_what_the_model_writes_is_no_padding() -> None:
    """A text may hold pad_id before its end; the next step must read it."""
    model = make()
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(torch.tensor([9.0, 0, 0, 0, 0, 0]))
    source = torch.randint(1, 12, (2, 5))
    masks: list[Tensor] = []
    for block in model.decoder_layers:
        block.register_forward_pre_hook(
            lambda _, __, more: masks.append(more["key_padding"]), with_kwargs=True
        )
    assert torch.equal(greedy_decode(model, source, 4, 1, 2), torch.zeros(2, 4, dtype=torch.long))
    assert masks == [None] * 8


@pytest.mark.parametrize("training", [False, True])
def test_each_block_keeps_its_mode(training: bool) -> None:
    model = make().train(training)
    model.encoder_layers[0].train(not training)
    modes = [each.training for each in model.modules()]
    source = torch.randint(1, 12, (2, 5))
    first = greedy_decode(model, source, 9, 1)
    model(source, first).sum().backward()  # what is written can be trained on
    assert torch.equal(first, greedy_decode(model, source, 9, 1))
    assert [each.training for each in model.modules()] == modes
    with pytest.raises(InputError):
        greedy_decode(model, source + 12, 9, 1)
    assert [each.training for each in model.modules()] == modes


@pytest.mark.usefixtures("without_type_checks")
def test_bad_calls_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    source = torch.randint(1, 12, (2, 5))
    with torch.no_grad():
        model.output.bias[3] = torch.nan
    with refused("NaN in 2 of 12 logits"):
        greedy_decode(model, source, 3, 1)
    monkeypatch.setattr(model, "encode", None)
    with model.register_forward_hook(print), refused("a model with hooks of its own"):
        greedy_decode(model, source, 3, 1)
    for changes, message in [
        ({"max_new_tokens": 10}, "max_new_tokens = 10"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"start_id": 6}, "start_id = 6"),
        ({"start_id": None}, "start_id = None"),
        ({"end_id": -1}, "end_id = -1"),
        ({"end_id": 2.0}, "end_id = 2.0"),
    ]:
        with refused(message):
            greedy_decode(model, source, **{"max_new_tokens": 3, "start_id": 1} | changes)
