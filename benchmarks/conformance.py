"""Our models and each installed peer against references in float64: `make conformance`.

    python benchmarks/conformance.py [--quick] [--out benchmarks/conformance.json]
                                     [--page docs/conformance.md]

The models are those of the tests. Every number of the page is in the JSON file, from which the page
is written. A peer that cannot be imported is listed as not installed.
"""

# ruff: noqa: E402  what the tests share is imported from their folders

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = Path(__file__).resolve().parent
sys.path.extend(str(HERE.parent / folder) for folder in ("tests", "tests/checkpoints", "tools"))

import jinja2
import torch
import torch.nn.functional as F
from family_models import FAMILIES, as_float64, no_rounding, random_model
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from timing import keep
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

from glassformer.checkpoints.decoders import load_decoder
from glassformer.generation import generate
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.models import Decoder
from glassformer.observe.capture import capture
from glassformer.observe.lens import direct_logits, logit_lens
from programs import Ours, Tracr, program_of, same

GPT_OSS: dict[str, Any] = {
    **{
        "num_hidden_layers": 3,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "vocab_size": 48,
        "hidden_size": 32,
    },
    **{
        "intermediate_size": 64,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 7,
    },
}
LENGTH = 40
NEW = 20
"""Tokens of a text, longer than every window, and those that are generated."""
PEERS = ("torch", "transformers", "transformer-lens", "gpt-oss", "tracr", "nnsight")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
MEASURES = ("logits", "hidden states", "attention weights", "gradients")
Measured = dict[str, list[Tensor]]


def installed() -> dict[str, str | None]:
    """The version of each peer, or None."""

    def of(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: of(name) for name in PEERS}


VERSIONS = installed()


