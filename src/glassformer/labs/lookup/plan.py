"""How much of everything a run of the lookup lab does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.errors import require, require_positive
from glassformer.labs.lookup.course import NUM_SAMPLES
from glassformer.labs.lookup.in_context_measured import LENGTHS
from glassformer.labs.lookup.recipes import (
    BAG,
    CHANGES,
    FAR,
    FARTHEST,
    LONG_CONTEXTS,
    POSITIONS,
    SLOTS,
    InContextRecipe,
)


@dataclass(frozen=True)
class Plan:
    """What is done how often.

    Attributes:
        name: "full" or "quick"; the report says which.
        course_seeds: Trainings of the course's model.
        course_samples: Examples in all for each.
        course_epochs: Epochs of each; the course allows 50, and all is right after the first few.
        max_orders: Orders tried of each context; its five tokens have 120.
        encodings: The recipes of slots, bags and positions, slots first.
        slots_seeds: Trainings of the slots; the others are trained once.
        changes: To find what limits slots: the one where the search begins, then those that change one thing about it,
            and last what is recommended. One training each; none leaves the search out.
        lengths: Numbers of facts at which models are measured.
        num_questions: Questions at each of them.

    Raises:
        InputError: A number below 1, epochs beyond the course's, or no recipe.
    """

    name: str
    course_seeds: int
    course_samples: int
    course_epochs: int
    max_orders: int
    encodings: tuple[InContextRecipe, ...]
    slots_seeds: int
    changes: tuple[InContextRecipe, ...]
    lengths: tuple[int, ...]
    num_questions: int

    def __post_init__(self) -> None:
        require_positive(
            course_seeds=self.course_seeds,
            course_samples=self.course_samples,
            course_epochs=self.course_epochs,
            max_orders=self.max_orders,
            slots_seeds=self.slots_seeds,
            num_questions=self.num_questions,
        )
        kinds = [recipe.encoding for recipe in self.encodings]
        require(
            kinds[:1] == ["slots"] and len(set(kinds)) == len(kinds),
            f"recipes of {kinds}",
            "slots first, and each encoding once",
            "Start with SLOTS.",
        )
        names = [recipe.name for recipe in (*self.encodings, *self.changes)]
        require(
            len(set(names)) == len(names),
            f"recipes named {names}",
            "different names",
            "Each has a directory of its name.",
        )
        require(len(self.lengths) > 0, "no lengths", "at least one", "Pass LENGTHS.")


def shortened(recipe: InContextRecipe, steps: int = 400, tokens: int = 32) -> InContextRecipe:
    """The same recipe with fewer steps, and fewer keys and values to tell apart: to see that it runs."""
    most = min(recipe.data.max_facts, tokens // 4)
    data = replace(recipe.data, num_keys=tokens, num_values=tokens, max_facts=most)
    return replace(recipe, steps=steps, batch_size=64, data=data)


FULL = Plan(
    "full",
    course_seeds=3,
    course_samples=NUM_SAMPLES,
    course_epochs=15,
    max_orders=5040,
    encodings=(SLOTS, BAG, POSITIONS),
    slots_seeds=3,
    changes=(FAR, *CHANGES, FARTHEST, LONG_CONTEXTS),
    lengths=LENGTHS,
    num_questions=4000,
)
QUICK = Plan(
    "quick",
    course_seeds=1,
    course_samples=NUM_SAMPLES,
    course_epochs=3,
    max_orders=5040,
    encodings=tuple(shortened(recipe) for recipe in (SLOTS, BAG, POSITIONS)),
    slots_seeds=1,
    changes=tuple(shortened(recipe, steps=200, tokens=64) for recipe in (FAR, CHANGES[0], LONG_CONTEXTS)),
    lengths=(1, 2, 4, 8, 16),
    num_questions=1000,
)
