"""Tasks of a study of a real model beside TransformerLens: seconds and answers of both.

    pip install "transformer-lens>=4.3"          (the peer; in an environment of its own)
    python benchmarks/interpretability.py [--model FOLDER OR NAME] [--rounds 3] [--tasks heads lens]

One process and one thread, CPU seconds. TransformerLens receives a copy of the weights. Where it
runs the model once for each place, it runs some, from which its seconds are scaled. Results of
tasks that are not run stay in the file.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import pandas
import torch
from timing import keep
from torch import Tensor
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer

from glassformer.observe.capture import capture
from glassformer.observe.cost import peak_bytes
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import add, forbid
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch
from glassformer.observe.sweep import ablation_sweep, attribution_sweep, patch_sweep

HERE = Path(__file__).parent
MIB = 2**20
NAMES = (("Mary", "John"), ("Tom", "James"), ("Anna", "Paul"), ("Sarah", "David"))
TEMPLATES = (
    "When {a} and {b} went to the store, {s} gave a drink to",
    "After {a} and {b} sat down for lunch, {s} handed the salt to",
)
LAYERS = (3, 9, 15, 21, 27)
"""The layers of sweeps."""
Task = tuple[Callable[[], Any], Callable[[], Any], float]
"""Ours; TransformerLens's; the share of the places that it runs."""


