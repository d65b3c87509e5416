from __future__ import annotations

import torch

from glassformer.checkpoints.families.gpt_oss import packed_experts
from glassformer.kernels.blocks import values
from glassformer.layers.quantized import mxfp4


def test_experts_in_mxfp4_keep_their_values_in_the_order_of_gpt_oss() -> None:
    raw = {
        name: torch.randint(256, (3, rows, 2 * 17), dtype=torch.uint8)
        for name, rows in (("gate", 5), ("up", 5), ("down", 64))
    }
    for blocks in raw.values():
        blocks.unflatten(-1, (-1, 17))[..., 0].clamp_(2, 250)
    found = packed_experts(raw)
    gate_up = mxfp4.decode(found["gate_up_blocks"], found["gate_up_scales"], torch.float32)
    assert torch.equal(gate_up[:, 0::2], values("MXFP4", raw["gate"]))
    assert torch.equal(gate_up[:, 1::2], values("MXFP4", raw["up"]))
    assert torch.equal(
        mxfp4.decode(found["down_blocks"], found["down_scales"], torch.float32), values("MXFP4", raw["down"])
    )
