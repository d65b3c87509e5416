"""Training: one loop for every model, with optimizers, schedules and resumable checkpoints.

It runs on one process or on many.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.errors import naming_extras

if TYPE_CHECKING:
    from glassformer.training.checkpoint import load_weights as load_weights
    from glassformer.training.checkpoint import save_weights as save_weights
    from glassformer.training.config import TrainingConfig as TrainingConfig
    from glassformer.training.loop import TrainingResult as TrainingResult
    from glassformer.training.loop import train as train
    from glassformer.training.sequence_tasks import NextTokenTask as NextTokenTask
    from glassformer.training.sequence_tasks import TargetTask as TargetTask
    from glassformer.training.stepper import DivergedError as DivergedError
    from glassformer.training.task import Batch as Batch
    from glassformer.training.task import EpochBatches as EpochBatches
    from glassformer.training.task import Task as Task
    from glassformer.training.task import mix_seed as mix_seed

_NAMES = {
    "checkpoint": ("load_weights", "save_weights"),
    "config": ("TrainingConfig",),
    "loop": ("TrainingResult", "train"),
    "sequence_tasks": ("NextTokenTask", "TargetTask"),
    "stepper": ("DivergedError",),
    "task": ("Batch", "EpochBatches", "Task", "mix_seed"),
}
_MODULES: dict[str, str] = {}
for _module, _names in _NAMES.items():
    _MODULES |= dict.fromkeys(_names, _module)
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    # Imported on first use: the configuration needs no torch.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extras():
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
