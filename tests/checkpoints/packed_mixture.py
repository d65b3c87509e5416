"""GGUF files of mixtures of experts whose weights are random packed blocks."""

from pathlib import Path

import gguf
import numpy as np
import torch

from glassformer.checkpoints.families.gguf_metadata import gguf_entries
from glassformer.checkpoints.families.llama import QWEN3_MOE
from glassformer.checkpoints.gguf_writing import _metadata
from glassformer.kernels.packed import KINDS
from glassformer.models import DecoderConfig

MIXTURE = DecoderConfig(
    vocab_size=64,
    num_layers=2,
    hidden_dim=256,
    ff_dim=256,
    num_heads=4,
    head_dim=64,
    num_kv_heads=2,
    max_seq_len=128,
    num_experts=8,
    top_k=2,
    qk_norm="head",
)
Q4_K_M = {"down": "Q6_K", "attn_v": "Q6_K", "token_embd": "Q6_K", "output": "Q6_K"}
"""Kinds of Q4_K_M that are not Q4_K, by parts of names."""
# Float16 numbers of a block that make weights about as large as those of a new layer of 256 inputs.
_HALVES = {"Q4_K": (0.00012, 0.0008), "Q6_K": (0.00004,), "Q8_0": (0.0008,), "Q4_0": (0.012,)}


def random_blocks(kind: str, rows: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """Random packed rows, uint8 ``[rows, bytes of a row]``."""
    row = KINDS[kind]
    blocks = generator.integers(256, size=(rows * width // row.block, row.nbytes), dtype=np.uint8)
    for at, value in zip(row.halves, _HALVES[kind], strict=True):
        blocks[:, at : at + 2] = np.array([value], dtype=np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def write_mixture(
    path: Path, config: DecoderConfig = MIXTURE, kind: str = "Q4_K", seed: int = 0
) -> None:
    """Write a Qwen3 MoE whose matrices are packed in ``kind``, with ``"Q4_K"`` as in Q4_K_M."""
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    for key, value in _metadata(QWEN3_MOE, config).items():
        if key.startswith("qwen3moe.") and value is not None:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for entry in gguf_entries(QWEN3_MOE, config, ()):
        for name, shape in entry.shapes().items():
            if len(shape) == 1 or "gate_inp" in name:
                numbers = generator.standard_normal(shape)
                if len(shape) == 1:
                    numbers = 1 + 0.1 * numbers
                writer.add_tensor(name, numbers.astype(np.float32))
                continue
            other = next((Q4_K_M[part] for part in Q4_K_M if part in name), kind)
            packed = other if kind == "Q4_K" else kind
            rows = int(np.prod(shape[:-1]))
            blocks = random_blocks(packed, rows, shape[-1], generator).reshape(*shape[:-1], -1)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[packed])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def draw_tokens(*shape: int) -> torch.Tensor:
    """Random tokens of :data:`MIXTURE`."""
    return torch.randint(MIXTURE.vocab_size, shape)