def largest(some: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference of tensors in turn."""
    pairs = zip(some, others, strict=True)
    return max(float((first.double() - second.double()).abs().max()) for first, second in pairs)


def gpt_oss_model() -> Any:
    """A random GptOss, every part of which shows in its logits."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**GPT_OSS, initializer_range=0.25)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter) * (parameter.dim() == 1)
    return model


class Case:
    """A family's model on disk, in bfloat16, so that every dtype holds the same weights."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        self.folder = folder
        model = gpt_oss_model() if family == "gpt_oss" else random_model(family, 0)
        model.to(torch.bfloat16).save_pretrained(folder)
        draw = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(3, model.config.vocab_size, (2, LENGTH), generator=draw)

    def theirs(self, dtype: torch.dtype) -> Any:
        """The model of transformers, with the attention that returns its weights."""
        narrow = torch.float32 if dtype == torch.float64 else dtype
        options: dict[str, Any] = {
            "attn_implementation": "eager",
            "experts_implementation": "eager",
            "dtype": narrow,
        }
        model = AutoModelForCausalLM.from_pretrained(self.folder, **options).eval()
        return as_float64(model) if dtype == torch.float64 else model

    def ours(self, dtype: torch.dtype) -> Decoder:
        """Ours."""
        return load_decoder(self.folder, dtype=dtype).eval()

    def gradients(self, logits: Tensor, embedding: nn.Module) -> list[Tensor]:
        """Of the loss, by each token's vector: they have passed through every layer."""
        F.cross_entropy(logits.flatten(0, 1).double(), self.tokens.flatten()).backward()
        assert isinstance(embedding.weight, Tensor)
        assert embedding.weight.grad is not None
        return [embedding.weight.grad.clone()]

    def measure_theirs(self, dtype: torch.dtype) -> Measured:
        """What transformers computes. Its last hidden state is normed, and left out everywhere."""
        model = self.theirs(dtype)
        with no_rounding() if dtype == torch.float64 else nullcontext():
            outputs = model(self.tokens, output_hidden_states=True, output_attentions=True)
            measured = {"logits": [outputs.logits], "hidden states": outputs.hidden_states[1:-1]}
            measured |= {"attention weights": outputs.attentions}
            measured |= {"gradients": self.gradients(outputs.logits, model.get_input_embeddings())}
            with torch.no_grad():
                return {
                    **_detached(measured),
                    "greedy tokens": [greedy(lambda text: model(text).logits, self.tokens)],
                }

    def measure_ours(self, dtype: torch.dtype) -> Measured:
        """What our decoder computes, by ``capture`` and ``generate``."""
        model = self.ours(dtype)
        with capture(model, what=("weights", "residual")) as seen:
            logits = model(self.tokens)
        layers = range(model.config.num_layers)
        measured = {
            "logits": [logits],
            "hidden states": [seen[layer, "residual"] for layer in layers][:-1],
        }
        measured |= {"attention weights": [seen[layer, "weights"] for layer in layers]}
        measured |= {"gradients": self.gradients(logits, model.embedding)}
        return {
            **_detached(measured),
            "greedy tokens": [torch.tensor(generate(model, self.tokens.tolist(), NEW))],
        }

    def measure_bridge(self, dtype: torch.dtype) -> Measured:
        """What TransformerLens's bridge around transformers' model computes."""
        model = self.theirs(dtype)
        bridge = bridge_of(model)
        with no_rounding() if dtype == torch.float64 else nullcontext():
            logits, cache = bridge.run_with_cache(self.tokens)
            layers = range(bridge.cfg.n_layers)
            measured = {
                "logits": [logits],
                "hidden states": [cache["resid_post", layer] for layer in layers][:-1],
            }
            measured |= {"attention weights": [cache["pattern", layer] for layer in layers]}
            # The bridge has modules of its own: the token vectors are found by their values.
            vectors = model.get_input_embeddings().weight
            (embedding, *_) = [module for module in bridge.modules() if _holds(module, vectors)]
            measured |= {"gradients": self.gradients(bridge(self.tokens), embedding)}
            with torch.no_grad():
                return {**_detached(measured), "greedy tokens": [greedy(bridge, self.tokens)]}


def _holds(module: nn.Module, vectors: Tensor) -> bool:
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    return weight is not None and weight.shape == vectors.shape and torch.equal(weight, vectors)


def _detached(measured: dict[str, Any]) -> Measured:
    return {name: [tensor.detach() for tensor in some] for name, some in measured.items()}


def bridge_of(model: Any) -> Any:
    """TransformerLens around a model that was read from a folder."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    # It reads a tokenizer from there, and is given tokens.
    words = models.WordLevel(
        {str(number): number for number in range(model.config.vocab_size)}, "0"
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), bos_token="1", eos_token="2", pad_token="0"
    )
    tokenizer.save_pretrained(model.name_or_path)
    return TransformerBridge.boot_transformers(model.name_or_path, hf_model=copy.deepcopy(model))


def greedy(logits_of: Callable[[Tensor], Tensor], text: Tensor) -> Tensor:
    """New tokens, each from a whole run."""
    for _ in range(NEW):
        text = torch.cat([text, logits_of(text)[:, -1:].argmax(-1)], 1)
    return text[:, LENGTH:]


def families(names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each family, library and dtype: largest errors against transformers in float64."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            case = Case(name, Path(folder))
            reference = case.measure_theirs(torch.float64)
            for dtype_name, dtype in DTYPES.items():
                libraries: dict[str, Callable[[torch.dtype], Measured]] = {
                    "glassformer": case.measure_ours
                }
                if dtype != torch.float64:
                    libraries["transformers"] = case.measure_theirs
                if VERSIONS["transformer-lens"]:
                    libraries["transformer-lens"] = case.measure_bridge
                for library, measure in libraries.items():
                    yield {
                        "family": name,
                        "library": library,
                        "dtype": dtype_name,
                        **compared(measure, dtype, reference),
                    }


def compared(
    measure: Callable[[torch.dtype], Measured], dtype: torch.dtype, reference: Measured
) -> dict[str, Any]:
    """The largest difference of each measure, or what was raised instead."""
    try:
        measured = measure(dtype)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0]}
    row: dict[str, Any] = {
        measure_name: largest(measured[measure_name], reference[measure_name])
        for measure_name in MEASURES
        if reference[measure_name]
    }
    new = measured["greedy tokens"][0]
    reference_tokens = reference["greedy tokens"][0]
    # A text counts up to its first other token: after it the two continue different texts.
    agreed = (new == reference_tokens).int().cumprod(1).sum()
    return {**row, "greedy tokens": int(agreed), "of": reference_tokens.numel()}


# Other references


def encoder_block(*, norm_first: bool) -> Block:
    attention = GroupedQueryAttention(24, 4, 6, causal=False, bias=True)
    norm_place = "before" if norm_first else "sum"
    return Block(24, attention, MLP(24, 40, "relu"), 1e-5, norm="layer", norm_place=norm_place)


def cross_block() -> Block:
    attention = GroupedQueryAttention(24, 4, 6, causal=True, bias=True)
    cross = GroupedQueryAttention(24, 4, 6, causal=False, bias=True)
    ffn = MLP(24, 40, "relu")
    return Block(24, attention, ffn, 1e-5, cross=cross, norm="layer", norm_place="sum")


@torch.no_grad()
def copy_attention(
    attention: GroupedQueryAttention, torch_attention: nn.MultiheadAttention
) -> None:
    weights = torch_attention.in_proj_weight.chunk(3)
    biases = torch_attention.in_proj_bias.chunk(3)
    for projection, weight, bias in zip(
        (attention.query, attention.key, attention.value), weights, biases, strict=True
    ):
        projection.weight.copy_(weight)
        projection.bias.copy_(bias)
    attention.output.load_state_dict(torch_attention.out_proj.state_dict())


def copy_block(block: Block, torch_block: Any) -> None:
    """Copy the weights of a layer of torch.nn."""
    pairs = [(block.ffn.up, torch_block.linear1), (block.ffn.down, torch_block.linear2)]
    if block.cross_attention is None:
        copy_attention(block.attention, torch_block.self_attn)
        pairs += [(block.attention_norm, torch_block.norm1), (block.ffn_norm, torch_block.norm2)]
    else:
        copy_attention(block.self_attention, torch_block.self_attn)
        copy_attention(block.cross_attention, torch_block.multihead_attn)
        pairs += [
            (block.self_attention_norm, torch_block.norm1),
            (block.cross_attention_norm, torch_block.norm2),
        ]
        pairs += [(block.ffn_norm, torch_block.norm3)]
    for our_module, their_module in pairs:
        our_module.load_state_dict(their_module.state_dict())


@torch.no_grad()
def randomize_vectors(module: nn.Module) -> None:
    """Give norms and biases other values than those with which they begin."""
    for weight in module.parameters():
        if weight.dim() == 1:
            weight.add_(torch.randn_like(weight) / 4)


def torch_rows() -> Iterator[dict[str, Any]]:
    """Layers of torch.nn with the same weights: outputs and the gradient of the input."""
    for kind, norm_first in (("encoder", False), ("encoder", True), ("decoder", False)):
        for dtype_name, dtype in DTYPES.items():
            torch.manual_seed(0)
            options: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
            x = torch.randn(3, 9, 24, dtype=torch.float64)
            memory = torch.randn(3, 7, 24, dtype=torch.float64)
            block: Any
            torch_block: Any
            if kind == "encoder":
                torch_block = nn.TransformerEncoderLayer(
                    24, 4, 40, norm_first=norm_first, **options
                )
                block = encoder_block(norm_first=norm_first)
            else:
                torch_block = nn.TransformerDecoderLayer(24, 4, 40, **options)
                block = cross_block()
            randomize_vectors(torch_block)
            torch_block.to(torch.bfloat16).float()
            copy_block(block, torch_block)
            results = []
            for layer, precision in (
                (torch_block, torch.float64),
                (block, dtype),
                (torch_block, dtype),
            ):
                inputs = x.to(torch.bfloat16).to(precision).requires_grad_()
                layer.to(torch.float64).to(precision)
                also = [memory.to(torch.bfloat16).to(precision)] if kind == "decoder" else []
                mask = {
                    "tgt_mask": nn.Transformer.generate_square_subsequent_mask(9, dtype=precision)
                }
                out = layer(inputs, *also, **(mask if also and layer is torch_block else {}))
                out.double().square().sum().backward()
                results.append([out.detach(), inputs.grad])
            names = ("glassformer", "torch")
            name = f"nn.Transformer{kind.title()}Layer" + (", norm first" if norm_first else "")
            for library, measured in zip(names, results[1:], strict=True):
                if library == "glassformer" or dtype != torch.float64:
                    row = {"reference": name, "library": library, "dtype": dtype_name}
                    yield {
                        **row,
                        "outputs": largest(measured[:1], results[0][:1]),
                        "gradients": largest(measured[1:], results[0][1:]),
                    }


def openai_logits(folder: Path, dtype: torch.dtype, tokens: Tensor) -> Tensor:
    """Of OpenAI's reference of gpt-oss, with the weights of a directory in its layout."""
    from gpt_oss.torch.model import Transformer

    model = Transformer.from_checkpoint(str(folder), device=torch.device("cpu")).to(dtype).eval()
    with no_rounding() if dtype == torch.float64 else nullcontext():
        return model(tokens)


@torch.no_grad()
def openai_rows() -> Iterator[dict[str, Any]]:
    """A gpt-oss in OpenAI's own file layout, with packed experts."""
    config = dataclasses.replace(GPT_OSS_TINY, vocab_size=256, num_layers=3, num_experts=6)
    tokens = torch.randint(256, (LENGTH,), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        write_random_gpt_oss(folder, config, layout="openai")
        expected_logits = openai_logits(folder, torch.float64, tokens)
        openai_error = largest([openai_logits(folder, torch.bfloat16, tokens)], [expected_logits])
        yield {
            "reference": "OpenAI's gpt-oss",
            "library": "gpt-oss",
            "dtype": "bfloat16",
            "outputs": openai_error,
        }
        for name, dtype in DTYPES.items():
            for experts in ("dense", "mxfp4"):
                if name == "float64" and experts == "mxfp4":
                    continue  # the kernel of packed experts is one of float32
                our_model = Decoder.from_pretrained(folder, dtype=dtype, experts=experts).eval()
                yield {
                    "reference": "OpenAI's gpt-oss",
                    "library": f"glassformer, {experts} experts",
                    "dtype": name,
                    "outputs": largest([our_model(tokens[None])[0]], [expected_logits]),
                }


def tracr_rows() -> dict[str, Any]:
    """The programs of tracr's tests: right sequences of the greatest length, and largest errors."""
    tracr = Tracr(sys.executable)
    cases = tracr.ask("cases")
    our_programs = Ours(cases)
    rows = []
    # of several tests of one program, the first
    firsts = {id(program_of(name)): name for name in reversed(cases)}
    for name in sorted(firsts.values()):
        case = cases[name]
        sides = {"ours": our_programs.compile(name), "tracr": tracr.ask("compile", case=name)}
        if case["test_input"] is None or "refused" in sides["tracr"]:
            continue
        sequences, exact = our_programs.sequences(100)
        results = {
            "ours": our_programs.run(sequences, exact),
            "tracr": tracr.ask("run", sequences=sequences, exact=exact),
        }
        row: dict[str, Any] = {"test": name, "sequences": len(exact)}
        for side, ran in results.items():
            row[side] = {"right": same(ran["outputs"], exact), "error": ran["error"]}
        rows.append(row)
    total = {"tests": len(rows), "sequences": sum(row["sequences"] for row in rows)}
    for side in ("ours", "tracr"):
        right = sum(row[side]["right"] for row in rows)
        error = max(row[side]["error"] for row in rows)
        total[side] = {"right": right, "error": error}
    return {**total, "rows": rows}


# Published faults


@dataclasses.dataclass
class Fault:
    """A published fault: its effect here, and the distance of each library from the reference."""

    name: str
    threads: tuple[str, ...]
    effect: float
    libraries: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, library: str, compute: Callable[[], Tensor], reference: Tensor) -> None:
        """Measure a library, or keep what it raises."""
        try:
            self.libraries[library] = largest([compute()], [reference])
        except Exception as error:
            self.libraries[library] = f"refused: {type(error).__name__}: {error}".splitlines()[0]


@torch.no_grad()
def faults() -> list[Fault]:
    """All, in float32."""
    with tempfile.TemporaryDirectory() as folder:
        gpt_oss = Case("gpt_oss", Path(folder))
        faults = [sinks(gpt_oss), beyond_the_window(gpt_oss)]
    with tempfile.TemporaryDirectory() as folder:
        faults.append(yarn_on_windowed_layers(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        gpt2 = Case("gpt2", Path(folder))
        faults += [padding(gpt2), dropout(gpt2)]
    return faults


def sinks(case: Case) -> Fault:
    """The softmax of gpt-oss has a column without a key."""
    with no_rounding():
        expected_logits = case.theirs(torch.float64)(case.tokens).logits
    our_model = case.ours(torch.float32)
    without = Decoder(dataclasses.replace(our_model.config, sinks=False))
    without.load_state_dict(
        {
            name: weight
            for name, weight in our_model.state_dict().items()
            if not name.endswith("sinks")
        }
    )
    fault = Fault(
        "sinks dropped",
        ("vllm#52156", "transformers#42736"),
        largest([without(case.tokens)], [expected_logits]),
    )
    model = case.theirs(torch.float32)
    fault.add("glassformer", lambda: our_model(case.tokens), expected_logits)
    fault.add("transformers", lambda: model(case.tokens).logits, expected_logits)
    if VERSIONS["transformer-lens"]:
        fault.add("transformer-lens", lambda: bridge_of(model)(case.tokens), expected_logits)
    return fault


def beyond_the_window(case: Case) -> Fault:
    """A prompt longer than the window, then tokens one by one from the cache."""
    with no_rounding():
        expected_logits = case.theirs(torch.float64)(case.tokens).logits[:, 30:]
    our_model = case.ours(torch.float32)
    model = case.theirs(torch.float32)
    pieces = case.tokens.split([30] + [1] * 10, 1)
    wide = Decoder(dataclasses.replace(our_model.config, window=None))
    wide.load_state_dict(our_model.state_dict())

    def ours_stepped() -> Tensor:
        cache = our_model.new_cache(2)
        return torch.cat([our_model(piece, cache=cache) for piece in pieces][1:], 1)

    def theirs_stepped() -> Tensor:
        cache = None
        logits = []
        for piece in pieces:
            step = model(piece, past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            logits.append(step.logits)
        return torch.cat(logits[1:], 1)

    effect = largest([wide(case.tokens)[:, 30:]], [expected_logits])
    fault = Fault("prompts beyond the window, by steps", ("sglang#30050",), effect)
    fault.add("glassformer", ours_stepped, expected_logits)
    fault.add("transformers", theirs_stepped, expected_logits)
    if VERSIONS["transformer-lens"]:
        fault.add(
            "transformer-lens, at once",
            lambda: bridge_of(model)(case.tokens)[:, 30:],
            expected_logits,
        )
    return fault


def yarn_on_windowed_layers(folder: Path) -> Fault:
    """OLMo 3 rescales the rotation in layers of full attention alone.

    The reference's windowed layers are set here.
    """
    torch.manual_seed(0)
    seed = next(
        candidate
        for candidate in range(99)
        if _yarn_and_windows(random_model("olmo3", candidate).config)
    )
    random_model("olmo3", seed).save_pretrained(folder)
    case = object.__new__(Case)
    case.family = "olmo3"
    case.folder = folder
    tokens = torch.randint(3, 40, (2, LENGTH))
    reference = case.theirs(torch.float64)
    model = case.theirs(torch.float32)
    rotary = reference.model.rotary_emb
    config = reference.config
    base = config.rope_parameters["sliding_attention"]["rope_theta"]
    head_dim = config.hidden_size // config.num_attention_heads
    rotary.sliding_attention_inv_freq = (
        1 / base ** (torch.arange(0, head_dim, 2) / head_dim)
    ).float()
    rotary.sliding_attention_attention_scaling = 1.0
    with no_rounding():
        expected_logits = reference(tokens).logits
    our_model = case.ours(torch.float32)
    everywhere = Decoder(dataclasses.replace(our_model.config, local_rope_base=None))
    everywhere.load_state_dict(our_model.state_dict())
    fault = Fault(
        "YaRN on windowed layers",
        ("neuronpedia#235",),
        largest([everywhere(tokens)], [expected_logits]),
    )
    fault.add("glassformer", lambda: our_model(tokens), expected_logits)
    fault.add("transformers", lambda: model(tokens).logits, expected_logits)
    if VERSIONS["transformer-lens"]:
        fault.add("transformer-lens", lambda: bridge_of(model)(tokens), expected_logits)
    return fault


def _yarn_and_windows(config: Any) -> bool:
    return (
        config.rope_parameters["full_attention"]["rope_type"] == "yarn"
        and len(set(config.layer_types)) == 2
    )


def padding(case: Case) -> Fault:
    """The logits of a text in a batch, padded on the left, against those of the text alone."""
    short = case.tokens[1:, 15:]
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, :15] = False
    model = case.theirs(torch.float32)
    our_model = case.ours(torch.float32)
    with no_rounding():
        expected_logits = case.theirs(torch.float64)(short).logits
    places = (real.cumsum(1) - 1).clamp(min=0)
    mask = real.long()
    uncounted = model(
        case.tokens, attention_mask=mask, position_ids=torch.arange(LENGTH)[None]
    ).logits[1:, 15:]
    fault = Fault(
        "padding counted as positions, GPT-2",
        ("nnbench: batched GPT-2",),
        largest([uncounted], [expected_logits]),
    )
    fault.add(
        "glassformer", lambda: our_model(case.tokens, key_padding=real)[1:, 15:], expected_logits
    )
    fault.add(
        "transformers, a mask alone",
        lambda: model(case.tokens, attention_mask=mask).logits[1:, 15:],
        expected_logits,
    )
    inputs = {"attention_mask": mask, "position_ids": places}
    fault.add(
        "transformers, with positions",
        lambda: model(case.tokens, **inputs).logits[1:, 15:],
        expected_logits,
    )
    if VERSIONS["transformer-lens"]:
        bridged = {"attention_mask": mask}
        fault.add(
            "transformer-lens",
            lambda: bridge_of(model)(case.tokens, **bridged)[1:, 15:],
            expected_logits,
        )
    if VERSIONS["nnsight"]:
        fault.add(
            "nnsight",
            lambda: _traced(model, {"input_ids": case.tokens, "attention_mask": mask})[1:, 15:],
            expected_logits,
        )
    return fault


def _traced(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    from nnsight import NNsight

    with NNsight(model).trace(**inputs) as tracer:
        logits = tracer.result.logits.save()
    return logits


def dropout(case: Case) -> Fault:
    """A model that was left in training mode: what lens and attribution say of it."""
    torch.manual_seed(0)
    model = case.theirs(torch.float32)
    tokens = case.tokens
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    expected_logits = logit_lens(model.eval(), tokens)
    parts = direct_logits(model, tokens, 5).values
    trained = model.train()
    effect = largest([model(tokens).logits], [model.eval()(tokens).logits])
    fault = Fault("dropout while a lens is fitted", ("TransformerLens#1762",), effect)
    fault.add(
        "glassformer, logit lens", lambda: logit_lens(trained.train(), tokens), expected_logits
    )
    fault.add(
        "glassformer, direct logits",
        lambda: direct_logits(trained.train(), tokens, 5).values,
        parts,
    )
    if VERSIONS["transformer-lens"]:
        fault.add(
            "transformer-lens, Jacobian lens",
            lambda: _jacobian(bridge_of(model).train(), tokens),
            expected_logits,
        )
    return fault


def _jacobian(bridge: Any, tokens: Tensor) -> Tensor:
    from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

    text = " ".join(map(str, tokens[0].tolist()))
    with torch.enable_grad():
        fitted = JacobianLens.fit(
            bridge, [text], corpus="random", skip_first_positions=0, show_progress=False
        )
    return fitted.transport(torch.zeros(1), layer=0)


# The page


def number(value: Any) -> str:
    """As the page writes it."""
    if value is None:
        return "–"
    return (
        value
        if isinstance(value, str)
        else "0"
        if value == 0
        else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    )


def summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each library and dtype the largest differences over the families that it ran."""
    totals = []
    for library, dtype in dict.fromkeys((row["library"], row["dtype"]) for row in rows):
        some = [row for row in rows if (row["library"], row["dtype"]) == (library, dtype)]
        ran = [row for row in some if "refused" not in row]
        total: dict[str, Any] = {
            "library": library,
            "dtype": dtype,
            "families": len(ran),
            "asked": len(some),
        }
        total |= {
            measure_name: max(
                (row[measure_name] for row in ran if measure_name in row), default=None
            )
            for measure_name in MEASURES
        }
        totals.append(
            {
                **total,
                **{
                    measure_name: sum(row[measure_name] for row in ran)
                    for measure_name in ("greedy tokens", "of")
                },
            }
        )
    return totals


def write_page(results: dict[str, Any], page: Path) -> None:
    """Fill the template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    template = environment.get_template("conformance.md.j2")
    text = template.render(
        **results, measures=MEASURES, summed=summed(results["families"]), tokens=LENGTH
    )
    page.write_text(text.rstrip() + "\n", encoding="utf-8")
    print(f"written to {page}")


def measure_all(quick: bool) -> dict[str, Any]:
    """Everything; ``quick`` leaves out tracr and all families but two."""
    names = ["gpt2", "gpt_oss"] if quick else [*FAMILIES, "gpt_oss"]
    results: dict[str, Any] = {
        "peers": VERSIONS,
        "families": list(families(names)),
        "references": list(torch_rows()),
    }
    if VERSIONS["gpt-oss"]:
        results["references"] += openai_rows()
    results["faults"] = [dataclasses.asdict(fault) for fault in faults()]
    results["tracr"] = tracr_rows() if VERSIONS["tracr"] and not quick else None
    return results


def main() -> None:
    """Measure, write the JSON file and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two families, without tracr")
    parser.add_argument(
        "--only", nargs="*", help="measure these families anew and keep the rest of the JSON file"
    )
    parser.add_argument(
        "--only-page", action="store_true", help="write the page from the JSON file that is there"
    )
    parser.add_argument("--out", type=Path, default=HERE / "conformance.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs/conformance.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only:
        results = json.loads(arguments.out.read_text(encoding="utf-8"))
        other_rows = [row for row in results["families"] if row["family"] not in arguments.only]
        order = [*FAMILIES, "gpt_oss"]
        results["families"] = sorted(
            other_rows + list(families(arguments.only)), key=lambda row: order.index(row["family"])
        )
        keep(results, arguments.out)
    elif not arguments.only_page:
        keep(measure_all(arguments.quick), arguments.out)
    write_page(json.loads(arguments.out.read_text(encoding="utf-8")), arguments.page)


if __name__ == "__main__":
    main()
