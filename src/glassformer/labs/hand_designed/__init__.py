"""The course's lab on hand-designed attention, under its own names."""

from glassformer.labs.hand_designed.course import PLOT_CONFIG as PLOT_CONFIG
from glassformer.labs.hand_designed.course import TRAIN_CONFIG as TRAIN_CONFIG
from glassformer.labs.hand_designed.course import NumpyTransformer as NumpyTransformer
from glassformer.labs.hand_designed.course import PlotConfig as PlotConfig
from glassformer.labs.hand_designed.course import PytorchTransformer as PytorchTransformer
from glassformer.labs.hand_designed.course import TrainingConfig as TrainingConfig
from glassformer.labs.hand_designed.course import _set_seed as _set_seed
from glassformer.labs.hand_designed.course import compare_transformers as compare_transformers
from glassformer.labs.hand_designed.course import get_current_figure as get_current_figure
from glassformer.labs.hand_designed.course import hand_designed_weights as hand_designed_weights
from glassformer.labs.hand_designed.course import rescale_and_plot as rescale_and_plot
from glassformer.labs.hand_designed.course import save_figure as save_figure
from glassformer.labs.hand_designed.course import set_random_seed as set_random_seed
from glassformer.labs.hand_designed.course import train_loop as train_loop
from glassformer.labs.hand_designed.course_tasks import (
    generate_test_cases_first as generate_test_cases_first,
)
from glassformer.labs.hand_designed.course_tasks import (
    generate_test_cases_identity as generate_test_cases_identity,
)
from glassformer.labs.hand_designed.course_tasks import (
    generate_test_cases_unique as generate_test_cases_unique,
)
from glassformer.labs.hand_designed.course_tasks import make_batch_first as make_batch_first
from glassformer.labs.hand_designed.course_tasks import make_batch_identity as make_batch_identity
from glassformer.labs.hand_designed.course_tasks import make_batch_unique as make_batch_unique
from glassformer.labs.hand_designed.course_tasks import submission as submission
from glassformer.labs.hand_designed.experiments import LAB as LAB
