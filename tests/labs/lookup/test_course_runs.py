"""The seed's experiment: training, what counts as right and where heads look; by loops."""

from pathlib import Path

import pytest
import torch

from glassformer.data.lookup import EOS, FACTS, SOS, VOCAB, all_contexts, lookup_batch
from glassformer.generation import greedy_decode
from glassformer.labs.lookup import course
from glassformer.labs.lookup.course_network import CrossAttentionLookupModel
from glassformer.labs.lookup.experiments.course_runs import (
    ROLES,
    SIZES,
    attention,
    build_course_model,
    course_split,
    share_right,
    shares,
    side_by_side,
    train_course,
    written_logits,
)
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.observe.scrambling import scrambling_test


def test_the_split_is_the_seeds() -> None:
    assert [len(part) for part in course_split(0)] == [4000, 500, 500]
    assert course_split(0) == course_split(0) != course_split(1)


def test_the_model_is_the_one_under_the_seeds_names() -> None:
    state = torch.get_rng_state()
    ours = build_course_model(0).eval()
    theirs = CrossAttentionLookupModel(*SIZES).eval()
    assert theirs.config == ours.config
    theirs.network.load_state_dict(ours.state_dict())
    batch = lookup_batch(all_contexts()[:4])
    torch.testing.assert_close(
        theirs(batch.source, batch.inputs), ours(batch.source, batch.inputs), atol=0, rtol=0
    )
    torch.set_rng_state(state)
    again = build_course_model(0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.output.weight, ours.output.weight)


def test_written_logits_are_those_of_what_is_written() -> None:
    model = build_course_model(2).eval()
    source = lookup_batch(all_contexts()[:5]).source
    logits = written_logits(model, source)
    written = logits.argmax(-1)
    inputs = torch.cat([torch.full((5, 1), SOS), written[:, :1]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(source, inputs), atol=1e-5, rtol=1e-5)
    assert torch.equal(greedy_decode(model, source, 2, SOS), written)


class Parrot(EncoderDecoder):
    """Writes the value of the first fact in every context."""

    def decode(self, target, memory, *_, **__):
        logits = torch.zeros(*target.shape, 14)
        first = target == SOS
        logits[..., VOCAB["BLUE"]], logits[..., EOS] = first.float(), (~first).float()
        return logits


def test_the_share_right_counts_exact_answers() -> None:
    assert list(FACTS.values()).count("BLUE") == 1
    assert share_right(Parrot(build_course_model(0).config), all_contexts()) == pytest.approx(1 / 3)


def test_scrambled_is_printed_below_original() -> None:
    model = build_course_model(0).eval()
    lines = side_by_side(model, all_contexts()[:3], seed=1)
    assert len(lines) == 6
    for original, scrambled in zip(lines[::2], lines[1::2], strict=True):
        read, written = zip(*(line.split("->") for line in (original, scrambled)), strict=True)
        (first, *words), (second, *others) = (part.split() for part in read)
        assert (first, second) == ("original", "scrambled")
        assert sorted(words) == sorted(others)
        assert words != others
        assert written[0] == written[1]


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_attention_by_role_is_the_mean_over_contexts(positions: str) -> None:
    model = build_course_model(0, positions).eval()
    found = attention(model)
    assert list(found) == list(FACTS)
    expected = torch.zeros(4, 2, 5)
    for example in all_contexts():
        if example.key != "ALICE":
            continue
        batch = lookup_batch([example])
        with capture(model, ["decoder_layers.0.cross_attention"]) as seen, torch.no_grad():
            model(batch.source, batch.inputs)
        weights = seen.weights["decoder_layers.0.cross_attention"][0]
        for place, role in enumerate(("NAME", *example.order)):
            expected[..., ROLES.index(role)] += weights[..., place] / 24
    torch.testing.assert_close(torch.tensor(found["ALICE"]), expected, atol=1e-5, rtol=1e-5)


def test_shares() -> None:
    row = [0.1, 0.1, 0.5, 0.1, 0.2]
    weights = {key: [[row, row]] for key in FACTS}
    assert shares(weights).tolist() == [pytest.approx([0.5, 0.2])]


def test_a_short_training_learns_and_keeps_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "LEARNING_RATE", 1e-3)
    model, result = train_course(0, tmp_path / "run", epochs=4, num_samples=400)
    assert result.best.value == min(metrics["loss"] for _, metrics in result.evaluations)
    assert share_right(model, all_contexts()) == 1
    assert not model.training


def test_weights_that_got_worse_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "LEARNING_RATE", 0.1)  # the loss soon rises
    model, result = train_course(0, tmp_path / "run", epochs=6, num_samples=80)
    assert result.best.step < result.step
    last, _ = train_course(0, None, epochs=6, num_samples=80)
    assert not torch.equal(model.output.weight, last.output.weight)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_epochs_answer_all_contexts_in_all_orders(seed: int, tmp_path: Path) -> None:
    model, _ = train_course(seed, tmp_path, epochs=2)
    assert share_right(model, all_contexts()) == 1
    source = lookup_batch(all_contexts()).source
    found = scrambling_test(lambda rows: written_logits(model, rows), source)
    assert found.exhaustive
    assert found.orders == 72 * 120
    assert found.holds, str(found)
