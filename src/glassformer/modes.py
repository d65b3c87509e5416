"""What ends with a block: training and evaluation mode of modules, and a seed of torch's generator."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import starmap

import torch
from torch import nn


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Give each module of ``model`` the mode it had before the ``with`` block, when the block ends.

    A block that was in evaluation mode inside a model in training mode (a frozen block, for
    example) is in evaluation mode again.
    """
    modes = [(vars(module), {"training": module.training}) for module in model.modules()]
    try:
        yield
    finally:
        deque(starmap(dict.update, modes), maxlen=0)  # one call in C, which Ctrl-C cannot interrupt


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode within the ``with`` block; afterwards as
    :func:`keeping_modes`.
    """
    with keeping_modes(model):
        model.eval()
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator of the CPU within the ``with`` block; afterwards it goes on from where
    it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
