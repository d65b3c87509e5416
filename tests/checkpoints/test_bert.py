import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
)

from glassformer.checkpoints.bert import load_encoder, read_encoder_config, save_encoder
from glassformer.models import Encoder, EncoderConfig
from refusals import refused

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """With biases and norms other than 0 and 1, and weights large enough to matter."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) / 4)
    return model.eval()


def batch(pad_id: int = 0) -> tuple[Tensor, Tensor]:
    real = torch.arange(20) < torch.tensor([[20], [7], [1]])
    return torch.where(real, torch.randint(2, 50, (3, 20)), pad_id), real


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A directory of a BertModel with random weights."""
    directory = tmp_path / "tiny"
    randomised(BertModel(BertConfig(**SIZES))).save_pretrained(directory)
    return directory


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


# The same numbers as Hugging Face


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@torch.no_grad()
def test_hidden_states_are_those_of_a_tiny_bert(tmp_path: Path, activation: str) -> None:
    peer = randomised(BertModel(BertConfig(**SIZES, hidden_act=activation, layer_norm_eps=1e-3)))
    peer.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    tokens, real = batch()
    types = torch.randint(2, tokens.shape)
    for given in (None, types):
        expected = peer(tokens, attention_mask=real.long(), token_type_ids=given)
        hidden = encoder.hidden(tokens, real, types=given)
        assert (hidden - expected.last_hidden_state)[real].abs().max() <= 1e-5


@pytest.mark.parametrize("pad_id", [1, 3])
@torch.no_grad()
def test_hidden_states_are_those_of_a_tiny_roberta(tmp_path: Path, pad_id: int) -> None:
    """Whose positions count from behind the padding token."""
    config = transformers.RobertaConfig(**SIZES, pad_token_id=pad_id, type_vocab_size=1)
    peer = randomised(transformers.RobertaModel(config))
    peer.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    assert (encoder.config.max_seq_len, encoder.config.pad_id) == (32 - pad_id - 1, pad_id)
    tokens, real = batch(pad_id)
    tokens[real & (tokens == pad_id)] = 9
    expected = peer(tokens, attention_mask=real.long()).last_hidden_state
    assert (encoder.hidden(tokens) - expected)[real].abs().max() <= 1e-5


@pytest.mark.parametrize("peer", [BertForMaskedLM, BertForSequenceClassification])
@torch.no_grad()
def test_a_prefix_and_heads_are_ignored(tmp_path: Path, peer: type[PreTrainedModel]) -> None:
    model = randomised(peer(BertConfig(**SIZES)))
    model.save_pretrained(tmp_path)
    tokens, real = batch()
    expected = model.bert(tokens, attention_mask=real.long()).last_hidden_state
    assert (load_encoder(tmp_path).eval().hidden(tokens) - expected)[real].abs().max() <= 1e-5
    if peer is BertForSequenceClassification:
        with refused("num_classes = 2 for an encoder with a head of another kind"):
            load_encoder(tmp_path, num_classes=2)


