"""Write gpt-oss models of any size with random weights, in both layouts and real MXFP4.

    python tools/random_gpt_oss.py DIR [--size 20b] [--layout openai] [--experts bfloat16]
                                   [--seed 0]

The size 20b takes 13.8 GB of disk, some minutes, and about 3 GB of memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.checkpoints.assembly import count_parameters, empty_decoder, require_room
from glassformer.checkpoints.decoders import write_decoder
from glassformer.checkpoints.families.files import with_experts
from glassformer.checkpoints.families.gpt_oss import OPENAI
from glassformer.checkpoints.lazy import LazyDecoder, LazyTensor
from glassformer.checkpoints.tensor_files import KINDS
from glassformer.errors import InputError
from glassformer.layers.quantized import mxfp4
from glassformer.models import DecoderConfig

GPT_OSS_120B = dataclasses.replace(OPENAI.read_config({}), expert_format="mxfp4")
"""The released gpt-oss-120b: its sizes are the defaults of gpt-oss's configuration."""
GPT_OSS_20B = dataclasses.replace(GPT_OSS_120B, num_layers=24, num_experts=32)
"""The released gpt-oss-20b."""
GPT_OSS_EIGHTH = dataclasses.replace(
    GPT_OSS_20B, vocab_size=50272, num_layers=12, hidden_dim=1440, ff_dim=1440, num_heads=32
)
"""An eighth of the 20b in bytes."""
GPT_OSS_TINY = dataclasses.replace(
    GPT_OSS_20B,
    **{
        "vocab_size": 1024,
        "num_layers": 4,
        "hidden_dim": 64,
        "ff_dim": 64,
        "num_heads": 8,
        "head_dim": 16,
    },
    **{"num_kv_heads": 2, "window": 16, "num_experts": 16},
)
"""A model of 1 MB, for tests."""
SIZES = {"tiny": GPT_OSS_TINY, "eighth": GPT_OSS_EIGHTH, "20b": GPT_OSS_20B, "120b": GPT_OSS_120B}
"""Forms by name."""

LOGITS_STD = 2.0
"""Standard deviation of a random model's logits."""
_BIAS_STD = 0.1
# Settings of the released config.json that a decoder does not have.
_RELEASED_EXTRAS = {
    "initializer_range": 0.02,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.9,
    "use_cache": True,
}
_PIECE = 2**22  # numbers drawn at a time
# For uniformly distributed codes.
_CODE_MEAN_SQUARE = sum(magnitude**2 for magnitude in mxfp4.MAGNITUDES) / len(mxfp4.MAGNITUDES)


def write_random_gpt_oss(
    directory: str | Path,
    config: DecoderConfig = GPT_OSS_TINY,
    *,
    layout: str = "huggingface",
    seed: int = 0,
    **options: Any,
) -> int:
    """Write a random model like the released ones, with their names, dtypes and files.

    The weights' variance keeps activations at their size, with logits of standard deviation
    :data:`LOGITS_STD`. The codes of MXFP4 are uniform, and two neighbouring exponents are mixed for
    the right variance. Every tensor depends only on ``seed`` and its name, so that the same seed
    gives the same network in both layouts and, expanded, with dense experts. ``options`` are those
    of :func:`~glassformer.checkpoints.decoders.write_decoder`.

    Returns:
        The bytes of all tensors.
    """
    # Before anything as long is planned; packed weights take half a byte.
    require_room(
        Path(directory), count_parameters(dataclasses.replace(config, expert_format="dense")) // 2
    )
    extras = {} if layout == "openai" else _RELEASED_EXTRAS
    to = "gpt_oss" if layout == "huggingface" else layout
    return write_decoder(random_gpt_oss(config, seed), Path(directory), to, extras, **options)


