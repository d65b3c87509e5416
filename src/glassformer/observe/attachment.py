"""Taps of the sites of a running model: each receives a site's tensor with the site's axes, and may
replace it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.layers.attention import Attended, editing
from glassformer.observe import hugging_face
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    FeedForwardPoint,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    of_kind,
)
from glassformer.observe.module_hooks import Change, Given, Phase, Scope
from glassformer.observe.positions import by_text
from glassformer.observe.running import Running, Visit

IN_ATTENTION = ("q", "k", "v", "scores", "weights")
"""Sites that are changed where an attention is computed, not at a module."""


class SiteTap(Protocol):
    """What is done to one site, at some hook points."""

    @property
    def site(self) -> str:
        """One of the sites that can be changed."""

    @property
    def points(self) -> Collection[HookPoint]:
        """The hook points at which it is done."""

    def change(self, visit: Visit, values: Tensor) -> Tensor | None:
        """Return what replaces a site's tensor, which has the site's axes; None: nothing."""

    def attended(self, visit: Visit, call: Attended) -> Attended:
        """Return what replaces a call of an attention; the same object: nothing."""

    def experts(
        self, visit: Visit, choices: Tensor, outputs: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Return new outputs of the chosen experts and where they are new; None: nothing.

        Args:
            visit: The call.
            choices: The experts that each token chose, [batch, query, choice].
            outputs: Compute what these give, [batch, query, choice, dim].
        """