def test_old_names_of_norms_and_stored_positions(tiny: Path) -> None:
    tokens, real = batch()
    expected = load_encoder(tiny).eval().hidden(tokens)

    def age(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            tensors[f"bert.{old}"] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(32)[None]

    edit_tensors(tiny, age)
    assert torch.equal(load_encoder(tiny).eval().hidden(tokens)[real], expected[real])


def test_missing_fields_have_berts_defaults() -> None:
    config = read_encoder_config({"model_type": "bert"})
    theirs = BertConfig()
    assert (config.hidden_dim, config.num_layers, config.num_heads) == (768, 12, 12)
    assert (config.ff_dim, config.vocab_size, config.max_seq_len) == (3072, 30522, 512)
    assert (config.norm_eps, config.dropout, config.token_types) == (theirs.layer_norm_eps, 0.1, 2)
    assert (config.activation, config.pad_id) == ("gelu", 0)


@pytest.mark.slow
@torch.no_grad()
def test_minilm_is_hugging_faces(minilm: Path) -> None:
    from transformers import AutoTokenizer

    texts = [
        "A man is eating food.",
        "The acting was superb, though the plot never quite came together in its last, overlong "
        "half hour.",
        "No!",
        "Unwatchable. " * 60,
    ]
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    peer = BertModel.from_pretrained(minilm, dtype=torch.float32)
    encoder = load_encoder(minilm).eval()
    given = tokenizer(texts, padding=True, return_tensors="pt")
    real = given["attention_mask"].bool()
    expected = peer.eval()(**given).last_hidden_state
    hidden = encoder.hidden(given["input_ids"])
    assert (hidden - expected)[real].abs().max() <= 1e-5
    share = given["attention_mask"][..., None].float()
    vectors = (expected * share).sum(1) / share.sum(1)
    assert (encoder.pool(hidden, real) - vectors).abs().max() <= 1e-5


# Options


def test_a_new_head_is_drawn_and_the_rest_is_read(tiny: Path) -> None:
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        encoder = load_encoder(
            tiny, num_classes=3, pooling="cls", dropout=0.25, attention_dropout=0.0
        )
        heads.append(encoder.classifier.weight)
    assert heads[0].shape == (3, 24)
    assert heads[0].requires_grad
    assert heads[0].std().item() == pytest.approx(Encoder.HEAD_STD, rel=0.3)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    config = encoder.config
    assert (config.pooling, config.dropout, config.attention_dropout, config.ff_dropout) == (
        "cls",
        0.25,
        0.0,
        0.0,
    )
    assert (encoder.classifier.bias == 0).all()
    encoder(torch.ones(2, 5, dtype=torch.long)).sum().backward()
    assert all(weight.grad is not None for weight in encoder.parameters())
    assert torch.equal(encoder.embedding.weight, load_encoder(tiny).embedding.weight)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "max"),
        # As later versions write it.
        *(
            ({"embedding_dimension": 24, "pooling_mode": mode}, mode)
            for mode in ("cls", "mean", "max")
        ),
        ({"embedding_dimension": 24, "pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_pooling_is_what_sentence_transformers_says(
    tiny: Path, said: dict[str, Any], expected: str
) -> None:
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps(said))
    assert load_encoder(tiny).config.pooling == expected
    assert load_encoder(tiny, pooling="mean").config.pooling == "mean"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "the pooling mean and cls",
        ),
        ({"pooling_mode_mean_tokens": False}, "of no kind"),
        ({"pooling_mode": "lasttoken"}, "the pooling lasttoken"),
        ({"pooling_mode": ["mean", "max"]}, "the pooling mean and max"),
        ({"pooling_mode": 3}, "the pooling 3"),
    ],
)
def test_another_pooling_is_refused_unless_one_is_chosen(
    tiny: Path, said: dict[str, Any], message: str
) -> None:
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps(said))
    with refused(message, expected="one of mean, cls, max"):
        load_encoder(tiny)
    assert load_encoder(tiny, pooling="max").config.pooling == "max"


def test_modules_behind_the_pooling_are_refused_unless_one_is_chosen(tiny: Path) -> None:
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text("{}")
    for last, fits in (("Normalize", True), ("Dense", False), ("LSTM", False), ("Pooling", False)):
        kinds = {"": "Transformer", "1_Pooling": "Pooling", f"2_{last}": last}
        modules = [
            {"path": path, "type": f"sentence_transformers.models.{kind}"}
            for path, kind in kinds.items()
        ]
        (tiny / "modules.json").write_text(json.dumps(modules))
        if fits:
            assert load_encoder(tiny).config.pooling == "mean"
        else:
            with refused(f"modules.json with {last}$", expected="nothing but Transformer"):
                load_encoder(tiny)
            assert load_encoder(tiny, pooling="cls").config.pooling == "cls"
    (tiny / "modules.json").write_text(json.dumps(modules[:2]))
    shutil.rmtree(tiny / "1_Pooling")
    with refused("1_Pooling"):  # its kind of pooling would be a guess
        load_encoder(tiny)
    for content in ("{", "3", '[{"idx": 0}]', "[0]"):
        (tiny / "modules.json").write_text(content)
        with refused(r"modules\.json, which cannot be read"):
            load_encoder(tiny)


