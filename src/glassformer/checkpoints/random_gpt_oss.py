"""gpt-oss models of any size with random weights, in both layouts and real MXFP4: to test and to measure with."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.checkpoints.assembly import count_parameters, require_room
from glassformer.checkpoints.gpt_oss_config import read_gpt_oss_config
from glassformer.checkpoints.gpt_oss_layouts import MATRICES, GptOssLayout, Matrix, matrix_sizes, sources, wanted
from glassformer.checkpoints.gpt_oss_writing import PlannedExperts, PlannedModel, write_gpt_oss
from glassformer.checkpoints.shards import Planned
from glassformer.checkpoints.tensor_files import CONFIG_FILE
from glassformer.errors import require
from glassformer.layers.quantized import mxfp4
from glassformer.models import DecoderConfig

# Its sizes are the defaults of gpt-oss's configuration.
GPT_OSS_120B = dataclasses.replace(read_gpt_oss_config({}, "openai", Path(CONFIG_FILE)), expert_format="mxfp4")
"""The released gpt-oss-120b."""
GPT_OSS_20B = dataclasses.replace(GPT_OSS_120B, num_layers=24, num_experts=32)
"""The released gpt-oss-20b."""
GPT_OSS_EIGHTH = dataclasses.replace(
    GPT_OSS_20B, vocab_size=50272, num_layers=12, hidden_dim=1440, ff_dim=1440, num_heads=32
)
"""An eighth of the 20b in bytes."""
GPT_OSS_TINY = dataclasses.replace(
    GPT_OSS_20B,
    vocab_size=1024,
    num_layers=4,
    hidden_dim=64,
    ff_dim=64,
    num_heads=8,
    head_dim=16,
    num_kv_heads=2,
    window=16,
    num_experts=16,
)
"""A model of 1 MB, for tests."""
SIZES = {"tiny": GPT_OSS_TINY, "eighth": GPT_OSS_EIGHTH, "20b": GPT_OSS_20B, "120b": GPT_OSS_120B}
"""Forms by name."""

LOGITS_STD = 2.0
"""Standard deviation of a random model's logits."""

_BIAS_STD = 0.1
# Settings of the released config.json that a decoder does not have.
_RELEASED_EXTRAS: dict[str, Any] = {
    "initializer_range": 0.02,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.9,
    "use_cache": True,
}
# Numbers drawn at a time.
_PIECE = 2**22
# For uniformly distributed codes.
_CODE_MEAN_SQUARE = sum(each**2 for each in mxfp4.MAGNITUDES) / len(mxfp4.MAGNITUDES)


