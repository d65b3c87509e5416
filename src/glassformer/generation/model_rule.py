"""The sampling rule of a model: from its files, by its short name, or the default."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.checkpoints.store import Stored
from glassformer.errors import InputError
from glassformer.generation.sampling import SamplingRule

DEFAULT_RULE = SamplingRule(temperature=0.7, min_p=0.1)
"""Rule of a model that has none: a mild temperature, and only tokens with at least a tenth of the
probability of the best one.
"""

BY_DEFAULT = "the default"
"""The source of :data:`DEFAULT_RULE`."""

RULES: Mapping[str, SamplingRule] = {
    # The original model's card says temperature 0.2 and top-p 0.9. Packed in 4 bits its first
    # tokens are nearly equally likely, also those of other languages, which a high min-p leaves
    # out; without a penalty it often repeats itself.
    "smollm2": SamplingRule(temperature=0.2, min_p=0.7, repetition_penalty=1.1),
    # The original model's generation_config.json says temperature 1, top-k 64 and top-p 0.95, with
    # which this small model, which was not trained to follow instructions, loses the subject.
    # Without a penalty it repeats itself.
    "gemma-3-270m": SamplingRule(temperature=0.3, min_p=0.2, repetition_penalty=1.1),
    # As its model card recommends.
    "gpt-oss-20b": SamplingRule(temperature=1.0),
}
"""Rules of models with short names, whose files may say none."""

_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""llama.cpp's names in a file's metadata, and ours."""
_FIELDS = tuple(_GGUF_KEYS.values())
_WITHOUT_EFFECT = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Settings of sampling that transformers writes beside ``do_sample = false``."""


@dataclass(frozen=True)
class ModelRule:
    """A sampling rule, and where it comes from."""

    rule: SamplingRule
    source: str
    """Name of a file such as ``"generation_config.json"``, or :data:`BY_DEFAULT`."""
    fault: str | None = None
    """Error in the rule of the model's files, which was not taken; None without an error."""

    def __str__(self) -> str:
        return f"{in_words(self.rule)} ({self.source})"


def in_words(rule: SamplingRule) -> str:
    """Return the settings of a rule that have an effect, as ``"temperature 0.7, min-p 0.1"``."""
    labels = {}
    if rule.greedy:
        parts = ["always the most likely token"]
    else:
        parts = [f"temperature {rule.temperature:g}"]
        labels = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    labels["repetition_penalty"] = "repetition penalty"
    neutral = SamplingRule()
    for name, label in labels.items():
        value = getattr(rule, name)
        if value != getattr(neutral, name):
            parts.append(f"{label} {value:g}")
    return ", ".join(parts)


def rule_of(stored: Stored) -> ModelRule:
    """Return the rule of a model in files."""
    known_rule = None
    if stored.short_name is not None:
        known_rule = RULES.get(stored.short_name)
    return find_rule(stored.settings, stored.settings_file, known_rule)


def find_rule(
    settings: Mapping[str, Any], source: str, short_name: SamplingRule | None = None
) -> ModelRule:
    """Return the rule of a model.

    Args:
        settings: Content of ``generation_config.json``, or metadata of a GGUF file. A setting that
            is left out has no effect; transformers would add ``top_k`` = 50.
        source: Name of that file.
        short_name: Rule of the model's short name, for files without one.
    """
    fallback = ModelRule(DEFAULT_RULE, BY_DEFAULT)
    if short_name is not None:
        fallback = ModelRule(short_name, "chosen for this model")
    try:
        fields = _fields(settings)
        if fields:
            return ModelRule(SamplingRule(**fields), source)
        return fallback
    except InputError as error:
        return replace(fallback, fault=f"{source}: {error}")


def generation_config(rule: SamplingRule) -> dict[str, Any]:
    """Return a rule as keys of ``generation_config.json``, which :func:`find_rule` reads."""
    if rule.temperature == 0:
        config: dict[str, Any] = {"do_sample": False}
        if rule.repetition_penalty != 1:
            config["repetition_penalty"] = rule.repetition_penalty
        return config
    return {"do_sample": True, "temperature": rule.temperature, **_changed(rule)}


def gguf_sampling(rule: SamplingRule) -> dict[str, Any]:
    """Return a rule as keys of a GGUF file, which :func:`find_rule` and llama.cpp read."""
    changed = {"temperature": rule.temperature, **_changed(rule)}
    return {key: changed[name] for key, name in _GGUF_KEYS.items() if name in changed}


def _changed(rule: SamplingRule) -> dict[str, Any]:
    """Return the fields of a rule that have an effect."""
    neutral = SamplingRule()
    values = {name: getattr(rule, name) for name in _FIELDS}
    return {name: value for name, value in values.items() if value != getattr(neutral, name)}


def _fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rule that a model's files set; empty without any on sampling."""
    _check_types(settings)
    samples = settings.get("do_sample")
    fields = {}
    for key, name in _GGUF_KEYS.items():
        value = settings.get(key, settings.get(name))
        if value is not None:
            fields[name] = value
    if fields.get("top_k") == 0:  # transformers and llama.cpp write 0 for all tokens
        del fields["top_k"]
    if samples is False:
        for name, default in _WITHOUT_EFFECT.items():
            value = fields.pop(name, default)
            if value != default:
                raise InputError(
                    got=f"do_sample = false and {name} = {value}",
                    expected="one of the two",
                    fix="Remove one.",
                )
        return {"temperature": 0.0, **fields}
    if samples and not fields:
        return {"temperature": 1.0}
    if samples is None and fields.keys() == {"repetition_penalty"}:
        return {"temperature": DEFAULT_RULE.temperature, "min_p": DEFAULT_RULE.min_p, **fields}
    return fields


def _check_types(settings: Mapping[str, Any]) -> None:
    """Refuse settings of sampling of another type."""
    fix = "Correct or remove it."
    samples = settings.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise InputError(got=f"do_sample = {samples!r}", expected="true or false", fix=fix)
    for key in (*_FIELDS, *_GGUF_KEYS):
        value = settings.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not is_number:
            raise InputError(got=f"{key} = {value!r}", expected="a number", fix=fix)


def overridden(rule: SamplingRule, options: Mapping[str, Any]) -> SamplingRule:
    """Return ``rule`` with the fields of ``options`` that are not None.

    A temperature, top-k, top-p or min-p that a user chooses replaces all four of the model's, which
    were chosen for one another. The repetition penalty is replaced alone.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if chosen.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        rule = replace(rule, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
    return replace(rule, **chosen)
