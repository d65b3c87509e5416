"""The plans: the quick one does less of everything and leaves nothing out."""

from __future__ import annotations

import dataclasses

from glassformer.labs.sentiment.plan import FULL, QUICK


def test_quick_is_less_of_the_same() -> None:
    for field in dataclasses.fields(FULL):
        full, quick = getattr(FULL, field.name), getattr(QUICK, field.name)
        if isinstance(full, bool) or field.name == "name":
            continue
        if isinstance(full, tuple):
            assert 1 <= len(quick) <= len(full)
            assert max(quick) <= max(full)
        else:
            assert 1 <= quick <= full


def test_the_full_plan_has_three_seeds_and_ends_at_4096_tokens() -> None:
    assert FULL.seeds == 3
    assert (FULL.growth_lengths[0], FULL.growth_lengths[-1]) == (32, 4096)
