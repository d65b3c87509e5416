"""Temporary states: training and evaluation mode of modules, a seed of torch's generator."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import starmap

import torch
from torch import nn


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module of ``model`` when the ``with`` block ends.

    A block in evaluation mode inside a model in training mode, such as a frozen block, is then in
    evaluation mode again.
    """
    modes = [(vars(module), {"training": module.training}) for module in model.modules()]
    try:
        yield
    finally:
        deque(starmap(dict.update, modes), maxlen=0)  # one call in C, which Ctrl-C cannot interrupt


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode within the ``with`` block, then restore its modes."""
    with keeping_modes(model):
        model.eval()
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator within the ``with`` block, then restore its state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
