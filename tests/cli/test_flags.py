from __future__ import annotations

from typing import get_args, get_type_hints

from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout
from glassformer.checkpoints.gpt_oss_writing import ExpertKind
from glassformer.checkpoints.random_gpt_oss import SIZES
from glassformer.cli import flags, lab
from glassformer.data import harmony
from glassformer.explorer import messages


def test_the_choices_are_those_of_the_library() -> None:
    # Written out in the flags, because the library's modules import torch.
    assert get_args(flags.View) == get_args(messages.View)
    assert get_args(flags.Effort) == get_args(harmony.Effort)
    assert get_args(flags.Layout) == get_args(GptOssLayout)
    assert get_args(flags.Experts) == get_args(ExpertKind)
    assert get_args(flags.LabName) == tuple(lab.LABS)
    assert get_args(get_type_hints(flags.RandomModelFlags)["size"]) == tuple(SIZES)
