"""What the best encoder reads; see :mod:`glassformer.labs.sentiment.word_probes`."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.classifier import load_classifier, save_classifier
from glassformer.labs.run import Run
from glassformer.labs.sentiment.word_probes import GroupProbe, Look, PairResult, look_at, probe_pairs, probe_words
from glassformer.models.encoder import EncoderConfig


@dataclass(frozen=True)
class Asked:
    """What the best encoder said."""

    model: str
    config: EncoderConfig
    classes: list[str]
    words: list[GroupProbe]
    pairs: PairResult
    looks: list[Look]

    @property
    def worst(self) -> GroupProbe:
        """The group with the largest difference within one sentence."""
        return max(self.words, key=lambda group: group.largest_gap)


def measure_asked(run: Run) -> Asked:
    """Question the best encoder of the run, and keep it as ``classifier/`` for ``glassformer classify``."""
    best, kept = run.done.models.best_encoder, run.out / "classifier"
    classifier = load_classifier(run.out / "trainings" / best.slug)
    save_classifier(classifier, kept)
    print(f"  the best encoder: glassformer classify --run {kept} TEXT", flush=True)
    return Asked(
        best.name,
        classifier.encoder.config,
        list(classifier.classes),
        probe_words(classifier),
        probe_pairs(classifier),
        look_at(classifier),
    )
