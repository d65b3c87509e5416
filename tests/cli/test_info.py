import json
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from random_gpt_oss import GPT_OSS_20B, GPT_OSS_TINY, write_random_gpt_oss

from glassformer.checkpoints import store
from glassformer.checkpoints.bert import save_encoder
from glassformer.checkpoints.tensor_files import stored_tensors
from glassformer.cli.commands import info
from glassformer.cli.commands.info import Machine
from glassformer.kernels import native
from glassformer.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from refusals import Output, Refuses
from small_models import write_run

DENSE = DecoderConfig(
    vocab_size=50, num_layers=6, hidden_dim=32, ff_dim=64, num_heads=4, head_dim=8, window=9
)


def lines(output: Output, directory: Path) -> list[str]:
    """What is printed of a model, each run of spaces as one."""
    return [" ".join(line.split()) for line in output(["info", directory]).out.splitlines()]


@pytest.mark.parametrize(
    ("layout", "whose"), [("huggingface", "Hugging Face"), ("openai", "OpenAI")]
)
def test_gpt_oss(layout: str, whose: str, tmp_path: Path, output: Output) -> None:
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY, layout=layout)  # type: ignore[arg-type]
    shown = lines(output, tmp_path / "model")
    assert shown[0] == f"{tmp_path / 'model'}: gpt-oss in {whose}'s layout"
    for expected in (
        "layers 4, 64 wide",
        "heads 8 of width 16, 2 for keys and values",
        "experts 16 of width 64, 4 for each token, as MXFP4",
        "windows 16 tokens in layers 0, 2",
        "context 131,072 tokens, 32 times 4,096 by YaRN",
        "experts 798,720 442 kB",
        "total 1.02 M 880 kB in 1 file",
        "active 352,928 for each token",
        "experts packed 880 kB fits",
        "all in bfloat16 2.04 MB fits",
        "cache, 4,096 tokens 1.05 MB in 16 bits; twice in 32",
    ):
        assert expected in shown


def test_json_has_it_all_in_numbers(tmp_path: Path, output: Output) -> None:
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY)
    told = json.loads(output(["info", tmp_path / "model", "--json"]).out)
    assert (told["family"], told["layout"], told["experts"], told["files"]) == (
        "gpt-oss",
        "Hugging Face",
        "mxfp4",
        1,
    )
    assert told["parameters"]["total"] == 1_017_504
    assert told["parameters"]["active_per_token"] == 352_928
    assert told["stored_bytes"]["total"] == told["memory_bytes"]["experts packed"] == 879_936
    assert told["memory_bytes"]["all in float32"] == 4 * 1_017_504
    assert told["windows"] == [16, None, 16, None]
    assert told["config"]["num_experts"] == 16
    assert told["machine"]["memory"] >= told["machine"]["free"] > 0


def test_a_mixtral_and_an_own_decoder(tmp_path: Path, output: Output) -> None:
    config = replace(DENSE, num_experts=4, windowed_layers="all")
    Decoder(config).save_pretrained(tmp_path / "mixtral", layout="mixtral")
    shown = lines(output, tmp_path / "mixtral")
    assert shown[0].endswith("Mixtral in Hugging Face's layout")
    assert "windows 9 tokens in all layers" in shown
    assert "experts 4 of width 64, 2 for each token, as numbers" in shown
    Decoder(DENSE).save_pretrained(tmp_path / "own", layout="glassformer")
    shown = lines(output, tmp_path / "own")
    assert "feed-forward 64 wide" in shown
    assert "windows 9 tokens in layers 1, 3, 5" in shown
    assert not any(line.startswith(("experts", "MXFP4")) for line in shown)


def test_an_encoder_has_no_cache(tmp_path: Path, output: Output) -> None:
    config = EncoderConfig(vocab_size=30, num_layers=2, hidden_dim=16, ff_dim=8, num_heads=2)
    save_encoder(Encoder(config), tmp_path / "e")
    shown = lines(output, tmp_path / "e")
    assert "layers 2, 16 wide, 8 inside" in shown
    assert "heads 2 of width 8" in shown
    assert not any(line.startswith("cache") for line in shown)


