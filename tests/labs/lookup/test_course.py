"""The course's experiment: its task, its training, what counts as right, scrambled beside original."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from glassformer.data.lookup import EOS, FACTS, SOS, VOCAB, all_contexts, lookup_batch
from glassformer.labs.lookup import course
from glassformer.labs.lookup.course import (
    CourseTask,
    all_right,
    build_course_model,
    course_split,
    decode,
    share_right,
    side_by_side,
    target_loss,
    train_course,
    written_logits,
)
from glassformer.labs.lookup.network import CrossAttentionLookupModel
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.scrambling import scrambling_test
from glassformer.training import TrainingResult, load_weights, train
from refusals import refused


def test_the_split_is_the_courses() -> None:
    split = course_split(0)
    assert (len(split.train), len(split.validation), len(split.test)) == (4000, 500, 500)
    assert split == course_split(0)
    assert split.train != course_split(1).train


def test_the_model_is_the_one_under_the_courses_names() -> None:
    ours = build_course_model(0).eval()
    theirs = CrossAttentionLookupModel(14, 64, 4, 1, 128, 10).eval()
    assert theirs.config == ours.config
    theirs.network.load_state_dict(ours.state_dict())
    batch = lookup_batch(all_contexts()[:4])
    torch.testing.assert_close(theirs(batch.source, batch.inputs), ours(batch.source, batch.inputs), atol=0, rtol=0)


def test_building_leaves_torchs_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = build_course_model(1), build_course_model(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_loss_is_the_mean_over_tokens_but_padding() -> None:
    logits = torch.randn(2, 3, 14)
    targets = torch.tensor([[7, 2, 0], [8, 9, 2]])
    terms = [
        -float(logits[row, place].log_softmax(-1)[token])
        for row in range(2)
        for place, token in enumerate(targets[row].tolist())
        if token
    ]
    assert math.isclose(float(target_loss(logits, targets)), sum(terms) / 5, rel_tol=1e-5)


def test_right_is_what_is_right_in_every_token() -> None:
    targets = torch.tensor([[7, 2, 0], [8, 9, 2]])
    logits = torch.nn.functional.one_hot(torch.tensor([[7, 2, 5], [8, 9, 2]]), 14).float()
    assert all_right(logits, targets).tolist() == [True, True]
    logits[1, 1] = logits[1, 0]
    assert all_right(logits, targets).tolist() == [True, False]


def test_the_task_passes_over_the_training_examples_and_measures_the_others() -> None:
    split = course_split(0, 50)
    task, model = CourseTask(split, seed=3), build_course_model(0).eval()
    batches = [task.batch(step, 16) for step in range(3)]
    assert [task.count(batch) for batch in batches] == [16, 16, 8]
    seen = sorted(tuple(row) for batch in batches for row in batch["source"].tolist())
    assert seen == sorted(example.context for example in split.train)
    for batch in batches:
        assert (batch["inputs"][:, 0] == SOS).all()
        assert torch.equal(batch["inputs"][:, 1], batch["targets"][:, 0])
        assert (batch["targets"][:, 1] == EOS).all()
    held_out = lookup_batch(split.validation)
    with torch.no_grad():
        numbers = task.evaluate(model)
        logits = model(held_out.source, held_out.inputs)
    assert math.isclose(numbers["loss"], float(target_loss(logits, held_out.targets)), rel_tol=1e-5)
    assert numbers["accuracy"] == float((logits.argmax(-1) == held_out.targets).all(-1).double().mean())


def test_written_logits_are_those_of_what_is_written() -> None:
    model = build_course_model(2).eval()
    source = lookup_batch(all_contexts()[:5]).source
    logits = written_logits(model, source)
    written = logits.argmax(-1)
    inputs = torch.cat([torch.full((5, 1), SOS), written[:, :1]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(source, inputs), atol=1e-5, rtol=1e-5)
    assert torch.equal(decode(model, source, 2)[:, 0], written[:, 0])


class Parrot(EncoderDecoder):
    """Writes the value of the first fact in every context."""

    def decode(self, target, memory, *_, **__):
        logits = torch.zeros(*target.shape, 14)
        first = target == SOS
        logits[..., VOCAB["BLUE"]] = first.float()
        logits[..., EOS] = (~first).float()
        return logits


def test_the_share_right_counts_exact_answers() -> None:
    parrot = Parrot(build_course_model(0).config)
    assert list(FACTS.values()).count("BLUE") == 1
    assert share_right(parrot, all_contexts()) == pytest.approx(1 / 3)
    with refused("no examples"):
        share_right(parrot, ())


def test_scrambled_stands_beside_original() -> None:
    model = build_course_model(0).eval()
    lines = side_by_side(model, all_contexts()[:3], seed=1)
    assert lines == side_by_side(model, all_contexts()[:3], seed=1)
    assert len(lines) == 6
    for original, scrambled in zip(lines[::2], lines[1::2], strict=True):
        assert original.startswith("original ")
        assert scrambled.startswith("scrambled ")
        read, written = zip(*(line.split("->") for line in (original, scrambled)), strict=True)
        orders = [line.split()[1:] for line in read]
        assert sorted(orders[0]) == sorted(orders[1])
        assert orders[0] != orders[1]
        assert written[0] == written[1]
    with refused("seed = -1"):
        side_by_side(model, all_contexts()[:1], seed=-1)
    with refused("no examples"):
        side_by_side(model, ())


def test_decoding_without_end_is_refused() -> None:
    model, source = build_course_model(0), lookup_batch(all_contexts()[:1]).source
    with refused("max_new_tokens = 11"):
        decode(model, source, 11)


def test_a_short_training_learns_keeps_the_best_and_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "LEARNING_RATE", 1e-3)
    run = train_course(0, tmp_path / "run", epochs=4, num_samples=400)
    assert run.epochs == 4
    assert run.epochs_needed is not None
    assert run.result.best is not None
    losses = [metrics["loss"] for _, metrics in run.result.evaluations]
    assert run.result.best.value == min(losses)
    assert not run.model.training
    assert share_right(run.model, all_contexts()) == 1
    monkeypatch.setattr(course, "EpochBatches", None)  # nothing is trained again
    monkeypatch.setattr(course.CourseTask, "__init__", lambda *_: None)
    again = train_course(0, tmp_path / "run", epochs=4, num_samples=400)
    pairs = zip(again.model.parameters(), run.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    with refused("description"):
        train_course(0, tmp_path / "run", epochs=4, num_samples=400, source_positions="learned")
    with refused("epochs = 0"):
        train_course(0, tmp_path / "other", epochs=0)


def test_the_best_weights_come_back_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(model: EncoderDecoder, *arguments: object, **options: object) -> TrainingResult:
        result = train(model, *arguments, **options)  # type: ignore[arg-type]
        last.update({name: weight.clone() for name, weight in model.state_dict().items()})
        model.to("meta")  # stands for any device that is not the CPU
        return result

    last: dict[str, torch.Tensor] = {}
    # A rate at which the loss soon rises, so that the best weights are not the last ones.
    monkeypatch.setattr(course, "LEARNING_RATE", 0.1)
    monkeypatch.setattr(course, "train", elsewhere)
    monkeypatch.setattr(EncoderDecoder, "cpu", lambda model: model.to_empty(device="cpu"))
    run = train_course(0, tmp_path / "run", epochs=6, num_samples=80)
    assert run.result.best is not None
    assert run.result.best.step < run.result.step
    best = build_course_model(5)
    load_weights(best, tmp_path / "run" / "best")
    for name, weight in run.model.state_dict().items():
        assert weight.device.type == "cpu"
        assert torch.equal(weight, best.state_dict()[name]) or "positions" in name
    assert not torch.equal(run.model.output.weight, last["output.weight"])


def test_a_model_that_never_gets_all_right_needs_no_number_of_epochs(tmp_path: Path) -> None:
    run = train_course(0, tmp_path, epochs=1, num_samples=40)
    assert run.epochs_needed is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_epochs_of_the_course_answer_all_contexts_in_all_orders(seed: int, tmp_path: Path) -> None:
    run = train_course(seed, tmp_path, epochs=2)
    assert share_right(run.model, run.split.test) == 1
    assert share_right(run.model, all_contexts()) == 1
    source = lookup_batch(all_contexts()).source
    found = scrambling_test(lambda rows: written_logits(run.model, rows), source)
    assert found.exhaustive
    assert found.orders == 72 * 120
    assert found.holds, str(found)
