"""The sampling rule that a model brings: of its files, of its short name, or the default."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.checkpoints.store import Stored
from glassformer.errors import InputError
from glassformer.generation.sampling import SamplingRule

DEFAULT_RULE = SamplingRule(temperature=0.7, min_p=0.1)
"""Of a model that brings no rule: only tokens with a tenth of the best one's probability, and a
mild temperature.
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
"""Of sampling, as transformers writes them beside ``do_sample = false``."""


@dataclass(frozen=True)
class ModelRule:
    """A sampling rule, and where it comes from."""

    rule: SamplingRule
    source: str
    """Such as ``"generation_config.json"``, or :data:`BY_DEFAULT`."""
    fault: str | None = None
    """Why the rule in the model's files was not taken; None: there is none, or it was taken."""

    def __str__(self) -> str:
        return f"{in_words(self.rule)} ({self.source})"


def in_words(rule: SamplingRule) -> str:
    """The settings of a rule that have an effect, such as ``"temperature 0.7, min-p 0.1"``."""
    neutral = SamplingRule()
    parts = [] if rule.greedy else [f"temperature {rule.temperature:g}"]
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        value = getattr(rule, name)
        shown = name == "repetition_penalty" or not rule.greedy
        if shown and value != getattr(neutral, name):
            parts.append(
                f"{name.replace('_', ' ' if name == 'repetition_penalty' else '-')} {value:g}"
            )
    return ", ".join(["always the most likely token", *parts] if rule.greedy else parts)


def rule_of(stored: Stored) -> ModelRule:
    """Return the rule of a model in files."""
    if stored.short_name is None:
        named = None
    else:
        named = RULES.get(stored.short_name)
    return find_rule(stored.settings, stored.settings_file, named)


def find_rule(
    settings: Mapping[str, Any], source: str, short_name: SamplingRule | None = None
) -> ModelRule:
    """The rule of a model.

    Args:
        settings: The content of ``generation_config.json``, or the metadata of a GGUF file. What it
            leaves out has no effect; transformers would add ``top_k`` = 50.
        source: The name of that file.
        short_name: The rule of the model's short name, for files without one; None: there is none.
    """
    if short_name is None:
        otherwise = (DEFAULT_RULE, BY_DEFAULT)
    else:
        otherwise = (short_name, "chosen for this model")
    try:
        named = _named(settings)
        if named:
            return ModelRule(SamplingRule(**named), source)
        return ModelRule(*otherwise)
    except InputError as error:
        return ModelRule(*otherwise, f"{source}: {error}")


def generation_config(rule: SamplingRule) -> dict[str, Any]:
    """The rule as keys of ``generation_config.json``, from which :func:`find_rule` reads it again."""
    if rule.temperature == 0:
        penalty = rule.repetition_penalty
        return {"do_sample": False} | ({"repetition_penalty": penalty} if penalty != 1 else {})
    return {"do_sample": True, "temperature": rule.temperature, **_changed(rule)}


def gguf_sampling(rule: SamplingRule) -> dict[str, Any]:
    """The rule as keys of a GGUF file's metadata, from which :func:`find_rule` and llama.cpp read
    it again.
    """
    changed = {"temperature": rule.temperature, **_changed(rule)}
    return {key: changed[name] for key, name in _GGUF_KEYS.items() if name in changed}


def _changed(rule: SamplingRule) -> dict[str, Any]:
    """The fields of a rule that have an effect."""
    neutral = SamplingRule()
    values = {name: getattr(rule, name) for name in _FIELDS}
    return {name: value for name, value in values.items() if value != getattr(neutral, name)}


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the model's files set; empty if they say nothing of sampling."""
    fix = "Correct or remove it."
    samples = settings.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise InputError(
            got=f"do_sample = {samples!r}",
            expected="true or false",
            fix=fix,
        )
    for key in (*_FIELDS, *_GGUF_KEYS):
        value = settings.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not is_number:
            raise InputError(
                got=f"{key} = {value!r}",
                expected="a number",
                fix=fix,
            )
    found = {ours: settings.get(key, settings.get(ours)) for key, ours in _GGUF_KEYS.items()}
    found = {name: value for name, value in found.items() if value is not None}
    if found.get("top_k") == 0:  # transformers and llama.cpp write 0 for all tokens
        del found["top_k"]
    if samples is False:
        for name, default in _WITHOUT_EFFECT.items():
            if found.pop(name, default) != default:
                raise InputError(
                    got=f"do_sample = false and {name} = {found.get(name)}",
                    expected="one of the two",
                    fix="Remove one.",
                )
        return {"temperature": 0.0, **found}
    if samples and not found:
        return {"temperature": 1.0}
    if samples is None and found.keys() == {"repetition_penalty"}:
        return {"temperature": DEFAULT_RULE.temperature, "min_p": DEFAULT_RULE.min_p, **found}
    return found


def overridden(rule: SamplingRule, given: Mapping[str, Any]) -> SamplingRule:
    """``rule`` with the fields of ``given`` that are not None.

    A temperature, top-k, top-p or min-p of one's own replaces all four of the model's: they were
    chosen for one another. The repetition penalty is replaced alone.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        rule = replace(rule, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
    return replace(rule, **chosen)
