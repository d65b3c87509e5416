"""How much of everything a run of the lookup lab does."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from glassformer.errors import require, require_positive
from glassformer.labs.lookup.course import NUM_SAMPLES
from glassformer.labs.lookup.course_data import NUM_EPOCHS
from glassformer.labs.lookup.in_context_measured import LENGTHS
from glassformer.labs.lookup.recipes import (
    BAG,
    CHANGES,
    COMBINATIONS,
    FAR,
    POSITIONS,
    SLOTS,
    UP_TO_128,
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
        max_orders: Orders tried of each context, at least 2; its five tokens have 120.
        encodings: The recipes of slots, bags and perhaps positions, slots first, trained on as many facts.
        slots_seeds: Trainings of the slots; the others are trained once.
        changes: To find what limits slots: the one where the search begins, then those that change one thing about it.
            One training each; none leaves the search out.
        combined: Those that change several things together, one training each.
        lengths: Numbers of facts at which models are measured, rising; the most facts that the slots are trained on
            among them.
        num_questions: Questions at each of them.

    Raises:
        InputError: A number below 1, epochs beyond the course's, or recipes or lengths that are unlike the above.
    """

    name: str
    course_seeds: int
    course_samples: int
    course_epochs: int
    max_orders: int
    encodings: tuple[InContextRecipe, ...]
    slots_seeds: int
    changes: tuple[InContextRecipe, ...]
    combined: tuple[InContextRecipe, ...]
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
        require(
            self.course_epochs <= NUM_EPOCHS,
            f"course_epochs = {self.course_epochs}",
            f"at most {NUM_EPOCHS}, which the course allows",
            "Train for fewer.",
        )
        require(self.max_orders >= 2, f"max_orders = {self.max_orders}", "at least 2", "One is the original order.")
        kinds = [recipe.encoding for recipe in self.encodings]
        require(
            kinds[:1] == ["slots"] and "bag" in kinds and len(set(kinds)) == len(kinds),
            f"recipes of {kinds}",
            "slots first, a bag to compare them with, and each encoding once",
            "Start with SLOTS and BAG.",
        )
        trained = [(recipe.data.min_facts, recipe.data.max_facts) for recipe in self.encodings]
        require(len(set(trained)) == 1, f"encodings trained on {trained} facts", "one range", "Use one for all.")
        bag = self.encodings[kinds.index("bag")]
        require(
            not bag.asks_unseen,
            f"a bag with held_out = {bag.data.held_out}",
            "one that is asked about all pairings: for others no ceiling is derived",
            "Set split='all' and held_out=0.",
        )
        self._check_search()
        self._check_lengths(trained[0][1])

    def _check_search(self) -> None:
        require(
            bool(self.changes) or not self.combined,
            "combinations without changes",
            "the recipe where the search begins",
            "Pass changes=(FAR,) as well.",
        )
        others = [recipe.encoding for recipe in (*self.changes, *self.combined) if recipe.encoding != "slots"]
        require(not others, f"changes of {others}", "changes of slots", "Leave the others out.")
        names = [recipe.directory for recipe in (*self.encodings, *self.changes, *self.combined)]
        require(
            len(set(names)) == len(names),
            f"recipes named {names}",
            "different names",
            "Each has a directory of its name.",
        )

    def _check_lengths(self, trained: int) -> None:
        require_positive(**{f"lengths[{place}]": length for place, length in enumerate(self.lengths)})
        require(
            list(self.lengths) == sorted(set(self.lengths)) and trained in self.lengths,
            f"lengths = {self.lengths}",
            f"rising numbers of facts with {trained}, the most trained on, among them",
            "Pass LENGTHS.",
        )
        recipes = (*self.encodings, *self.changes, *self.combined)
        short = [recipe.name for recipe in recipes if recipe.data.most_facts < max(trained, self.lengths[0])]
        require(
            not short,
            f"recipes with keys or values for fewer than {max(trained, self.lengths[0])} facts: {short}",
            "enough for the shortest length and for what slots are trained on",
            "Raise num_keys and num_values.",
        )


def shortened(recipe: InContextRecipe, steps: int = 400, tokens: int = 32) -> InContextRecipe:
    """The same recipe with fewer steps, and fewer keys and values to tell apart: to see that it runs.

    Numbers in its name follow.
    """
    most = min(recipe.data.max_facts, tokens // 4)
    data = replace(recipe.data, num_keys=tokens, num_values=tokens, max_facts=most)
    name = recipe.name
    for what, before, after in (
        ("facts", recipe.data.max_facts, most),
        ("values", recipe.data.num_values, tokens),
        ("batches of", recipe.batch_size, 64),
    ):
        if what.endswith(" of"):
            name = re.sub(rf"\b{what} {before}\b", f"{what} {after}", name)
        else:
            name = re.sub(rf"\b{before} {what}\b", f"{after} {what}", name)
    return replace(recipe, name=name, steps=steps, batch_size=64, data=data)


FULL = Plan(
    "full",
    course_seeds=3,
    course_samples=NUM_SAMPLES,
    course_epochs=15,
    max_orders=5040,
    encodings=(SLOTS, BAG, POSITIONS),
    slots_seeds=3,
    changes=(FAR, *CHANGES),
    combined=COMBINATIONS,
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
    changes=tuple(shortened(recipe, steps=200, tokens=64) for recipe in (FAR, CHANGES[0])),
    combined=(shortened(UP_TO_128, steps=200, tokens=64),),
    lengths=(1, 2, 4, 8, 16),
    num_questions=1000,
)
