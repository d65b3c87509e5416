import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.cli import training_data
from glassformer.cli.training_data import open_data, recurrence_data, text_data
from glassformer.data.recurrence import RecurrenceConfig, fresh_batch, make_split
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import NextTokenTask, TrainingConfig, mix_seed, stepper, train
from refusals import refused


def text_file(directory: Path, content: bytes) -> Path:
    path = directory / "text.txt"
    path.write_bytes(content)
    return path


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(length=st.integers(30, 400), seq_len=st.integers(1, 20), seed=st.integers(0, 3))
def test_crops_are_pieces_of_the_first_nine_tenths(
    tmp_path: Path, length: int, seq_len: int, seed: int
) -> None:
    # Two bytes count upwards, so a crop tells where it was cut.
    content = b"".join(index.to_bytes(2, "big") for index in range(length // 2))
    path = text_file(tmp_path, content)
    if len(content) // 10 <= seq_len:
        with refused(expected=f"at least {10 * (seq_len + 1):,} bytes"):
            text_data(path, seq_len, seed)
        return
    data = text_data(path, seq_len, seed)
    learned = content[: -(len(content) // 10)]
    held_out = content[-(len(content) // 10) :]
    for step in range(3):
        tokens = data.batches(step, 8)["tokens"]
        assert tokens.shape == (8, seq_len + 1)
        assert all(bytes(row) in learned for row in tokens.tolist())
        assert torch.equal(tokens, text_data(path, seq_len, seed).batches(step, 8)["tokens"])
    assert all(bytes(row) in held_out for row in data.evaluation.tolist())
    # End to end: consecutive and without overlap, as many as fit.
    joined = b"".join(bytes(row) for row in data.evaluation.tolist())
    assert held_out.startswith(joined)
    assert data.summary.endswith(f"evaluation reads {len(joined)}")
    assert len(held_out) - len(joined) <= seq_len


def test_crops_are_drawn_from_other_seeds_than_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: dict[str, set[int]] = {}
    for module in (training_data, stepper):

        def noted(*numbers: int, name: str = module.__name__, **more: str) -> int:
            seeds.setdefault(name, set()).add(mix_seed(*numbers, **more))
            return mix_seed(*numbers, **more)

        monkeypatch.setattr(module, "mix_seed", noted)
    data = text_data(text_file(tmp_path, b"abcdefgh" * 100), 16, seed=0)
    model = Decoder(DecoderConfig(256, 1, 8, 8, 1, 8, dropout=0.1))
    train(
        model,
        NextTokenTask(data.batches, data.evaluation),
        TrainingConfig(steps=3, batch_size=2),
        progress=False,
    )
    crops, dropout = seeds.values()
    assert len(crops) == len(dropout) == 3
    assert not crops & dropout


def test_every_byte_is_learned_from(tmp_path: Path) -> None:
    data = text_data(text_file(tmp_path, bytes(range(200))), 4, seed=0)
    seen = {
        token for step in range(200) for token in data.batches(step, 8)["tokens"].flatten().tolist()
    }
    assert seen == set(range(180))
    steps = torch.stack([data.batches(step, 8)["tokens"] for step in range(4)])
    assert len(steps.unique(dim=0)) == 4, "every step draws crops of its own"
    assert not torch.equal(
        data.batches(0, 8)["tokens"], text_data(tmp_path / "text.txt", 4, 1).batches(0, 8)["tokens"]
    )


def test_long_texts_are_evaluated_on_an_even_spread(tmp_path: Path) -> None:
    content = b"a" * 90_000 + b"".join(index.to_bytes(2, "big") for index in range(5_000))
    rows = text_data(text_file(tmp_path, content), 9, seed=0).evaluation
    starts = [row[0] * 256 + row[1] for row in rows.tolist()]
    assert len(rows) == 256
    assert (starts[0], starts[-1]) == (0, 4_995)
    gaps = {after - before for before, after in pairwise(starts)}
    assert gaps <= {15, 20}


def test_a_text_is_described_so_that_another_would_be_noticed(tmp_path: Path) -> None:
    content = "Ünï\n".encode() * 100
    path = text_file(tmp_path, content)
    data = text_data(path, 16, seed=0)
    assert data.description == {
        "kind": "text",
        "path": str(path),
        "bytes": 600,
        "sha256": hashlib.sha256(content).hexdigest(),
        "seq_len": 16,
    }
    assert (data.vocab_size, data.metric, data.optimal_accuracy) == (256, "loss", None)
    assert "540 bytes" in data.summary


def test_the_recurrence_is_new_at_every_step_and_never_a_held_out_one() -> None:
    config = RecurrenceConfig(vocab_size=5, seq_len=8)
    data = recurrence_data(config, seed=1)
    held_out = make_split(config, num_train=1, num_test=1000, seed=1).test
    assert torch.equal(data.evaluation, held_out.tokens)
    expected = fresh_batch(config, 5, seed=1, step=2, excluded=held_out.generators)
    assert not set(expected.generators.numbers(config).tolist()) & set(
        held_out.generators.numbers(config).tolist()
    )
    assert torch.equal(data.batches(2, 5)["tokens"], expected.tokens)
    assert not torch.equal(data.batches(3, 5)["tokens"], expected.tokens)
    assert data.description == {
        "kind": "recurrence",
        "order": 2,
        "vocab_size": 5,
        "next_prob": 0.1,
        "seq_len": 8,
    }
    assert data.metric == "accuracy"


def test_names_and_default_lengths(tmp_path: Path) -> None:
    path = text_file(tmp_path, b"x" * 3000)
    assert open_data(str(path), None, 0).seq_len == 256
    assert open_data(str(path), 12, 0).seq_len == 12
    recurrence = open_data("recurrence", None, 0)
    assert (recurrence.seq_len, recurrence.vocab_size) == (64, 7)
    assert recurrence.optimal_accuracy == pytest.approx(0.884, abs=0.004)
    assert open_data("recurrence", 5, 0).evaluation.shape == (1000, 6)
