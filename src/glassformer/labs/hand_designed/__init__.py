"""The course's lab on hand-designed attention from end to end, under its own names: twins, designs, training."""

from glassformer.labs.hand_designed.cases import (
    generate_test_cases_first,
    generate_test_cases_identity,
    generate_test_cases_unique,
    make_batch_first,
    make_batch_identity,
    make_batch_unique,
)
from glassformer.labs.hand_designed.course_training import (
    TRAIN_CONFIG,
    TrainingConfig,
    set_random_seed,
    train_loop,
)
from glassformer.labs.hand_designed.exercises import (
    NumpyTransformer,
    PytorchTransformer,
    compare_transformers,
    hand_designed_weights,
)
from glassformer.labs.hand_designed.lab import run
from glassformer.labs.hand_designed.plots import PLOT_CONFIG, PlotConfig, rescale_and_plot, save_figure

__all__ = [
    "PLOT_CONFIG",
    "TRAIN_CONFIG",
    "NumpyTransformer",
    "PlotConfig",
    "PytorchTransformer",
    "TrainingConfig",
    "compare_transformers",
    "generate_test_cases_first",
    "generate_test_cases_identity",
    "generate_test_cases_unique",
    "hand_designed_weights",
    "make_batch_first",
    "make_batch_identity",
    "make_batch_unique",
    "rescale_and_plot",
    "run",
    "save_figure",
    "set_random_seed",
    "train_loop",
]
