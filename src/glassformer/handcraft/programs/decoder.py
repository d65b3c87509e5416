r"""Compiled programs as decoders of the kind that is trained: RMSNorm, SwiGLU, rotary positions, no biases.

What :func:`~glassformer.handcraft.programs.model.compile_program` makes of a causal program is written into a
:class:`~glassformer.models.decoder.Decoder`:

- *Norms.* One more coordinate of the residual stream is a constant c that is much larger than all others, x. Each norm
  divides by ``c / sqrt(hidden_dim)``, but for a relative error of at most ``|x|² / (2 c²)``. Its weight undoes that.
- *Biases.* The norm of the constant is 1: weights on it are biases of queries, keys, values and gates. What attention
  and networks add at every position is in the embedding from the start.
- *ReLU.* ``silu(k u) / k`` differs from ``relu(u)`` by ``|u| / (1 + exp(k |u|))``: nothing at the distance that steps
  keep from every value. ``up`` is 1.
- *Positions.* Rotations cannot be left out. With a large base the last pairs of a head turn by almost nothing, and
  queries and keys are in these, one number in each: a product changes by ``1 - cos(turn)`` of itself. Programs count
  positions by attention: a causal head whose sink is at the keys' score gives ``(i + 1) / (i + 2)`` at index i.
- *Output.* With the number x of a position, the logit of a token of number a is ``2 a x - a²`` times a factor: the
  nearest has the largest.

Source: Sun et al. 2024, "Massive Activations in Large Language Models", arXiv 2402.17762 (trained decoders have
coordinates that are large constants, and use them as biases).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassformer.errors import require
from glassformer.handcraft.bounds import gamma
from glassformer.handcraft.programs.bounds import Losses, error_bound, size_of
from glassformer.handcraft.programs.certificate import ProgramCertificate, certify, same_weights
from glassformer.handcraft.programs.compiler import SHARPNESS
from glassformer.handcraft.programs.enumeration import Batch
from glassformer.handcraft.programs.language import Value, Variable
from glassformer.handcraft.programs.model import CompiledProgram, compile_program
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.norms import RMSNorm
from glassformer.models import Decoder, DecoderConfig
from glassformer.modes import evaluating

RMS = 2.0**24
"""Of the residual stream: the constant is this times ``sqrt(hidden_dim)``."""
SLOPE = 256.0
"""Of gates that stand for ReLU."""
ROPE_BASE = 2.0**120
TURN = ROPE_BASE**-0.2
"""Most radians by which a pair that is used turns from a position to the next."""


_NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class DecoderProgram:
    """A program as a decoder, whose most likely token at a position is the program's value there.

    Attributes:
        decoder: The decoder, which can be saved, trained and explored as others.
        compiled: The compiled program that its weights come from.
        values: The value that each token stands for: the vocabulary, then what else the program can give.
    """

    decoder: Decoder
    compiled: CompiledProgram
    values: tuple[Value, ...]

    @torch.inference_mode()
    def run(self, sequence: Sequence[Value]) -> list[Value]:
        """The most likely value at each position.

        Raises:
            InputError: As :meth:`~glassformer.handcraft.programs.model.CompiledProgram.run`.
        """
        ids = self.compiled.encode(sequence)
        with evaluating(self.decoder):
            return [self.values[token] for token in self.decoder(ids)[0].argmax(-1).tolist()]


def compile_decoder(
    program: Variable, vocabulary: Sequence[Value], max_len: int, *, dtype: torch.dtype = torch.float64
) -> DecoderProgram:
    """The decoder that computes a program, whose selectors see keys up to the query's own position.

    Args:
        program: See :mod:`glassformer.handcraft.programs.language`. Its values become tokens.
        vocabulary: All tokens of the input.
        max_len: Tokens of the longest sequence.
        dtype: Of the weights.

    Raises:
        InputError: As :func:`~glassformer.handcraft.programs.model.compile_program`; or a program with too many values
            to be tokens.
    """
    compiled = compile_program(program, vocabulary, max_len, causal=True, positions=False, reuse=False)
    got, wanted = f"{program} with too many possible values to list", "a program whose values can be tokens"
    require(compiled.codes is not None, got, wanted, "Map it to fewer values, or use compile_program().")
    assert compiled.codes is not None
    letters = compiled.domains.vocabulary
    known = dict.fromkeys((*letters, *(value for _, value in compiled.codes)))
    decoder = Decoder(_config(compiled, len(known))).double()
    with torch.no_grad():
        _write(decoder, compiled, tuple(known))
    return DecoderProgram(decoder.to(dtype).eval(), compiled, tuple(known))


def _config(compiled: CompiledProgram, vocab_size: int) -> DecoderConfig:
    heads = [block.attention for block in compiled.blocks]
    units = [block.ffn.up.out_features for block in compiled.blocks if isinstance(block.ffn, MLP)]
    size = max((each.head_dim for each in heads), default=1)
    return DecoderConfig(
        vocab_size=vocab_size,
        num_layers=max(len(heads), 1),
        hidden_dim=compiled.embedding.embedding_dim + 1,
        ff_dim=max(units, default=0),
        num_heads=max((each.num_heads for each in heads), default=1),
        head_dim=2 * (size + math.ceil(size / 4)),  # the first pairs, which turn most, stay empty
        sinks=any(each.sinks is not None for each in heads),
        max_seq_len=compiled.domains.max_len,
        rope_base=ROPE_BASE,
    )


def _write(decoder: Decoder, compiled: CompiledProgram, values: tuple[Value, ...]) -> None:
    for parameter in decoder.parameters():
        parameter.zero_()
    width = decoder.config.hidden_dim
    constant = RMS * math.sqrt(width)
    table = decoder.embedding.weight
    table[: len(compiled.embedding.weight), :-1] = compiled.embedding.weight
    table[:, -1] = constant
    for block, given in zip(decoder.layers, compiled.blocks, strict=False):  # a program may need no layer at all
        assert isinstance(block, Block)
        _write_attention(block, given)
        table[:, :-1] += given.attention.output.bias
        if isinstance(given.ffn, MLP):
            _write_network(block, given.ffn)
            table[:, :-1] += given.ffn.down.bias
    for part in decoder.modules():
        if isinstance(part, RMSNorm):
            part.weight[:-1], part.weight[-1] = RMS, RMS / constant
    numbers = {value: number for number, value in compiled.codes or ()}
    middle, factor = _middle(compiled), _factor(compiled)
    for row, value in zip(decoder.output.weight, values, strict=True):
        if value in numbers:  # factor * (2 a x - a²), of numbers minus the middle one
            a = numbers[value] - middle
            row[:-1] = factor * 2 * a * compiled.output.weight[0]
            row[-1] = factor * (2 * a * (float(compiled.output.bias) - middle) - a**2)
        else:
            row[-1] = -SHARPNESS


def _middle(compiled: CompiledProgram) -> float:
    numbers = [number for number, _ in compiled.codes or ()]
    return (numbers[0] + numbers[-1]) / 2


def _gap(compiled: CompiledProgram) -> float:
    """The least difference of two values' numbers; 1 if there is one value."""
    allowed = compiled.allowed_error
    return 2 * allowed if allowed is not None and math.isfinite(allowed) else 1.0