def test_half_precision_files_are_widened(tiny: Path) -> None:
    exact = load_encoder(tiny)
    edit_tensors(
        tiny,
        lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}),
    )
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load_encoder(tiny, dtype=dtype)
        assert {weight.dtype for weight in loaded.parameters()} == {dtype}
        assert torch.equal(loaded.embedding.weight, exact.embedding.weight.half().to(dtype))


def test_loading_draws_no_random_numbers(tiny: Path) -> None:
    before = torch.get_rng_state()
    load_encoder(tiny)
    assert torch.equal(torch.get_rng_state(), before)


# Our own directories


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("num_classes", [None, 3])
def test_an_encoder_comes_back_as_it_was_saved(
    tmp_path: Path, positions: Any, num_classes: int | None
) -> None:
    config = EncoderConfig(
        50, 2, 24, 40, 4, num_classes=num_classes, positions=positions, pooling="max", pad_id=2
    )
    encoder = Encoder(config).eval()
    save_encoder(encoder, tmp_path / "saved")
    loaded = load_encoder(tmp_path / "saved").eval()
    assert loaded.config == config
    tokens, _ = batch(2)
    assert torch.equal(loaded.hidden(tokens), encoder.hidden(tokens))
    if num_classes:
        assert torch.equal(loaded(tokens), encoder(tokens))
        assert load_encoder(tmp_path / "saved", num_classes=3).config == config
        with refused("num_classes = 2 for an encoder with a head of 3"):
            load_encoder(tmp_path / "saved", num_classes=2)
    else:
        assert load_encoder(tmp_path / "saved", num_classes=2)(tokens).shape == (3, 2)


def test_a_bert_can_be_saved_and_read_again(tiny: Path, tmp_path: Path) -> None:
    encoder = load_encoder(tiny, num_classes=2)
    save_encoder(encoder, tmp_path / "saved")
    loaded = load_encoder(tmp_path / "saved")
    assert loaded.config == encoder.config
    assert loaded.config.dropout > 0
    assert not loaded.training
    assert all(
        torch.equal(tensor, loaded.state_dict()[name])
        for name, tensor in encoder.state_dict().items()
    )
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


# What cannot be read


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "distilbert"}, r"config\.json with model_type = 'distilbert'"),
        ({"model_type": None}, "model_type = None"),
        ({"hidden_act": "gelu_new"}, r"config\.json with hidden_act = 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"num_attention_heads": 5}, "hidden_dim = 24 with num_heads = 5"),
        ({"num_attention_heads": 0}, "num_heads = 0"),
        ({"hidden_dropout_prob": 2.0}, r"dropout = 2\.0"),
        ({"num_hidden_layers": 3}, r"missing encoder\.layer\.2\.attention\.self\.query\.weight"),
        ({"num_hidden_layers": 10**7}, r"config.json with 10000000 layers with 39 tensors"),
        ({"num_hidden_layers": 1}, r"unknown encoder\.layer\.1\.attention"),
        (
            {"vocab_size": 51},
            r"embeddings\.word_embeddings\.weight of shape \[50, 24\] instead of \[51, 24\]",
        ),
        (
            {"max_position_embeddings": 16},
            r"position_embeddings\.weight of shape \[32, 24\] instead of \[16, 24\]",
        ),
        (
            {"intermediate_size": 41},
            r"layer\.1\.intermediate\.dense\.bias of shape \[40\] instead of \[41\]",
        ),
        ({"type_vocab_size": 0}, r"unknown embeddings\.token_type_embeddings\.weight"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    tiny: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(tiny, **changes)
    with refused(anywhere=message):
        load_encoder(tiny)


def test_a_damaged_configuration_of_ours_is_refused(tmp_path: Path) -> None:
    save_encoder(Encoder(EncoderConfig(50, 1, 24, 40, 4)), tmp_path / "saved")
    edit_config(tmp_path / "saved", width=3)
    with refused("width"):
        load_encoder(tmp_path / "saved")
    save_encoder(Encoder(EncoderConfig(50, 1, 24, 40, 4)), tmp_path / "many")
    edit_config(tmp_path / "many", num_layers=10**7)
    with refused("with 10000000 layers with"):
        load_encoder(tmp_path / "many")
