"""Attach taps to the sites of a running model: each reads a site's tensor or replaces it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
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
from glassformer.observe.module_hooks import Arguments, Change, Phase, Scope
from glassformer.observe.positions import by_text
from glassformer.observe.running import Running, Visit

IN_ATTENTION = ("q", "k", "v", "scores", "weights")
"""Sites that are changed where an attention is computed, not at a module."""


class SiteTap(Protocol):
    """A tap of one site at some hook points."""

    @property
    def site(self) -> str:
        """One of the sites that can be changed."""

    @property
    def points(self) -> Collection[HookPoint]:
        """The hook points that are tapped."""

    def change(self, visit: Visit, values: Tensor) -> Tensor | None:
        """Return the replacement of a site's tensor, with the site's axes, or None to keep it."""

    def attended(self, visit: Visit, call: Attended) -> Attended:
        """Return the replacement of a call of an attention, or the same object to keep it."""

    def experts(
        self, visit: Visit, choices: Tensor, outputs: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Return new outputs of the chosen experts and where they are new, or None to keep them.

        Args:
            visit: The call.
            choices: The experts that each token chose, [batch, query, choice].
            outputs: Computes the outputs of these experts, [batch, query, choice, dim].
        """


def _points_of(taps: Iterable[SiteTap]) -> list[HookPoint]:
    """Return the hook points of some taps, each once."""
    return list(dict.fromkeys(chain.from_iterable(tap.points for tap in taps)))


class Attachment:
    """The hooks of some taps, and the state of the forward pass that is running."""

    def __init__(
        self,
        stack: ExitStack,
        scope: Scope,
        points: Sequence[HookPoint],
        foreign: bool,
        taps: Sequence[SiteTap],
    ) -> None:
        self._points = points
        self.scope = scope
        self._running = Running(self._check_recomputation)
        attention_taps = [tap for tap in taps if tap.site in IN_ATTENTION]
        attentions = of_kind(_points_of(attention_taps), AttentionPoint)
        self._running.enter(scope, points, _points_of(taps), attentions)
        # Also without taps of attention: code that runs within can then see that it is edited.
        edit = partial(self._edit_attention, attention_taps)
        if foreign and attention_taps:
            stack.enter_context(hugging_face.editing(edit))
        else:
            stack.enter_context(editing(edit))
        for tap in taps:
            if tap.site not in IN_ATTENTION:
                for point in tap.points:
                    self._attach_point(tap, point)
        self._running.leave_attentions(scope)

    def _attach_point(self, tap: SiteTap, point: HookPoint) -> None:
        module, where = point.place(tap.site)
        if module is None:
            raise InputError(
                got=f"{tap.site} of {point.name}, which has no module for it",
                expected="a part that has one",
                fix="Edit another site.",
            )
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

    def _check_recomputation(self, block: Any, values: Tensor, arguments: Arguments) -> None:
        """Refuse gradient checkpointing that computes a block again after the end of the edits."""
        if not (block.training and getattr(block, "gradient_checkpointing", False)):
            return
        name = next(point.name for point in self._points if point.module is block)
        checkpoint = getattr(block, "_gradient_checkpointing_func", None)
        if getattr(checkpoint, "keywords", {}).get("use_reentrant", True):
            raise InputError(
                got=f"{name} under reentrant checkpointing, which computes again after the block",
                expected="use_reentrant=False",
                fix="Use that, and call backward() within the block.",
            )

        def check_open(gradient: Tensor) -> None:
            if not self.scope.open:
                raise InputError(
                    got=f"{name} under checkpointing, which computes again after the block",
                    expected="backward() within the block",
                    fix="Call it there.",
                )

        if values.requires_grad:
            values.register_hook(check_open)

    def _visit(self, point: HookPoint, length: int) -> Visit:
        return self._running.latest.visit(point, length)

    def _by_text(self, site: str, point: HookPoint, values: Tensor) -> Tensor:
        return by_text(values, self._running.latest.shape, f"{site} of {point.name}")

    def _stream(
        self, tap: SiteTap, point: HookPoint, values: Tensor, arguments: Arguments
    ) -> Tensor | None:
        """Tap a tensor [batch, position, ...]."""
        texts = self._by_text(tap.site, point, values)
        new = tap.change(self._visit(point, texts.shape[1]), texts)
        return None if new is None else new.view(values.shape)

    def _logits(
        self, tap: SiteTap, point: LogitsPoint, values: Tensor, arguments: Arguments
    ) -> Tensor | None:
        visit, by_position = self._running.logits_visit(point, values, self._running.latest)
        new = tap.change(visit, by_position)
        if new is None or values.dim() == 3:
            return new
        return new[:, 0]

    def _heads(
        self, tap: SiteTap, point: AttentionPoint, values: Tensor, arguments: Arguments
    ) -> Tensor | None:
        texts = self._by_text(tap.site, point, values)
        heads = texts.unflatten(-1, (point.heads, -1)).transpose(1, 2)
        new = tap.change(self._visit(point, heads.shape[2]), heads)
        if new is None:
            return None
        return new.transpose(1, 2).reshape(values.shape)

    def _router(
        self, tap: SiteTap, point: MixturePoint, values: Tensor, arguments: Arguments
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
        # Unchanged rows keep their scores.
        scores = torch.where(changed, new.log(), values.view(new.shape))
        return scores.view(values.shape).to(values.dtype)

    def _experts(
        self, tap: SiteTap, point: MixturePoint, values: Tensor, arguments: Arguments
    ) -> Tensor | None:
        """Compute the mixture again for tokens at which an expert's output is new."""
        x = self._by_text(tap.site, point, arguments[0])
        _, choices, shares = point.route(x)
        before = getattr(values, "experts", None)  # from an earlier edit

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
        """Change the stream between attention and ffn, and the block's sum, which reads it too."""
        block: Any = point.module
        networks = of_kind(self._points, FeedForwardPoint)
        ffn = next(network.module for network in networks if network.block is block)
        saved: dict[str, Tensor] = {}

        def change_stream(values: Tensor, arguments: Arguments) -> Tensor | None:
            new = change(values, arguments)
            saved.clear()  # tensors of a call that has raised
            if new is not None:
                saved["stream"] = new
            return new

        def save_ffn(values: Tensor, arguments: Arguments) -> None:
            saved["ffn"] = values

        def add_again(values: Tensor, arguments: Arguments) -> Tensor | None:
            if "stream" not in saved:
                return None
            if block.training and getattr(block, "dropout", 0.0) != 0:
                raise InputError(
                    got=f"{point.name} with dropout",
                    expected="a model without",
                    fix="Call model.eval().",
                )
            # The block has added the output of the ffn to the unedited stream, unless a sweep has
            # skipped it.
            return (saved.pop("stream") + saved.pop("ffn")).view(values.shape)

        self.scope.insert(between, "first input", change_stream, Phase.EDIT)
        self.scope.insert(ffn, "output", save_ffn, Phase.READ)
        self.scope.insert(block, "first output", add_again, Phase.EDIT)

    def _edit_attention(self, taps: Sequence[SiteTap], call: Attended) -> Attended:
        running = self._running.attention
        if running is None or not self.scope.is_active():
            return call
        point = running.point
        for tap in taps:
            if point in tap.points:
                call = tap.attended(self._visit(point, call.q.shape[2]), call)
        return call
