"""Speed of a dense decoder beside Llama of transformers, litgpt and a GPT-2 form.

    python benchmarks/dense.py [--rounds 3] [--out benchmarks/dense.json]

Llama and litgpt have our weights. GPT-2 of transformers, which is nanoGPT's form (LayerNorm, GELU,
learned positions), has about as many weights of its own. litgpt takes part where it can be
imported: ``pip install --no-deps litgpt lightning lightning-utilities torchmetrics``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from contestants import CONFIG, MAX_SEQ_LEN, VOCAB, Contestant, ours, theirs
from run import _inference, _row, _training_step
from timing import each_turn, keep
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from glassformer.models import Decoder

HERE = Path(__file__).parent
_LLAMA = {
    "attention.output": "self_attn.o_proj",
    "embedding.": "model.embed_tokens.",
    "final_norm.": "model.norm.",
    "output.weight": "lm_head.weight",
    "layers.": "model.layers.",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_LITGPT = {
    "attention.output": "attn.proj",
    "embedding.": "transformer.wte.",
    "final_norm.": "transformer.ln_f.",
    "output.weight": "lm_head.weight",
    "layers.": "transformer.h.",
    "attention_norm": "norm_1",
    "ffn_norm": "norm_2",
    "ffn.gate": "mlp.fc_1",
    "ffn.up": "mlp.fc_2",
    "ffn.down": "mlp.proj",
}


def contestants() -> list[Contestant]:
    """Ours first, then all that can be imported."""
    torch.manual_seed(0)
    decoder = Decoder(CONFIG).eval()
    entries = [
        ours("glassformer", decoder),
        theirs("Llama", _llama(decoder)),
        theirs("GPT-2", _gpt2()),
    ]
    try:
        entries.append(_litgpt(decoder))
    except ImportError as error:
        print(f"litgpt is left out: {error}")
    return entries


def _named(decoder: Decoder, names: dict[str, str]) -> dict[str, Tensor]:
    """Our weights under other names."""
    tensors = {}
    for name, tensor in decoder.state_dict().items():
        for our_name, their_name in names.items():
            name = name.replace(our_name, their_name)
        tensors[name] = tensor
    return tensors


def _llama(decoder: Decoder) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=CONFIG.hidden_dim,
        intermediate_size=CONFIG.ff_dim,
        num_hidden_layers=CONFIG.num_layers,
        num_attention_heads=CONFIG.num_heads,
        num_key_value_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        max_position_embeddings=MAX_SEQ_LEN,
        rms_norm_eps=CONFIG.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG.rope_base},
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(_named(decoder, _LLAMA))
    return model


def _gpt2() -> GPT2LMHeadModel:
    """Two matrices of 3 / 2 the width for our three."""
    width = CONFIG.hidden_dim
    sizes = {
        "n_embd": width,
        "n_layer": CONFIG.num_layers,
        "n_head": CONFIG.num_heads,
        "n_inner": 3 * CONFIG.ff_dim // 2,
    }
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=MAX_SEQ_LEN, bos_token_id=0, eos_token_id=0, **sizes
    )
    return GPT2LMHeadModel(config).eval()


def _litgpt(decoder: Decoder) -> Contestant:
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        n_layer=CONFIG.num_layers,
        n_embd=CONFIG.hidden_dim,
        n_head=CONFIG.num_heads,
        n_query_groups=CONFIG.num_kv_heads,
        head_size=CONFIG.head_dim,
        vocab_size=VOCAB,
        padded_vocab_size=VOCAB,
        block_size=MAX_SEQ_LEN,
        intermediate_size=CONFIG.ff_dim,
        rotary_percentage=1.0,
        rope_base=int(CONFIG.rope_base),
        norm_class_name="RMSNorm",
        norm_eps=CONFIG.norm_eps,
        mlp_class_name="LLaMAMLP",
        parallel_residual=False,
        bias=False,
    )
    model = GPT(config).eval()
    tensors = _named(decoder, _LITGPT)
    for layer in range(CONFIG.num_layers):
        parts = [
            tensors.pop(f"transformer.h.{layer}.attention.{part}.weight")
            for part in ("query", "key", "value")
        ]
        tensors[f"transformer.h.{layer}.attn.qkv.weight"] = torch.cat(parts)
    model.load_state_dict(tensors)

    def read(tokens: Tensor, start: int) -> Tensor:
        end = start + tokens.shape[1]
        return model(tokens, input_pos=torch.arange(start, end), input_pos_maxp1=end)

    def prefill(tokens: Tensor) -> Tensor:
        model.set_kv_cache(*tokens.shape, dtype=model.lm_head.weight.dtype)
        logits = read(tokens, 0)
        model.clear_kv_cache()
        return logits

    def decode(tokens: Tensor, new: int) -> None:
        batch, length = tokens.shape
        model.set_kv_cache(batch, length + new, dtype=model.lm_head.weight.dtype)
        newest = read(tokens, 0)[:, -1:].argmax(-1)
        for position in range(length, length + new - 1):
            newest = read(newest, position)[:, -1:].argmax(-1)
        model.clear_kv_cache()

    return Contestant("litgpt", model, model, prefill, decode)


def compare(rounds: int) -> dict[str, Any]:
    """All rows, and how far apart the logits of same-weight models are."""
    everyone = contestants()
    rows = []
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randint(3, VOCAB, shape, generator=generator)

    tokens = draw(2, 512)
    with torch.no_grad():
        difference = {
            contestant.name: float(
                (everyone[0].logits(tokens) - contestant.logits(tokens)).abs().max()
            )
            for contestant in everyone
            if contestant.name not in ("glassformer", "GPT-2")
        }
    print(f"largest differences of logits, float32: {difference}")
    training = draw(64, 8, 257)
    long = draw(1, 2048)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for contestant in everyone:
            contestant.model.to(dtype)
        steps = {contestant.name: _training_step(contestant, training) for contestant in everyone}
        rows.append(_row("training step, 8 x 256", name, each_turn(steps, rounds)))
        prefill = {
            contestant.name: _inference(lambda e=contestant: e.prefill(long), contestant)
            for contestant in everyone
        }
        rows.append(_row("prefill of 2,048", name, each_turn(prefill, rounds)))
        for batch in (1, 8):
            prompt = draw(batch, 64)
            decode = {
                contestant.name: _inference(
                    lambda e=contestant, p=prompt: e.decode(p, 64), contestant
                )
                for contestant in everyone
            }
            rows.append(
                _row(f"decode, batch {batch}, a token", name, each_turn(decode, rounds), per=64)
            )
    return {"rows": rows, "largest_difference_of_logits": difference}


def main() -> None:
    """Measure everything, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "dense.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep(compare(arguments.rounds), arguments.out)


if __name__ == "__main__":
    main()
