"""Which edges of the cross-attention an answer needs: each is forbidden in turn, and the answers are counted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.data.lookup import all_contexts, lookup_batch
from glassformer.figures.style import LINES, in_style, new_figure
from glassformer.labs.lookup.experiments.course_runs import ROLES, train_course
from glassformer.labs.lookup.experiments.fresh_facts import contexts
from glassformer.labs.run import Run
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.edits import Edit, forbid, zero
from glassformer.observe.intervene import intervene
from glassformer.training.classification import wilson
from glassformer.training.in_context_lookup import InContextRecipe, train_in_context

if TYPE_CHECKING:
    from glassformer.labs.lookup.experiments import Results

_CROSS, _SELF = ("decoder_layers.0.cross_attention",), ("encoder_layers.0.attention",)

FORBIDDEN: dict[str, tuple[str, ...]] = {
    "nothing": (),
    **{role: (role,) for role in ROLES},
    "key and value": ("key", "value"),
    "all but key": ("NAME", "COLOR", "ITEM", "value"),
    "all but value": ("NAME", "COLOR", "key", "ITEM"),
}
"""The tokens of a fixed fact's context that ``[SOS]`` may not see, by the name of the case."""


@dataclass(frozen=True)
class CourseEdges:
    """The share of all contexts for which one of the course's models writes the right value."""

    seed: int
    mixed: dict[str, float]  # with each of FORBIDDEN
    unmixed: dict[str, float]  # the same, where each token of the encoder sees itself alone
    without_head: list[float]  # of the cross-attention


@dataclass(frozen=True)
class SlotEdges:
    """The share of questions that a model of slots answers right while its query may not see a slot."""

    seed: int
    num_facts: int
    num_questions: int
    intact: float
    right: float  # the right slot forbidden
    others: list[float]  # the next slot, the one after it, ...
    any_other: float  # right whichever single other slot is forbidden
    one_head: list[float]  # the right slot forbidden in one head
    of_another: float  # with the right slot forbidden, the answer is the value of another one


def measure_course(current: Run, seed: int) -> CourseEdges:
    """Forbid what ``[SOS]`` reads, in every context, with the encoder's mixing and without it."""
    model, _ = train_course(seed, current.out / "trainings" / f"course-{seed}", epochs=current.settings.epochs)
    return course_edges(model, seed)


@torch.no_grad()
def course_edges(model: EncoderDecoder, seed: int) -> CourseEdges:
    """The same of a given model."""
    examples = all_contexts()
    batch = lookup_batch(examples)
    places = {"NAME": torch.zeros(len(examples), dtype=torch.long)}
    for role in ROLES[1:]:
        places[role] = torch.tensor([1 + list[str](example.order).index(role) for example in examples])
    length = batch.source.shape[1]
    alone = [forbid(at, [key for key in range(length) if key != at], modules=_SELF) for at in range(length)]

    def share(edits: Sequence[Edit]) -> float:
        with intervene(model, *edits):
            written = model(batch.source, batch.inputs[:, :1])[:, 0].argmax(-1)
        return float((written == batch.targets[:, 0]).double().mean())

    cases = {name: [edit for role in roles for edit in _forbidden(places[role])] for name, roles in FORBIDDEN.items()}
    return CourseEdges(
        seed=seed,
        mixed={name: share(edits) for name, edits in cases.items()},
        unmixed={name: share([*alone, *edits]) for name, edits in cases.items()},
        without_head=[share([zero("heads", modules=_CROSS, heads=head)]) for head in range(model.config.num_heads)],
    )


def measure_slots(current: Run, recipe: InContextRecipe, seed: int) -> SlotEdges:
    """Forbid the right slot, and each other one, at the most facts that the model was trained on."""
    model, _ = train_in_context(recipe, seed, current.out / "trainings" / f"{recipe.directory}-{seed}")
    return slot_edges(model, recipe, seed, current.settings.num_questions)


@torch.no_grad()
def slot_edges(model: EncoderDecoder, recipe: InContextRecipe, seed: int, num_questions: int) -> SlotEdges:
    """The same of a given model."""
    num_facts, hits, of_another = recipe.data.max_facts, [], []
    for facts, source in contexts(recipe, num_facts, num_questions, 0):
        steps = [_forbidden((facts.place + step) % num_facts) for step in range(1, num_facts)]
        heads = [_forbidden(facts.place, head) for head in range(recipe.num_heads)]
        answers = []
        for edits in ([], _forbidden(facts.place), *steps, *heads):
            with intervene(model, *edits):
                answers.append(model(source.tokens, facts.query[:, None], source.real)[:, -1].argmax(-1))
        hits.append(torch.stack(answers) == facts.answer)
        of_another.append(((facts.values == answers[1][:, None]) & (answers[1] != facts.answer)[:, None]).any(1))
    right = torch.cat(hits, 1).double()
    intact, blinded, *shares = right.mean(1).tolist()
    return SlotEdges(
        seed=seed,
        num_facts=num_facts,
        num_questions=right.shape[1],
        intact=intact,
        right=blinded,
        others=shares[: num_facts - 1],
        any_other=float(right[2 : num_facts + 1].amin(0).mean()),
        one_head=shares[num_facts - 1 :],
        of_another=float(torch.cat(of_another).double().mean()),
    )


def _forbidden(places: Int[Tensor, " batch"], head: int | None = None) -> list[Edit]:
    """Edits that forbid the first target position to see the position ``places`` of its own memory."""
    rows = {place: (places == place).nonzero()[:, 0].tolist() for place in places.unique().tolist()}
    return [forbid(0, place, modules=_CROSS, examples=row, heads=head) for place, row in rows.items()]


@in_style
def draw(results: Results) -> Figure:
    """What is answered right with each edge forbidden: the course's models on the left, slots on the right."""
    figure, (left, right) = new_figure(13, 4.4, columns=2, width_ratios=(5, 4), sharey=True)
    for series, model in enumerate(results.course_edges):
        for shares, fill, words in ((model.mixed, "full", ""), (model.unmixed, "none", ", encoder does not mix")):
            places = [place + 0.25 * (series - 1) + 0.11 * (fill == "none") for place in range(len(shares))]
            label = f"seed {model.seed}{words}"
            left.plot(places, list(shares.values()), label=label, fillstyle=fill, **_points(series))
    left.set_xticks(range(len(FORBIDDEN)), [name.replace(" ", "\n", 1) for name in FORBIDDEN])
    left.set(title="Fixed facts", xlabel="what [SOS] may not see", ylabel="share answered right", ylim=(-0.04, 1.06))
    names = ["nothing", "right\nslot", "another\n(worst)"]
    names += [f"right,\nhead {head + 1}" for head in range(len(results.slot_edges[0].one_head))]
    for series, slots in enumerate(results.slot_edges):
        rates = [slots.intact, slots.right, min(slots.others), *slots.one_head]
        ends = [(share - low, high - share) for share in rates for low, high in [wilson(share, slots.num_questions)]]
        places = [place + 0.17 * (series - 1) for place in range(len(rates))]
        right.errorbar(places, rates, list(zip(*ends, strict=True)), label=f"seed {slots.seed}", **_points(series))
    right.set_xticks(range(len(names)), names)
    right.set(title=f"Slots, {results.slot_edges[0].num_facts} facts", xlabel="what the query may not see")
    for ax, columns in ((left, 3), (right, 4)):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=columns, fontsize=9)
    return figure


def _points(series: int) -> dict[str, Any]:
    return {**LINES[series], "linestyle": "none", "markersize": 6}
