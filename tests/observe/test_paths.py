"""Path patching against the other way to do it: all parts between sender and receiver keep their
corrupted value.
"""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, patch
from glassformer.observe.intervene import intervene
from glassformer.observe.paths import Receiver, Sender, path_patch
from refusals import refused
from small_models import decoder, encoder
from transformers_models import EXPERTS, FAMILIES, logits_of, metric, pair

HELD = ("attention", "ffn")


@torch.no_grad()
def held(
    model: nn.Module, sender: Sender, receiver: Any, count: int, clean: Tensor, corrupted: Tensor
) -> Tensor:
    """The metric, with all parts between sender and receiver patched from the corrupted run."""
    with capture(model, what=(*HELD, "heads")) as ours:
        model(clean)
    with capture(model, what=(*HELD, "heads")) as theirs:
        model(corrupted)
    at = count if receiver == "logits" else receiver.layer
    edits: list[Edit]
    if sender.head is None:
        edits = [patch("ffn", ours, layers=sender.layer)]
    else:
        edits = [
            patch("heads", ours, layers=sender.layer, heads=sender.head),
            patch("ffn", theirs, layers=sender.layer),
        ]
    for layer in range(sender.layer + 1, at):
        edits += [patch(site, theirs, layers=layer) for site in HELD]
    with intervene(model, *edits):
        if receiver == "logits":
            return metric(logits_of(model, corrupted)).mean()
        with capture(model, what=receiver.reads, layers=at) as seen:
            model(corrupted)
    with intervene(model, patch(receiver.reads, seen, layers=at, heads=receiver.head)):
        return metric(logits_of(model, corrupted)).mean()


RECEIVERS = ("logits", Receiver(1, 1, "q"), Receiver(1, 0, "k"), Receiver(1, 0, "v"))
PATHS = [*product(("decoder", "experts", "gpt2", "llama"), (Sender(0, 2), Sender(0)), RECEIVERS)]


@pytest.mark.parametrize(
    ("kind", "sender", "receiver"), [*PATHS, ("experts", Sender(0, 1), Receiver(3, 2, "q"))]
)
def test_a_path_is_all_else_held(kind: str, sender: Sender, receiver: Any) -> None:
    makers: dict[str, Any] = {"decoder": decoder, "experts": lambda: decoder(**EXPERTS)}
    model = (makers.get(kind) or FAMILIES[kind])().double().eval()
    count = 4 if kind in makers else 2
    clean, corrupted = pair()
    if kind in FAMILIES:
        model(clean, output_attentions=True)  # leaves hooks that record
    found = path_patch(model, clean, corrupted, metric, sender, receiver)
    expected = float(held(model, sender, receiver, count, clean, corrupted))
    assert float(found.values[0]) == pytest.approx(expected, abs=1e-8)
    assert abs(found.values[0] - found.corrupted) > 1e-9


def test_what_is_no_path_is_refused() -> None:
    model, (clean, corrupted) = decoder().double().eval(), pair()
    with refused("sender in layer 2 and a receiver in 2"):
        path_patch(model, clean, corrupted, metric, Sender(2, 0), Receiver(2, 0))
    with refused("sender head.*4"):
        path_patch(model, clean, corrupted, metric, Sender(0, 4), "logits")
    with refused("Encoder"):
        path_patch(encoder(), clean, corrupted, metric, Sender(0, 0), "logits")
