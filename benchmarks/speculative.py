"""Speculative decoding by lookup on real texts: tokens of a forward pass, share accepted, tokens a second.

    python benchmarks/speculative.py [--model DIR] [--run DIR] [--longest 7] [--out benchmarks/speculative.json]

A reply is given, and the time is taken that a model takes to write it: every chosen token is the reply's next one, so
that acceptance is that of a model which writes this text, and weights may be random. Plain decoding and speculation run
in turns. Texts: a play that goes on, reviews, a source file that goes on, and the same file with one name changed.

``--model``: a directory, such as that of ``tools/random_gpt_oss.py DIR --size eighth``; otherwise a small mixture.
``--run``: a run of ``glassformer train`` on a text. It writes by itself then, greedily and by sampling, and the texts
of both ways are compared.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import keep
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from glassformer.cli.runs import read_run
from glassformer.generation import SamplingRule, stream
from glassformer.generation.decoding import decode
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.speculative import Drafts, Lookup, verification_costs
from glassformer.models import Decoder, DecoderConfig

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "glassformer"
SMALL = DecoderConfig(
    vocab_size=4096, num_layers=4, hidden_dim=256, ff_dim=512, num_heads=8, head_dim=32, num_kv_heads=2, num_experts=8
)


def texts(data: Path) -> dict[str, list[tuple[str, str]]]:
    """Prompts and replies."""
    files = [path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("[glmo]*/*.py"))]
    files = [file for file in files if 4000 < len(file) < 12000][::6]
    found = {
        "source code that goes on": [(file[: len(file) // 2], file[len(file) // 2 :]) for file in files],
        "source code, one name changed": [(file, _renamed(file)) for file in files],
    }
    play, reviews = data / "tinyshakespeare.txt", data / "sst2_train.tsv"
    if play.is_file():
        text = play.read_text(encoding="utf-8")
        starts = range(0, len(text) - 12000, len(text) // 8)
        found["a play that goes on"] = [(text[a : a + 6000], text[a + 6000 : a + 12000]) for a in starts]
    if reviews.is_file():
        with reviews.open(encoding="utf-8", newline="") as opened:
            rows = [row[0] for row in csv.reader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
        found["film reviews"] = [
            (" ".join(rows[a : a + 20]), " ".join(rows[a + 20 : a + 40])) for a in range(0, 800, 100)
        ]
    return found


def _renamed(file: str) -> str:
    """With another name for what is named most often."""
    ((name, _),) = Counter(re.findall(r"\b[a-z_]{6,}\b", file)).most_common(1)
    return re.sub(rf"\b{name}\b", "renamed", file)


def tokenizer(pairs: Sequence[tuple[str, str]], vocab_size: int) -> Tokenizer:
    """Byte pairs learned from these texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator((text for pair in pairs for text in pair), trainer)
    return made


def replayed(prompt: Sequence[int], reply: Sequence[int], costs: Sequence[float]) -> dict[str, int]:
    """How many passes, proposed and accepted tokens a model that writes ``reply`` takes after its first token."""
    lookup, place = Lookup([*prompt, reply[0]], costs), 1
    counts = Counter(tokens=len(reply) - 1)
    while place < len(reply):
        draft = lookup.propose(len(reply) - place - 1)
        equal = next((index for index, token in enumerate(draft) if token != reply[place + index]), len(draft))
        counts.update(passes=1, proposed=len(draft), accepted=equal)
        for token in reply[place : place + equal + 1]:
            lookup.add(token)
        place += equal + 1
    return dict(counts)


def shares(counts: Counter[str]) -> dict[str, float]:
    return {
        "tokens_per_pass": counts["tokens"] / counts["passes"],
        "share_accepted": counts["accepted"] / max(counts["proposed"], 1),
    }


def seconds(write: Callable[[int], Iterator[object]], longest: int, rounds: int) -> dict[str, float]:
    """Median seconds after the first token, of plain decoding and of speculation, in turns."""
    times: dict[str, list[float]] = {"plain": [], "speculative": []}
    for turn in range(rounds + 1):
        for name in times:
            steps = write(longest if name == "speculative" else 0)
            next(steps)
            start = time.perf_counter()
            for _ in steps:
                pass
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: median(each) for name, each in times.items()}


