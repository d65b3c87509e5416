"""How many bytes autograd keeps, against which predicted activations are checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def kept_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """Bytes of floating-point tensors that ``call`` keeps for a backward pass, each piece of memory counted once.

    Parameters and buffers of ``model`` are left out: they are kept anyway.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            # Holding the tensor keeps its address from being given to another one.
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = call()
    del result
    return sum(size for size, _ in kept.values())
