"""What once was answered with another thing than what was asked: it is right now, or refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

from glassformer.layers.attention import is_edited
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.detectors import (
    HeadScores,
    attention_faithfulness,
    head_scores,
    rank_correlation,
)
from glassformer.observe.edits import add, change, mean, patch, put, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch
from glassformer.observe.sweep import ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused
from transformers_models import logits_of, metric

TOKENS = torch.tensor([[3, 7, 1, 4, 9, 2, 8, 5], [6, 1, 1, 8, 2, 3, 4, 7]])


def decoder(layers: int = 2, **options: Any) -> Decoder:
    return Decoder(DecoderConfig(20, layers, 24, 32, 4, 8, 2, max_seq_len=32, **options)).eval()


def small(kind: str, **options: Any) -> Any:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "pad_token_id": 0,
    }
    config = getattr(tf, f"{kind}Config")(**sizes, **options)
    return getattr(tf, f"{kind}ForMaskedLM" if kind == "Bert" else f"{kind}ForCausalLM")(
        config
    ).eval()


@torch.no_grad()
@pytest.mark.parametrize("make", [decoder, lambda: small("Llama", num_hidden_layers=2)])
def test_a_block_that_ends_before_one_that_began_later_takes_its_own_edit_along(make: Any) -> None:
    model = make()

    def held() -> Iterator[None]:
        with intervene(model, zero("heads", layers=0, heads=0)):
            yield

    with intervene(model, zero("v", keys=2)):
        wanted = logits_of(model, TOKENS)
    other = held()
    next(other)
    with intervene(model, zero("v", keys=2)):
        logits_of(model, TOKENS)
        other.close()
        torch.testing.assert_close(logits_of(model, TOKENS), wanted, rtol=0, atol=1e-6)
    assert not is_edited()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_large_number_does_not_hide_that_parts_are_scaled(dtype: torch.dtype) -> None:
    model = small("Granite", num_hidden_layers=2, residual_multiplier=0.22)
    model.get_input_embeddings().weight.data[1, 7] = (
        100.0  # as at the first position of real models
    )
    texts = TOKENS.clone()
    texts[:, 0] = 1
    for training in (False, True):
        model.to(dtype).train(training)
        with (
            refused("differs"),
            intervene(model, change("residual_between", lambda values: values, layers=0)),
        ):
            model(texts)


def test_weights_of_keys_that_a_window_leaves_out_are_zero() -> None:
    model = decoder(window=4)
    keys = [0, 1, 5]
    for query in (-1, 5):
        with torch.no_grad(), capture(model) as seen:
            model(TOKENS)
        found = attention_faithfulness(
            model, TOKENS, metric, query=query, keys=keys, layers=[-1, 0]
        )
        wanted = torch.stack(
            [seen[layer, "weights"][:, :, query][..., keys] for layer in (0, 1)], 1
        )
        torch.testing.assert_close(found.weights, wanted, rtol=0, atol=1e-6)
        assert found.layers == (0, 1)


def test_layers_without_attention_are_not_counted_as_others() -> None:
    first, last = (
        small("Lfm2", num_hidden_layers=len(layers), num_key_value_heads=2, layer_types=layers)
        for layers in (["conv", "full_attention", "full_attention"], ["full_attention", "conv"])
    )
    for site in ("residual", "heads"):
        with refused("attention in the layers"):
            patch_sweep(first, TOKENS[:1], TOKENS[1:], metric, site=site, layers=1)
        patch_sweep(last, TOKENS[:1], TOKENS[1:], metric, site=site, layers=0)
    with refused("attention in the layers"):
        head_scores(first, TOKENS)


def test_stages_of_layers_without_attention_are_not_left_out() -> None:
    kinds = ["full_attention", "linear_attention", "full_attention"]
    sizes: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    sizes |= {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 0,
        "mlp_only_layers": [0, 1, 2],
    }
    model = small(
        "Qwen3Next",
        num_hidden_layers=3,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=kinds,
        **sizes,
    )
    with refused("attention in the layers"):
        logit_lens(model, TOKENS)


def test_blocks_that_stand_in_several_places_are_refused() -> None:
    model = decoder(3)
    model.layers[2] = model.layers[0]
    with refused("several places"):
        patch_sweep(model, TOKENS[:1], TOKENS[1:], metric, site="heads", layers=1)
    model = decoder(2)
    model.layers[1].attention = model.layers[0].attention
    with refused("several places"):
        ablation_sweep(model, TOKENS, metric)
    with refused("several places"):
        head_scores(model, TOKENS)


def test_chunks_of_positions_are_no_positions() -> None:
    model = small("Bert", num_hidden_layers=2, chunk_size_feed_forward=2)
    for site in ("neurons", "ffn_input", "ffn"):
        with refused("shape"), torch.no_grad(), capture(model, what=site):
            model(TOKENS)


@torch.no_grad()
def test_the_share_of_a_sink_is_that_of_the_softmax() -> None:
    model = decoder(1, sinks=True)
    nn.init.normal_(model.layers[0].attention.sinks)
    with capture(model, what="sinks") as seen:
        model(TOKENS)
    for edit in (zero("weights", keys=0), scale("weights", 3.0)):
        with intervene(model, edit), capture(model, what="sinks") as edited:
            model(TOKENS)
        torch.testing.assert_close(edited[0, "sinks"], seen[0, "sinks"], rtol=0, atol=1e-6)
    with (
        intervene(model, change("scores", lambda scores: scores)),
        capture(model, what="weights") as edited,
    ):
        model(TOKENS)
    assert {record.what for record in edited.records} == {"weights"}


def test_gradients_of_weights_are_those_before_a_hook_of_the_output_projection() -> None:
    model = decoder(1).double()
    model.layers[0].attention.output.register_forward_pre_hook(lambda _, args: (args[0] * 3,))
    with capture(model, retain_grad=True) as seen:
        metric(model(TOKENS)).sum().backward()
    (record,) = seen.of("weights")["layers.0.attention"]
    step = 1e-5 * torch.randn(record.values.shape[-2:], dtype=torch.float64).tril()

    def moved(sign: int) -> Tensor:
        with (
            torch.no_grad(),
            intervene(model, change("weights", lambda values: values + sign * step, heads=0)),
        ):
            return metric(model(TOKENS)).sum()

    torch.testing.assert_close(
        (record.grad[:, 0] * step).sum(), (moved(1) - moved(-1)) / 2, rtol=1e-5, atol=1e-12
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_edits_of_one_stream_in_nested_blocks_are_made_in_a_first_run(kind: str) -> None:
    model = small(kind, num_hidden_layers=2, num_key_value_heads=4)
    edit = add("residual_between", 1.0, layers=0)
    with intervene(model, edit), intervene(model, edit):
        nested = logits_of(model, TOKENS)
    with intervene(model, add("residual_between", 2.0, layers=0)):
        torch.testing.assert_close(nested, logits_of(model, TOKENS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_gradients_of_weights_are_those_of_an_edited_head(factor: float) -> None:
    model = decoder(1)
    with (
        intervene(model, scale("heads", factor, heads=0)),
        capture(model, retain_grad=True) as seen,
    ):
        metric(model(TOKENS)).sum().backward()
    (record,) = seen.of("weights")["layers.0.attention"]
    assert bool((record.grad[:, 0] == 0).all()) == (factor == 0)
    step = 1e-3 * torch.randn(record.values.shape[-2:]).tril()

    def moved(sign: int) -> Tensor:
        edits = (
            change("weights", lambda values: values + sign * step, heads=0),
            scale("heads", factor, heads=0),
        )
        with torch.no_grad(), intervene(model, *edits):
            return metric(model(TOKENS)).sum()

    found = (moved(1) - moved(-1)) / 2
    torch.testing.assert_close(found, (record.grad[:, 0] * step).sum(), rtol=2e-2, atol=1e-6)


def test_gradients_of_scores_within_an_edit_of_weights_are_refused() -> None:
    model = decoder()
    with refused("gradients of scores"), intervene(model, scale("weights", 2.0)):  # noqa: SIM117
        with capture(model, what="scores", retain_grad=True):
            model(TOKENS)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["plain", "hooked", "capped"])
def test_a_lens_at_some_positions_is_edited_there(kind: str) -> None:
    model = decoder(logit_cap=5.0) if kind == "capped" else decoder()
    if kind == "hooked":
        model.output.register_forward_hook(
            lambda _, given, logits: torch.cat([logits[:, :-1], 0 * logits[:, -1:]], 1)
        )
    with intervene(model, add("logits", torch.arange(20.0), queries=-1)):
        whole = logit_lens(model, TOKENS)
        torch.testing.assert_close(logit_lens(model, TOKENS, queries=(-1, 2)), whole[:, :, [-1, 2]])


@torch.no_grad()
def test_probabilities_of_a_lens_in_bfloat16_are_those_of_its_logits() -> None:
    model = decoder()
    model.output.weight.mul_(20)
    model = model.bfloat16()
    wanted = logit_lens(model, TOKENS).double().softmax(-1)[..., 4]
    found = logit_lens(model, TOKENS, targets=4).probabilities
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-6)


def test_effects_that_are_estimated_in_bfloat16_are_not_rounded_to_the_metrics_size() -> None:
    model = decoder().bfloat16()
    other = TOKENS.roll(1, 0)
    near, far = (
        attribution_sweep(
            model, TOKENS, other, lambda x, more=more: metric(x).float() + more
        ).effects  # type: ignore[misc]
        for more in (0, 999)
    )
    torch.testing.assert_close(near, far, rtol=0, atol=1e-3)


def test_a_rank_correlation_with_nan_is_nan() -> None:
    assert rank_correlation(torch.tensor([1.0, torch.nan, 3.0]), torch.arange(3.0)).isnan()
    nothing = torch.full((1, 2), torch.nan)
    assert all(score != score for _, _, score in HeadScores(*[nothing] * 4).top("induction"))


def test_tokens_that_are_hidden_are_no_induction() -> None:
    """After the earlier 5 stands one that no query sees."""
    texts = torch.tensor([[1, 5, 2, 3, 5]])
    real = torch.tensor([[True, True, False, True, True]])
    assert head_scores(decoder(), {"tokens": texts, "key_padding": real}).induction.isnan().all()


@torch.no_grad()
@pytest.mark.parametrize("site", ["residual_before", "residual_between", "residual", "v"])
def test_a_sweep_in_bfloat16_gives_a_place_its_clean_value(site: Any) -> None:
    model = decoder()
    clean = TOKENS[:1]
    corrupted = TOKENS[:1].clone()
    corrupted[0, 3] = 19
    model.embedding.weight[19] *= 300  # next to which the clean value vanishes
    found = patch_sweep(
        model.bfloat16(), clean, corrupted, lambda logits: metric(logits).float(), site=site
    )
    with capture(model, what=site) as seen:
        model(clean)
    for layer, place in ((0, 1), (1, 0)) if site == "v" else ((0, 3), (1, 3)):
        where = {"heads": place} if site == "v" else {"queries": place}
        with intervene(model, patch(site, seen, layers=layer, **where)):
            assert found.values[layer, place] == metric(model(corrupted)).float()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Sequence", "Token"])
def test_a_decoder_that_classifies_answers_for_the_last_token_of_each_text(kind: str) -> None:
    model = small("Llama", num_hidden_layers=2)
    classifier = getattr(tf, f"LlamaFor{kind}Classification")(model.config).eval()
    texts = {"input_ids": torch.tensor([[3, 7, 1, 4], [6, 1, 0, 0]])}
    texts["attention_mask"] = (texts["input_ids"] != 0).long()
    if kind == "Token":
        texts = {name: each.flip(1) for name, each in texts.items()}

    def told(logits: Tensor) -> Tensor:
        return logits[:, -1, 0]

    def asked() -> Tensor:
        logits = classifier(**texts).logits
        return logits[:, 0] if logits.dim() == 2 else logits[:, -1, 0]

    swept = ablation_sweep(classifier, texts, told).effects
    for layer, head in ((0, 0), (1, 3)):
        with intervene(classifier, zero("heads", layers=layer, heads=head)):
            wanted = asked().mean()
        torch.testing.assert_close(
            swept[layer, head].float(), wanted - asked().mean(), rtol=0, atol=1e-6
        )


@torch.no_grad()
@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.parametrize("site", ["residual", "residual_between", "attention"])
def test_blocks_of_t5_give_biases_beside_their_stream(site: Any, part: Any) -> None:
    """Which layers after the first take over: it cannot be skipped, and three outputs are no
    router's.
    """
    sizes = {
        "vocab_size": 20,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 4,
    }
    model = tf.T5ForConditionalGeneration(
        tf.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)
    ).eval()
    texts = {"input_ids": TOKENS[:, :6], "decoder_input_ids": TOKENS[:, :4]}
    found = ablation_sweep(model, texts, metric, site=site, part=part)
    stack = model.get_encoder() if part == "encoder" else model.get_decoder()
    for layer, block in enumerate(stack.block):
        inside = [
            name
            for name, each in model.named_modules()
            if each is (block.layer[0] if site == "attention" else block)
        ]
        with intervene(model, zero(site, modules=inside, queries=1)):
            wanted = metric(model(**texts).logits).mean()
        assert found.values[layer, 1] == pytest.approx(float(wanted), abs=1e-5)


def test_another_attention_is_checked_again() -> None:
    def doubled(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any
    ) -> Any:
        scores = (2 * scaling * q @ k.mT).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    tf.AttentionInterface.register("doubled", doubled)
    model = small("Llama", num_hidden_layers=2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5)
        with capture(model):
            model(TOKENS)
        model.set_attn_implementation("doubled")
        with refused("is not that of the softmax"), capture(model):
            model(TOKENS)


@torch.no_grad()
def test_a_block_that_was_changed_is_checked_again() -> None:
    model = small("Granite", num_hidden_layers=2, num_key_value_heads=4)
    for factor in (1.0, 0.3):
        for block in model.model.layers:
            block.residual_multiplier = factor
        if factor == 1:
            with capture(model, what="attention"):
                model(TOKENS)
    with refused("differs by"), capture(model, what="attention"):
        model(TOKENS)


def test_a_mean_ablation_refuses_reference_texts_with_padding() -> None:
    real = torch.ones(2, 8, dtype=torch.bool)
    texts = {"tokens": TOKENS, "key_padding": real.clone()}
    ablation_sweep(decoder(), texts, metric, reference=texts)
    real[1, :3] = False
    with refused("padding.*key_padding"):
        ablation_sweep(
            decoder(), texts, metric, reference=texts | {"key_padding": real}, mean="all"
        )


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("site", ["heads", "residual", "neurons"])
def test_a_mean_of_a_run_with_padding_is_refused(own: bool, site: str) -> None:
    model = decoder() if own else small("Llama", num_hidden_layers=2)
    tokens, mask = ("tokens", "key_padding") if own else ("input_ids", "attention_mask")
    real = torch.ones(2, 8, dtype=torch.bool)
    for padded in (False, True):
        real[1, :3] = not padded
        texts = {tokens: TOKENS, mask: real if own else real.long()}
        with capture(model, what=site) as reference:
            model(**texts)
        edit = mean(site, reference, layers=1, over="all")
        if padded:
            with refused("from texts with padding"), intervene(model, edit):
                model(TOKENS)
        else:
            with intervene(model, edit):
                model(TOKENS)


@pytest.mark.parametrize("own", [True, False])
def test_the_last_position_of_a_text_that_is_padded_on_the_right_is_refused(own: bool) -> None:
    model = decoder() if own else small("Llama", num_hidden_layers=2)
    tokens, mask = ("tokens", "key_padding") if own else ("input_ids", "attention_mask")
    real = torch.ones(2, 8, dtype=torch.bool)
    real[1, 5:] = False
    right = {tokens: TOKENS, mask: real if own else real.long()}
    left = {tokens: TOKENS, mask: right[mask].flip(1)}
    for padded, query in ((right, -1), (left, 0)):
        with refused(f"logits = {query}, which is padding in text 1"):
            ablation_sweep(model, padded, metric, logits=query)
        with refused("logits"):
            patch_sweep(model, padded, padded, metric, logits=query)
        with refused("logits"):
            attribution_sweep(model, padded, padded, metric, logits=query)
        with refused("logits"):
            path_patch(model, padded, padded, metric, Sender(0, 0), Receiver(1, 0), logits=query)
        with refused(f"query = {query}, which is padding"):
            direct_logits(model, padded, 3, query=query)
        with refused(f"queries = {query}, which is padding"):
            logit_lens(model, padded, queries=query)
        logit_lens(model, padded | {mask: None}, queries=query)
    ablation_sweep(model, left, metric)
    ends = real.sum(1) - 1
    ablation_sweep(model, right, lambda logits: logits[range(2), ends, 3], logits=slice(None))
    with refused(f"other padding, by their {mask}"):
        patch_sweep(model, left, left | {mask: torch.ones_like(left[mask])}, metric)


@pytest.mark.parametrize("make", [decoder, lambda: small("Llama", num_hidden_layers=2)])
def test_gradients_of_a_frozen_model_are_had_as_the_message_says(make: Any) -> None:
    model = make()

    def gradient() -> Tensor:
        live = change("embedding", lambda values: values.requires_grad_())
        kinds = ("embedding", "weights")
        with intervene(model, live), capture(model, what=kinds, layers=0, retain_grad=True) as seen:
            logits_of(model, TOKENS)[0, -1, 3].backward()
        return torch.cat([record.grad.flatten() for record in seen.records])

    wanted = gradient()
    model.requires_grad_(False)
    assert torch.equal(gradient(), wanted)
    with capture(model, what="embedding", retain_grad=True) as seen:
        logits_of(model, TOKENS)
    with refused(fix=r"packed or frozen.*intervene\(model, change"):
        _ = seen.records[0].grad


def test_inference_mode_is_refused_where_gradients_are_needed() -> None:
    with torch.inference_mode(), refused("inference_mode"):
        attribution_sweep(decoder(), None, TOKENS, metric)
    with torch.inference_mode(), refused("inference_mode"):
        attention_faithfulness(decoder(), TOKENS, metric)


def test_padding_on_the_left_is_refused_where_it_would_be_counted_as_positions() -> None:
    model = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    ).eval()
    texts = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    texts["attention_mask"][0, :3] = 0
    right = texts | {"position_ids": (texts["attention_mask"].cumsum(1) - 1).clamp(min=0)}
    asked = (
        lambda texts: ablation_sweep(model, texts, metric).by_text,
        lambda texts: logit_lens(model, texts, queries=-1)[-1, :, 0],
        lambda texts: direct_logits(model, texts, 3).total,
        lambda texts: head_scores(model, texts).previous,
    )
    for ask in asked:
        with refused("padding on the left without position_ids"):
            ask(texts)
        ask(right)
    alone = {"input_ids": TOKENS[:1, 3:], "attention_mask": torch.ones(1, 5)}
    torch.testing.assert_close(asked[1](right)[:1], asked[1](alone), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", "Mixtral"])
def test_an_edit_of_experts_changes_what_edits_before_it_leave(kind: str) -> None:
    sizes = {"num_hidden_layers": 2, "num_local_experts": 4, "num_key_value_heads": 4}
    model = decoder(num_experts=4, top_k=2) if kind == "own" else small(kind, **sizes)
    scaled = scale("experts", 3.0, layers=0)

    def answer() -> Tensor:
        return metric(logits_of(model, TOKENS))

    with intervene(model, zero("ffn", layers=0)):
        wanted = answer()
    for inner in (zero("experts", layers=0), scale("experts", 0.0, layers=0)):
        with intervene(model, scaled, inner):
            torch.testing.assert_close(answer(), wanted, rtol=0, atol=1e-6)
        with (
            intervene(model, scaled),
            intervene(model, inner),
            capture(model, what="experts", layers=0) as seen,
        ):
            torch.testing.assert_close(answer(), wanted, rtol=0, atol=1e-6)
        assert not seen[0, "experts"].any()
    with intervene(model, scaled, put("ffn", 0.0, layers=1)):
        found = ablation_sweep(model, TOKENS, metric, site="experts", layers=0)
        for expert in range(4):
            with intervene(model, zero("experts", layers=0, experts=expert)):
                assert found.values[0, expert] == pytest.approx(float(answer().mean()), abs=1e-6)


@torch.no_grad()
def test_attention_beside_blocks_of_another_kind_has_its_own_layers_positions() -> None:
    sizes = {
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    }
    model = small("Jamba", **sizes, expert_layer_period=100, mamba_d_state=4, mamba_dt_rank=2)
    cache = model(TOKENS[:, :6], use_cache=True).past_key_values
    with capture(model) as seen:
        model(TOKENS[:, 6:7], past_key_values=cache)
    with capture(model) as whole:
        model(TOKENS[:, :7], use_cache=False)
    for layer in (1, 3):
        torch.testing.assert_close(
            seen[layer, "weights"], whole[layer, "weights"][:, :, -1:], rtol=0, atol=1e-6
        )
    assert {(record.queries, record.keys) for record in seen.records} == {((6,), range(7))}
