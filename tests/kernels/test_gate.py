"""The gate between Python and C++: what each function takes, and that nothing else gets through."""

import copy
import ctypes
import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.errors import InputError
from glassformer.kernels import native
from glassformer.kernels.native import FUNCTIONS, Library
from glassformer.kernels.rms_norm import rms_norm
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.norms import RMSNorm
from glassformer.layers.quantized.packed import PackedExperts, PackedLinear
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from processes import printed
from refusals import refused

SOURCE = Path(glassformer.__file__).parent
for _module in pkgutil.walk_packages([str(SOURCE / "kernels")], "glassformer.kernels."):
    importlib.import_module(_module.name)

LETTERS = {
    **{"float": "f", "T": "fh", "BFloat16": "h", "uint16_t": "h", "int64_t": "l"},
    **{"uint8_t": "b?", "void": "b"},
}
INSIDE = {"some_rows", "prepare", "block_rows"}  # which C++ alone calls


def exported() -> dict[str, list[str]]:
    """The parameters of every function in the C++ sources, by the names that Python uses."""
    found: dict[str, list[str]] = {}
    for source in (*native.FOLDER.glob("*.cpp"), native.FOLDER / "elementwise.h"):
        text = re.sub(r"//.*|\\$", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
        sizes = re.search(r"#define SIZES\s+((?:\s*int64_t \w+,?|\s*double \w+,?)+)", text)
        text = re.sub(
            r"STRIDES\((\w)\)", r"int64_t \1_batch, int64_t \1_head, int64_t \1_position", text
        )
        text = re.sub(r"\bSIZES,", f"{sizes[1]}," if sizes else "", text)
        for both, name, parameters in re.findall(r"EXPORT(_FOR_T)?\((\w+)\)\s*\(([^)]*)\)", text):
            kinds = [
                re.sub(r"\bconst\b|\b\w+$", "", each.strip()).strip()
                for each in parameters.split(",")
            ]
            kinds = ["int64_t" if each == "" else each for each in kinds]  # without a name
            for dtype in ("_float32", "_bfloat16") if both else ("",):
                found[name + dtype] = kinds
    return found


def test_each_function_takes_what_is_declared() -> None:
    functions = {name: kinds for name, kinds in exported().items() if name not in INSIDE}
    assert functions.keys() == FUNCTIONS.keys()
    letters = {dtype: letter for letter, dtype in native._DTYPES.items()}
    for name, kinds in functions.items():
        tensors = [kind.rstrip("* ") for kind in kinds if kind.endswith("*") and kind != "Decoder*"]
        given = [letters[dtype] for dtype in FUNCTIONS[name].dtypes]
        assert len(tensors) == len(given), name
        assert all(letter in LETTERS[kind] for kind, letter in zip(tensors, given, strict=True)), (
            name
        )
        assert (
            kinds[: len(given)] == [kind for kind in kinds if kind.endswith("*")][: len(given)]
        ), "tensors come first"


def numbers_of(name: str) -> list[Any]:
    """Sizes at which every tensor of a function has several numbers."""
    kinds = exported()[name][len(FUNCTIONS[name].dtypes) :]
    if name.startswith("attention"):
        return [2, 4, 2, 3, 5, 8, 1, 5, 0.5, 4, 1]
    if name.startswith("rotate"):
        return [2, 3, 5, 8, 1]
    if name.endswith("blocks"):
        return [7, 3, 64, 0, 3, 1] if name.startswith("expand") else [7, 3, 64, 2, 1]
    if name == "decode_step":
        return [0, 2, 3, 7, 8, 1]
    return [1.0 if kind == "double" else 64 for kind in kinds]


def tensors_of(name: str, numbers: list[Any]) -> list[Tensor]:
    known = FUNCTIONS[name]
    return [
        torch.empty(size, dtype=dtype)
        for size, dtype in zip(known.sizes(*numbers), known.dtypes, strict=True)
    ]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_what_a_function_does_not_take_never_reaches_it(name: str) -> None:
    reached = []
    stub = ctypes.CDLL(None)
    setattr(stub, f"glassformer_{name}_0", lambda *given: reached.append(given) or 0)
    library = Library(stub, 0)
    numbers = numbers_of(name)
    tensors = tensors_of(name, numbers)
    library.call(name, *tensors, *numbers)
    assert [*reached.pop()[: len(tensors)]] == [each.data_ptr() for each in tensors]
    for place, (tensor, size) in enumerate(
        zip(tensors, FUNCTIONS[name].sizes(*numbers), strict=True)
    ):
        wrong = [
            tensor.to("meta"),
            tensor.to(torch.float64),
            tensor[:-1],
            torch.cat([tensor, tensor]),
            torch.stack([tensor, tensor], dim=-1)[..., 0],
            torch.empty(0, dtype=tensor.dtype),
        ]
        for each in wrong:
            with refused(
                expected=(
                    f"{'contiguous' if isinstance(size, int) else 'shape .*'}, of .* on the CPU"
                )
            ):
                library.call(name, *tensors[:place], each, *tensors[place + 1 :], *numbers)
    assert not reached


def test_sizes_that_fit_nothing() -> None:
    for name, numbers in {
        "expand_blocks": [7, 3, 64, 1, 4, 1],  # rows 1 to 4 of 3
        "rows_blocks": [7, 3, 48, 2, 1],  # 48 weights in blocks of 32
    }.items():
        known = FUNCTIONS[name]
        sizes = [max(0, size) for size in known.sizes(*numbers)]
        tensors = [
            torch.empty(size, dtype=dtype) for size, dtype in zip(sizes, known.dtypes, strict=True)
        ]
        stub = ctypes.CDLL(None)
        setattr(stub, f"glassformer_{name}_0", pytest.fail)
        with pytest.raises(InputError):
            Library(stub, 0).call(name, *tensors, *numbers)


def test_addresses_come_from_the_gate_alone() -> None:
    """Elsewhere an address only tells whether memory is the same, or where a page begins."""
    allowed = {
        "kernels/native/__init__.py",
        "kernels/huge_pages.py",
        "generation/language_model.py",
    }
    allowed |= {str(each.relative_to(SOURCE)) for each in SOURCE.glob("explorer/**/*.py")}
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        name = str(file.relative_to(SOURCE))
        assert name in allowed or "data_ptr" not in text, name
        assert name in ("kernels/native/__init__.py", "allocator.py") or not re.search(
            r"CDLL|\.code\.|\.code,|argtypes", text
        ), name
    for file in native.FOLDER.glob("*.[ch]*"):
        assert not re.search(
            r"abort|\bmalloc|\bexit\(|assert\(|throw", file.read_text(encoding="utf-8")
        ), file.name


@pytest.mark.usefixtures("library")
def test_modules_on_two_devices() -> None:
    """They ended the process."""
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(InputError):
            RMSNorm(64).to("meta")(torch.randn(2, 3, 64))
    decoder = Decoder(
        DecoderConfig(
            vocab_size=16, hidden_dim=64, num_layers=1, num_heads=4, head_dim=16, ff_dim=32
        )
    )
    for name in (
        "layers.0.ffn_norm",
        "layers.0.attention.query",
        "output",
    ):  # of a projection torch gives any numbers
        spoilt = copy.deepcopy(decoder)
        spoilt.get_submodule(name).to("meta")
        with pytest.raises(InputError), torch.no_grad():
            spoilt(torch.zeros(1, 4, dtype=torch.int64))
    packed = PackedExperts(64, 32, 4, 2, kinds=dict.fromkeys(("gate", "up", "down"), "Q8_0"))
    for made in (
        MixtureOfExperts(64, 32, 4, 2),
        PackedMixture.pack(MixtureOfExperts(64, 32, 4, 2)),
        packed,
    ):
        for name, weight in made.state_dict().items():
            spoilt = copy.deepcopy(made)
            part, _, last = name.rpartition(".")
            delattr(spoilt.get_submodule(part), last)
            spoilt.get_submodule(part).register_buffer(last, weight.to("meta"))
            with pytest.raises(InputError), torch.no_grad():
                spoilt(torch.randn(3, 64))
    layer = PackedLinear(64, 8, "Q8_0")
    layer.blocks = layer.blocks.to("meta")
    with pytest.raises((InputError, RuntimeError)), torch.no_grad():
        layer(torch.randn(2, 64))
    x = torch.randn(2, 64, requires_grad=True)
    out = rms_norm(x, torch.ones(64), 1e-6)
    with pytest.raises((InputError, RuntimeError)):
        out.backward(torch.ones(2, 64, device="meta"))


_STARVED = """
import resource, torch
from glassformer.kernels import native
from glassformer.generation.native_step import DecodingStep
from glassformer.kernels.attention import attention
from glassformer.kernels.pattern import Pattern
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
native.COMPILED = {compiled}
torch.set_num_threads(1)
library = native.library()

def starve():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, resource.RLIM_INFINITY))

def fed():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

def check(name, call):
    starve()
    try:
        call()
    except MemoryError as error:
        fed()
        assert "not enough memory" in str(error), error
        print(name)
    finally:
        fed()

wide, rows = 2**21, 16
x, out = torch.zeros(8, wide), torch.zeros(8, rows)
blocks, exponents = torch.zeros(rows, wide // 2, dtype=torch.uint8), torch.zeros(rows, wide // 32, dtype=torch.uint8)
for tokens in (2, 8):
    few = blocks, exponents, x[:tokens], out[:tokens], rows, wide, tokens, 1
    check(f"rows_mxfp4 {{tokens}}", lambda: library.call("rows_mxfp4", *few))
given = blocks, exponents, x, out, rows, wide // 32, 8, 1
if library.level == 4:
    many = torch.zeros(rows, wide // 32 * 18, dtype=torch.uint8), x, out, 3, rows, wide, 8, 1
    check("matrix_blocks", lambda: library.call("matrix_blocks", *many))
check("mxfp4_multiply", lambda: library.call("mxfp4_multiply_float32", *given))
q = torch.zeros(1, 1, 4096, 512)
lse, many, few = torch.zeros(4096), (1, 1, 1, 4096, 4096, 512), (1, 4096, 0.1, 0, 1)
check("backward", lambda: library.call("attention_backward", q, q, q, q, q, q, lse, q, q, *many, *few))
q = torch.zeros(1, 512, 32, 512)
k, lse, many = q[:, :1], torch.zeros(512 * 32), (1, 512, 1, 32, 32, 512)
check("forward", lambda: library.call("attention", q, k, k, q, lse, lse[:0], *many, 1, 32, 0.1, 0, 1))
sizes = dict(hidden_dim=32, num_heads=4, head_dim=8, ff_dim=2**18)
config = DecoderConfig(vocab_size=16, num_layers=1, max_seq_len=64, **sizes)
model = Decoder(config).eval()
cache, tokens = model.new_cache(32), torch.zeros(32, 1, dtype=torch.int64)
step = DecodingStep(model, cache)
step(tokens)
before = cache.length
check("decode_step", lambda: step(tokens))
assert cache.length == before
assert step(tokens).isfinite().all()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits and measures memory as Linux does")
@pytest.mark.usefixtures("library")
def test_too_little_memory_is_a_memory_error() -> None:
    """It was a segmentation fault or the end of the process; what is left works afterwards."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    found = printed(_STARVED.format(compiled=native.COMPILED), env=environment, timeout=600)
    told = ["rows_mxfp4 2", "rows_mxfp4 8", "mxfp4_multiply", "backward", "forward", "decode_step"]
    if native.best_level() == native.LEVELS.index("AMX"):
        told.insert(2, "matrix_blocks")
    assert found.splitlines() == told