def given(model: Decoder, prompt: list[int], reply: list[int], longest: int) -> Iterator[list[int | None]]:
    """Decoding with drafts, with a rule that always chooses the reply's next token."""
    cache, rest = model.new_cache(1, len(prompt) + len(reply)), iter(reply)
    with torch.inference_mode():
        logits = model.output(model.hidden(torch.tensor([prompt]), cache=cache)[:, -1])
    drafts, step = Drafts(model, cache, prompt, longest, len(reply)), DecodingStep(model, cache)
    return decode(lambda: logits, step, lambda _: torch.tensor([next(rest)]), len(reply), drafts=drafts)


def on_texts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Acceptance on whole texts, and the speed of a model on the start of one of each kind."""
    model = Decoder(SMALL) if options.model is None else Decoder.from_pretrained(options.model)
    model.eval()
    found, rows = texts(options.data), []
    encode = tokenizer([pair for pairs in found.values() for pair in pairs], min(model.config.vocab_size, 30000)).encode
    costs = verification_costs(model.config, options.longest)
    for name, pairs in found.items():
        counts = Counter[str]()
        tokens = [(encode(prompt).ids, encode(reply).ids) for prompt, reply in pairs]
        for prompt, reply in tokens:
            counts.update(replayed(prompt, reply, costs))
        prompt, reply = tokens[0][0][: options.prompt], tokens[0][1][: options.tokens]
        timed = seconds(lambda n, p=prompt, r=reply: given(model, p, r, n), options.longest, options.rounds)
        rows.append(_row(name, shares(counts), len(reply) - 1, timed))
    return rows


def by_itself(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A trained model goes on from three places of its held-out text."""
    trained = read_run(options.run)
    model, rows = trained.load().eval(), []
    text = list(Path(trained.data["path"]).read_bytes())
    costs = verification_costs(model.config, options.longest)
    for temperature in (0.0, 0.8):
        counts, equal, times = Counter[str](), [], Counter[str]()
        for place in (0.92, 0.95, 0.98):
            start = int(place * len(text))
            prompt, rule = text[start : start + options.prompt], SamplingRule(temperature=temperature, seed=0)

            def write(
                longest: int, prompt: list[int] = prompt, rule: SamplingRule = rule
            ) -> Iterator[list[int | None]]:
                return stream(model, [prompt], options.tokens, rule=rule, speculate=longest)

            plain, speculative = ([token for (token,) in write(longest)] for longest in (0, options.longest))
            equal.append(plain == speculative)
            counts.update(replayed(prompt, [token for token in speculative if token is not None], costs))
            times.update(seconds(write, options.longest, options.rounds))
        rows.append(_row(f"temperature {temperature}", shares(counts), 3 * (options.tokens - 1), times))
        rows[-1]["equal_texts"] = f"{sum(equal)} of {len(equal)}"
    return rows


def _row(name: str, shares: dict[str, float], tokens: int, seconds: dict[str, float]) -> dict[str, Any]:
    row = {
        "text": name,
        **shares,
        "tokens_per_second": {each: tokens / time for each, time in seconds.items()},
        "times_as_fast": seconds["plain"] / seconds["speculative"],
    }
    print(row, flush=True)
    return row


def main() -> None:
    """Measure, print, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory of a model; its weights may be random")
    parser.add_argument("--run", type=Path, help="a run of glassformer train on a text")
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--longest", type=int, default=7, help="tokens that are proposed at most")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of a prompt at most")
    parser.add_argument("--tokens", type=int, default=200, help="tokens that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "speculative.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results: dict[str, Any] = {"model": options.model or "small mixture", "longest": options.longest}
    results["texts"] = on_texts(options)
    if options.run:
        results["by_itself"] = by_itself(options)
    keep(results, options.out)


if __name__ == "__main__":
    main()
