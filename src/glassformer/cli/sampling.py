"""The sampling rule of ``generate`` and ``chat``: the model's, changed by the flags."""

import sys
from dataclasses import replace

from glassformer.checkpoints.store import Stored
from glassformer.cli.flags import ChatFlags, GenerateFlags
from glassformer.generation.model_rule import ModelRule, overridden, rule_of


def chosen_rule(flags: GenerateFlags | ChatFlags, stored: Stored) -> ModelRule:
    """Return the rule to use; print why a rule in the model's files cannot be used."""
    model_rule = rule_of(stored)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    changes = {name: value for name in names if (value := getattr(flags, name)) is not None}
    rule = overridden(model_rule.rule, changes | {"seed": flags.seed})
    if changes:
        return replace(model_rule, rule=rule, source="as the flags say")
    if model_rule.fault is not None:
        print(f"glassformer: {model_rule.fault} Using {model_rule}.", file=sys.stderr)
    return replace(model_rule, rule=rule)
