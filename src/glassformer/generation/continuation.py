"""Repeated continuation of one growing text, such as a conversation, which reads only new tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import require, require_positive
from glassformer.generation.decoding import GREEDY, PREFILL, decode, read_prompt
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.sampling import SamplingRule
from glassformer.generation.speculative import Drafts
from glassformer.layers.attention import editors
from glassformer.layers.cache import Snapshot
from glassformer.models.decoder import Decoder


@dataclass(frozen=True)
class _Mark:
    """State at the end of a prompt: its logits, and what later positions write over."""

    tokens: tuple[int, ...]
    logits: Float[Tensor, "1 vocab"]
    snapshot: Snapshot


class Continuation:
    """Continues prompts that each start with the one before, reading only the new tokens.

    After a reply the text is taken back to the end of its prompt, so that the next prompt may hold the reply in another
    form, as in conversations whose reasoning is left out later. Keys and values of full layers are still there then;
    those of windowed layers, which replies write over, were set aside: ``2 * num_kv_heads * window * head_dim`` numbers
    a layer. Any other prompt is read from its start, and so is one under other interventions than the last.

    The tokens are those of :func:`~glassformer.generation.decoding.generate` for the whole prompt, up to rounding.

    Args:
        model: Used in evaluation mode, and left in the mode it was in.
        max_seq_len: Positions in all, for which memory is taken at once; None: the model's.
        rule: How tokens are chosen. One generator of random numbers serves all replies.
        prefill: Tokens of a prompt that are read at a time.
        speculate: Tokens that are looked up in the text and verified in one forward pass, at most; as in ``generate``.
    """

    def __init__(
        self,
        model: Decoder,
        max_seq_len: int | None = None,
        *,
        rule: SamplingRule = GREEDY,
        prefill: int = PREFILL,
        speculate: int = 0,
    ) -> None:
        self.max_seq_len = model.config.max_seq_len if max_seq_len is None else max_seq_len
        require_positive(max_seq_len=self.max_seq_len, prefill=prefill)
        require(speculate >= 0, f"speculate = {speculate}", "at least 0", "Pass 0 to verify no proposed tokens.")
        self._model, self._rule, self._prefill, self._speculate = model, rule, prefill, speculate
        self._cache = model.new_cache(1, self.max_seq_len)
        self._generator = rule.generator(model.device)
        self._start = self._mark = _Mark((), torch.empty(1, 0), self._cache.snapshot())
        self._editors = editors()
        """Interventions under which the mark was read: under others the text is read again."""

    def unread(self, prompt: Sequence[int]) -> int:
        """Number of tokens of ``prompt`` to read: those after the last prompt, if it starts with that."""
        return len(prompt) - len(self._mark_before(prompt).tokens)

    def reply(
        self, prompt: Sequence[int], max_new_tokens: int | None = None, *, stop_tokens: Sequence[int] = ()
    ) -> Iterator[int]:
        """The tokens that follow ``prompt``, one by one; nothing is computed before the first is asked for.

        It may be left at any moment, also by an exception, and the next call goes on as if it had ended.

        Args:
            prompt: At least one token and at most ``max_seq_len``.
            max_new_tokens: At most so many; None: until the cache is full, which is after
                ``max_seq_len - len(prompt) + 1``.
            stop_tokens: Tokens that end the reply; the one that does is its last.
        """
        require(len(prompt) > 0, "an empty prompt", "at least one token", "Start an empty text with a token.")
        require(
            len(prompt) <= self.max_seq_len,
            f"a prompt of {len(prompt)} tokens",
            f"at most max_seq_len = {self.max_seq_len}",
            "Shorten it, or make the continuation with a larger max_seq_len.",
        )
        room = self.max_seq_len - len(prompt) + 1
        most = room if max_new_tokens is None else min(room, max_new_tokens)
        require_positive(max_new_tokens=most)
        return self._reply(tuple(prompt), most, frozenset(stop_tokens))

    def _reply(self, prompt: tuple[int, ...], most: int, stop: frozenset[int]) -> Iterator[int]:
        begun, read = editors(), DecodingStep(self._model, self._cache)

        def step(new: Tensor) -> Tensor:
            # Keys and values that were computed under other interventions do not go together.
            got = "a reply that began under other interventions than it goes on"
            require(begun == editors(), got, "one intervention for the whole reply", "Begin it anew within the block.")
            return read(new)

        logits = self._read_prompt(prompt)
        drafts = Drafts(self._model, self._cache, prompt, self._speculate, most) if self._speculate else None
        choose = partial(self._rule.choose, generator=self._generator)
        for (token,) in decode(lambda: logits, step, choose, most, stop, drafts):
            assert token is not None  # the only text
            yield token

    def _mark_before(self, prompt: Sequence[int]) -> _Mark:
        known = self._mark.tokens
        return self._mark if tuple(prompt[: len(known)]) == known and self._editors == editors() else self._start

    def _read_prompt(self, prompt: tuple[int, ...]) -> Float[Tensor, "1 vocab"]:
        """Logits after ``prompt``; sets the mark there."""
        # The cache is overwritten: another mark is no longer valid.
        self._mark = mark = self._mark_before(prompt)
        self._editors = editors()
        logits = mark.logits
        self._cache.restore(mark.snapshot)
        if new := prompt[len(mark.tokens) :]:
            tokens = torch.tensor([new], dtype=torch.int64, device=self._model.device)
            logits = read_prompt(self._model, self._cache, tokens, prefill=self._prefill)
        self._mark = _Mark(prompt, logits, self._cache.snapshot())
        return logits