def _factor(compiled: CompiledProgram) -> float:
    """Makes a logit larger than others by ``SHARPNESS``."""
    return SHARPNESS / _gap(compiled) ** 2


def _with_bias(linear: torch.nn.Linear) -> Tensor:
    """A map of the stream and its constant."""
    return torch.cat([linear.weight, linear.bias[:, None]], 1)


def _write_attention(block: Block, given: Block) -> None:
    to, old = block.attention, given.attention
    size, end = old.head_dim, to.head_dim // 2
    for head in range(old.num_heads):
        first = head * to.head_dim
        mine, theirs = slice(head * size, (head + 1) * size), slice(first, first + size)
        turned = slice(first + end - size, first + end)  # a feature in the first half of each of the last pairs
        # attend() divides scores by the root of the size.
        to.query.weight[turned] = _with_bias(old.query)[mine] * math.sqrt(to.head_dim / size)
        to.key.weight[turned] = _with_bias(old.key)[mine]
        to.value.weight[theirs] = _with_bias(old.value)[mine]
        to.output.weight[:-1, theirs] = old.output.weight[:, mine]
    if to.sinks is not None:
        to.sinks.fill_(-1e4)
        if old.sinks is not None:
            to.sinks[: old.num_heads] = old.sinks


def _write_network(block: Block, given: MLP) -> None:
    assert isinstance(block.ffn, SwiGLU)
    units = given.up.out_features
    block.ffn.gate.weight[:units] = SLOPE * _with_bias(given.up)
    block.ffn.up.weight[:units, -1] = 1
    block.ffn.down.weight[:-1, :units] = given.down.weight / SLOPE