class Attachment:
    """The hooks of some taps, and the state of the forward pass that is running."""

    def __init__(
        self,
        attached: ExitStack,
        scope: Scope,
        points: Sequence[HookPoint],
        foreign: bool,
        taps: Sequence[SiteTap],
    ) -> None:
        self._points = points
        self.scope = scope
        self._running = Running(self._check_recomputation)
        chosen = dict.fromkeys(point for tap in taps for point in tap.points)
        attention_taps = [tap for tap in taps if tap.site in IN_ATTENTION]
        attentions = dict.fromkeys(
            point for tap in attention_taps for point in of_kind(tap.points, AttentionPoint)
        )
        self._running.enter(scope, points, chosen, attentions)
        # Also without taps of attention: what runs within can then see that it is edited.
        edit = partial(self._edit_attention, attention_taps)
        edited_everywhere = foreign and attention_taps
        attached.enter_context(hugging_face.editing(edit) if edited_everywhere else editing(edit))
        for tap in taps:
            if tap.site not in IN_ATTENTION:
                for point in tap.points:
                    self._attach_point(tap, point)
        self._running.leave_attentions(scope)

    def _attach_point(self, tap: SiteTap, point: HookPoint) -> None:
        module, where = point.place(tap.site)
        if module is None:
            got = f"{tap.site} of {point.name}, which has no module for it"
            raise InputError(got, "a part that has one", "Edit another site.")
        changes: dict[str, Any] = {
            "heads": self._heads,
            "router": self._router,
            "experts": self._experts,
            "logits": self._logits,
        }
        change = partial(changes.get(tap.site, self._stream), tap, point)
        if tap.site == "residual_between" and isinstance(point, BlockPoint) and point.pre_norm:
            self._attach_between(point, module, change)
            return
        self.scope.insert(module, where, change, Phase.EDIT)

    def _check_recomputation(self, block: Any, values: Tensor, given: Given) -> None:
        """Refuse gradient checkpointing that computes a block again after the end of the edits."""
        if not (block.training and getattr(block, "gradient_checkpointing", False)):
            return
        name = next(point.name for point in self._points if point.module is block)
        checkpoint = getattr(block, "_gradient_checkpointing_func", None)
        late = getattr(checkpoint, "keywords", {}).get("use_reentrant", True)
        got = f"{name} under {'reentrant ' if late else ''}checkpointing, which computes again after the block"
        if late:
            raise InputError(
                got=got,
                expected="use_reentrant=False",
                fix="Use that, and call backward() within the block.",
            )
        if values.requires_grad:
            asked = "backward() within the block", "Call it there."
            values.register_hook(lambda _: require(self.scope.open, got, *asked))

    def _visit(self, point: HookPoint, length: int) -> Visit:
        return self._running.latest.visit(point, length)

    def _by_text(self, site: str, point: HookPoint, values: Tensor) -> Tensor:
        return by_text(values, self._running.latest.shape, f"{site} of {point.name}")

    def _stream(
        self, tap: SiteTap, point: HookPoint, values: Tensor, given: Given
    ) -> Tensor | None:
        """Tap a tensor [batch, position, ...]."""
        texts = self._by_text(tap.site, point, values)
        new = tap.change(self._visit(point, texts.shape[1]), texts)
        return None if new is None else new.view(values.shape)

    def _logits(
        self, tap: SiteTap, point: LogitsPoint, values: Tensor, given: Given
    ) -> Tensor | None:
        visit, by_position = self._running.logits_visit(point, values, self._running.latest)
        new = tap.change(visit, by_position)
        if new is None or values.dim() == 3:
            return new
        return new[:, 0]

    def _heads(
        self, tap: SiteTap, point: AttentionPoint, values: Tensor, given: Given
    ) -> Tensor | None:
        split = (
            self._by_text(tap.site, point, values).unflatten(-1, (point.heads, -1)).transpose(1, 2)
        )
        new = tap.change(self._visit(point, split.shape[2]), split)
        if new is None:
            return None
        return new.transpose(1, 2).reshape(values.shape)

    def _router(
        self, tap: SiteTap, point: MixturePoint, values: Tensor, given: Given
    ) -> Tensor | None:
        """Return scores that have the edited probabilities as their softmax, up to a factor."""
        wide = torch.promote_types(values.dtype, torch.float32)
        texts, length = self._running.latest.shape[:2]
        probabilities = values.softmax(-1, dtype=wide).view(texts, length, -1)
        new = tap.change(self._visit(point, length), probabilities)
        if new is None:
            return None
        if not bool((new >= 0).all() & (new.sum(-1) > 0).all()):
            raise InputError(
                got=(
                    f"an edit of the router at {point.name} that leaves no expert, or a negative "
                    "probability"
                ),
                expected="probabilities of at least 0, one of them above 0",
                fix="Leave an expert to choose.",
            )
        changed = (new != probabilities).any(-1, keepdim=True)
        scores = torch.where(
            changed, new.log(), values.view(new.shape)
        )  # unchanged rows stay as they are
        return scores.view(values.shape).to(values.dtype)

    def _experts(
        self, tap: SiteTap, point: MixturePoint, values: Tensor, given: Given
    ) -> Tensor | None:
        """Compute the mixture once more, of tokens for which what an expert gives is new."""
        x = self._by_text(tap.site, point, given[0])
        _, choices, shares = point.route(x)
        before = getattr(values, "experts", None)  # as an edit before this one leaves them

        def outputs() -> Tensor:
            if before is None:
                return point.expert_outputs(x, choices)
            return before

        changed = tap.experts(self._visit(point, x.shape[1]), choices, outputs)
        if changed is None:
            return None
        new, is_new = changed
        mixed = (shares[..., None] * new).sum(2).to(values.dtype)
        unchanged = values.view(mixed.shape)
        edited: Any = torch.where(is_new.any(-1, keepdim=True), mixed, unchanged).view(values.shape)
        edited.experts = new
        return edited

    def _attach_between(self, point: BlockPoint, between: nn.Module, change: Change) -> None:
        block: Any = point.module
        ffn = next(
            each.module for each in of_kind(self._points, FeedForwardPoint) if each.block is block
        )
        kept: dict[str, Tensor] = {}

        def before(values: Tensor, given: Given) -> Tensor | None:
            new = change(values, given)
            kept.clear()  # of a call that has raised
            if new is not None:
                kept["new"] = new
            return new

        def after(values: Tensor, given: Given) -> None:
            kept["ffn"] = values

        def again(values: Tensor, given: Given) -> Tensor | None:
            if "new" not in kept:
                return None
            if block.training:
                dropout = getattr(block, "dropout", 0.0)
            else:
                dropout = 0.0
            if dropout != 0:
                raise InputError(
                    got=f"{point.name} with dropout",
                    expected="a model without",
                    fix="Call model.eval().",
                )
            # The block has added what the ffn gives to the unedited stream, unless a sweep has
            # skipped it.
            return (kept.pop("new") + kept.pop("ffn")).view(values.shape)

        self.scope.insert(between, "first input", before, Phase.EDIT)
        self.scope.insert(ffn, "output", after, Phase.READ)
        self.scope.insert(block, "first output", again, Phase.EDIT)

    def _edit_attention(self, taps: Sequence[SiteTap], call: Attended) -> Attended:
        running = self._running.attention
        if running is None or not self.scope.here():
            return call
        point = running.point
        for tap in taps:
            if point in tap.points:
                call = tap.attended(self._visit(point, call.q.shape[2]), call)
        return call
