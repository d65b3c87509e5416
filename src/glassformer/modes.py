"""Training and evaluation mode of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode within the ``with`` block.

    Afterwards each module has the mode it had before: a block that was in evaluation mode inside a model in training
    mode (a frozen block, for example) stays in evaluation mode.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
