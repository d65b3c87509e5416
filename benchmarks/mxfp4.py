"""MXFP4: speed of expansion, of products with packed weights and of mixtures, beside peers.

    python benchmarks/mxfp4.py [--threads 1] [--openai weights.py] [--out benchmarks/mxfp4.json]

Contestants run in turns in one process, and medians are compared. A matrix is one expert's gate and
up projection of gpt-oss, 5,760 x 2,880; each call takes the next of eight of them, so that none is
in the processor's cache. With ``--openai`` (gpt_oss/torch/weights.py of github.com/openai/gpt-oss)
OpenAI's own function is measured; without it, a function with the same steps. ``bits`` says whether
all expansions are equal to the last bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import in_turns, keep
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from glassformer.kernels import native
from glassformer.kernels.mxfp4 import expand as expand_into
from glassformer.kernels.mxfp4 import multiply
from glassformer.kernels.options import Clamp
from glassformer.layers.quantized import mxfp4
from glassformer.layers.quantized.packed_experts import PackedMixture

HERE = Path(__file__).parent
HIDDEN = 2880
FF = 2880
MATRICES = 8
EXPERTS = 8
TOP_K = 4
GROUPS = HIDDEN // mxfp4.GROUP
WEIGHTS = 2 * FF * HIDDEN
VALUES = torch.tensor(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16
)

Expand = Callable[[Tensor, Tensor], Tensor]


def steps_of_openai(blocks: Tensor, scales: Tensor) -> Tensor:
    """Look each half byte up by an index of 64 bits, write every second place, then ldexp."""
    exponents = scales.to(torch.int32).sub(127).view(-1, 1)
    flat = blocks.view(-1, 16)
    out = torch.empty(len(flat), 32, dtype=torch.bfloat16)
    out[:, 0::2] = VALUES[(flat & 15).to(torch.long)]
    out[:, 1::2] = VALUES[(flat >> 4).to(torch.long)]
    return torch.ldexp(out, exponents, out=out).view(*scales.shape[:-1], -1)


def openai_itself(file: Path) -> Expand:
    """Their function, which is given tensors where it asks for names of them."""
    spec = importlib.util.spec_from_file_location("openai_weights", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkpoint = module.Checkpoint.__new__(module.Checkpoint)

    def expand(blocks: Tensor, scales: Tensor) -> Tensor:
        checkpoint.tensor_name_to_file = {"blocks": "", "scales": ""}
        checkpoint._get_tensor = {"blocks": blocks, "scales": scales}.__getitem__
        return checkpoint._get_mxfp4_tensor("blocks", "scales")

    return expand


NUMBERS = torch.tensor(
    [[float(value) * 2.0 ** (scale - 127) for value in VALUES] for scale in range(256)]
)
NUMBERS = NUMBERS.to(torch.bfloat16).flatten()


@torch.compile(dynamic=False)
def compiled(blocks: Tensor, scales: Tensor) -> Tensor:
    """The fastest of several forms of the expansion under torch.compile: one table for all."""
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).int()
    return NUMBERS[codes + 16 * scales.int().unsqueeze(-1)].flatten(-2)


@torch.compile(dynamic=False)
def compiled_product(blocks: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    """The same for the product with few tokens: one loop, which writes no weight anywhere."""
    pairs = x.float().view(len(x), 1, -1, 16, 2)
    sums = (
        VALUES.float()[(blocks & 15).int()] * pairs[..., 0]
        + VALUES.float()[(blocks >> 4).int()] * pairs[..., 1]
    )
    return (sums * (scales.int() << 23).view(torch.float32).unsqueeze(-1)).sum((-1, -2))


def without_kernel(call: Callable[[], Tensor]) -> Tensor:
    """The same by torch's operators alone."""
    look, native.look = native.look, lambda: (None, "")  # type: ignore[assignment]
    try:
        return call()
    finally:
        native.look = look


def matrices() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(
        256, (MATRICES, 2 * FF, GROUPS, 16), dtype=torch.uint8, generator=generator
    )
    scales = torch.randint(
        112, 124, (MATRICES, 2 * FF, GROUPS), dtype=torch.uint8, generator=generator
    )
    return list(zip(blocks, scales, strict=True))


def over(pairs: list[tuple[Tensor, Tensor]], expand: Expand) -> Callable[[], Tensor]:
    """A call that takes the next matrix each time."""
    turns: Iterator[tuple[Tensor, Tensor]] = cycle(pairs)
    return lambda: expand(*next(turns))


def expansion(rounds: int, openai: Expand, fast: bool) -> dict[str, Any]:
    """One matrix to bfloat16."""
    pairs = matrices()
    out = torch.empty(2 * FF, HIDDEN, dtype=torch.bfloat16)

    def into(blocks: Tensor, scales: Tensor) -> Tensor:
        expand_into(blocks, scales, out)
        return out

    def transformers_transposed(blocks: Tensor, scales: Tensor) -> Tensor:
        return convert_moe_packed_tensors(blocks[None], scales[None])

    contestants: dict[str, Expand] = {
        "OpenAI": openai,
        "transformers": transformers_transposed,
        "torch.compile": compiled,
        "glassformer, torch's operators": lambda *packed: without_kernel(
            lambda: mxfp4.decode(*packed)
        ),
    }
    if fast:
        contestants["glassformer"] = mxfp4.decode
        contestants["glassformer, out given"] = into
    expected = openai(*pairs[0])
    equal = {}
    for name, expand in contestants.items():
        expanded = expand(*pairs[0])
        expanded = expanded[0].T.contiguous() if name == "transformers" else expanded
        equal[name] = torch.equal(expanded.view(torch.int16), expected.view(torch.int16))
    seconds = in_turns({name: over(pairs, expand) for name, expand in contestants.items()}, rounds)
    return {
        "seconds": seconds,
        "billion_weights_per_second": {
            name: WEIGHTS / spent / 1e9 for name, spent in seconds.items()
        },
        "times_openai": {name: seconds["OpenAI"] / spent for name, spent in seconds.items()},
        "bits": equal,
    }