class Study:
    """Both models, and prompts such as "Mary and John ... John gave a drink to" (Mary)."""

    def __init__(self, name: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
        self.peer: Any = TransformerBridge.boot_transformers(
            name, hf_model=copy.deepcopy(self.model), tokenizer=self.tokenizer
        )
        clean = []
        flipped = []
        others = []
        right = []
        wrong = []
        for template, (number, (io, s)) in product(TEMPLATES, enumerate(NAMES)):
            for a, b in ((io, s), (s, io)):
                third = ("Emma", "Peter", "Alice", "Lisa")[number]
                texts = (template.format(a=a, b=b, s=subject) for subject in (s, io, third))
                ids = [self.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
                clean.append(ids[0]), flipped.append(ids[1]), others.append(ids[2])
                first = (
                    self.tokenizer(f" {person}", add_special_tokens=False).input_ids[0]
                    for person in (io, s)
                )
                right.append(next(first)), wrong.append(next(first))
        self.clean, self.flipped, self.others = map(torch.tensor, (clean, flipped, others))
        self.right = torch.tensor(right)
        self.wrong = torch.tensor(wrong)
        self.long = torch.randint(1000, 20000, (1, 256), generator=torch.Generator().manual_seed(0))

    def metric(self, logits: Tensor) -> Tensor:
        """The mean difference of the two names' last logits, of as many texts as there are."""
        rows = torch.arange(len(logits))
        last = logits[:, -1]
        return (last[rows, self.right[: len(rows)]] - last[rows, self.wrong[: len(rows)]]).mean()

    def hooked(self, tokens: Tensor, hooks: Any) -> Tensor:
        """The peer's logits with hooks."""
        with torch.no_grad():
            return self.peer.run_with_hooks(tokens, fwd_hooks=hooks)

    def cache(self, tokens: Tensor, *names: str) -> Any:
        """The peer's activations whose names end so."""
        return self.peer.run_with_cache(tokens, names_filter=lambda name: name.endswith(names))[1]


def tasks(study: Study) -> dict[str, Task]:
    """All tasks."""
    model = study.model
    peer = study.peer
    clean = study.clean
    flipped = study.flipped
    metric = study.metric
    z = "attn.hook_z"
    four = clean[:8:2]
    four_flipped = flipped[:8:2]
    places = [(layer, head) for layer in LAYERS for head in range(9)]
    few = places[::9]  # one head of each layer

    def places_of(axes: tuple[str, str], some: Sequence[tuple[int, int]]) -> pandas.DataFrame:
        return pandas.DataFrame(list(some), columns=list(axes))

    def peers_patch(function: Any, names: str, axes: tuple[str, str], some: Any) -> Tensor:
        with torch.no_grad():
            cache = study.cache(clean, names)
            return function(
                peer, flipped, cache, metric, index_axis_names=None, index_df=places_of(axes, some)
            )

    def ours_at(sweep: Any, some: Sequence[tuple[int, int]]) -> Tensor:
        return torch.stack([sweep.values[LAYERS.index(layer), at] for layer, at in some])

    def ablated(layer: int, head: int, value: Tensor | float) -> Tensor:
        def edit(values: Tensor, hook: Any) -> Tensor:
            values = values.clone()
            values[:, :, head] = value
            return values

        return metric(study.hooked(clean, [(f"blocks.{layer}.{z}", edit)]))

    def peers_means() -> Tensor:
        means = study.cache(study.others, "hook_z")
        return torch.stack(
            [ablated(*at, means[f"blocks.{at[0]}.{z}"].mean(0)[:, at[1]]) for at in few]
        )

    def peers_parts() -> Tensor:
        with torch.no_grad():
            _, cache = peer.run_with_cache(four)
            norm = peer.original_model.model.norm
            output = peer.original_model.lm_head.weight * norm.weight
            direction = output[study.right[:8:2]] - output[study.wrong[:8:2]]
            stream = cache["resid_post", 29][:, -1]
            scale = (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
            parts = []
            for layer in range(30):
                weight = peer.original_model.model.layers[layer].self_attn.o_proj.weight.unflatten(
                    1, (9, 64)
                )
                heads = torch.einsum(
                    "bhd,ohd->hbo",
                    cache[f"blocks.{layer}.{z}"][:, -1].unflatten(-1, (9, -1))
                    if cache[f"blocks.{layer}.{z}"].dim() == 3
                    else cache[f"blocks.{layer}.{z}"][:, -1],
                    weight,
                )
                parts.append((heads * scale * direction).sum(-1))
            return torch.stack(parts)

    def ours_parts() -> Tensor:
        parts = direct_logits(model, four, study.right[:8:2], study.wrong[:8:2])
        by_name = dict(zip(parts.names, parts.values, strict=True))
        return torch.stack(
            [
                torch.stack([by_name[f"layer {layer} head {head}"] for head in range(9)])
                for layer in range(30)
            ]
        )

    senders = ((17, 4), (19, 2), (20, 0), (16, 0))

    def metric_four(logits: Tensor) -> Tensor:
        rows = torch.arange(4)
        return (logits[rows, -1, study.right[:8:2]] - logits[rows, -1, study.wrong[:8:2]]).mean()

    def ours_paths() -> Tensor:
        inputs = model, four, four_flipped, metric_four
        return torch.stack(
            [
                path_patch(*inputs, Sender(*sender), Receiver(23, 3, "q")).values[0]
                for sender in senders
            ]
        )

    def peers_paths() -> Tensor:
        names = ("hook_z", "hook_mlp_out")
        flipped_cache = study.cache(four_flipped, *names)
        clean_cache = study.cache(four, "hook_z")
        effects = []
        for layer, head in senders:

            def frozen(
                values: Tensor, hook: Any, name: str, layer: int = layer, head: int = head
            ) -> Tensor:
                new = flipped_cache[name].clone()
                if name == f"blocks.{layer}.{z}":
                    new[:, :, head] = clean_cache[name][:, :, head]
                return new

            values_of_run: list[Tensor] = []
            hooks: Any = [(name, functools.partial(frozen, name=name)) for name in flipped_cache]
            hooks.append(
                (
                    "blocks.23.attn.hook_q",
                    lambda values, hook, values_of_run=values_of_run: values_of_run.append(
                        values[:, :, 3].clone()
                    ),
                )
            )
            study.hooked(four_flipped, hooks)

            def put(
                values: Tensor, hook: Any, values_of_run: list[Tensor] = values_of_run
            ) -> Tensor:
                values = values.clone()
                values[:, :, 3] = values_of_run[-1]
                return values

            effects.append(
                metric_four(study.hooked(four_flipped, [("blocks.23.attn.hook_q", put)]))
            )
        return torch.stack(effects)

    def keep_at(where: dict[str, Tensor], name: str, values: Any, hook: Any) -> None:
        where[name] = (values[0] if isinstance(values, tuple) else values).detach()

    def peers_attribution() -> Tensor:
        cleans = study.cache(four, "hook_z")
        values: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        with peer.hooks(
            fwd_hooks=[(name, functools.partial(keep_at, values, name)) for name in cleans],
            bwd_hooks=[(name, functools.partial(keep_at, gradients, name)) for name in cleans],
        ):
            metric_four(peer(four_flipped)).backward()
        peer.zero_grad()
        products = [(cleans[name] - values[name]) * gradients[name].detach() for name in cleans]
        return torch.stack([product.sum((0, 1, 3)) for product in products])

    repeated = repeated_tokens(49152, 50, 8)

    def peers_scores() -> Tensor:
        head_results: list[Tensor] = []

        def score(pattern: Tensor, hook: Any) -> None:
            induction = pattern.diagonal(-49, -2, -1)[..., 1:].mean((0, 2))
            previous = pattern.diagonal(-1, -2, -1).mean((0, 2))
            duplicate = pattern.diagonal(-50, -2, -1).mean((0, 2))
            head_results.append(torch.stack([induction, previous, duplicate]))

        study.hooked(repeated, [(lambda name: name.endswith("hook_pattern"), score)])
        return torch.stack(head_results, 1)[:, :, :]

    def ours_scores() -> Tensor:
        result = head_scores(model, repeated)
        return torch.stack([result.induction, result.previous, result.duplicate])

    def peers_lens() -> Tensor:
        with torch.no_grad():
            _, cache = peer.run_with_cache(four)
            return peer.unembed(peer.ln_final(cache.accumulated_resid(-1, pos_slice=-1)))

    def ours_weights() -> list[Tensor]:
        with torch.no_grad(), capture(model) as seen:
            model(study.long)
        return list(seen.weights.values())

    def peers_weights() -> list[Tensor]:
        with torch.no_grad():
            cache = study.cache(study.long, "hook_pattern")
        return [cache[name] for name in cache]

    def ours_forbidden() -> Tensor:
        with torch.no_grad(), intervene(model, forbid(keys=0, queries=slice(1, None))):
            return model(study.long).logits

    def no_first(scores: Tensor, hook: Any) -> Tensor:
        scores = scores.clone()
        scores[:, :, 1:, 0] = -torch.inf
        return scores

    vector = torch.randn(576, generator=torch.Generator().manual_seed(1)) * 0.5
    prompt = study.tokenizer("My day was", return_tensors="pt").input_ids

    def ours_steered() -> Tensor:
        with torch.no_grad(), intervene(model, add("residual", vector, layers=14)):
            return model.generate(prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)

    def peers_steered() -> Tensor:
        with peer.hooks(
            fwd_hooks=[("blocks.14.hook_resid_post", lambda values, hook: values + vector)]
        ):
            return peer.generate(
                prompt, max_new_tokens=30, do_sample=False, verbose=False, return_type="tokens"
            )

    positions = [(layer, at) for layer in LAYERS for at in range(14)]
    share = len(few) / len(places)
    few_positions = positions[::14]
    heads = patching.get_act_patch_attn_head_out_all_pos
    residual = patching.get_act_patch_resid_pre
    our_sweep = functools.partial(patch_sweep, model, clean, flipped, metric, layers=LAYERS)
    zeroed = functools.partial(ablation_sweep, model, clean, metric, layers=LAYERS)
    return {
        "heads": (
            lambda: ours_at(our_sweep(), few),
            lambda: peers_patch(heads, "hook_z", ("layer", "head"), few),
            share,
        ),
        "residual": (
            lambda: ours_at(our_sweep(site="residual_before"), few_positions),
            lambda: peers_patch(residual, "hook_resid_pre", ("layer", "pos"), few_positions),
            len(few_positions) / len(positions),
        ),
        "zero": (
            lambda: ours_at(zeroed(), few),
            lambda: torch.stack([ablated(*at, 0.0) for at in few]),
            share,
        ),
        "mean": (lambda: ours_at(zeroed(reference=study.others), few), peers_means, share),
        "parts": (ours_parts, peers_parts, 1),
        "paths": (ours_paths, peers_paths, 1),
        "attribution": (
            lambda: (lambda result: result.values - result.corrupted)(
                attribution_sweep(model, four, four_flipped, metric_four)
            ),
            peers_attribution,
            1,
        ),
        "scores": (ours_scores, peers_scores, 1),
        "lens": (lambda: logit_lens(model, four, queries=-1), peers_lens, 1),
        "steered": (ours_steered, peers_steered, 1),
        "weights": (ours_weights, peers_weights, 1),
        "forbidden": (
            ours_forbidden,
            lambda: study.hooked(
                study.long, [(lambda name: name.endswith("hook_attn_scores"), no_first)]
            ),
            1,
        ),
        "pass": (
            lambda: torch.no_grad()(model)(study.long).logits,
            lambda: torch.no_grad()(peer)(study.long),
            1,
        ),
    }


def main() -> None:
    """Measure the chosen tasks, print them, and add them to the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", help="those to run; all when left out")
    parser.add_argument("--out", type=Path, default=HERE / "interpretability.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(args.model)
    every = tasks(study)
    results = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    results.pop("versions", None)
    for name in args.tasks or [*every, "memory"]:
        if name == "memory":
            results[name] = memory(study)
        else:
            results[name] = compared(*every[name], rounds=args.rounds)
        print(name, results[name], flush=True)
    keep(results, args.out, transformer_lens=version("transformer-lens"))


def compared(
    our_task: Callable[[], Any], peers_task: Callable[[], Any], share: float, *, rounds: int
) -> dict[str, float]:
    """Seconds of both in turns, after one call of each."""
    our_task(), peers_task()
    spent: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        answers = []
        for run, seconds, scale in ((our_task, spent[0], 1.0), (peers_task, spent[1], share)):
            start = time.process_time()
            answers.append(run())
            seconds.append((time.process_time() - start) / scale)
        first, second = (
            torch.stack(answer) if isinstance(answer, list) else answer for answer in answers
        )
        difference = float((first.reshape(second.shape) - second).abs().max())
        del answers, first, second
    ratios = [theirs / ours for ours, theirs in zip(*spent, strict=True)]
    medians = {"ours": statistics.median(spent[0]), "transformer_lens": statistics.median(spent[1])}
    return {
        **medians,
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "difference": difference,
    }


def memory(study: Study) -> dict[str, float]:
    """Peak MiB of a sweep over a layer's heads, by ``batch_size``, and of the peer's cached run."""
    inputs = study.model, study.clean, study.flipped, study.metric
    sweep = functools.partial(patch_sweep, *inputs, layers=15)
    peaks = {
        f"batch_size={size}": peak_bytes(functools.partial(sweep, batch_size=size)) / MIB
        for size in (16, 48, 128)
    }
    return {
        **peaks,
        "transformer_lens": peak_bytes(lambda: study.cache(study.clean, "hook_z")) / MIB,
    }


if __name__ == "__main__":
    main()
