"""``glassformer capture``: print or save what a language model computes on a text."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from glassformer.cli import writing
from glassformer.cli.flags import CaptureFlags
from glassformer.cli.terminal import say, text_or_input
from glassformer.errors import InputError
from glassformer.files import any_file, new_file, no_file
from glassformer.generation.language_model import LanguageModel, load
from glassformer.observe.capture import capture
from glassformer.observe.hook_points import select
from glassformer.observe.lens import direct_logits, logit_lens

Arrays = dict[str, np.ndarray]
_LENS = 3
"""Tokens of each layer in the table of the lens."""


@torch.no_grad()
def main(flags: CaptureFlags) -> int:
    """Print the table, and write the arrays if asked for."""
    text = text_or_input(flags.text)
    lm = load(flags.model, device=flags.device, tokenizer=flags.tokenizer)
    tokens = lm.tokens(text)
    (query,) = select("--position", flags.position, tokens.shape[1])
    if flags.layer is not None:
        select("--layer", flags.layer, lm.model.config.num_layers)
    if flags.head is not None:
        select("--head", flags.head, lm.model.config.num_heads)
    lines, arrays = _TABLES[flags.what](lm, tokens, query, flags)
    for line in lines:
        say(line)
    if flags.save is not None:
        arrays |= {"tokens": tokens[0].cpu().numpy()}
        _write(flags.save, arrays, lm.strings(tokens), flags.overwrite)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        say(f"{flags.save}: {shapes}"[:200])
    return 0


def _weights(
    lm: LanguageModel, tokens: torch.Tensor, query: int, flags: CaptureFlags
) -> tuple[list[str], Arrays]:
    """Return the largest attention weights of the position.

    With several heads, weights on the first token are left out, unless it is the position itself.
    """
    # Files hold all queries, the table one.
    if flags.save is not None:
        queries = None
        row = query
    else:
        queries = query
        row = 0
    with capture(lm.model, layers=flags.layer, heads=flags.head, queries=queries) as seen:
        lm.model(tokens)
    strings = lm.labels(tokens)
    first_key_counts = query == 0 or (flags.layer is not None and flags.head is not None)
    candidates = []
    for record in seen.records:
        heads = record.heads or range(record.values.shape[1])
        head_weights = record.values[0, :, row].float().cpu().tolist()
        for head, weights in zip(heads, head_weights, strict=True):
            for key, weight in enumerate(weights):
                if key > 0 or first_key_counts:
                    candidates.append((weight, f"{record.layer}.{head}", key))
    ranked = sorted(candidates, reverse=True)[: flags.top]
    lines = [f"{strings[query]!r}, token {query}, reads", f"  {'head':>6}  {'weight':>7}  token"]
    lines += [
        f"  {head:>6}  {weight:>7.4f}  {key} {strings[key]!r}" for weight, head, key in ranked
    ]
    if not first_key_counts:
        lines.append(
            "  without the first token, on which most heads rest; --layer and --head show one "
            "head whole"
        )
    return lines, {name: array[0] for name, array in seen.numpy("weights").items()}


def _lens(
    lm: LanguageModel, tokens: torch.Tensor, query: int, flags: CaptureFlags
) -> tuple[list[str], Arrays]:
    """Return the next token after each layer, by the logit lens."""
    if flags.head is not None:
        raise InputError(
            got="--head for the lens",
            expected="layers",
            fix="Leave --head out.",
        )
    logits = logit_lens(lm.model, tokens, queries=query)[:, 0, 0].float().cpu()
    stages = range(len(logits))
    if flags.layer is not None:
        (layer,) = select("--layer", flags.layer, len(logits) - 1)
        stages = range(layer + 1, layer + 2)
    lines = [f"{lm.labels(tokens)[query]!r}, token {query}: the next token after each layer"]
    for stage in stages:
        best = logits[stage].softmax(-1).topk(_LENS)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        words = [f"{lm.strings([token])[0]!r} {share:.1%}" for share, token in pairs]
        name = "embedding" if stage == 0 else f"layer {stage - 1}"
        lines.append(f"  {name:>10}  {', '.join(words)}")
    return lines, {"lens": logits[stages.start : stages.stop].numpy()}


def _heads(
    lm: LanguageModel, tokens: torch.Tensor, query: int, flags: CaptureFlags
) -> tuple[list[str], Arrays]:
    """Return the parts of the most likely next token's logit: direct logit attribution."""
    if flags.layer is not None or flags.head is not None:
        raise InputError(
            got="--layer or --head",
            expected="all heads",
            fix="Leave them out.",
        )
    best = int(lm.model(tokens[:, : query + 1])[0, -1].argmax())
    parts = direct_logits(lm.model, tokens, best, query=query)
    lines = [
        f"the logit of {lm.strings([best])[0]!r} is {parts.total.item():.3f}; the parts that add "
        "most to it:"
    ]
    lines += [f"  {value:>+8.3f}  {name}" for name, value in parts.top(flags.top)]
    return lines, {
        "parts": parts.values[:, 0].float().cpu().numpy(),
        "names": np.array(parts.names),
    }


_TABLES: dict[
    str, Callable[[LanguageModel, torch.Tensor, int, CaptureFlags], tuple[list[str], Arrays]]
] = {
    "weights": _weights,
    "lens": _lens,
    "heads": _heads,
}


def _write(path: Path, arrays: Arrays, strings: Sequence[str], overwrite: bool) -> None:
    """Write an .npz with the strings as an array, or safetensors with them as JSON metadata."""
    texts = {name: array.tolist() for name, array in arrays.items() if array.dtype.kind == "U"}
    texts["strings"] = list(strings)
    numbers = {
        name: np.ascontiguousarray(array) for name, array in arrays.items() if name not in texts
    }
    with writing(path), new_file(path, replaces=any_file if overwrite else no_file) as draft:
        if path.suffix == ".safetensors":
            metadata = {name: json.dumps(words) for name, words in texts.items()}
            save_file(numbers, draft, metadata=metadata)
        else:
            text_arrays = {name: np.array(words) for name, words in texts.items()}
            with draft.open("wb") as file:
                np.savez(file, **numbers, **text_arrays)  # type: ignore[arg-type]
