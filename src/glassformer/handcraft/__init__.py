"""Single attention heads designed by hand: described, built, verified and compared."""

from glassformer.handcraft.description import (
    Description,
    Selector,
    at_position,
    earlier,
    everything,
    itself,
    later,
    latest,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.designs import Design, build, design
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import Certificate, Failure, verify

__all__ = [
    "CLS",
    "TASKS",
    "Certificate",
    "Description",
    "Design",
    "Failure",
    "HeadWeights",
    "NumpyHead",
    "Selector",
    "SequenceSpace",
    "SingleHead",
    "Task",
    "at_position",
    "build",
    "design",
    "earlier",
    "everything",
    "itself",
    "later",
    "latest",
    "previous",
    "same_token",
    "token",
    "verify",
]
