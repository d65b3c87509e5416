"""The lab's networks of compiled programs."""

from __future__ import annotations

from glassformer.labs.hand_designed.experiments import Results, programs
from glassformer.labs.hand_designed.experiments.programs import BACK, COMPILED, NOISE, NOISY, SCRATCH


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
