"""Detect what each head of a decoder looks for, on random tokens that are read twice."""

from typing import Any

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.loading.loaded_model import LoadedDecoder, of_kind, weights_stamp
from glassformer.observe.detectors import head_scores, repeated_tokens

HALF = 24
"""Number of tokens before they are repeated."""
TEXTS = 4
"""Number of random texts."""


def detect(runs: Runs, ask: m.AskDetect) -> m.Detected:
    """Return the mean weight that each head gives to four kinds of keys.

    :func:`~glassformer.observe.head_scores` defines them.
    """
    loaded = of_kind(LoadedDecoder, runs.model(ask.model), "detect", "a decoder")
    name = ("detected", ask.model, weights_stamp(loaded))
    detected: m.Detected | None = runs.derived.get(name)
    if detected is None:
        config: Any = loaded.model.config
        half = min(HALF, config.vocab_size, (loaded.longest - 1) // 2)
        # Some models read a start token before any other one.
        texts = repeated_tokens(
            config.vocab_size, half, TEXTS, first=loaded.encode(loaded.card.text)[0]
        )
        with loaded.lock:
            scores = head_scores(loaded.model, texts)
        kinds = {
            kind: getattr(scores, kind).double().cpu()
            for kind in ("previous", "duplicate", "induction", "sink")
        }
        finite = all(bool(head_means.isfinite().all()) for head_means in kinds.values())
        if not finite:
            raise InputError(
                got="weights that are not finite, or no text in which tokens return",
                expected="finite weights",
                fix="Find the first NaN in the forward pass, or choose a model that reads more "
                "tokens.",
            )
        lists = {kind: head_means.numpy().round(4).tolist() for kind, head_means in kinds.items()}
        detected = m.Detected(first=lists.pop("sink"), **lists)
        runs.derived.put(name, detected, 100 * len(lists["previous"]) * len(lists["previous"][0]))
    return detected
