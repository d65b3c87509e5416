"""Training runs of the lookup labs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from glassformer.data import lookup
from glassformer.data.in_context_lookup import LookupConfig
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from glassformer.explorer.loading.stored_models import (
    Place,
    described,
    filled,
    model_card,
    run_weights,
)
from glassformer.explorer.loading.task_models import (
    FactNames,
    course_model,
    facts_model,
    tokens_model,
)
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig


def in_context_lookup(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """A run of a recipe of the lookup lab."""
    recipe = description.get("recipe")
    if not isinstance(recipe, dict) or "encoding" not in recipe:
        return None
    from glassformer.training.in_context_lookup import InContextRecipe, build_model

    read = partial(described, place.path)
    data = read(LookupConfig, recipe.get("data", {}))
    made = read(InContextRecipe, {**recipe, "data": data})
    run_weights(place.path)
    names = FactNames(
        tuple(f"k{number}" for number in range(data.num_keys)),
        tuple(f"v{number}" for number in range(data.num_values)),
    )
    count = min(6, data.most_facts)
    facts = [(names.keys[3 * number % data.num_keys], names.values[number]) for number in range(count)]
    slots = made.encoding == "slots"
    units = [f"{key}={value}" for key, value in facts] if slots else [word for fact in facts for word in fact]
    order = "The model knows the order of the facts." if made.encoding == "positions" else "Their order is irrelevant."
    about = (
        f"The lookup lab's recipe {made.name!r}: it reads unseen facts, written as {made.encoding}, and answers "
        f"for the key that is asked. {order}"
    )
    text, help_text = facts[0][0], "a key, which asks for its value"
    card = model_card(
        place, "encoder_decoder", about, ["attention", "scramble", "whatif"], text, help_text, source=units
    )

    def opened() -> LoadedModel:
        model = filled(place.path, lambda: build_model(made, 0), 2)
        return facts_model(card, model, names) if slots else tokens_model(card, model, names)

    return ModelEntry(card, opened)


def lookup_course(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """A run of the lookup course's encoder-decoder."""
    model = description.get("model")
    if not isinstance(model, dict) or "num_encoder_layers" not in model or "samples" not in description:
        return None
    config = described(place.path, EncoderDecoderConfig, model)
    run_weights(place.path)
    about = "The lookup course's model: it reads five words in any order and writes the value of the key among them."
    if config.source_positions != "none":
        about += " This model's encoder knows positions, so the order may change the answer."
    card = model_card(
        place,
        "encoder_decoder",
        about,
        ["attention", "scramble", "whatif"],
        "",
        "the decoder's output so far, usually nothing",
        source=["NAME", "COLOR", "ALICE", "ITEM", "GREEN"],
        words=list(lookup.VOCAB),
    )
    layers = config.num_encoder_layers + config.num_decoder_layers
    return ModelEntry(card, lambda: course_model(card, filled(place.path, lambda: EncoderDecoder(config), layers)))
