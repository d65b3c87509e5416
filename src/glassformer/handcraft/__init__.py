"""Weights that a person chooses: described, built, proved or refuted, and compared with what training finds."""

from glassformer.handcraft.build import Design, build, design
from glassformer.handcraft.certificate import Certificate, Failure
from glassformer.handcraft.description import Description
from glassformer.handcraft.selectors import (
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
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verify import verify

__all__ = [
    "CLS",
    "TASKS",
    "Certificate",
    "Description",
    "Design",
    "Failure",
    "Selector",
    "SequenceSpace",
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
