"""What is trained on fresh facts, as data."""

from dataclasses import replace

from glassformer.data.in_context_lookup import LookupConfig
from glassformer.training.in_context_lookup import InContextRecipe

SLOTS = InContextRecipe("slots", "slots")
# No pairing is held out: for that the best possible accuracy is derived.
BAG = InContextRecipe(
    "bag", "bag", LookupConfig(num_keys=64, num_values=64, held_out=0.0), split="all"
)
POSITIONS = replace(BAG, name="positions", encoding="positions")


def shortened(recipe: InContextRecipe, steps: int = 400) -> InContextRecipe:
    """The same for ``steps`` steps on batches of 64, with 32 keys and values, which slots learn in
    that time.
    """
    data = replace(recipe.data, num_keys=32, num_values=32)
    return replace(recipe, steps=steps, batch_size=64, data=data)
