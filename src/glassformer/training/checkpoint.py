"""Weights and optimiser state as safetensors, by the names of the weights. Nothing is pickled.

A file does not depend on the number of processes or on the sharding: sharded tensors are gathered
before writing and distributed again after reading. A weight with several names is stored once,
under the first of them.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from glassformer.checkpoints.tensor_files import require_finite
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.training.optim import Muon

WEIGHTS_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"

_QUANTITIES = {
    AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
    SGD: {"momentum_buffer"},
}
"""Quantities that each optimiser stores for a weight that has had a gradient."""


def plain_model(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of ``torch.compile`` and DistributedDataParallel."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, DistributedDataParallel):
        return model.module
    return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer of ``model`` once, by its first name.

    Names leave out the wrappers' prefixes.
    """
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in plain_model(model).state_dict(keep_vars=True).items():
        name = name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
        unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


def save_weights(model: nn.Module, directory: Path | str, *, write: bool = True) -> None:
    """Write the weights of ``model`` to ``directory / "model.safetensors"``.

    Where weights are sharded, every process must call this; those with ``write=False`` only
    contribute their shards.
    """
    _save(named_tensors(model).items(), local_path(directory) / WEIGHTS_FILE, write)


def load_weights(model: nn.Module, directory: Path | str, *, allow_nonfinite: bool = False) -> None:
    """Fill ``model``, which is not sharded, with the weights in ``directory``."""
    path = local_path(directory) / WEIGHTS_FILE
    stored = _read(path)
    tensors = named_tensors(model)
    for name in sorted(stored.keys() ^ tensors.keys()):
        difference = "without the" if name in tensors else "with the unknown"
        raise InputError(
            got=f"{path} {difference} tensor {name!r}",
            expected="exactly the model's tensors",
            fix="Build the model with the configuration of that run.",
        )
    for name, tensor in tensors.items():
        _require_same(path, name, stored[name], tensor)
        if isinstance(tensor, nn.Parameter) and not allow_nonfinite:
            require_finite(stored[name], name, path)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(stored[name])


def save_optimizers(
    model: nn.Module, optimizers: list[Optimizer], directory: Path, *, write: bool = True
) -> None:
    """Write the optimisers' state to ``directory / "optimizer.safetensors"``.

    A tensor is named ``<weight's name>.<quantity>``.

    Learning rates and the like are not stored: they follow from the configuration and the step.
    Where weights are sharded, every process must call this, as for :func:`save_weights`.
    """
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    _save(_named_quantities(optimizers, names), directory / OPTIMIZER_FILE, write)


def _named_quantities(
    optimizers: list[Optimizer], names: dict[int, str]
) -> Iterator[tuple[str, Tensor]]:
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            for quantity, value in state.items():
                yield f"{names[id(weight)]}.{quantity}", value


def load_optimizers(model: nn.Module, optimizers: list[Optimizer], directory: Path) -> None:
    """Fill ``optimizers`` of ``model`` with the state that :func:`save_optimizers` wrote."""
    path = directory / OPTIMIZER_FILE
    weights = named_tensors(model)
    states = _read_states(path, weights)
    updated_weights = [_updated_weights(optimizer) for optimizer in optimizers]
    frozen = states.keys() - {id(weight) for weight in chain.from_iterable(updated_weights)}
    if frozen:
        names = sorted(name for name, weight in weights.items() if id(weight) in frozen)
        raise InputError(
            got=f"{path} of a run that updates {names[:3]}",
            expected="the weights that the model trains",
            fix="Set requires_grad as at the run's start.",
        )
    for optimizer, updated in zip(optimizers, updated_weights, strict=True):
        described = optimizer.state_dict()
        described["state"] = {
            i: states[id(weight)] for i, weight in enumerate(updated) if id(weight) in states
        }
        # Accelerate's wrapper stores the optimiser itself as ``optimizer``.
        expected = _QUANTITIES[type(getattr(optimizer, "optimizer", optimizer))]
        for state in described["state"].values():
            if state.keys() != expected:
                raise InputError(
                    got=f"{path} with {sorted(state)} for a weight",
                    expected=f"{sorted(expected)}",
                    fix="Resume with the run's first optimizer.",
                )
        optimizer.load_state_dict(described)


def _updated_weights(optimizer: Optimizer) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _read_states(path: Path, weights: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the quantities in ``path`` by the identity of their weight, placed like the weight."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in _read(path).items():
        name, _, quantity = key.rpartition(".")
        if name not in weights:
            raise InputError(
                got=f"{path} with the tensor {key!r}",
                expected="state of the model's own weights",
                fix="Build the model with the configuration of that run.",
            )
        weight = weights[name]
        if value.ndim:
            _require_same(path, key, value, weight)
        # Squares may overflow.
        broken = value.isnan() if quantity == "exp_avg_sq" else ~value.isfinite()
        if broken.any():
            raise InputError(
                got=f"{path} with {key!r} that is infinite or NaN",
                expected="finite numbers",
                fix="Remove its directory to use an earlier checkpoint.",
            )
        if value.ndim and isinstance(weight, DTensor):
            value = distribute_tensor(value, weight.device_mesh, weight.placements)
        # A clone does not share memory with the file's other tensors.
        states.setdefault(id(weight), {})[quantity] = value.clone()
    return states


def _save(tensors: Iterable[tuple[str, Tensor]], path: Path, write: bool) -> None:
    whole = {}
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            full = tensor.full_tensor()
        else:
            full = tensor
        if write:
            whole[name] = full.detach().cpu().contiguous()
    if write:
        try:
            save_file(whole, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(
                f"{path} cannot be written ({error}). Earlier checkpoints are whole: free space, "
                "then resume."
            ) from error


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(
            got=f"no file {path}",
            expected="a complete checkpoint",
            fix=(
                "Pass a run's best/ or one of its checkpoints/; a checkpoint that is damaged can "
                "be removed."
            ),
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"{path}, which cannot be read ({error})",
            "a complete safetensors file",
            "The file is damaged: remove its directory to use an earlier checkpoint.",
        ) from error


def _require_same(path: Path, name: str, stored: Tensor, weight: Tensor) -> None:
    if stored.shape != weight.shape or stored.dtype != weight.dtype:
        raise InputError(
            got=f"{path} with {name!r} of shape {tuple(stored.shape)}, {stored.dtype}",
            expected=f"shape {tuple(weight.shape)}, {weight.dtype}",
            fix="Build the model with the configuration of that run.",
        )
