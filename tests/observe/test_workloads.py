"""The seven workloads of nnbench on transformers' models, against plain hooks that know nothing of
this library.

``python tests/observe/test_workloads.py`` prints the largest differences as the table of
docs/reference/sites.md. One that changes the model must change its answer: the effect is asserted,
and an edit that does nothing fails.

Source: ndif-team, "nnbench", the list of workloads and the idea of an effect-size guard.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain import replaced
from torch import Tensor, nn

from glassformer.generation import generate
from glassformer.models import Decoder
from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, add, patch, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import logit_lens
from glassformer.observe.sweep import attribution_sweep
from transformers_models import (
    WIDTHS,
    exact,
    gpt2,
    gpt_oss,
    llama,
    logits_of,
    mixtral,
    transformers,
)

NEAR = {torch.float32: 5e-5, torch.float64: 1e-10}
SPREAD = {"initializer_range": 0.25}
"""So that every part matters in an untrained model."""
STEPS = 6


@dataclass(frozen=True)
class Pair:
    """A model with plain hooks, and the one that the library changes: the same, or its twin of this
    library.
    """

    theirs: Any
    ours: Any
    blocks: Sequence[Any]
    norm: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    clean: Tensor
    corrupted: Tensor

    stream: Tensor
    """After the first block, of the clean texts."""
    steering: Tensor
    """A vector of six times its length."""


def bert_for_words(**changes: Any) -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=50, **WIDTHS, **changes)
    ).eval()


MAKERS: dict[str, Callable[..., nn.Module]] = {
    "GPT-2": gpt2,
    "Llama": llama,
    "Mixtral": mixtral,
    "BERT": bert_for_words,
    "GptOss": gpt_oss,
    "GptOss as Decoder": gpt_oss,
}


def made(name: str, dtype: torch.dtype) -> Pair:
    torch.manual_seed(0)
    model: Any = MAKERS[name](**SPREAD)
    length = 200 if "GptOss" in name else 12
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
    ours = model = model.to(dtype)
    if "Decoder" in name:
        with tempfile.TemporaryDirectory() as directory:
            model.float().save_pretrained(directory)
            ours = Decoder.from_pretrained(directory, dtype=torch.float32).to(dtype).eval()
        model = model.to(dtype)
    if dtype == torch.float64:
        exact(model)
    clean = torch.randint(2, 50, (2, length))
    corrupted = clean.clone()
    corrupted[:, length // 2] = (clean[:, length // 2] + 7) % 48 + 2
    if name == "BERT":
        blocks = model.bert.encoder.layer
        norm = nn.Identity()
        head = model.cls
    else:
        body = model.transformer if name == "GPT-2" else model.model
        blocks, norm = (body.h, body.ln_f) if name == "GPT-2" else (body.layers, body.norm)
        head = model.lm_head
    with noted(blocks[:1]) as found, torch.no_grad():
        model(clean)
    direction = F.normalize(torch.randn(found[0].shape[-1]), dim=0).to(dtype)
    steering = 6 * found[0].norm(dim=-1).mean() * direction
    return Pair(model, ours, blocks, norm, head, clean, corrupted, found[0], steering)


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def noted(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """The outputs of some modules, as part of the graph."""
    found: list[Tensor] = []
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(
                module.register_forward_hook(lambda _, __, output: found.append(first(output)))
            )
        yield found


def moved(nothing: Tensor, answer: Tensor) -> float:
    """The mean total variation between two distributions over the last axis."""
    return float((nothing - answer).abs().sum(-1).mean() / 2)


Answers = tuple[Tensor, Tensor, float]
"""Ours, theirs, and the size of the effect: 0 if the workload did nothing."""


@torch.no_grad()
def lens(pair: Pair) -> Answers:
    with noted(pair.blocks) as found:
        final = logits_of(pair.theirs, pair.clean)
    theirs = torch.stack([pair.head(pair.norm(each)) for each in found])
    if "Bert" in type(pair.ours).__name__:  # a post-norm model: the head reads each stream as it is
        with capture(pair.ours, what="residual") as seen:
            pair.ours(pair.clean)
        ours = torch.stack([pair.head(record.values) for record in seen.records])
    else:
        ours = logit_lens(pair.ours, pair.clean)[1:]
    return ours, theirs, moved(final.softmax(-1), theirs[0].softmax(-1))


@torch.no_grad()
def edited(
    pair: Pair, module: nn.Module, function: Callable[[Tensor], Tensor], edit: Edit
) -> Answers:
    with replaced(module, False, function):
        theirs = logits_of(pair.theirs, pair.clean)
    with intervene(pair.ours, edit):
        ours = logits_of(pair.ours, pair.clean)
    return ours, theirs, moved(logits_of(pair.theirs, pair.clean).softmax(-1), theirs.softmax(-1))


def steering(pair: Pair) -> Answers:
    return edited(pair, pair.blocks[0], pair.steering.add, add("residual", pair.steering, layers=0))


@torch.no_grad()
def patching(pair: Pair) -> Answers:
    place = pair.clean.shape[1] // 2

    def transplanted(values: Tensor) -> Tensor:
        return torch.cat(
            [values[:, :place], pair.stream[:, place : place + 1], values[:, place + 1 :]], 1
        )

    with replaced(pair.blocks[0], False, transplanted):
        theirs = logits_of(pair.theirs, pair.corrupted)
    with capture(pair.ours, what="residual", layers=0) as seen:
        pair.ours(pair.clean)
    with intervene(pair.ours, patch("residual", seen, layers=0, queries=place)):
        ours = logits_of(pair.ours, pair.corrupted)
    nothing = logits_of(pair.theirs, pair.corrupted)
    return (
        ours[:, place],
        theirs[:, place],
        moved(nothing[:, place].softmax(-1), theirs[:, place].softmax(-1)),
    )


def ablation(pair: Pair) -> Answers:
    block = pair.blocks[0]
    ffn = block.output.dense if hasattr(block, "intermediate") else block.mlp
    return edited(pair, ffn, torch.zeros_like, zero("ffn", layers=0))


@torch.no_grad()
def pattern(pair: Pair) -> Answers:
    kept = pair.theirs.config._attn_implementation
    pair.theirs.set_attn_implementation("eager")
    with wide_softmax():
        theirs = torch.stack(pair.theirs(pair.clean, output_attentions=True).attentions)
    pair.theirs.set_attn_implementation(kept)
    with capture(pair.ours, what="weights") as seen:
        pair.ours(pair.clean)
    uniform = (theirs > 0) / (theirs > 0).sum(-1, keepdim=True)
    return torch.stack(list(seen.weights.values())), theirs, moved(uniform, theirs)


def attribution(pair: Pair) -> Answers:
    def metric(given: Tensor) -> Tensor:
        return given[:, -1, 3] - given[:, -1, 5]

    with noted(pair.blocks) as clean, torch.no_grad():
        pair.theirs(pair.clean)
    with noted(pair.blocks) as corrupted:
        value = metric(logits_of(pair.theirs, pair.corrupted)).mean()
    gradients = torch.autograd.grad(value, corrupted)
    theirs = torch.stack(
        [((a - b) * g).sum((0, 2)) for a, b, g in zip(clean, corrupted, gradients, strict=True)]
    ).detach()
    found = attribution_sweep(pair.ours, pair.clean, pair.corrupted, metric, site="residual")
    return found.values - found.corrupted, theirs, float(theirs.abs().max())


@torch.no_grad()
def generation(pair: Pair) -> Answers:
    options: dict[str, Any] = {
        "max_new_tokens": STEPS,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
    }

    def steps(model: Any) -> tuple[Tensor, list[list[int]]]:
        """Their logits, which generate() itself rounds to float32, and the tokens."""
        with noted([model.get_output_embeddings()]) as found:
            written = model.generate(pair.clean, **options)
        return torch.cat([each[:, -1:] for each in found], 1), written[
            :, pair.clean.shape[1] :
        ].tolist()

    with replaced(pair.blocks[0], False, lambda values: values + pair.steering):
        theirs, expected = steps(pair.theirs)
    with intervene(pair.ours, add("residual", pair.steering, layers=0)):
        if isinstance(pair.ours, Decoder):
            with noted([pair.ours.output]) as found:
                written = generate(pair.ours, pair.clean, STEPS)
            ours = torch.cat(found, 1)
        else:
            ours, written = steps(pair.ours)
    assert written == expected or not torch.allclose(ours, theirs)
    return ours, theirs, moved(steps(pair.theirs)[0].softmax(-1), theirs.softmax(-1))


@contextmanager
def wide_softmax() -> Iterator[None]:
    """Eager attention with its softmax in the dtype of the scores, not in float32."""
    softmax = F.softmax
    F.softmax = lambda values, dim=-1, dtype=None: softmax(values, dim=dim)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.softmax = softmax


WORKLOADS: dict[str, Callable[[Pair], Answers]] = {
    "logit lens": lens,
    "steering": steering,
    "activation patching": patching,
    "ablation": ablation,
    "attention pattern": pattern,
    "attribution patching": attribution,
    "steered generation": generation,
}
CHANGES = ("steering", "activation patching", "ablation", "steered generation")
CELLS = [
    (shape, workload)
    for shape in MAKERS
    for workload in WORKLOADS
    if (shape, workload[:7]) != ("BERT", "steered")
]


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize(("shape", "workload"), CELLS)
def test_workloads_are_those_of_plain_hooks(shape: str, workload: str, dtype: torch.dtype) -> None:
    ours, theirs, effect = WORKLOADS[workload](made(shape, dtype))
    assert effect > 0.1
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= NEAR[dtype]


@pytest.mark.parametrize(("shape", "workload"), [cell for cell in CELLS if cell[1] in CHANGES])
def test_an_edit_that_does_nothing_fails(
    shape: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "intervene", lambda *_: nullcontext())
    ours, theirs, _ = WORKLOADS[workload](made(shape, torch.float32))
    assert float((ours - theirs).abs().max()) > 1000 * NEAR[torch.float32]


def table() -> str:
    """As Markdown: the largest differences in float32 and float64, and the effect in brackets."""
    lines = ["| workload | " + " | ".join(MAKERS) + " |", "|---" * (len(MAKERS) + 1) + "|"]
    for workload, compute in WORKLOADS.items():
        cells = []
        for shape in MAKERS:
            if (shape, workload) in CELLS:
                found = [compute(made(shape, dtype)) for dtype in NEAR]
                sizes = [float((ours - theirs).abs().max()) for ours, theirs, _ in found]
                cells.append(
                    f"{sizes[0]:.0e}, {sizes[1]:.0e} ({found[0][2]:.2f})".replace("0e+00", "0")
                )
            else:
                cells.append("–")
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
