"""Records say which of their positions are padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.generation import generate
from glassformer.observe.capture import capture
from glassformer.observe.captured import Captured
from glassformer.observe.collect import collect
from glassformer.observe.edits import mean
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import logit_lens
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import bert_classifier, gpt2, llama

LENGTH = 5
REAL = torch.tensor(
    [[False, False, True, True, True], [True] * LENGTH, [False, False, False, False, True]]
)
TOKENS = torch.randint(1, 40, REAL.shape, generator=torch.Generator().manual_seed(0)).masked_fill(
    ~REAL, 0
)
KINDS = ("weights", "k", "heads", "residual_before", "residual", "ffn", "logits")
KEYS = ("k", "v")


def captured(model: Any, texts: dict[str, Tensor], **options: Any) -> Captured:
    with torch.no_grad(), capture(model.eval(), **({"what": KINDS} | options)) as seen:
        model(**texts)
    return seen


def equal(real: Tensor | None, expected: Tensor) -> bool:
    return real is not None and torch.equal(real, expected)


def inputs(model: Any, real: Tensor) -> dict[str, Tensor]:
    if hasattr(model, "get_input_embeddings"):
        return {"input_ids": TOKENS, "attention_mask": real.long()}
    return {"tokens": TOKENS, "key_padding": real}


@pytest.mark.parametrize("name", ["decoder", "window", "gpt2", "llama", "eager"])
@pytest.mark.parametrize("rows", [[0, 1, 2], [0], [1], [0, 2]])
def test_records_know_which_positions_are_real(name: str, rows: list[int]) -> None:
    model: Any = {
        "gpt2": gpt2,
        "llama": llama,
        "eager": llama,
        "window": lambda: decoder(window=2),
    }.get(name, decoder)()
    if name == "eager":
        model.set_attn_implementation("eager")
    texts = {key: value[rows] for key, value in inputs(model, REAL).items()}
    seen = captured(model, texts)
    expected = None if bool(REAL[rows].all()) else REAL[rows]
    for record in seen.records:
        assert (record.real is None) == (expected is None), record
        assert record.padded == (expected is not None)
        if expected is not None:
            assert equal(record.real, expected)
    assert (seen.real is None) == (expected is None)
    assert ("with padding: .real" in repr(seen)) == (expected is not None)


@pytest.mark.parametrize("make", [decoder, llama])
def test_padding_on_the_right_and_chosen_positions(make: Any) -> None:
    model = make()
    right = REAL.flip(1)
    texts = inputs(model, right)
    assert equal(captured(model, texts).real, right)
    some = captured(model, texts, what="residual", queries=[0, 3])
    assert equal(some.real, right[:, [0, 3]])
    assert some[0, "residual"][some.real].shape[0] == int(right[:, [0, 3]].sum())
    first = captured(model, texts, what=("weights", "residual"), queries=0)
    assert first.real is None
    assert all(record.padded for record in first.records)
    assert "of texts with padding" in repr(first)
    mixed = captured(model, texts, what=("residual", "k"), queries=[0, 3])
    with refused("real of records"):
        _ = mixed.real


def test_encoders_and_memories() -> None:
    right = REAL.flip(1)
    tokens = TOKENS.flip(1)
    seen = captured(encoder(pad_id=0), {"tokens": tokens})
    assert all(equal(record.real, right) for record in seen.records if record.what != "logits")
    assert [record.real for record in seen.records if record.what == "logits"] == [None]
    bert = captured(
        bert_classifier(),
        {"input_ids": tokens, "attention_mask": right.long()},
        what=("weights", "k"),
    )
    assert equal(bert.real, right)
    target = torch.tensor([[1, 2, 3]] * 3)
    seen = captured(
        encoder_decoder(),
        {"source": tokens, "target": target, "source_real": right},
        what=("k", "heads"),
    )
    for record in seen.records:
        if record.source or (record.cross and record.what == "k"):
            assert equal(record.real, right)
        else:
            assert record.real is None


@pytest.mark.parametrize("make", [decoder, llama])
def test_each_step_of_a_generation_has_its_own_positions(make: Any) -> None:
    model = make().eval()
    with torch.no_grad(), capture(model, what=("residual", "k"), layers=0) as seen:
        if make is decoder:
            generate(model, [[3, 1, 4], [1, 5, 9, 2, 6], [5]], 3)
        else:
            model.generate(
                TOKENS,
                attention_mask=REAL.long(),
                max_new_tokens=3,
                do_sample=False,
                pad_token_id=0,
            )
    for kind in ("residual", "k"):
        first, *steps = (record for records in seen.of(kind).values() for record in records)
        assert equal(first.real, REAL)
        assert len(steps) > 0
        assert all(step.real is None and step.padded for step in steps)


def test_collected_records_have_the_mask() -> None:
    seen = collect(decoder(), {"tokens": TOKENS, "key_padding": REAL}, layers=1)
    assert equal(seen.real, REAL)
    assert seen[1, "residual"][seen.real].shape == (9, 8)


def test_a_mask_that_is_more_than_padding_is_not_read_as_padding() -> None:
    """Of texts that are packed into one row, positions are real, but rows differ."""
    model = llama().eval()
    allowed = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    allowed[1, :, 3:, :3] = False
    tokens = TOKENS[:2]
    seen = captured(model, {"input_ids": tokens, "attention_mask": allowed}, what="residual")
    assert all(record.padded and record.real is None for record in seen.records)
    with refused("padding"), intervene(model, mean("residual", seen, layers=0)):
        model(tokens)


@pytest.mark.parametrize("make", [decoder, llama])
def test_tables_of_lenses_leave_padding_out(make: Any) -> None:
    pytest.importorskip("pandas")
    model = make().eval()
    texts = inputs(model, REAL)
    lens = logit_lens(model, texts, targets=7)
    table = lens.to_pandas()
    stages = lens.logits.shape[0]
    assert len(table) == stages * int(REAL.sum())
    shown = {(text, query) for text, query in zip(table["text"], table["query"], strict=True)}
    assert shown == {tuple(place) for place in REAL.nonzero().tolist()}
    assert table["rank"].dtype.kind == "i"
    assert all(bool(REAL[place.text, place.query]) for place in lens.top(1000))
    assert len(logit_lens(model, texts, targets=7, queries=-1).to_pandas()) == stages * 3
