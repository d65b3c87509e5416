"""The configuration of the recurrence; importing it does not import torch."""

from glassformer.config import Fraction, Size, config
from glassformer.errors import require


@config
class RecurrenceConfig:
    """The family of generators and how much of each to emit.

    Args:
        order: Length of the state and of the coefficients.
        vocab_size: Tokens are 0 ... vocab_size - 1 and all sums are taken modulo it.
        next_prob: Probability in [0, 1] that a step emits ``last + 1`` instead of following the rule.
        seq_len: Predictions per sequence; a sequence holds ``seq_len + 1`` tokens.
    """

    order: Size = 2
    vocab_size: Size = 7
    next_prob: Fraction = 0.1
    seq_len: Size = 64

    def __post_init__(self) -> None:
        require(
            self.num_generators < 2**63,
            f"vocab_size = {self.vocab_size} with order = {self.order}",
            "vocab_size ** (2 * order) < 2 ** 63, so that every generator has a 64-bit number",
            "Use a smaller vocab_size or order.",
        )

    @property
    def num_generators(self) -> int:
        """How many different generators there are: ``vocab_size ** (2 * order)``."""
        return int(self.vocab_size ** (2 * self.order))
