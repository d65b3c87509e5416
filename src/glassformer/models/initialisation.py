"""The first weights of every model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


@torch.no_grad()
def initialise(model: nn.Module, additions: Mapping[str, int]) -> None:
    """Draw all weights of ``model`` from torch's generator.

    Each matrix is normal with standard deviation ``fan_in ** -0.5``, which keeps the size of what passes. The matrices
    that write to the residual stream (the outputs of attention and feed-forward) are smaller by ``n ** -0.5`` for n
    residual additions, so that the stream does not grow with depth. Biases and sinks are 0; norms and key weights 1.

    Args:
        model: Its parameters are named as in :mod:`glassformer.models`.
        additions: Residual additions in each stack of blocks, by the stack's name.
    """
    for name, weight in model.named_parameters():
        if name.endswith(("norm.weight", "key_weights")):
            nn.init.ones_(weight)
        elif weight.dim() < 2 or name.endswith("bias"):
            nn.init.zeros_(weight)
        else:
            residual = name.endswith(("attention.output.weight", "ffn.down.weight", "ffn.down"))
            scale = additions[name.split(".")[0]] ** -0.5 if residual else 1.0
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)
