"""Heads that are known by construction, and the definition written out by loops."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from glassformer.observe.capture import capture
from glassformer.observe.detectors import (
    attention_faithfulness,
    head_scores,
    rank_correlation,
    repeated_tokens,
)
from glassformer.observe.edits import Edit, forbid, put, scale, zero
from glassformer.observe.intervene import intervene
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import logits_of, metric


def test_repeated_tokens() -> None:
    tokens = repeated_tokens(20, 6, 3, seed=1, first=19)
    assert tokens.shape == (3, 13)
    assert (tokens[:, 0] == 19).all()
    assert torch.equal(tokens[:, 1:7], tokens[:, 7:])
    assert all(len(set(row[1:7].tolist())) == 6 for row in tokens)
    assert not torch.equal(tokens, repeated_tokens(20, 6, 3, seed=2, first=19))
    with refused("half = 21"):
        repeated_tokens(20, 21)
    for first in (20, -1):
        with refused(f"first = {first}", expected="0 to 19"):
            repeated_tokens(20, 6, first=first)


def test_texts_go_to_the_device_of_the_model() -> None:
    model, found = decoder().to("meta"), []  # which stands for a GPU up to the attention

    def stop(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        found.append(args[0].device.type)
        raise KeyboardInterrupt

    model.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        head_scores(model, repeated_tokens(40, 8, 4))
    assert found == ["meta"]


@torch.no_grad()
def test_scores_are_means_over_queries() -> None:
    model = decoder(sinks=True).double().eval()
    tokens = torch.randint(2, 9, (3, 10))
    found = head_scores(model, tokens)
    with capture(model) as seen:
        model(tokens)
    for layer, weights in enumerate(seen.weights.values()):
        for head in range(4):
            kinds: dict[str, list[float]] = {
                "previous": [],
                "duplicate": [],
                "induction": [],
                "sink": [],
            }
            for row, text in enumerate(tokens.tolist()):
                for query in range(1, 10):
                    values: Tensor = weights[row, head, query]
                    kinds["previous"].append(float(values[query - 1]))
                    kinds["sink"].append(float(1 - values[1 : query + 1].sum()))
                    earlier = [key for key in range(query) if text[key] == text[query]]
                    if len(earlier) == 1:
                        kinds["duplicate"].append(float(values[earlier[0]]))
                        if earlier[0] + 1 < query:
                            kinds["induction"].append(float(values[earlier[0] + 1]))
            for kind, numbers in kinds.items():
                expected = sum(numbers) / len(numbers)
                assert float(getattr(found, kind)[layer, head]) == pytest.approx(
                    expected, abs=1e-12
                )


@torch.no_grad()
def test_a_forced_induction_head_is_found() -> None:
    model = decoder().double().eval()
    tokens = repeated_tokens(40, 8, 4)
    pattern = torch.zeros(16, 16, dtype=torch.double)
    pattern[range(8, 16), range(1, 9)] = 1
    pattern[:8, 0] = 1
    with intervene(model, put("weights", pattern, layers=2, heads=1)):
        found = head_scores(model, tokens)
    assert found.top("induction", 1) == [(2, 1, pytest.approx(1.0))]
    assert found.induction.flatten().sort().values[-2] < 0.5
    assert found.duplicate[2, 1] == 0
    assert math.isfinite(float(found.sink.sum()))


@pytest.mark.usefixtures("without_type_checks")
@torch.no_grad()
def test_scores_of_many_batches_are_those_of_all_texts() -> None:
    model = decoder(sinks=True).double().eval()
    tokens = torch.randint(2, 9, (5, 10))
    whole = head_scores(model, tokens)
    parts = head_scores(model, iter(tokens.split(2)))
    for kind in ("previous", "duplicate", "induction", "sink"):
        torch.testing.assert_close(getattr(parts, kind), getattr(whole, kind))
    longer = torch.cat([torch.ones(5, 3, dtype=torch.int64), tokens], 1)
    padded = head_scores(model, {"tokens": longer, "key_padding": longer != 1})
    for kind in ("previous", "duplicate", "induction", "sink"):
        torch.testing.assert_close(getattr(padded, kind), getattr(whole, kind))
    with refused("kind = 'prev'"):
        whole.top("prev")
    for wrong, name in (
        ([], "no texts"),
        ([[1, 2]], "texts of type list"),
        (tokens[0], "texts of type Tensor"),
    ):
        with refused(name):
            head_scores(model, wrong)  # type: ignore[arg-type]
    with refused("EncoderDecoder, which has two stacks"):
        head_scores(encoder_decoder(), tokens)


@torch.no_grad()
def test_a_capture_of_edited_weights_has_no_scores() -> None:
    model = decoder().double().eval()
    with intervene(model, put("weights", 0.2, layers=2, heads=1)), capture(model) as seen:
        model(torch.randint(1, 9, (2, 5)))
    assert [(each.what, each.layer) for each in seen.records] == [
        ("weights", layer) for layer in range(4)
    ]


def test_a_text_without_repetition_has_no_score_of_induction() -> None:
    found = head_scores(decoder(), torch.arange(10)[None])
    assert bool(found.duplicate.isnan().all() & found.induction.isnan().all())
    assert bool(found.previous.isfinite().all() & found.sink.isfinite().all())


def test_rank_correlation_is_spearmans() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(5, (2, 7, 9), generator=generator).double()  # with ties
    expected = [spearmanr(*pair).statistic for pair in zip(first, second, strict=True)]
    torch.testing.assert_close(
        rank_correlation(first, second), torch.tensor(expected, dtype=torch.double)
    )
    assert rank_correlation(torch.ones(4), torch.arange(4.0)).isnan()


def plainly(model: nn.Module, tokens: Tensor, edit: Edit) -> Tensor:
    with intervene(model, edit):
        return metric(logits_of(model, tokens))


@torch.no_grad()
@pytest.mark.parametrize("make", [decoder, encoder])
@pytest.mark.parametrize("removal", ["edges", "values"])
@pytest.mark.parametrize("query", [-1, None])
def test_effects_are_those_of_one_removal_after_the_other(
    make: Any, removal: Any, query: int | None
) -> None:
    model = make().double().eval()
    tokens = torch.randint(2, 9, (2, 6))
    places: dict[str, Any] = {"keys": [1, 2, 4], "layers": [0, 2], "batch_size": 4}
    whole = attention_faithfulness(model, tokens, metric, removal=removal, query=query, **places)
    alone = attention_faithfulness(
        model, tokens, metric, removal=removal, query=query, by_head=True, **places
    )
    clean = plainly(model, tokens, scale("ffn", 1))
    with capture(model, layers=[0, 2]) as seen:
        model(tokens)
    rows = slice(None) if query is None else slice(5, 6)
    heads = alone.weights.shape[2]
    assert whole.effects.shape == (2, 1, 1, 3)
    assert alone.effects.shape == alone.weights.shape == (2, 2, heads, 3)
    for column, key in enumerate((1, 2, 4)):

        def without(key: int = key, **where: Any) -> Tensor:
            where |= {"keys": key, "queries": None if query is None else 5}
            edit = forbid(**where) if removal == "edges" else zero("weights", **where)
            return clean - plainly(model, tokens, edit)

        torch.testing.assert_close(
            whole.effects[:, 0, 0, column], without(layers=[0, 2]), atol=1e-12, rtol=0
        )
        for row, layer in enumerate((0, 2)):
            expected = seen.weights[f"layers.{layer}.attention"][:, :, rows, key].mean(2)
            torch.testing.assert_close(
                alone.weights[:, row, :, column], expected, atol=1e-12, rtol=0
            )
            for head in (0, heads - 1):
                effect = without(layers=layer, heads=head)
                torch.testing.assert_close(
                    alone.effects[:, row, head, column], effect, atol=1e-12, rtol=0
                )
    assert whole.of_heads.shape == alone.of_heads.shape == (2, 2, heads)
    assert whole.of_mean.shape == whole.of_gradients.shape == (2,)


def test_gradient_times_input_is_that_of_a_plain_backward_pass() -> None:
    model = decoder().double().eval()
    tokens = torch.randint(2, 9, (2, 6))
    found = attention_faithfulness(model, tokens, metric)
    stream = model.embedding(tokens).detach().requires_grad_()
    with model.embedding.register_forward_hook(lambda *_: stream):
        metric(model(tokens)).sum().backward()
    torch.testing.assert_close(
        found.gradients, (stream.grad * stream.detach()).sum(-1), atol=1e-12, rtol=0
    )


def test_attention_that_is_the_cause_is_faithful() -> None:
    """Values that are equal, and so small that what follows them is linear: effects are
    proportional to weights.
    """
    model = decoder(num_layers=1).double().eval()
    tokens = repeated_tokens(40, 6, 3)[:, :6]
    pattern = torch.tensor([1.0, 2, 4, 8, 16, 32]).double() / 63
    constant = 1e-4 * torch.randn(6, dtype=torch.double)
    with intervene(model, put("weights", pattern), put("v", constant)):
        found = attention_faithfulness(model, tokens, metric, removal="values", query=-1)
    torch.testing.assert_close(found.of_mean, torch.ones(3, dtype=torch.double))


@pytest.mark.usefixtures("without_type_checks")
def test_what_has_no_ranks_is_refused() -> None:
    model = decoder()
    tokens = torch.randint(2, 9, (2, 6))
    wrong: dict[str, Any] = {
        "removal": "words",
        "query": 6,
        "keys": 3,
        "layers": 4,
        "batch_size": 0,
    }
    for name, value in wrong.items():
        with refused(name):
            attention_faithfulness(model, tokens, metric, **{name: value})
    with refused("a metric of shape"):
        attention_faithfulness(model, tokens, lambda logits: metric(logits).mean())
    padded = {"tokens": tokens, "key_padding": torch.ones_like(tokens).bool().tril()}
    with refused("padding"):
        attention_faithfulness(model, padded, metric)
