"""Mixtures of experts of GGUF files stay packed, in every kind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packed_mixture import MIXTURE, draw_tokens, write_mixture

from glassformer.checkpoints.decoders import load_decoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.generation import native_step
from glassformer.generation.decoding import generate
from glassformer.generation.language_model import count_weights
from glassformer.kernels.native import Library
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.quantized.packed import PackedExperts
from glassformer.models import Decoder
from glassformer.observe.capture import capture
from glassformer.observe.sweep import ablation_sweep, attribution_sweep


@pytest.fixture(scope="module", params=["Q4_K", "Q8_0", "Q4_0"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "model.gguf"
    write_mixture(path, kind=request.param)
    return path


def both(file: Path) -> tuple[Decoder, Decoder]:
    packed = load_gguf(file)
    dense = load_gguf(file, hold="dense")
    assert all(type(block.ffn) is PackedExperts for block in packed.layers)
    assert all(type(block.ffn) is MixtureOfExperts for block in dense.layers)
    return packed, dense


@torch.no_grad()
def test_logits_are_those_of_expanded_experts(file: Path) -> None:
    packed, dense = both(file)
    tokens = draw_tokens(3, 40)
    expected = dense(tokens)
    assert expected.std() > 0.01
    torch.testing.assert_close(
        packed(tokens), expected, rtol=0, atol=2e-5 * expected.abs().max().item()
    )


@torch.no_grad()
def test_generation_is_native(
    file: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, dense = both(file)
    steps = []
    decode_step = native_step.decode_step
    monkeypatch.setattr(
        native_step, "decode_step", lambda *given: steps.append(1) or decode_step(*given)
    )
    prompts = [[3, 1, 4], [1, 5, 9]]
    expected = generate(dense, prompts, max_new_tokens=12)
    count = len(steps)
    assert count > 0
    assert generate(packed, prompts, max_new_tokens=12) == expected
    assert len(steps) == 2 * count
    step = native_step.DecodingStep(packed, packed.new_cache(2, 20))
    cache = dense.new_cache(2, 20)
    for token in draw_tokens(2, 9).split(1, dim=1):
        ordinary = dense(token, cache=cache)[:, -1]
        torch.testing.assert_close(
            step(token), ordinary, rtol=0, atol=2e-5 * ordinary.abs().max().item()
        )


def test_it_takes_the_memory_of_the_file(file: Path) -> None:
    packed, dense = both(file)
    held = sum(tensor.nbytes for tensor in packed.state_dict().values())
    assert held <= 1.2 * file.stat().st_size
    described = describe(file)
    assert described.held == held
    assert described.experts == "dense"
    assert count_weights(packed) == count_weights(dense)


def test_what_observes_does_not_know_how_experts_are_stored(file: Path) -> None:
    packed, dense = both(file)
    tokens = draw_tokens(1, 9)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1, 3] - logits[:, -1, 5]

    for observe in (
        lambda model: attribution_sweep(model, None, tokens, metric).effects,
        lambda model: ablation_sweep(model, tokens, metric).effects,
        _routings_and_outputs(tokens),
    ):
        expected = observe(dense)
        assert expected.abs().max() > 0
        torch.testing.assert_close(
            observe(packed), expected, rtol=0, atol=1e-4 * expected.abs().max().item()
        )


def _routings_and_outputs(tokens: torch.Tensor) -> Callable[[Decoder], torch.Tensor]:
    def observe(model: Decoder) -> torch.Tensor:
        with torch.no_grad(), capture(model, what=("router", "experts", "ffn")) as seen:
            model(tokens)
        return torch.cat([record.values.float().flatten() for record in seen.records])

    return observe


@torch.no_grad()
def test_it_is_written_with_expanded_experts(file: Path, tmp_path: Path) -> None:
    packed, _ = both(file)
    tokens = draw_tokens(1, 12)
    packed.save_pretrained(tmp_path / "saved")
    saved = load_decoder(tmp_path / "saved")
    assert type(saved.layers[0].ffn) is MixtureOfExperts
    torch.testing.assert_close(saved(tokens), packed(tokens), rtol=0, atol=1e-4)
    write_gguf(packed, tmp_path / "again.gguf", kind="F32")
    torch.testing.assert_close(
        load_gguf(tmp_path / "again.gguf")(tokens), packed(tokens), rtol=0, atol=1e-4
    )


def test_experts_of_which_one_matrix_is_not_packed_are_expanded(tmp_path: Path) -> None:
    """A mixture holds all its matrices packed or none."""
    decoder = Decoder(replace(MIXTURE, ff_dim=48))
    write_gguf(decoder, tmp_path / "model.gguf", kind="Q8_0")  # rows of 48 become float16
    kinds = {
        tensor.kind
        for tensor in read_gguf(tmp_path / "model.gguf").tensors.values()
        if len(tensor.shape) == 3
    }
    assert kinds == {"Q8_0", "F16"}
    assert type(load_gguf(tmp_path / "model.gguf").layers[0].ffn) is MixtureOfExperts
