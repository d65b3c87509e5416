"""Sampling rules: penalty, temperature, top-k, top-p and min-p, and the seeded draw of a token."""

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from glassformer.config import Fraction, NonNegative, Positive, Seed, Size, config
from glassformer.errors import InputError

# Float64 sums of a vocabulary's probabilities stray by less than this. A set that misses top_p by
# less has reached it: eight of ten equally likely tokens reach 0.8, although their float64
# probabilities add up to 0.7999999999999999.
_ROUNDING = 1e-11


@config
class SamplingRule:
    """A rule that chooses the next token: repetition penalty, temperature, top-k, top-p and min-p.

    The steps follow one another; each that sets probabilities to 0 rescales the others to sum 1::

        logit of a seen token: logit / repetition_penalty if positive, else * repetition_penalty
        p = softmax(logits / temperature)
        p = 0 outside the top_k most likely tokens
        p = 0 outside the smallest set of most likely tokens with Σ p >= top_p (at least one)
        p = 0 where p < min_p * max(p)

    Equally likely tokens rank by their id, the lowest first, as in argmax; probabilities never
    depend on chance. Sums are computed in float64, and a set that misses top_p by less than 1e-11
    counts as reaching it. The definitions and their order are those of transformers' logits
    processors.

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1 for
    top-p, 3.2 for top-k and temperature; Nguyen et al., "Turning Up the Heat: Min-p Sampling"
    (2024), section 3; Keskar et al., "CTRL" (2019), section 4.1 for the repetition penalty.
    """

    temperature: NonNegative = 1.0
    """Divides the logits. 0 is greedy, 1 leaves them as they are, larger values are closer to
    uniform.
    """
    top_k: Size | None = None
    """Only this many most likely tokens may be chosen; None for all."""
    top_p: Fraction = 1.0
    """Only the smallest set of most likely tokens that reaches this probability may be chosen; 0 is
    greedy.
    """
    seed: Seed | None = None
    """Seed of :meth:`generator`; None for another one each time."""
    min_p: Fraction = 0.0
    """Only tokens with at least this share of the most likely token's probability may be chosen; 1
    is greedy, but for tokens that are exactly equally likely.
    """
    repetition_penalty: Positive = 1.0
    """Divides the positive logits of tokens that the text holds already, prompt included, and
    multiplies their negative ones. 1 leaves them as they are, larger values make repetitions less
    likely.
    """

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always chosen, after the repetition penalty."""
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    def distribution(
        self,
        logits: Float[Tensor, "*batch vocab"],
        seen: Bool[Tensor, "*batch vocab"] | None = None,
    ) -> Float[Tensor, "*batch vocab"]:
        """Return the probability of every token, in float64 for float64 logits, else float32.

        A logit of -inf forbids a token, if another of its row is left.

        Args:
            logits: The model's output for the last position.
            seen: True for the tokens that each text holds already. Needed for a
                ``repetition_penalty`` other than 1.
        """
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logits = self._penalised(logits, seen)
        best, best_token = _best(logits)
        if self.greedy:
            return torch.zeros_like(logits, dtype=dtype).scatter_(-1, best_token[..., None], 1)
        if self.top_k is None and self.top_p == 1 and self.min_p == 0:
            return _softmax(logits, best, self.temperature).to(dtype)
        return self._truncated(logits, best).to(dtype)

    def choose(
        self,
        logits: Float[Tensor, "*batch vocab"],
        generator: torch.Generator | None = None,
        seen: Bool[Tensor, "*batch vocab"] | None = None,
    ) -> Int64[Tensor, "*batch"]:
        """Choose one token for every row of ``logits``.

        A greedy rule takes the argmax and draws nothing. The same state of ``generator``, by
        default torch's global one, gives the same tokens: every row takes one uniform number, in
        order. ``seen`` is that of :meth:`distribution`.
        """
        if self.greedy:
            return _best(self._penalised(logits, seen))[1]
        if generator is not None and generator.device.type != logits.device.type:
            raise InputError(
                f"a generator on {generator.device} with logits on {logits.device}",
                "both on one device",
                "Make it with generator().",
            )
        return _draw(self.distribution(logits, seen), generator)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a random generator on ``device``, seeded with ``seed`` or else by the system."""
        generator = torch.Generator(device)
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    def _penalised(
        self, logits: Float[Tensor, "*batch vocab"], seen: Bool[Tensor, "*batch vocab"] | None
    ) -> Float[Tensor, "*batch vocab"]:
        """Return the logits after the repetition penalty; in float64 where there is one."""
        if self.repetition_penalty == 1:
            return logits
        if seen is None:
            raise InputError(
                f"repetition_penalty = {self.repetition_penalty} without seen",
                "the tokens that each text holds already",
                "Pass seen, or use a Sampler.",
            )
        wide = logits.double()
        penalised = torch.where(
            wide > 0, wide / self.repetition_penalty, wide * self.repetition_penalty
        )
        return torch.where(seen, penalised, wide)

    def _truncated(
        self, logits: Float[Tensor, "*batch vocab"], best: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch vocab"]:
        # A stable sort ranks equal logits by token id, so that ties are cut as argmax cuts them.
        ranked, tokens = logits.sort(dim=-1, descending=True, stable=True)
        ranked = ranked[..., : self.top_k]
        tokens = tokens[..., : self.top_k]
        probabilities = _softmax(ranked, best, self.temperature)
        if self.top_p < 1:
            more_likely = probabilities.cumsum(dim=-1) - probabilities
            beyond = more_likely >= self.top_p - _ROUNDING
            beyond[..., 0] = False
            probabilities = probabilities.masked_fill(beyond, 0)
        # The ratio to the most likely token is the same before and after rescaling.
        unlikely = probabilities < self.min_p * probabilities[..., :1]
        probabilities = probabilities.masked_fill(unlikely, 0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, tokens, probabilities)


class Sampler:
    """Chooses the tokens of growing texts by a rule, and remembers which tokens each text holds.

    Args:
        rule: Rule by which a token is chosen.
        tokens: The texts so far.
        real: True for ``tokens`` that are not padding; None: all.
        generator: Random generator; None: one that starts from the rule's seed.
    """

    def __init__(
        self,
        rule: SamplingRule,
        tokens: Int[Tensor, "batch position"],
        *,
        real: Bool[Tensor, "batch position"] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.rule = rule
        self._generator = generator or rule.generator(tokens.device)
        self._tokens = tokens
        self._real = real
        self._seen: Tensor | None = None

    def choose(self, logits: Float[Tensor, "batch vocab"]) -> Int64[Tensor, " batch"]:
        """Return the next token of each text, which then belongs to the text."""
        if self.rule.repetition_penalty == 1:
            return self.rule.choose(logits, self._generator)
        if self._seen is None:
            # The model has read the texts by now, so that their tokens are known to be valid.
            self._seen = self._held(logits.shape[-1])
        chosen = self.rule.choose(logits, self._generator, self._seen)
        self._seen.scatter_(1, chosen[:, None], True)
        return chosen

    def _held(self, vocab_size: int) -> Bool[Tensor, "batch vocab"]:
        """Return a mask of the tokens that each text holds."""
        counts = torch.zeros(
            len(self._tokens), vocab_size, dtype=torch.int32, device=self._tokens.device
        )
        real = self._real
        if real is None:
            real = torch.ones_like(self._tokens)
        return counts.scatter_add_(1, self._tokens.long(), real.to(torch.int32)) > 0


def _draw(
    probabilities: Float[Tensor, "*batch vocab"], generator: torch.Generator | None
) -> Int64[Tensor, "*batch"]:
    # Inverse transform: one uniform number per row, several times faster than torch.multinomial's
    # one per token. It stays below the row's total and an impossible token adds nothing to the sum,
    # so no token of probability 0 is hit.
    reached = probabilities.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.rand(
        (*reached.shape[:-1], 1), dtype=torch.float64, device=reached.device, generator=generator
    )
    return torch.searchsorted(reached, uniform * reached[..., -1:], right=True).squeeze(-1)


def _best(
    logits: Float[Tensor, "*batch vocab"],
) -> tuple[Float[Tensor, "*batch"], Int64[Tensor, "*batch"]]:
    """Return the highest logit of each row and the lowest token that has it."""
    if logits.ndim == 0 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise InputError(
            f"logits of shape {tuple(logits.shape)} and dtype {logits.dtype}",
            "floats [..., vocab] with at least one token",
            "Pass the model's output.",
        )
    best, token = logits.max(dim=-1)
    # NaN wins every comparison in max, so that the maxima show NaN, +inf and rows of -inf.
    if torch.isfinite(best).all():
        return best, token
    raise _not_finite(logits, best)


def _not_finite(logits: Tensor, best: Tensor) -> InputError:
    """Return the error for logits with a row without a finite maximum."""
    if best.isnan().any():
        return InputError(
            got=f"NaN in {int(logits.isnan().sum())} of {logits.numel()} logits",
            expected="numbers, or -inf for a forbidden token",
            fix=(
                "Look for the first NaN in the model's forward pass; a diverged training run is "
                "the usual cause."
            ),
        )
    if best.isposinf().any():
        return InputError(
            got=f"+inf in {int(logits.isposinf().sum())} of {logits.numel()} logits",
            expected="finite numbers, or -inf for a forbidden token",
            fix="Forbid the other tokens with -inf to force one.",
        )
    return InputError(
        f"{int(best.isneginf().sum())} rows in which every logit is -inf",
        "at least one token that is not forbidden",
        "Leave one logit of each row finite.",
    )


def _softmax(
    logits: Float[Tensor, "*batch vocab"], best: Float[Tensor, "*batch"], temperature: float
) -> Float[Tensor, "*batch vocab"]:
    """Return the softmax in float64.

    Subtracting the maximum first keeps a tiny temperature from overflowing.
    """
    return ((logits.double() - best.double()[..., None]) / temperature).softmax(dim=-1)
