from __future__ import annotations

from typing import get_args

from glassformer.cli import flags
from glassformer.cli.commands import lab
from glassformer.data import harmony
from glassformer.explorer import messages


def test_the_choices_are_those_of_the_library() -> None:
    # Written out in the flags, because the library's modules import torch.
    assert get_args(flags.View) == get_args(messages.View)
    assert get_args(flags.Effort) == get_args(harmony.Effort)
    assert get_args(flags.LabName) == tuple(lab.LABS)
