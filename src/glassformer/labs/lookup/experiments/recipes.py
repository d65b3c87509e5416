"""What is trained on fresh facts, as data."""

from __future__ import annotations

from dataclasses import replace

from glassformer.data.in_context_lookup import LookupConfig
from glassformer.training.in_context_lookup import InContextRecipe

SLOTS = InContextRecipe("slots", "slots")
# No pairing is held out: for that the best possible accuracy is derived.
BAG = InContextRecipe("bag", "bag", LookupConfig(num_keys=64, num_values=64, held_out=0.0), split="all")
POSITIONS = replace(BAG, name="positions", encoding="positions")

# Keys and values enough for contexts of 1,024 facts: where the search for what limits slots begins.
PLAIN = InContextRecipe("plain", "slots", LookupConfig(num_keys=1024, num_values=2048))
CHANGES = (
    replace(PLAIN, name="shared tables", shared_tables=True),
    replace(PLAIN, name="no mixing", mixing=False),
    replace(PLAIN, name="one head", num_heads=1),
    replace(PLAIN, name="width 128", hidden_dim=128, ff_dim=256),
    replace(PLAIN, name="log-length scaling", length_scaling="log"),
    replace(PLAIN, name="1 to 32 facts", data=replace(PLAIN.data, max_facts=32)),
    replace(PLAIN, name="256 values", data=replace(PLAIN.data, num_values=256, distinct_values=False)),
)
_SEVERAL = replace(
    PLAIN,
    name="1 to 32 facts, shared tables, no mixing, log-length scaling",
    data=replace(PLAIN.data, max_facts=32),
    shared_tables=True,
    mixing=False,
    length_scaling="log",
)
COMBINED = (
    _SEVERAL,
    replace(
        _SEVERAL,
        name="1 to 128 facts, shared tables, no mixing, batches of 64",
        data=replace(PLAIN.data, max_facts=128),
        batch_size=64,
        length_scaling="none",
    ),
)


def shortened(recipe: InContextRecipe, steps: int = 400) -> InContextRecipe:
    """The same for ``steps`` steps on batches of 64, with 32 keys and values, which slots learn in that time."""
    data = replace(recipe.data, num_keys=32, num_values=32)
    return replace(recipe, steps=steps, batch_size=64, data=data)
