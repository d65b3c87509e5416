"""The sampling rule of ``generate`` and ``chat``: the model's, with what the flags say instead."""

import sys
from dataclasses import replace

from glassformer.checkpoints.store import Stored
from glassformer.cli.flags import ChatFlags, GenerateFlags
from glassformer.generation.model_rule import ModelRule, overridden, rule_of


def chosen_rule(flags: GenerateFlags | ChatFlags, stored: Stored) -> ModelRule:
    """The rule in force. Says on standard error why a rule in the model's files cannot be used."""
    brought = rule_of(stored)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(flags, name)) is not None}
    rule = overridden(brought.rule, given | {"seed": flags.seed})
    if brought.fault is not None and not given:
        print(f"glassformer: {brought.fault} Using {brought}.", file=sys.stderr)
    return replace(brought, rule=rule, source="as the flags say" if given else brought.source)
