"""Recipes of the models that are trained on fresh facts."""

from dataclasses import replace

from glassformer.data.in_context_lookup import LookupConfig
from glassformer.training.in_context_lookup import InContextRecipe

SLOTS = InContextRecipe("slots", "slots")
# No pairing is held out: the formula of the best possible accuracy assumes it.
BAG = InContextRecipe(
    "bag", "bag", LookupConfig(num_keys=64, num_values=64, held_out=0.0), split="all"
)
POSITIONS = replace(BAG, name="positions", encoding="positions")


def shortened(recipe: InContextRecipe, steps: int = 400) -> InContextRecipe:
    """Return the recipe for ``steps`` steps on batches of 64, with 32 keys and values.

    Models with slots learn these in 400 steps.
    """
    data = replace(recipe.data, num_keys=32, num_values=32)
    return replace(recipe, steps=steps, batch_size=64, data=data)
