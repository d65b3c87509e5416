"""Train the bundled models of the explorer: ``python tools/train_bundled_models.py [NAME ...]``.

Each model is seeded, trained by the labs' own code in minutes, and measured on held-out data.
Weights and measurements are written to ``src/glassformer/explorer/bundled``. The weights are stored
in half precision, which keeps the wheel small, and measured as they are stored.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from glassformer.classifier import save_classifier
from glassformer.data.bayes import optimal_accuracy
from glassformer.data.examples import SentimentData, split_by_text
from glassformer.data.in_context_lookup import LookupConfig, sample
from glassformer.data.lookup import all_contexts
from glassformer.data.recurrence import RecurrenceConfig, fresh_batch
from glassformer.data.sentiment import reviews
from glassformer.explorer import BUNDLED
from glassformer.explorer.loading.bundled import INDUCTION, KEYS, RECURRENCE, VALUES
from glassformer.files import Written, new_directory, write_text
from glassformer.labs.lookup.experiments.course_runs import share_right, train_course
from glassformer.labs.sentiment.experiments.recipes import (
    ScratchRecipe,
    TrainingRecipe,
    train_recipe,
)
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene
from glassformer.training import Batch, TrainingConfig, mix_seed, train
from glassformer.training.in_context_lookup import (
    MEASURING_SEED,
    InContextRecipe,
    answers,
    train_in_context,
)
from glassformer.training.sequence_tasks import NextTokenTask

SEED = 0
LONG = 4096

SENTIMENT = ScratchRecipe(
    name="explorer's encoder",
    training=TrainingRecipe(30, 32, 1e-3, 0.1, word_dropout=0.4, label_smoothing=0.1),
    vocab_size=1400,
    model={
        "num_layers": 3,
        "hidden_dim": 48,
        "ff_dim": 96,
        "num_heads": 4,
        "max_seq_len": 128,
        "norm_first": True,
        "positions": "sinusoidal",
        "dropout": 0.2,
    },
)

FACTS = InContextRecipe(
    "explorer's facts",
    "slots",
    LookupConfig(
        num_keys=len(KEYS),
        num_values=len(VALUES),
        max_facts=24,
        missing=0.1,
        distinct_values=False,
    ),
    steps=4000,
    batch_size=128,
    hidden_dim=48,
    ff_dim=96,
)

DECODER = DecoderConfig(
    vocab_size=RECURRENCE.vocab_size,
    num_layers=4,
    hidden_dim=64,
    ff_dim=64,
    num_heads=4,
    head_dim=16,
    num_kv_heads=2,
    window=16,
    num_experts=4,
    top_k=2,
    balance_experts=True,
    sinks=True,
    max_seq_len=LONG,
)

ATTENTION_ONLY = DecoderConfig(
    vocab_size=INDUCTION.num_tokens,
    num_layers=2,
    hidden_dim=64,
    ff_dim=0,
    num_heads=4,
    head_dim=16,
    max_seq_len=INDUCTION.num_positions,
)
_LEARN = TrainingConfig(
    steps=300,
    batch_size=32,
    optimizer="muon",
    learning_rate=1e-2,
    muon_learning_rate=0.02,
    weight_decay=0.0,
    betas=(0.9, 0.98),
    schedule="constant",
    warmup_steps=50,
    keep_checkpoints=1,
    seed=SEED,
)
_CONCENTRATE = replace(
    _LEARN, steps=1800, optimizer="adamw", learning_rate=5e-3, schedule="cosine", eval_every=250
)

_SHORT = TrainingConfig(
    steps=1500,
    batch_size=64,
    optimizer="muon",
    learning_rate=1e-2,
    muon_learning_rate=0.02,
    weight_decay=0.0,
    betas=(0.9, 0.98),
    warmup_steps=50,
    eval_every=250,
    keep_checkpoints=1,
    seed=SEED,
)
_LENGTHS = {
    RECURRENCE.seq_len: _SHORT,
    256: replace(
        _SHORT,
        steps=300,
        batch_size=16,
        learning_rate=4e-3,
        muon_learning_rate=8e-3,
        eval_every=100,
    ),
    1024: replace(
        _SHORT, steps=200, batch_size=4, learning_rate=4e-3, muon_learning_rate=8e-3, eval_every=50
    ),
    LONG: replace(
        _SHORT, steps=200, batch_size=2, learning_rate=4e-3, muon_learning_rate=8e-3, eval_every=50
    ),
}
"""The training at one length after the other.

