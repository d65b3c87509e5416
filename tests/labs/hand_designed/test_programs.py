"""Networks of compiled programs, and the task that trains adders."""

from __future__ import annotations

import numpy as np
import torch

from glassformer.labs.hand_designed.experiments import Results, programs
from glassformer.labs.hand_designed.experiments.programs import BACK, COMPILED, NOISE, NOISY, SCRATCH, AdditionTask
from glassformer.programs.adder import Adder
from glassformer.training import TrainingConfig, train


def test_accuracy_of_an_adder_is_that_of_its_sums() -> None:
    task, model = AdditionTask(6, 3, seed=1), Adder(6)
    assert train(Adder(6), task, TrainingConfig(steps=2, batch_size=4), progress=False).step == 2
    assert task.evaluate(model) == {"accuracy": 1.0}
    assert task.accuracy(model, 6) == 1
    with torch.no_grad():
        model.layers[0].ffn.up.bias[0] += 0.9
    numbers = task.batch(0, 200)["tokens"].numpy()
    places = 10 ** np.arange(6)
    pairs = np.stack([numbers[:, 1:7] @ places, numbers[:, 8:14] @ places], axis=1)
    assert (pairs < 1000).all()
    logits = model(torch.from_numpy(numbers))[:, 14:-1].argmax(-1).numpy()
    forced = (logits == numbers[:, 15:]).all(1)
    assert 0 < forced.mean() < 1
    assert (forced == (model.add(pairs) == pairs.sum(1))).all()


def test_a_program_is_measured_with_noise_trained_back_and_from_scratch() -> None:
    result = programs.measure_program("parity", 2, [3])
    assert [float(scale) for scale in result.noise] == list(NOISE)
    assert [(each.start, each.seed) for each in result.networks] == [(COMPILED, 0), (NOISY, 3), (BACK, 3), (SCRATCH, 3)]
    compiled = result.networks[0]
    assert compiled.by_length == [1.0] * result.max_len
    assert set(compiled.agreement.values()) == {1.0}
    assert result.trained(NOISY) < 0.5
    assert result.noise[f"{result.scale:g}"] == [result.trained(NOISY)]
    assert set(result.agreements(SCRATCH, searched=True)) == set(compiled.agreement)
    assert result == programs.measure_program("parity", 2, [3])


def test_published_programs_hold_up_to_their_greatest_length(results: Results) -> None:
    assert [each.name for each in results.programs] == list(programs.NAMES)
    for each in results.programs:
        for compiled in each.of(COMPILED):
            assert compiled.by_length == [1.0] * each.max_len
            assert set(compiled.agreement.values()) <= {1.0}


def test_figures_show_every_program(results: Results) -> None:
    made = [each for each in results.programs if each.noise]
    (noise,) = programs.draw_noise(results.programs).axes
    assert noise.get_legend_handles_labels()[1] == [each.name for each in made]
    assert [ax.get_title(loc="left") for ax in programs.draw_lengths(results.programs).axes] == [
        each.name for each in made
    ]
    (variables,) = programs.draw_variables(results.programs).axes
    assert len(variables.get_yticks()) == sum(len(each.agreements(COMPILED)) for each in made)
