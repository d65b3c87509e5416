"""``glassformer random-model``: a gpt-oss of any size with random weights, to find out what a machine can run."""

from __future__ import annotations

import dataclasses

from glassformer.checkpoints.random_gpt_oss import SIZES, write_random_gpt_oss
from glassformer.cli.flags import RandomModelFlags
from glassformer.cli.sizes import on_disk
from glassformer.cli.terminal import say


def main(flags: RandomModelFlags) -> int:
    """Write the model and print its size."""
    names = ("num_layers", "num_experts", "hidden_dim", "ff_dim", "vocab_size")
    changes = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if flags.experts == "bfloat16":
        changes["expert_format"] = "dense"
    config = dataclasses.replace(SIZES[flags.size], **changes)
    size = write_random_gpt_oss(
        flags.out, config, layout=flags.layout, seed=flags.seed, replace=flags.replace, progress=True
    )
    say(f"{flags.out}: {on_disk(size)} of random weights")
    return 0