What was learned from short texts fails at long ones, and recovers in a few hundred steps at four
times the length.
"""


def make_sentiment(work: Path) -> None:
    """The sentiment lab's encoder, from scratch on four fifths of the project's own reviews."""
    train_on, validation, test = split_by_text(reviews(), seed=SEED)
    data = SentimentData(train_on, validation, test)
    classifier, _ = train_recipe(SENTIMENT, data, work, SEED)
    classifier.encoder.half().float()
    held_out = (*data.validation, *data.test)  # nothing was chosen on either
    likely = classifier.probabilities([example.text for example in held_out])
    right = [
        example.label == label
        for example, label in zip(held_out, likely.argmax(-1).tolist(), strict=True)
    ]
    plain = [example.kind == "plain" for example in held_out]
    sure = sorted(range(len(held_out)), key=lambda row: -float(likely[row].max()))
    measured = {
        "reviews": len(data.train),
        "held_out": len(held_out),
        "right": sum(right),
        "plain": sum(plain),
        "plain_right": sum(hit for hit, easy in zip(right, plain, strict=True) if easy),
        "samples": [
            *[held_out[row].text for row in sure if right[row] and plain[row]][:4],
            *[held_out[row].text for row in sure if not plain[row]][:2],
        ],
    }
    classifier.encoder.half()
    directory = BUNDLED / "sentiment"
    (directory / "measured.json").unlink(missing_ok=True)  # which is no part of a classifier
    save_classifier(classifier, directory)
    write_text(directory / "measured.json", json.dumps(measured, indent=1) + "\n")


def make_lookup_course(work: Path) -> None:
    """The lookup course's model with its own recipe, for fewer epochs: a few suffice."""
    model, _ = train_course(SEED, work, epochs=15)
    model.half().float()
    contexts = all_contexts()
    measured = {
        "contexts": len(contexts),
        "right": round(share_right(model, contexts) * len(contexts)),
    }
    _write("lookup-course", model, measured)


def make_lookup_facts(work: Path) -> None:
    """The lookup lab's slots among few names and numbers, with keys that stand in no fact."""
    model, _ = train_in_context(FACTS, SEED, work)
    model.half().float()
    shares = []
    for facts in (4, 8, 24, 48):
        asked = sample(FACTS.data, 2000, MEASURING_SEED + 1, split="unseen", num_facts=facts)
        share = float((answers(model, asked, FACTS) == asked.answer).double().mean())
        shares.append(f"{100 * share:.4g} % of {facts}")
    _write(
        "lookup-facts", model, {"shares": ", ".join(shares), "trained_facts": FACTS.data.max_facts}
    )


def make_recurrence(work: Path) -> None:
    """A decoder with windows, grouped heads, sinks and experts, trained at full length last."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Decoder(DECODER)
    for length, config in _LENGTHS.items():
        data = replace(RECURRENCE, seq_len=length)
        held_out = fresh_batch(data, max(4, 16384 // length), seed=SEED + 1, step=0).tokens
        at_once = max(2, 4096 // length)
        task = NextTokenTask(
            _fresh(data), held_out, metric="accuracy", balance_weight=0.01, evaluation_batch=at_once
        )
        train(model, task, config, work / str(length))
    model.cpu().eval().half().float()
    measured: dict[str, Any] = {"lengths": [], "right": [], "best": []}
    for length, count in ((RECURRENCE.seq_len, 1000), (LONG, 16)):
        data = replace(RECURRENCE, seq_len=length)
        tokens = fresh_batch(data, count, seed=SEED + 2, step=0).tokens
        with torch.no_grad():
            best = torch.cat([model(part[:, :-1]).argmax(-1) for part in tokens.split(8)])
        measured["lengths"].append(length)
        measured["right"].append(100 * float((best == tokens[:, 1:]).double().mean()))
        measured["best"].append(100 * float(optimal_accuracy(tokens, data).measured.mean()))
    measured["samples"] = _samples(model)
    _write("recurrence", model, measured)


class _FewHeads(NextTokenTask):
    """Next tokens, with a penalty on the norms of each head's two circuits.

    It keeps heads from sharing what one of them can do.
    """

    PENALTY = 0.02

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        norms: list[Tensor] = []
        for block in model.layers:  # type: ignore[union-attr]
            attention: Any = block.attention
            shape = (attention.num_heads, attention.head_dim, -1)
            maps = (
                attention.query.weight,
                attention.key.weight,
                attention.value.weight,
                attention.output.weight.T,
            )
            q, k, v, o = (weight.reshape(shape).square().sum((1, 2)) for weight in maps)
            norms += [(q * k + 1e-8).sqrt().sum(), (v * o + 1e-8).sqrt().sum()]
        return super().loss(model, batch) + self.PENALTY * torch.stack(norms).sum()


def repeated_letters(step: int, size: int, *, seed: int = SEED, half: int | None = None) -> Batch:
    """The start token, and random letters twice; all texts of a batch are of one length."""
    generator = torch.Generator().manual_seed(mix_seed(seed, step))
    letters = len(INDUCTION.letters)
    longest = INDUCTION.max_len // 2
    count = int(torch.randint(2, longest + 1, (1,), generator=generator)) if half is None else half
    drawn = torch.randint(letters, (size, count), generator=generator)
    return {"tokens": torch.cat([torch.full((size, 1), letters), drawn, drawn], 1)}


def make_induction(work: Path) -> None:
    """An attention-only decoder of two layers that continues repeated letters.

    It has one head for each part of this.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Decoder(ATTENTION_ONLY)
    held_out = repeated_letters(0, 256, seed=SEED + 1, half=20)["tokens"]
    train(
        model, NextTokenTask(repeated_letters, held_out, metric="accuracy"), _LEARN, work / "learn"
    )
    offset = _LEARN.steps
    later = lambda step, size: repeated_letters(step + offset, size)  # noqa: E731
    train(model, _FewHeads(later, held_out, metric="accuracy"), _CONCENTRATE, work / "concentrate")
    model.cpu().eval().half().float()
    tokens = distinct_letters()
    scores = head_scores(model, tokens)
    (previous, *_), (induction, *_) = scores.top("previous", 1), scores.top("induction", 1)
    right_without = {
        (layer, head): copied(model, tokens, layer, head) for layer in range(2) for head in range(4)
    }
    measured: dict[str, Any] = {"right": 100 * copied(model, tokens)}
    for kind, (layer, head, _) in (("previous", previous), ("induction", induction)):
        measured |= {
            kind: f"{layer}.{head}",
            f"without_{kind}": 100 * right_without.pop((layer, head)),
        }
    measured |= {
        "others": 100 * min(right_without.values()),
        "samples": ["GLASSFORMERGLASSF", "QWERTYQWER", "THECATSATONTHEMATTHEC"],
    }
    _write("induction", model, measured)