@torch.inference_mode()
def verify_decoder(program: DecoderProgram, *, limit: int = 1_000_000) -> ProgramCertificate:
    """Run a decoder on every sequence, shortest first, as :func:`~.certificate.verify_program` does.

    The error at a position is the probability of all tokens but the right one, and the number found is that of the
    right one.

    Args:
        program: From :func:`compile_decoder`, in any dtype; its weights may have been changed.
        limit: Most sequences to run.
    """
    compiled, decoder = program.compiled, program.decoder
    definition = compiled.program
    assert definition is not None
    token_of = {value: token for token, value in enumerate(program.values)}
    letters = decoder.embedding.weight[: len(compiled.domains.vocabulary)]
    rows = max(1, _NUMBERS_AT_ONCE // decoder.config.max_seq_len // max(decoder.config.ff_dim, 1))

    def errors(tokens: Tensor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        column, values = batch.column(definition)
        right = torch.tensor([token_of.get(value, 0) for value in values])[torch.from_numpy(column)][..., None]
        with evaluating(decoder):
            logits = torch.cat([decoder(part) for part in tokens.split(rows)]).double()
        others = logits.scatter(2, right, -torch.inf).logsumexp(2) - logits.gather(2, right)[..., 0]
        return others.sigmoid().numpy(), (-others).sigmoid().numpy()

    margin, others = margin_bound(program), len(program.values) - 1
    # What is measured is rounded as well.
    bound = (1 + 1e-9) * others * math.exp(-margin) if margin > 0 else math.inf
    return certify(compiled, definition, letters, errors, 0.5, bound, limit)


def margin_bound(program: DecoderProgram) -> float:
    """A lower bound on the logit of the right token minus that of any other; minus infinity if there is none.

    There is none either if configuration or weights are others than :func:`compile_decoder`'s.
    """
    decoder, compiled = program.decoder, program.compiled
    domains, dtype = compiled.domains, decoder.output.weight.dtype
    assert compiled.program is not None
    anew = compile_decoder(compiled.program, domains.vocabulary, domains.max_len, dtype=dtype).decoder
    if decoder.config != anew.config or not same_weights(decoder, anew):
        return -math.inf
    width, roundoff = decoder.config.hidden_dim, torch.finfo(dtype).eps / 2
    sizes = anew.embedding.weight[:, :-1].detach().abs().amax(0).double().numpy() + 1
    for stored in compiled.plan.stored.values():
        for number, place in enumerate(stored.place):
            sizes[place] = max(sizes[place], size_of(stored, number) + 1)
    # Errors of coordinates up to 1 are in these sizes.
    off_norm = float((sizes**2).sum()) / (2 * width * RMS**2) + gamma(width + 16, roundoff)
    losses = Losses(off_norm, TURN * (domains.max_len - 1), SLOPE)
    found = error_bound(compiled.plan, compiled.result, width, len(decoder.layers), roundoff, losses)
    if not (found.error < 1 and found.largest < 1):
        return -math.inf
    numbers = [number - _middle(compiled) for number, _ in compiled.codes or ()]
    most, factor, gap = max(map(abs, numbers)), _factor(compiled), _gap(compiled)
    weights, bias = compiled.output.weight[0].detach().abs().numpy(), float(compiled.output.bias.detach())
    read = float(weights @ sizes) + abs(bias - _middle(compiled))
    rounding = 2 * gamma(width + 16, roundoff) * (factor * (2 * most * read + most**2) + SHARPNESS)
    return min(factor * gap * (gap - 2 * found.error), SHARPNESS - 2 * factor * most * found.error) - rounding
