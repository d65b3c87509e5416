"""What decoder, encoder and encoder-decoder have in common."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.checkpoints.bert import save_encoder
from glassformer.layers.positions import RotaryEmbedding
from glassformer.models import Decoder, Encoder, EncoderDecoder
from models.forms import BOTH, DECODER, ENCODER, GPT_OSS, Base, draw, every_form, make, new
from processes import printed


@every_form
def test_every_module_is_called_and_every_parameter_gets_a_gradient(
    base: Base, form: dict[str, Any]
) -> None:
    model = make(base, **form).train()
    silent = {
        each for each in model.modules() if not isinstance(each, nn.ModuleList | RotaryEmbedding)
    }
    for each in silent:
        each.register_forward_hook(lambda module, *_: silent.discard(module))
    model(*draw(model, 12, 10)).logsumexp(-1).square().sum().backward()
    assert silent == set(), "hooks of users see every part"
    # A key bias shifts all scores alike, and the one key of a window of 1 has a weight of 1
    # whatever its score.
    without = (
        ("key.bias", "query.weight", "key.weight") if form.get("window") == 1 else ("key.bias",)
    )
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert (weight.grad != 0).any() or name.endswith(without), name


def deviation(model: Any, name: str, width: int) -> float:
    """The documented standard deviation of a new matrix."""
    config = model.config
    if "embedding" in name and isinstance(model, Decoder):
        return width**-0.5 if config.tied_output else Decoder.EMBEDDING_STD
    if name.startswith(("embedding", "positions", "token_types")) and config.embedding_norm:
        return width**-0.5
    if "embedding" in name:
        fields = config.fields_per_slot if name.startswith("source") else 1
        return (width if config.scale_embeddings else 1) ** -0.5 * fields**-0.5
    if "positions" in name or "token_types" in name:
        return 1.0
    heads = {
        "classifier.weight": (Encoder, "HEAD_STD"),
        "output.weight": (EncoderDecoder, "OUTPUT_STD"),
    }
    if name in heads and isinstance(model, heads[name][0]):
        return getattr(*heads[name])
    if "attention.output" not in name and "ffn.down" not in name:
        return width**-0.5
    if isinstance(model, EncoderDecoder):
        added = (
            2 * config.num_encoder_layers if "encoder" in name else 3 * config.num_decoder_layers
        )
    else:
        added = 2 * config.num_layers
    return (width * added) ** -0.5


@every_form
def test_the_initialisation_is_the_documented_one(base: Base, form: dict[str, Any]) -> None:
    sizes = {"vocab_size": 300, "hidden_dim": 128, "ff_dim": 200, "head_dim": 32, "num_layers": 3}
    sizes |= {"max_seq_len": 200, "max_source_len": 200, "max_target_len": 200}
    model = new(
        base, **{**{name: size for name, size in sizes.items() if hasattr(base, name)}, **form}
    )
    for name, weight in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            assert (weight == 0).all(), name
        elif name.endswith(("norm.weight", "key_weights")):
            assert (weight == 1).all(), name
        else:
            std = deviation(model, name, weight.shape[-1])
            spread = 5 / math.sqrt(weight.numel())
            assert weight.std().item() == pytest.approx(std, rel=spread / math.sqrt(2)), name
            assert abs(weight.mean().item()) < std * spread, name
    if not isinstance(model, Decoder):
        shares = model.eval()(*draw(model, 4, 20)).softmax(-1)
        uneven = (shares * shares.shape[-1] - 1).abs()
        assert uneven.mean() < 0.5
        if isinstance(model, Encoder):
            assert uneven.max() < (0.3 if model.config.pooling == "mean" else 1.05)


@pytest.mark.parametrize(("base", "form"), [(DECODER, GPT_OSS), (ENCODER, {}), (BOTH, {})])
def test_the_state_dict_is_the_parameters(base: Base, form: dict[str, Any]) -> None:
    model = make(base, **form)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    other = new(base, **form).eval()
    other.load_state_dict(model.state_dict())
    inputs = draw(model, 2, 9)
    assert torch.equal(other(*inputs), model(*inputs))


READING = """
import sys
from glassformer.models import Decoder, Encoder
assert not any(name.startswith("glassformer.checkpoints") for name in sys.modules)
Decoder.from_pretrained("{0}/decoder").save_pretrained("{0}/written", layout="glassformer")
assert Decoder.from_pretrained("{0}/written").config.num_layers == 4
assert Encoder.from_pretrained("{0}/encoder").config.num_layers == 2
"""


def test_models_find_what_reads_and_writes_their_files_and_import_none_of_it_before(
    tmp_path: Path,
) -> None:
    new(DECODER).save_pretrained(tmp_path / "decoder")
    save_encoder(new(ENCODER), tmp_path / "encoder")
    printed(READING.format(tmp_path))


COMPILED = """
import torch
from glassformer.models import Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
source, target = torch.randint(1, 20, (2, 9)), torch.randint(1, 20, (2, 5))
source[1, 5:] = 0
for model, texts in (
    (Encoder(EncoderConfig(20, 2, 24, 40, 4, max_seq_len=64, num_classes=3, dropout=0.0)), (source,)),
    (EncoderDecoder(EncoderDecoderConfig(20, 24, 40, 4, 1, 1, 12, 10, dropout=0.0)), (source, target)),
):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert (compiled(*texts) - model(*texts)).abs().max() <= 1e-5
    compiled(*texts).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
"""


@pytest.mark.slow
def test_models_compile_as_one_graph() -> None:
    """In a process without run-time checks of shapes, which a compiler cannot follow."""
    printed(COMPILED)