def distinct_letters() -> Tensor:
    """The start token and 24 different letters twice: the second half is certain."""
    return torch.cat([torch.full((64, 1), 26), repeated_tokens(26, 24, 64, seed=SEED + 2)], 1)


@torch.no_grad()
def copied(model: nn.Module, tokens: Tensor, layer: int | None = None, head: int = 0) -> float:
    """The share of the second half's letters that are predicted, without one head if named."""
    half = tokens.shape[1] // 2
    with intervene(model, *([] if layer is None else [zero("heads", layers=layer, heads=head)])):
        best = model(tokens).argmax(-1)
    return float((best[:, half + 1 : -1] == tokens[:, half + 2 :]).double().mean())


def _fresh(data: RecurrenceConfig) -> Callable[[int, int], Batch]:
    return lambda step, size: {"tokens": fresh_batch(data, size, seed=SEED, step=step).tokens}


def _samples(model: Decoder) -> list[str]:
    """Texts to begin with: some whose next number the model gets right, and one of full length."""
    short = fresh_batch(replace(RECURRENCE, seq_len=40), 20, seed=SEED + 3, step=0).tokens
    with torch.no_grad():
        right = model(short[:, :-1])[:, -1].argmax(-1) == short[:, -1]
    hits = [row for row, hit in zip(short.tolist(), right.tolist(), strict=True) if hit]
    lively = sorted(hits, key=lambda row: -len(set(pairwise(row))))
    longest = fresh_batch(
        replace(RECURRENCE, seq_len=LONG - 1), 8, seed=SEED + 4, step=0
    ).tokens.tolist()
    long = max(longest, key=lambda row: len(set(row)))
    return [" ".join(map(str, row)) for row in (*(row[:-1] for row in lively[:3]), long)]


def _write(name: str, model: nn.Module, measured: dict[str, Any]) -> None:
    names = ("config.json", "model.safetensors", "measured.json")
    earlier = Written("a bundled model", names, lambda directory: (directory / names[-1]).is_file())
    with new_directory(BUNDLED / name, replaces=earlier) as draft:
        tensors = {
            key: value.detach().half().contiguous() for key, value in model.state_dict().items()
        }
        save_file(tensors, draft / "model.safetensors")
        (draft / "model.safetensors").chmod(0o644)  # others shall read what is installed
        write_text(draft / "config.json", model.config.to_json() + "\n")  # type: ignore[operator,union-attr]
        write_text(draft / "measured.json", json.dumps(measured, indent=1) + "\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    "sentiment": make_sentiment,
    "lookup-course": make_lookup_course,
    "lookup-facts": make_lookup_facts,
    "recurrence": make_recurrence,
    "induction": make_induction,
}


def main(names: Sequence[str]) -> None:
    """Train and write the named loaded_models, or all."""
    for name in names or MAKERS:
        print(f"making {name}", flush=True)
        with tempfile.TemporaryDirectory() as work:
            MAKERS[name](Path(work))
        size = sum(file.stat().st_size for file in (BUNDLED / name).rglob("*") if file.is_file())
        print(f"{BUNDLED / name}: {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