def test_a_run(tmp_path: Path, output: Output) -> None:
    decoder = Decoder(DENSE)
    write_run(tmp_path, decoder, model=asdict(DENSE), data={"kind": "text"})
    told = json.loads(output(["info", tmp_path, "--json"]).out)
    assert told["parameters"]["total"] == sum(weight.numel() for weight in decoder.parameters())
    assert told["windows"] == [None, 9] * 3


def test_a_model_of_the_hub_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    write_random_gpt_oss(tmp_path / "there", GPT_OSS_TINY)
    stored = stored_tensors(tmp_path / "there")
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "config.json").rename(tmp_path / "here" / "config.json")

    find = Mock(return_value=tmp_path / "here")
    monkeypatch.setattr(store, "find_directory", find)
    monkeypatch.setattr(store, "directory_tensors", lambda directory, repository: stored)
    assert (
        json.loads(output(["info", "someone/tiny", "--json"]).out)["parameters"]["total"]
        == 1_017_504
    )
    find.assert_called_once_with("someone/tiny", weights=False)


def test_what_a_small_machine_lacks(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY)
    found = info.describe(tmp_path / "model")
    machine = Machine(3_000_000, 1_000_000, None, "MXFP4 runs on PyTorch's operators")
    shown = [" ".join(line.split()) for line in info.as_text(found, machine).splitlines()]
    assert "experts packed 880 kB fits" in shown
    assert "all in bfloat16 2.04 MB more than is free now" in shown
    assert "all in float32 4.07 MB more than this process may take" in shown
    assert "MXFP4 kernel: MXFP4 runs on PyTorch's operators" in shown
    nothing_known = info.as_text(found, Machine(None, None, "AVX2", None))
    assert "fits" not in nothing_known
    assert nothing_known.endswith("MXFP4 kernel: AVX2")


def test_why_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told every time, though the warning comes once."""
    monkeypatch.setattr(native, "look", native.look.__wrapped__)
    monkeypatch.setenv(native.SWITCH, "1")
    for _ in range(2):
        machine = info.this_machine()
        assert machine.kernel is None
        assert native.SWITCH in (machine.without_kernel or "")


def test_only_packed_experts_ask_for_a_kernel(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Mock(return_value=(None, "There is none."))
    monkeypatch.setattr(native, "look", look)
    Decoder(DENSE).save_pretrained(tmp_path / "own", layout="glassformer")
    assert (
        json.loads(output(["info", tmp_path / "own", "--json"]).out)["machine"]["without_kernel"]
        is None
    )
    look.assert_not_called()
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY)
    assert "MXFP4 kernel: There is none." in lines(output, tmp_path / "model")
    look.assert_called_once_with()


def test_layers_of_the_released_size_are_listed_shortly(tmp_path: Path, output: Output) -> None:
    form = replace(
        GPT_OSS_20B, hidden_dim=32, ff_dim=32, vocab_size=50, num_heads=8, head_dim=4, num_experts=4
    )
    write_random_gpt_oss(tmp_path / "model", form)
    assert "windows 128 tokens in layers 0, 2, ..., 22" in lines(output, tmp_path / "model")


def test_what_is_no_model(tmp_path: Path, refuses: Refuses) -> None:
    refuses(["info", tmp_path], "config.json")
    write_random_gpt_oss(tmp_path / "model", GPT_OSS_TINY)
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refuses(["info", tmp_path / "model"], "model.safetensors, which cannot be read")


def test_the_cache_is_no_longer_than_the_context(tmp_path: Path, output: Output) -> None:
    Decoder(replace(DENSE, max_seq_len=128)).save_pretrained(
        tmp_path / "short", layout="glassformer"
    )
    heads = DENSE.num_kv_heads or DENSE.num_heads
    width = DENSE.head_dim
    spans = [min(128, DENSE.layer_window(layer) or 128) for layer in range(DENSE.num_layers)]
    told = json.loads(output(["info", tmp_path / "short", "--json"]).out)
    # keys and values of two bytes
    assert told["cache_bytes"] == {"128": sum(spans) * 2 * 2 * heads * width}
    assert any(line.startswith("cache, 128 tokens") for line in lines(output, tmp_path / "short"))