def write_random_gpt_oss(
    directory: str | Path,
    config: DecoderConfig = GPT_OSS_TINY,
    *,
    layout: GptOssLayout = "huggingface",
    seed: int = 0,
    shard_bytes: int | None = None,
    replace: bool = False,
    progress: bool = False,
) -> int:
    """Write a random model like the released ones: names, kinds of numbers, ``config.json`` and files.

    It is drawn tensor by tensor in less than a GiB of memory, at about 200 MB per second. The weights' variance keeps
    activations at their size, with logits of standard deviation ``LOGITS_STD``. The codes of MXFP4 are uniform, and two
    neighbouring exponents are mixed for the right variance.

    Every tensor depends only on ``seed`` and its name. So the same seed gives the same network in both layouts, and
    with dense experts, which are the packed ones expanded.

    Args:
        config: A configuration of gpt-oss, from :data:`SIZES` or another, with the ``expert_format`` to write.
        shard_bytes: Largest size of a file of weights; None: as the released ones.

    Returns:
        The bytes of all tensors.
    """
    require(seed >= 0, f"seed = {seed}", "at least 0", "Use 0.")
    # Before anything as long is planned; packed weights take half a byte.
    require_room(Path(directory), count_parameters(dataclasses.replace(config, expert_format="dense")) // 2)
    size, _ = write_gpt_oss(
        plan_random_gpt_oss(config, seed),
        Path(directory),
        layout,
        extras=_RELEASED_EXTRAS,
        shard_bytes=shard_bytes,
        replace=replace,
        progress=progress,
    )
    return size


def plan_random_gpt_oss(config: DecoderConfig, seed: int = 0) -> PlannedModel:
    """The tensors of a random model, drawn when they are read."""
    lacking = {
        "no experts": config.num_experts is None,
        "no sinks": not config.sinks,
        "no biases": not (config.attention_bias and config.ff_bias),
        "a plain SwiGLU": config.clamp is None,
        "key weights": config.key_weights,
        "interleaved rotation": config.rope_layout != "half-split",
        "widths that are no multiples of 32": config.hidden_dim % 32 != 0 or config.ff_dim % 32 != 0,
    }
    found = ", ".join(part for part, present in lacking.items() if present)
    require(not found, f"a form with {found}", "gpt-oss's", "Start from GPT_OSS_TINY and replace its sizes.")
    shapes = wanted(config, "huggingface", packed=True)
    weights = {
        ours: _normal(seed, ours, shapes[source.name].shape, *_spread(ours, config))
        for ours, source in sources(config, "huggingface").items()
    }
    experts = [
        {matrix: _experts(seed, layer, matrix, config) for matrix in MATRICES} for layer in range(config.num_layers)
    ]
    return PlannedModel(config, weights, experts)


def _spread(name: str, config: DecoderConfig) -> tuple[float, float]:
    """Mean and standard deviation of a tensor."""
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if name.endswith(".bias"):
        return 0.0, _BIAS_STD
    if name.endswith("sinks") or name == "embedding.weight":
        return 0.0, 1.0
    if name == "output.weight":
        return 0.0, LOGITS_STD * config.hidden_dim**-0.5
    if name.endswith("attention.output.weight"):
        return 0.0, (config.num_heads * config.head_dim * 2 * config.num_layers) ** -0.5
    return 0.0, config.hidden_dim**-0.5


def _experts(seed: int, layer: int, matrix: Matrix, config: DecoderConfig) -> PlannedExperts:
    experts = config.num_experts or 0
    rows, width = matrix_sizes(config, matrix)
    name, std = f"layers.{layer}.ffn.{matrix}", (width * (1 if matrix == "gate_up" else 2 * config.num_layers)) ** -0.5
    bias = _normal(seed, f"{name}_bias", [experts, rows], 0.0, _BIAS_STD)
    shape = [experts, rows, width // mxfp4.GROUP]
    codes = functools.partial(_codes, seed, f"{name}_blocks", [*shape[1:], mxfp4.GROUP_BYTES])
    exponents = functools.partial(_exponents, seed, f"{name}_scales", shape[1:], std)
    if config.expert_format == "mxfp4":
        blocks = Planned([*shape, mxfp4.GROUP_BYTES], torch.uint8, lambda: map(codes, range(experts)))
        return PlannedExperts((blocks, Planned(shape, torch.uint8, lambda: map(exponents, range(experts)))), bias)

    def expanded(expert: int) -> Tensor:
        return mxfp4.decode(codes(expert), exponents(expert), torch.bfloat16)

    return PlannedExperts(
        (Planned([experts, rows, width], torch.bfloat16, lambda: map(expanded, range(experts))),), bias
    )


def _generator(seed: int, name: str, part: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([seed, part, *name.encode()]))


def _normal(seed: int, name: str, shape: list[int], mean: float, std: float) -> Planned:
    def pieces() -> Iterator[Tensor]:
        generator, left = _generator(seed, name), math.prod(shape)
        while left > 0:
            count = min(left, _PIECE)
            yield torch.from_numpy(generator.standard_normal(count, np.float32)).mul_(std).add_(mean).bfloat16()
            left -= count

    return Planned(shape, torch.bfloat16, pieces)


def _codes(seed: int, name: str, shape: list[int], expert: int) -> Tensor:
    drawn = _generator(seed, name, expert).bytes(math.prod(shape))
    return torch.from_numpy(np.frombuffer(bytearray(drawn), np.uint8)).view(shape)


def _exponents(seed: int, name: str, shape: list[int], std: float, expert: int) -> Tensor:
    """Exponents that give codes the standard deviation ``std``."""
    power = math.log2(std / math.sqrt(_CODE_MEAN_SQUARE))
    lower = math.floor(power)
    share = (4 ** (power - lower) - 1) / 3  # (1 - share) 4^lower + share 4^(lower + 1) = 4^power
    upper = _generator(seed, name, expert).random(shape, np.float32) < share
    return torch.from_numpy((upper + np.uint8(127 + lower)).astype(np.uint8))
