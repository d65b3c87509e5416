"""Find heads by what they attend to on repeated random tokens: previous token, same token, induction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.observe.capture import capture


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The mean attention of each head to one kind of key, in [0, 1]; NaN for a head that never sees such a key.

    Args:
        previous: To the token before the query.
        duplicate: To the earlier occurrence of the query's token.
        induction: To the token after the earlier occurrence of the query's token, which is what comes next.
        sink: To the sink and to the first token together.
    """

    previous: Float[Tensor, "layer head"]
    duplicate: Float[Tensor, "layer head"]
    induction: Float[Tensor, "layer head"]
    sink: Float[Tensor, "layer head"]

    def top(self, kind: str, count: int = 5) -> list[tuple[int, int, float]]:
        """The heads with the highest score: layer, head, score."""
        scores: Tensor = getattr(self, kind).nan_to_num(-1.0)
        best = scores.flatten().argsort(descending=True)[:count].tolist()
        return [(*divmod(place, scores.shape[1]), float(scores.flatten()[place])) for place in best]


def repeated_tokens(
    vocab_size: int, half: int, rows: int = 8, *, seed: int = 0, first: int | None = None
) -> Int[Tensor, "row position"]:
    """Random tokens, different from one another in each half, and the same again; with a ``first`` token before them.

    Raises:
        InputError: A size below 1, or more tokens in a half than the vocabulary has.
    """
    require_positive(half=half, rows=rows, vocab_size=vocab_size)
    require(half <= vocab_size, f"half = {half} of {vocab_size} tokens", "at most as many", "Shorten the half.")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(vocab_size, generator=generator)[:half] for _ in range(rows)])
    both = torch.cat([drawn, drawn], 1)
    return both if first is None else torch.cat([torch.full((rows, 1), first), both], 1)


@torch.no_grad()
def head_scores(model: nn.Module, tokens: Int[Tensor, "row position"]) -> HeadScores:
    """The scores of every self-attention head of a model on texts in which tokens return.

    A query counts for ``duplicate`` and ``induction`` if its token stands once before it, and for ``induction`` if the
    token after that stands before it too.

    Args:
        model: A decoder, of glassformer or of ``transformers``.
        tokens: Such as :func:`repeated_tokens` gives.

    Raises:
        InputError: Texts in which no token returns.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895, appendix.
    """
    length = tokens.shape[1]
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    once = same & (same.sum(-1, keepdim=True) == 1)
    after = once.roll(1, dims=2).tril(-1)
    after[..., 0] = False
    require(bool(once.any()), "texts in which no token returns", "repeated tokens", "Use repeated_tokens().")
    before = torch.eye(length, dtype=torch.bool).roll(-1, dims=1).tril(-1).expand(len(tokens), -1, -1)
    with capture(model) as seen:
        model(tokens)
    weights = [values for values in seen.weights.values() if values.shape[2:] == (length, length)]

    def score(values: Tensor, keys: Tensor) -> Tensor:
        queries = keys.any(-1)
        return (values * keys[:, None]).sum(-1).transpose(0, 1)[:, queries].mean(-1)

    rows = {
        name: torch.stack([score(values, keys) for values in weights])
        for name, keys in (("previous", before), ("duplicate", once), ("induction", after))
    }
    first = torch.stack([(1 - values.sum(-1) + values[..., 0])[..., 1:].mean((0, 2)) for values in weights])
    return HeadScores(**rows, sink=first)