@torch.no_grad()
def product(rounds: int, openai: Expand, fast: bool) -> dict[str, Any]:
    """One matrix times some tokens; also dense in bfloat16, which is four times as much to read."""
    pairs = matrices()
    dense = cycle([mxfp4.decode(*packed) for packed in pairs])
    results: dict[str, Any] = {}
    for tokens in (1, 4, 16, 128):
        x = torch.randn(tokens, HIDDEN).bfloat16()
        out = torch.empty(tokens, 2 * FF)

        def packed_product(
            blocks: Tensor, scales: Tensor, x: Tensor = x, out: Tensor = out
        ) -> Tensor:
            multiply(x, blocks, scales, out)
            return out

        def expanded(blocks: Tensor, scales: Tensor, x: Tensor = x) -> Tensor:
            return F.linear(x, openai(blocks, scales))

        def by_compiler(blocks: Tensor, scales: Tensor, x: Tensor = x) -> Tensor:
            return (
                compiled_product(blocks, scales, x)
                if len(x) <= 4
                else F.linear(x, compiled(blocks, scales))
            )

        contestants: dict[str, Callable[[], Tensor]] = {
            "OpenAI's expansion, then the product": over(pairs, expanded),
            "torch.compile": over(pairs, by_compiler),
            "dense bfloat16": lambda x=x: F.linear(x, next(dense)),  # type: ignore[misc]
            "glassformer, torch's operators": over(
                pairs, lambda *packed, call=packed_product: without_kernel(lambda: call(*packed))
            ),
        }
        if fast:
            contestants["glassformer"] = over(pairs, packed_product)
        exact = x.double() @ mxfp4.decode(*pairs[0], torch.float64).T
        error = float((packed_product(*pairs[0]).double() - exact).abs().max() / exact.abs().max())
        seconds = in_turns(contestants, rounds)
        results[f"{tokens} tokens"] = {
            "seconds": seconds,
            "billion_weights_per_second": {
                name: WEIGHTS / spent / 1e9 for name, spent in seconds.items()
            },
            "error_of_glassformer": error,
        }
    return results


@torch.no_grad()
def mixture(rounds: int, openai: Expand, fast: bool) -> dict[str, Any]:
    """Measure a layer with gpt-oss's widths and fewer experts, packed and in bfloat16."""
    packed = PackedMixture(HIDDEN, FF, EXPERTS, TOP_K, bias=True, clamp=Clamp()).to(torch.bfloat16)
    for name, buffer in packed.named_buffers():
        if name.endswith("blocks"):
            buffer.random_(0, 256)
        elif name.endswith("scales"):
            buffer.random_(112, 119)
    dense = packed.unpack(torch.bfloat16)
    held = {
        "packed": sum(weight.nbytes for weight in packed.state_dict().values()) / 2**20,
        "dense": sum(weight.nbytes for weight in dense.state_dict().values()) / 2**20,
    }
    results: dict[str, Any] = {"experts": EXPERTS, "top_k": TOP_K, "mib": held}
    for tokens in (1, 16, 128):
        x = torch.randn(tokens, HIDDEN).bfloat16()
        contestants: dict[str, Callable[[], Tensor]] = {"dense": lambda x=x: dense(x)}  # type: ignore[misc]
        if fast:
            contestants["packed"] = lambda x=x: packed(x)  # type: ignore[misc]
        contestants["packed, torch's operators"] = lambda x=x: without_kernel(lambda: packed(x))  # type: ignore[misc]
        results[f"{tokens} tokens"] = {"seconds": in_turns(contestants, rounds)}
    return results


def main() -> None:
    """Measure everything, print it, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="the name of one part, which is printed and not written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--openai", type=Path, help="gpt_oss/torch/weights.py of openai/gpt-oss")
    parser.add_argument("--out", type=Path, default=HERE / "mxfp4.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Running without the C++ library")
    openai = steps_of_openai if arguments.openai is None else openai_itself(arguments.openai)
    kernel = native.library()
    results: dict[str, Any] = {}
    for measure in (expansion, product, mixture):
        if arguments.only not in (None, measure.__name__):
            continue
        results[measure.__name__] = measure(arguments.rounds, openai, kernel is not None)
        print(measure.__name__, json.dumps(results[measure.__name__], indent=2), flush=True)
    if arguments.only is not None:
        return
    keep(
        results,
        arguments.out,
        kernel=None if kernel is None else native.LEVELS[kernel.level],
        OpenAI="its steps, written anew" if arguments.openai is None else "its own function",
    )


if __name__ == "__main__":
    main()
