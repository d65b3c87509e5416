"""Compiled programs: transformers with chosen weights, and the purpose of each of their parts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.blocks import Block, run_stack
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.programs.checker import LayerClaim
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch, Column
from glassformer.programs.language import Value, Variable, is_number, typed


@dataclass(frozen=True)
class Coordinate:
    """The variable that a coordinate of the residual stream holds for some time."""

    index: int
    name: str
    variable: int
    """A number that is equal for the coordinates of one variable."""
    born: int
    """The time from which it holds the variable.

    Times: 0 is the embedding, 2 l + 1 the attention of layer l, 2 l + 2 its feed-forward network.
    """
    read: int
    """The time of its last reader."""
    values: tuple[tuple[Value, float], ...] | None
    """Each value of the variable with the coordinate for it; None for the value itself."""


class CompiledProgram(nn.Module):
    """The transformer of a program, which gives one number per position.

    It has embeddings of tokens and positions, and blocks without norms. A block is
    :class:`~glassformer.layers.blocks.Block` with attention, ReLU network and residual stream.
    Build one with :func:`~glassformer.programs.compiler.compile_program`.

    Attributes:
        program: The program; None for a model read from a file.
        domains: Its vocabulary, greatest length and direction.
        coordinates: The variable in each coordinate of the residual stream, and its times.
        heads: The selector of each head, for each layer.
        codes: The number that stands for each value, ascending; None if the output is the value.
        claims: The compiler's claims, for :func:`~glassformer.programs.checker.check`; None for a
            model read from a file.

    Shape: tokens ``[batch, position]``, indices into the vocabulary, to numbers
    ``[batch, position]``.
    """

    def __init__(
        self, program: Variable | None, domains: Domains, hidden_dim: int, blocks: Sequence[Block]
    ) -> None:
        super().__init__()
        self.program = program
        self.domains = domains
        self.name = str(program)
        self.embedding = nn.Embedding(len(domains.vocabulary), hidden_dim)
        self.positions = nn.Embedding(domains.max_len, hidden_dim)
        self.layers = nn.ModuleList(blocks)
        self.output = nn.Linear(hidden_dim, 1)
        self.coordinates: tuple[Coordinate, ...] = ()
        self.heads: tuple[tuple[str, ...], ...] = ()
        self.codes: list[tuple[float, Value]] | None = None
        self.claims: tuple[LayerClaim, ...] | None = None
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position"]:
        """Return the number that stands for each position's value.

        Args:
            key_padding: True where a token is real.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(positions)
        x = run_stack(self.layers, None, x, key_padding=key_padding)
        return self.output(x)[..., 0]

    @torch.inference_mode()
    def run(self, sequence: Sequence[Value]) -> list[Value]:
        """Return the value at each position.

        It is the nearest of the values that the program can have, or the number itself.
        """
        outputs = self(self.encode(sequence))
        return self.decode(outputs[0].double().tolist())

    def encode(self, sequence: Sequence[Value]) -> Int[Tensor, "one position"]:
        """Return the tokens of a sequence; refuse an empty, long or unknown one."""
        most = self.domains.max_len
        vocabulary = self.domains.vocabulary
        if not isinstance(sequence, Sequence):
            raise InputError(
                got=f"a sequence of type {type(sequence).__name__}",
                expected="a text or a list of tokens",
                fix="Pass some tokens.",
            )
        if not 1 <= len(sequence) <= most:
            raise InputError(
                got=f"{len(sequence)} tokens",
                expected=f"1 to {most}",
                fix="Compile with a larger max_len." if len(sequence) else "Pass some tokens.",
            )
        places = {typed(token): place for place, token in enumerate(vocabulary)}
        unknown = [token for token in sequence if typed(token) not in places]
        if unknown:
            raise InputError(
                got=f"tokens {unknown}",
                expected=f"those of {list(vocabulary)}",
                fix="Compile with a larger vocabulary.",
            )
        return torch.tensor([[places[typed(token)] for token in sequence]])

    def decode(self, numbers: Sequence[float]) -> list[Value]:
        """Return the value that each number of :meth:`forward` stands for."""
        self.require_codes()
        if not np.isfinite(numbers).all():
            raise InputError(
                got="outputs that are not finite",
                expected="finite numbers",
                fix="Compile the program again, or in a wider dtype.",
            )
        if self.codes is None:
            return list(numbers)
        return [self.codes[place][1] for place in self.nearest(np.array(numbers)).tolist()]

    def nearest(self, numbers: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """Return the place in ``codes`` of the nearest number to each."""
        known = np.array([number for number, _ in self.codes or ()])
        order = np.argsort(known, kind="stable")
        ends = known[order][:-1] + np.diff(known[order]) / 2
        return order[np.searchsorted(ends, numbers)]

    def misread(
        self,
        outputs: Float[np.ndarray, "*shape"],
        column: Int[np.ndarray, "*shape"],
        values: Sequence[Value],
    ) -> Bool[np.ndarray, "*shape"]:
        """Return where outputs are read as other values than these."""
        places = {typed(value): place for place, (_, value) in enumerate(self.codes or ())}
        # Two codes may stand for one value.
        kinds = np.array([places[typed(value)] for _, value in self.codes or ()])
        targets = np.array([places.get(typed(value), -1) for value in values])[column]
        return (kinds[self.nearest(outputs)] != targets) | ~np.isfinite(outputs)

    def batch(
        self,
        sequences: Int[np.ndarray, "sequence position"],
        given: Mapping[Variable, Column] | None = None,
    ) -> Batch:
        """Run the program on sequences of one length; see :class:`~.enumeration.Batch`."""
        return Batch(sequences, self.domains.vocabulary, self.domains.causal, given)

    def wanted(self, batch: Batch) -> Float[np.ndarray, "sequence position"]:
        """Return the number that stands for the program's value; NaN where it has none."""
        places, values = batch.column(self.require_program())
        if self.codes is None:
            codes = {typed(value): float(value) for value in values if is_number(value)}
        else:
            codes = {typed(value): number for number, value in self.codes}
        numbers = np.array([codes.get(typed(value), np.nan) for value in values])
        return np.where(batch.defined[:, None], numbers[places], np.nan)

    @property
    def allowed_error(self) -> float | None:
        """Half the least difference of two values' numbers; None without codes."""
        if self.codes is None:
            return None
        numbers = np.sort([number for number, _ in self.codes])
        return float(np.diff(numbers).min(initial=np.inf) / 2)

    def require_program(self) -> Variable:
        """Return the program; raise :class:`InputError` where there is none."""
        if isinstance(self.program, Variable):
            return self.program
        description = f"program = {self.program!r}"
        if self.program is None:
            description = "a model without its program"
        raise InputError(
            got=description,
            expected="a program to compare it with",
            fix="Assign model.program, which a file does not hold.",
        )

    def require_codes(self) -> None:
        """Refuse ``codes`` that are neither None nor pairs of a finite number and a value."""
        if self.codes is None:
            return
        try:
            finite = len(self.codes) > 0 and all(math.isfinite(code) for code, _ in self.codes)
        except (TypeError, ValueError, OverflowError):
            finite = False
        if not finite:
            raise InputError(
                got="codes of another kind, or not finite",
                expected="pairs of a finite number and a value, or None",
                fix="Compile the program again.",
            )

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def num_parameters(self) -> int:
        """The number of all weights."""
        return sum(parameter.numel() for parameter in self.parameters())


def make_block(
    width: int, num_heads: int, head_dim: int, units: int, *, causal: bool, sinks: bool
) -> Block:
    """Return a block of a compiled program, with random weights.

    It has no norms, and a ReLU network if there are ``units``.
    """
    attention = GroupedQueryAttention(
        width, num_heads, head_dim, causal=causal, bias=True, sinks=sinks
    )
    block = Block(width, attention, MLP(width, units) if units else None, 1e-5)
    block.attention_norm = nn.Identity()
    block.ffn_norm = nn.Identity()
    return block
