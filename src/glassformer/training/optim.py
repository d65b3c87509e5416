"""Optimisers and learning-rate schedules: the update of each weight, and its size at each step."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from glassformer.errors import InputError
from glassformer.kernels.orthogonal import COEFFICIENTS, EPS, STEPS, orthogonalised
from glassformer.layers.quantized.packed import PACKED
from glassformer.training.config import TrainingConfig


class Muon(torch.optim.Muon):
    """PyTorch's Muon, which on the CPU orthogonalises all matrices of one shape together.

    If an option of the orthogonalisation or the rate is not PyTorch's default, PyTorch's own step
    runs. Products are in float32 if they are small, or if the processor has no bfloat16 products;
    see :func:`~glassformer.kernels.orthogonal.orthogonalised`.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights as PyTorch's Muon does."""
        if closure is None and all(map(_is_supported, self.param_groups)):
            for group in self.param_groups:
                _update_on_the_cpu(group, self.state)
            return None
        return super().step(closure)


def _is_supported(group: dict[str, Any]) -> bool:
    """Return whether a group has plain weights on the CPU, and PyTorch's default options."""
    for weight in group["params"]:
        if weight.device.type != "cpu" or isinstance(weight, DTensor):
            return False
    coefficients = tuple(group["ns_coefficients"])  # a list, if read from a file
    options = (coefficients, group["ns_steps"], group["eps"])
    return options == (COEFFICIENTS, STEPS, EPS) and group["adjust_lr_fn"] in (None, "original")


def _update_on_the_cpu(group: dict[str, Any], state: dict[Tensor, Any]) -> None:
    weights = [weight for weight in group["params"] if weight.grad is not None]
    grads = [weight.grad for weight in weights]
    if not weights:
        return
    for weight in weights:
        if "momentum_buffer" not in state[weight]:
            state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    averages = [state[weight]["momentum_buffer"] for weight in weights]
    torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
    updates: Sequence[Tensor]
    if group["nesterov"]:
        updates = torch._foreach_lerp(grads, averages, group["momentum"])
    else:
        updates = averages
    torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
    for rows, columns in dict.fromkeys(weight.shape for weight in weights):
        alike = [i for i, weight in enumerate(weights) if weight.shape == (rows, columns)]
        stack = orthogonalised(torch.stack([updates[i] for i in alike])).to(weights[alike[0]].dtype)
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        torch._foreach_add_([weights[i] for i in alike], list(stack.unbind()), alpha=-rate)


def build_optimizers(model: nn.Module, config: TrainingConfig) -> list[Optimizer]:
    """Return the optimisers that together update every trainable weight of ``model`` once.

    With ``config.optimizer = "adamw"`` or ``"sgd"`` there is one. With ``"muon"`` there are Muon
    for the weights that :func:`muon_weights` names, and AdamW for the rest. Weight decay acts on
    tensors with two or more axes: biases and gains have no direction to shrink along. SGD, with
    momentum m, learning rate r and decay d, does

        g = gradient + d w        v = m v + g        w = w - r v

    Source: AdamW, Loshchilov & Hutter 2019 (arXiv:1711.05101); Muon, Jordan et al. 2024; SGD's
    momentum, Polyak 1964, as PyTorch writes it.
    """
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise InputError(
            got="a model without trainable weights",
            expected="at least one",
            fix="Set requires_grad on its weights.",
        )
    packed = sum(isinstance(module, PACKED) for module in model.modules())
    if packed:
        warnings.warn(
            f"the weights of {packed} layers are packed and stay as they are; to train them, load "
            'the model with hold="dense" (a GGUF file), or without pack= (a directory)',
            stacklevel=2,
        )
    optimizers: list[Optimizer] = []
    muon_names: set[str] = set()
    if config.optimizer == "muon":
        muon_names = muon_weights(model)
        if not muon_names:
            raise InputError(
                got='optimizer = "muon" with a model that has no matrix inside blocks',
                expected="at least one matrix that is neither an embedding nor an output head",
                fix='Use optimizer="adamw".',
            )
        matrices = [weight for name, weight in trainable.items() if name in muon_names]
        optimizers.append(
            Muon(matrices, lr=config.muon_learning_rate, weight_decay=config.weight_decay)
        )
    others = [weight for name, weight in trainable.items() if name not in muon_names]
    groups = [
        {
            "params": [weight for weight in others if weight.ndim >= 2],
            "weight_decay": config.weight_decay,
        },
        {"params": [weight for weight in others if weight.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if groups and config.optimizer == "sgd":
        optimizers.append(SGD(groups, lr=config.learning_rate, momentum=config.momentum))
    elif groups:
        optimizers.append(AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def muon_weights(model: nn.Module) -> set[str]:
    """Return the names of the weights for Muon: matrices except embeddings and output heads.

    An embedding is a weight of any ``nn.Embedding``, tied or not. An output head is an
    ``nn.Linear`` that is a direct child of the model. Muon makes an update orthogonal. This suits
    maps between hidden spaces, but not tables whose rows are updated separately. Experts stacked
    into one tensor of three axes stay with AdamW, because ``torch.optim.Muon`` takes matrices only.
    """
    excluded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    excluded |= {id(module.weight) for module in model.children() if isinstance(module, nn.Linear)}
    return {
        name
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and weight.requires_grad and id(weight) not in excluded
    }


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the learning rate of update ``step`` (from 0) as a fraction of its peak, in (0, 1].

    With N = ``steps``, W = ``warmup``, f = ``final_lr_fraction``, t = (step - W) / (N - W) it is::

        (step + 1) / W                          during warm-up, for step < W
        1                                       after it, if constant
        f + (1 - f) (1 + cos(pi t)) / 2         after it, else

    Source: Loshchilov & Hutter 2017, SGDR, equation 5 (one period); linear warm-up: Goyal et al.
    2017, section 2.2.
    """
    if not 0 <= step < config.steps:
        raise InputError(
            got=f"step = {step}",
            expected=f"0 <= step < {config.steps}",
            fix="Count updates from 0.",
        )
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup) / (config.steps - config.warmup)
    final = config.final_lr_fraction
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rates(optimizers: list[Optimizer], factor: float) -> None:
    """Set the learning rate of every group of weights to ``factor`` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
