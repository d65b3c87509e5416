"""The course's model is the decoder, with layers of the course's classes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from glassformer.errors import InputError
from glassformer.generation.decoding import generate
from glassformer.labs import gpt_oss as lab
from glassformer.models.decoder import Decoder

SIZES = {"vocab_size": 11, "n_layers": 4, "hidden_dim": 16, "ff_dim": 24, "num_heads": 4, "head_dim": 4}
WINDOW = {"use_sliding_window_alternating": True, "window_size": 3}
MIXTURE = {"use_moe": True, "num_experts": 3, "top_k": 2}
VARIANTS = [{}, {"num_kv_heads": 2}, WINDOW, MIXTURE, {"num_kv_heads": 1, **WINDOW, **MIXTURE}]


def model(**changes: Any) -> lab.Transformer:
    made = lab.Transformer(**{**SIZES, **changes}).eval()
    for block in made.layers:
        torch.nn.init.normal_(block.attention.key_weights)
    return made


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_are_those_of_the_decoder_with_the_same_weights(changes: dict[str, Any]) -> None:
    course = model(**changes)
    decoder = Decoder(course.config).eval()
    decoder.load_state_dict(course.state_dict())
    tokens = torch.randint(11, (3, 12))
    assert torch.equal(course(tokens), decoder(tokens))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_initial_weights_are_those_of_the_decoder(changes: dict[str, Any]) -> None:
    course = lab.Transformer(**{**SIZES, **changes})
    torch.manual_seed(1)
    course.reset_parameters()
    decoder = Decoder(course.config)
    torch.manual_seed(1)
    decoder.reset_parameters()
    weights = decoder.state_dict()
    assert course.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in course.state_dict().items())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_blocks_stand_alone_as_they_do_in_the_model(changes: dict[str, Any]) -> None:
    course, tokens = model(**changes), torch.randint(11, (2, 9))
    x = course.embedding(tokens)
    for block in course.layers:
        x = block(x)
    torch.testing.assert_close(course.output_proj(course.final_norm(x)), course(tokens), atol=1e-5, rtol=1e-5)


def test_layers_are_of_the_courses_classes() -> None:
    course = model(num_kv_heads=2, **WINDOW, **MIXTURE)
    kinds = [type(block.attention) for block in course.layers]
    assert kinds == [lab.GroupedQueryAttention, lab.SWAttention] * 2
    assert [block.attention.num_kv_heads for block in course.layers] == [2] * 4
    assert all(isinstance(block.ffn, lab.MixtureOfExperts) for block in course.layers)
    assert isinstance(model().layers[0].ffn, lab.SwiGLUFeedForward)
    assert course.output_proj is course.output


def test_a_window_hides_what_lies_before_it() -> None:
    course = model(n_layers=2, **WINDOW)
    tokens = torch.randint(11, (1, 9))
    other = tokens.clone()
    other[0, 0] = (tokens[0, 0] + 1) % 11
    windowed, x, y = course.layers[1], course.embedding(tokens), course.embedding(other)
    same = [torch.equal(a, b) for a, b in zip(windowed(x)[0], windowed(y)[0], strict=True)]
    assert same == [False] * 4 + [True] * 5


def test_it_generates_with_a_cache() -> None:
    course = model(num_kv_heads=2, **WINDOW, **MIXTURE)
    prompts = torch.randint(11, (3, 5))
    assert generate(course, prompts, 9) == lab.generate(course, prompts, 9).tolist()


def test_signatures_are_the_courses() -> None:
    common = ["hidden_dim", "ff_dim", "num_heads", "head_dim"]
    mixture = ["window_size", "use_moe", "num_experts", "top_k", "num_kv_heads"]
    assert list(inspect.signature(lab.TransformerBlock).parameters) == [*common, "use_sliding_window", *mixture]
    assert list(inspect.signature(lab.Transformer).parameters) == [
        "vocab_size",
        "n_layers",
        *common,
        "use_sliding_window_alternating",
        *mixture,
    ]


def test_impossible_sizes_are_refused() -> None:
    for changes in ({"num_heads": 3, "num_kv_heads": 2}, {"head_dim": 5}, {**MIXTURE, "top_k": 4}, {"n_layers": 0}):
        with pytest.raises(InputError):
            lab.Transformer(**{**SIZES, **changes})
