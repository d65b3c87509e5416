"""One training loop for every model: optimisers and schedules, resumable checkpoints, one process or many."""

from glassformer.training.checkpoint import load_weights, save_weights
from glassformer.training.config import TrainingConfig
from glassformer.training.loop import TrainingResult, train
from glassformer.training.next_token import NextTokenTask
from glassformer.training.stepper import DivergedError
from glassformer.training.task import Batch, EpochBatches, Task, mix_seed

__all__ = [
    "Batch",
    "DivergedError",
    "EpochBatches",
    "NextTokenTask",
    "Task",
    "TrainingConfig",
    "TrainingResult",
    "load_weights",
    "mix_seed",
    "save_weights",
    "train",
]
