"""``glassformer random-model``: a gpt-oss of any size with random weights, to try out what a machine can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout
from glassformer.checkpoints.random_gpt_oss import SIZES, write_random_gpt_oss
from glassformer.cli.sizes import on_disk
from glassformer.cli.terminal import say
from glassformer.models import DecoderConfig


@dataclass(frozen=True)
class RandomModelFlags:
    """Write a gpt-oss with random weights, as the released ones are written. 20b takes 13.8 GB and some minutes, and
    less than a GiB of memory.

    Raises:
        InputError: An impossible size, or a negative seed.
    """

    out: Annotated[Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The directory to make: complete or absent, whatever happens."""

    size: Literal["tiny", "eighth", "20b", "120b"] = "tiny"
    """tiny: 1 MB. eighth: of the 20b. 20b, 120b: the released sizes."""

    layout: GptOssLayout = "huggingface"
    """Hugging Face's, or OpenAI's."""

    experts: Literal["mxfp4", "bfloat16"] = "mxfp4"
    """Packed as in the released files, or the same weights as numbers, which takes 3.8 times the room."""

    num_layers: int | None = None
    """Another number of layers."""

    num_experts: int | None = None
    """Another number of experts."""

    hidden_dim: int | None = None
    """Another width, a multiple of 32."""

    ff_dim: int | None = None
    """Another width of experts, a multiple of 32."""

    vocab_size: int | None = None
    """Another number of tokens."""

    seed: int = 0
    """The same seed gives the same model, in both layouts."""

    replace: FlagCreatePairsOff[bool] = False
    """Replace DIR if it exists."""

    @property
    def config(self) -> DecoderConfig:
        """The form."""
        names = ("num_layers", "num_experts", "hidden_dim", "ff_dim", "vocab_size")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        form = dataclasses.replace(SIZES[self.size], **changes)
        return form if self.experts == "mxfp4" else dataclasses.replace(form, expert_format="dense")


def main(arguments: Sequence[str], prog: str) -> int:
    """Parse ``arguments``, write, say how much; return the exit status."""
    flags = tyro.cli(RandomModelFlags, prog=prog, args=arguments)
    size = write_random_gpt_oss(
        flags.out, flags.config, layout=flags.layout, seed=flags.seed, replace=flags.replace, progress=True
    )
    say(f"{flags.out}: {on_disk(size)} of random weights")
    return 0
