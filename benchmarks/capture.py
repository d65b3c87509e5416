"""Cost of capture: time and memory, beside Hugging Face's eager attention on the same weights.

    python benchmarks/capture.py [--rounds 7] [--out benchmarks/capture.json]

The candidates run in turns in one process, and medians are compared. Memory is the peak of torch's
allocations, which is the same every time. The peer is transformers' LlamaForCausalLM with our
weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from timing import in_turns, keep
from torch import Tensor
from transformers.models.llama import modeling_llama

from glassformer.kernels.pattern import CAUSAL
from glassformer.layers import attention
from glassformer.layers.attention import Attended, attend
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.cost import peak_bytes
from glassformer.observe.exact_attention import exact_rows

HERE = Path(__file__).parent
VOCAB = 1000
LAYERS = 2
HIDDEN = 256
FF = 704
HEADS = 4
KV_HEADS = 2
MIB = 2**20


def decoder(max_seq_len: int) -> Decoder:
    """A small Llama: grouped queries, rotary positions, RMS norms, SwiGLU."""
    torch.manual_seed(0)
    config = DecoderConfig(
        VOCAB,
        LAYERS,
        HIDDEN,
        FF,
        HEADS,
        HIDDEN // HEADS,
        KV_HEADS,
        max_seq_len=max_seq_len,
        norm_eps=1e-6,
    )
    return Decoder(config).eval()


@torch.no_grad()
def peer(model: Any) -> Any:
    """transformers' Llama with the weights of ours, and eager attention."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FF,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=model.config.max_seq_len,
        use_cache=False,
    )
    hf_model = transformers.LlamaForCausalLM(config).eval()
    hf_model.set_attn_implementation("eager")
    pairs = [
        (hf_model.model.embed_tokens, model.embedding),
        (hf_model.model.norm, model.final_norm),
        (hf_model.lm_head, model.output),
    ]
    for hf_layer, layer in zip(hf_model.model.layers, model.layers, strict=True):
        pairs += [
            (hf_layer.input_layernorm, layer.attention_norm),
            (hf_layer.post_attention_layernorm, layer.ffn_norm),
        ]
        pairs += [
            (getattr(hf_layer.mlp, f"{name}_proj"), getattr(layer.ffn, name))
            for name in ("gate", "up", "down")
        ]
        names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
        pairs += [
            (getattr(hf_layer.self_attn, name), getattr(layer.attention, mine))
            for name, mine in names.items()
        ]
    for hf_module, module in pairs:
        hf_module.weight.copy_(module.weight)
    return hf_model


@torch.no_grad()
def not_watching(rounds: int) -> dict[str, Any]:
    """A pass of a few tokens, where overhead would show most, before and after a capture."""
    untouched = decoder(64)
    watched = decoder(64)
    tokens = torch.randint(VOCAB, (1, 16))
    with capture(watched):
        watched(tokens)
    runs = {"never watched": lambda: untouched(tokens), "watched before": lambda: watched(tokens)}
    seconds = in_turns(runs, 20 * rounds, 10)
    question = (
        timeit.timeit(
            lambda: not torch.compiler.is_compiling() and attention.is_observed(), number=100_000
        )
        / 100_000
    )
    share = seconds["watched before"] / seconds["never watched"] - 1
    return {
        "seconds": seconds,
        "added": share,
        "the question alone": LAYERS * question / seconds["never watched"],
    }


@torch.no_grad()
def last_queries(rounds: int) -> dict[str, Any]:
    """One head's last 16 queries on 8,192 tokens."""
    model = decoder(8192)
    tokens = torch.randint(VOCAB, (1, 8192))

    def watched() -> None:
        with capture(model, layers=-1, heads=1, queries=slice(-16, None)):
            model(tokens)

    q = torch.randn(1, HEADS, 8192, HIDDEN // HEADS)
    k = torch.randn(1, KV_HEADS, 8192, HIDDEN // HEADS)
    inputs = Attended(q, k, k, 0.1, CAUSAL)
    rows = (
        timeit.timeit(lambda: exact_rows(inputs, (1,), range(8176, 8192), ("weights",)), number=50)
        / 50
    )
    runs: dict[str, Callable[[], object]] = {"plain": lambda: model(tokens), "watched": watched}
    seconds = in_turns(runs, rounds)
    ratios = []
    for _ in range(rounds):
        spent = []
        for run in runs.values():
            start = time.process_time()
            run()
            spent.append(time.process_time() - start)
        ratios.append(spent[1] / spent[0])
    memory = {name: peak_bytes(run) for name, run in runs.items()}
    return {
        "seconds": seconds,
        "added": seconds["watched"] / seconds["plain"] - 1,
        "added processor time": statistics.median(ratios) - 1,
        "the rows alone": rows / seconds["plain"],
        "added_mib": (memory["watched"] - memory["plain"]) / MIB,
    }


@torch.no_grad()
def one_layer(rounds: int) -> dict[str, Any]:
    """All heads of one layer on 2,048 tokens: the attention alone, and the whole forward pass."""
    model = decoder(2048)
    tokens = torch.randint(VOCAB, (1, 2048))
    hf_model = peer(model)
    q, k, v = (
        torch.randn(1, heads, 2048, HIDDEN // HEADS) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    scale = q.shape[3] ** -0.5
    mask = torch.full((2048, 2048), torch.finfo(torch.float32).min).triu(1)[None, None]

    def ours() -> tuple[Tensor, Tensor | None]:
        return attend(q, k, v, CAUSAL), exact_rows(
            Attended(q, k, v, scale, CAUSAL), range(HEADS), range(2048), ("weights",)
        ).weights

    def eager() -> tuple[Tensor, Tensor]:
        return modeling_llama.eager_attention_forward(
            hf_model.model.layers[0].self_attn, q, k, v, mask, scale
        )

    def watched() -> tuple[Tensor, Tensor]:
        with capture(model, layers=-1) as seen:
            logits = model(tokens)
        return logits, seen.records[0].values

    def eager_run() -> tuple[Tensor, Tensor]:
        out = hf_model(tokens, output_attentions=True)
        return out.logits, out.attentions[-1]

    def adapted() -> tuple[Tensor, Tensor]:
        hf_model.set_attn_implementation("sdpa")
        with capture(hf_model, layers=-1) as seen:
            logits = hf_model(tokens).logits
        hf_model.set_attn_implementation("eager")
        return logits, seen.records[0].values

    first = watched()
    second = eager_run()
    third = adapted()
    return {
        "attention_seconds": in_turns({"glassformer": ours, "eager": eager}, 3 * rounds),
        "run_seconds": in_turns(
            {"glassformer": watched, "eager": eager_run, "transformers, watched": adapted},
            3 * rounds,
        ),
        "difference_of_weights": max(
            float((second[1] - result[1]).abs().max()) for result in (first, third)
        ),
        "difference_of_logits": max(
            float((second[0] - result[0]).abs().max()) for result in (first, third)
        ),
    }


def main() -> None:
    """Measure everything, print it, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="the name of one part, which is printed and not written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "capture.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {}
    for measure in (not_watching, last_queries, one_layer):
        if arguments.only not in (None, measure.__name__):
            continue
        results[measure.__name__] = measure(arguments.rounds)
        print(measure.__name__, json.dumps(results[measure.__name__], indent=2), flush=True)
    if arguments.only is not None:
        return
    keep(results, arguments.out)


if __name__ == "__main__":
    main()
