"""Speculative decoding without a second model: tokens that are looked up in the text are verified in one forward pass.

The newest tokens are searched in the text so far, and the tokens that followed them there are proposed. One pass gives
the logits after each of them. At every position a token is chosen as in plain decoding, with the same random number.
While it is the proposed one, the next position's logits are those of plain decoding too, so the text is the same. A
proposed token x is accepted with probability p(x), and otherwise the token is distributed as p without x: this is the
rule of speculative sampling for a proposal that is certain.

A pass over several positions may round differently from passes over one each. Where two tokens' logits, or a random
number and the border between two tokens, are nearer to one another than this rounding, the text may go on differently.

Source: Leviathan et al. 2023, arXiv 2211.17192 (the rule); Yang et al. 2023, arXiv 2304.04487 (proposals copied from a
text).
"""

from collections.abc import Iterable, Sequence

from glassformer.layers.blocks import is_watched
from glassformer.layers.cache import Cache
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig

_SIZES = (4, 2)
"""Numbers of tokens that are looked up, the largest first."""

_LONGEST = 16
"""Longer matches are taken to be as reliable as one of this length."""

_MEMORY = 1 / 16
"""Weight of the newest token in the share of matches that went on."""

_ARITHMETIC = 0.25
"""Cost of one more position, relative to a pass over one, besides reading more experts: as of the native step."""

_PACKED = 4.25 / 16
"""Bytes of a weight in MXFP4, relative to bfloat16."""


class Lookup:
    """Proposes how a text goes on: as it did after the last place with the same newest tokens.

    Along the text, also where nothing is proposed, it counts how often a match of n tokens goes on. A proposal has the
    length that gives most tokens per cost in expectation, and is empty where plain decoding does.

    Args:
        text: The tokens so far.
        costs: Cost of a pass that verifies 0, 1, 2, ... proposed tokens; the last is the longest proposal.
    """

    def __init__(self, text: Iterable[int], costs: Sequence[float]) -> None:
        self._costs = costs
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-grams, and the position after their last occurrence
        self._next = self._matched = 0  # the position that is read along, and how many tokens before it are equal
        self._share = [length / (length + 8) for length in range(_LONGEST + 1)]  # of matches that went on, by length
        for token in text:
            self.add(token)

    def add(self, token: int) -> None:
        """The text's next token."""
        text = self._text
        if self._matched:
            hit, length = text[self._next] == token, min(self._matched, _LONGEST)
            self._share[length] += _MEMORY * (hit - self._share[length])
            self._next, self._matched = (self._next + 1, self._matched + 1) if hit else (0, 0)
        text.append(token)
        for size in _SIZES:
            if size <= len(text):
                newest = tuple(text[-size:])
                if self._matched < size and newest in self._after:
                    self._next, self._matched = self._after[newest], size
                self._after[newest] = len(text)

    def propose(self, most: int) -> list[int]:
        """The tokens that may come next, at most ``most``."""
        length, best, chance, expected = 0, 1.0, 1.0, 1.0
        for count in range(1, min(most, len(self._costs) - 1) + 1 if self._matched else 1):
            chance *= self._share[min(self._matched + count - 1, _LONGEST)]
            expected += chance
            if expected / self._costs[count] > best:
                length, best = count, expected / self._costs[count]
        # A match that reaches the end of the text is a repetition, which goes on.
        period = len(self._text) - self._next
        return [self._text[self._next + index % period] for index in range(length)]


def verification_costs(config: DecoderConfig, longest: int) -> list[float]:
    """Cost of a pass over 1 to ``1 + longest`` positions, relative to the first: the weights that it reads.

    Each position reads ``top_k`` experts of its own choice, and all read the same other weights.
    """
    width, experts = config.hidden_dim, config.num_experts or 1
    chosen = config.top_k if config.num_experts else 1
    attention = 2 * width * config.head_dim * (config.num_heads + (config.num_kv_heads or config.num_heads))
    expert = 3 * width * config.ff_dim * (_PACKED if config.expert_format == "mxfp4" else 1)
    shared = config.num_layers * attention + config.vocab_size * width

    def read(rows: int) -> float:
        return shared + config.num_layers * expert * experts * (1 - (1 - chosen / experts) ** rows)

    return [read(rows) / read(1) + _ARITHMETIC * (rows - 1) for rows in range(1, longest + 2)]


class Drafts:
    """Proposals for the text in a cache, which forgets those that were not chosen.

    The cache will hold ``text``, and has room for the ``most - 1`` tokens that are read after it. At most ``longest``
    tokens are proposed, fewer than any window has positions, so that the cache can forget those that are not accepted,
    and none across the border of LongRoPE, where the text is read anew.
    """

    def __init__(self, model: Decoder, cache: Cache, text: Sequence[int], longest: int, most: int) -> None:
        longest = min([longest, most, *(layer.window - 1 for layer in cache.layers if layer.window is not None)])
        longest = 0 if is_watched(model) else longest  # hooks and edits may name the newest position
        self._lookup = Lookup(text, verification_costs(model.config, longest))
        self._cache, self._length, self._snapshot = cache, len(text), cache.snapshot(0)
        self._border = model.config.cache_border

    def add(self, token: int) -> None:
        """The token that was chosen."""
        self._lookup.add(token)
        self._length += 1

    def propose(self, most: int) -> list[int]:
        """The tokens that may come next, at most ``most``; the cache holds all but the newest token now."""
        if self._cache.length > self._length - 1:
            self._cache.restore(self._snapshot, self._length - 1)
        if self._length <= self._border + 1:
            most = min(most, self._border - self._length)
        draft = self._lookup.propose(most)
        if draft:
            self._snapshot = self._cache.snapshot(1 + len(draft))
        return draft