def random_gpt_oss(config: DecoderConfig, seed: int = 0) -> LazyDecoder:
    """A random model, whose tensors are drawn when they are made."""
    if seed < 0:
        raise InputError(
            got=f"seed = {seed}",
            expected="at least 0",
            fix="Use 0.",
        )
    packed = dataclasses.replace(config, expert_format="mxfp4")
    # All layers have the shapes of the first.
    one_layer = dataclasses.replace(packed, num_layers=1, windowed_layers="all")
    tensors = {}
    for name, tensor in empty_decoder(one_layer).state_dict().items():
        for layer in range(config.num_layers if name.startswith("layers.") else 1):
            at = name.replace("layers.0.", f"layers.{layer}.")
            dtype = torch.bfloat16 if tensor.is_floating_point() else tensor.dtype
            shape = list(tensor.shape)
            tensors[at] = LazyTensor(
                shape, KINDS[dtype], dtype, partial(_drawn, seed, at, shape, packed)
            )
    stored = LazyDecoder(packed, tensors, torch.bfloat16)
    return with_experts(stored, config.expert_format)


def _drawn(seed: int, name: str, shape: list[int], config: DecoderConfig) -> Tensor:
    if name.endswith("_blocks"):
        return torch.from_numpy(
            np.frombuffer(bytearray(_generator(seed, name).bytes(math.prod(shape))), np.uint8)
        ).view(shape)
    if name.endswith("_scales"):
        width = config.hidden_dim if "gate_up" in name else 2 * config.num_layers * config.ff_dim
        return _exponents(seed, name, shape, width**-0.5)
    mean, std = _spread(name, config)
    generator = _generator(seed, name)
    pieces = []
    left = math.prod(shape)
    while left > 0:
        count = min(left, _PIECE)
        pieces.append(
            torch.from_numpy(generator.standard_normal(count, np.float32))
            .mul_(std)
            .add_(mean)
            .bfloat16()
        )
        left -= count
    return torch.cat(pieces).view(shape)


def _spread(name: str, config: DecoderConfig) -> tuple[float, float]:
    """Mean and standard deviation of a tensor."""
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if name.endswith("bias"):
        return 0.0, _BIAS_STD
    if name.endswith("sinks") or name == "embedding.weight":
        return 0.0, 1.0
    if name == "output.weight":
        return 0.0, LOGITS_STD * config.hidden_dim**-0.5
    if name.endswith("attention.output.weight"):
        return 0.0, (config.num_heads * config.head_dim * 2 * config.num_layers) ** -0.5
    return 0.0, config.hidden_dim**-0.5


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([seed, *name.encode()]))


def _exponents(seed: int, name: str, shape: list[int], std: float) -> Tensor:
    """Exponents that give codes the standard deviation ``std``."""
    power = math.log2(std / math.sqrt(_CODE_MEAN_SQUARE))
    lower = math.floor(power)
    share = (4 ** (power - lower) - 1) / 3  # (1 - share) 4^lower + share 4^(lower + 1) = 4^power
    upper = _generator(seed, name).random(shape, np.float32) < share
    return torch.from_numpy((upper + np.uint8(127 + lower)).astype(np.uint8))


def main() -> None:
    """Write the model that the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--layout", choices=["huggingface", "openai"], default="huggingface")
    parser.add_argument("--experts", choices=["mxfp4", "bfloat16"], default="mxfp4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replace", action="store_true")
    for name in ("num-layers", "num-experts", "hidden-dim", "ff-dim", "vocab-size"):
        parser.add_argument(f"--{name}", type=int, help="instead of the size's")
    flags = vars(parser.parse_args())
    changes = {
        name: flags[name]
        for name in ("num_layers", "num_experts", "hidden_dim", "ff_dim", "vocab_size")
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    changes["expert_format"] = "mxfp4" if flags["experts"] == "mxfp4" else "dense"
    config = dataclasses.replace(SIZES[flags["size"]], **changes)
    options = {"seed": flags["seed"], "replace": flags["replace"]}
    size = write_random_gpt_oss(flags["directory"], config, layout=flags["layout"], **options)
    print(f"{flags['directory']}: {size / 1e9:.2f} GB of random weights")


if __name__ == "__main__":
    main()
