r"""Compiled programs as decoders of the kind that is trained: RMSNorm, SwiGLU, rotary positions, no biases.

What :func:`~glassformer.programs.model.compile_program` makes of a causal program is written into a
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
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, gamma, require_as_built
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.norms import RMSNorm
from glassformer.models import Decoder, DecoderConfig
from glassformer.modes import evaluating
from glassformer.programs.certificate import Outputs, ProgramCertificate, certify
from glassformer.programs.checker import Affine, Checked, LayerWeights, Network, check_tokens
from glassformer.programs.compiler import SHARPNESS
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch
from glassformer.programs.language import Value, Variable, distinct, typed
from glassformer.programs.model import CompiledProgram, compile_program, require_apart

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
            InputError: As :meth:`~glassformer.programs.model.CompiledProgram.run`.
        """
        ids = self.compiled.encode(sequence)
        with evaluating(self.decoder):
            return [self.values[token] for token in self.decoder(ids)[0].argmax(-1).tolist()]


def compile_decoder(
    program: Variable, vocabulary: Sequence[Value], max_len: int, *, dtype: torch.dtype = torch.float64
) -> DecoderProgram:
    """The decoder that computes a program, whose selectors see keys up to the query's own position.

    Args:
        program: See :mod:`glassformer.programs.language`. Its values become tokens.
        vocabulary: All tokens of the input.
        max_len: Tokens of the longest sequence.
        dtype: Of the weights.

    Raises:
        InputError: As :func:`~glassformer.programs.model.compile_program`; or a program with too many values
            to be tokens.
    """
    compiled = compile_program(program, vocabulary, max_len, causal=True, positions=False, reuse=False)
    got, wanted = f"{program} with too many possible values to list", "a program whose values can be tokens"
    require(compiled.codes is not None, got, wanted, "Map it to fewer values, or use compile_program().")
    assert compiled.codes is not None
    require_apart(compiled, dtype)
    letters = compiled.domains.vocabulary
    known = distinct((*letters, *(value for _, value in compiled.codes)))
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
    numbers = {typed(value): number for number, value in compiled.codes or ()}
    middle, factor = _middle(compiled), _factor(compiled)
    for row, value in zip(decoder.output.weight, values, strict=True):
        if typed(value) in numbers:  # factor * (2 a x - a²), of numbers minus the middle one
            a = numbers[typed(value)] - middle
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
def verify_decoder(program: DecoderProgram, *, limit: int = 1_000_000, seconds: float = math.inf) -> ProgramCertificate:
    """Run a decoder on every sequence, shortest first, as :func:`~.certificate.verify_program` does.

    The error at a position is the probability of all tokens but the right one, and the number found is that of the
    right one.

    Args:
        program: From :func:`compile_decoder`, in any dtype; its weights may have been changed.
        limit: Most sequences to run.
        seconds: Time after which the verdict is undecided, if there is none before.

    Raises:
        InputError: Weights that are not finite.
    """
    compiled, decoder = program.compiled, program.decoder
    definition, deadline = compiled.program, time.monotonic() + seconds
    assert definition is not None
    require_as_built(decoder, Decoder, like=Decoder(decoder.config))
    token_of = {typed(value): token for token, value in reversed(list(enumerate(program.values)))}
    letters = decoder.embedding.weight[: len(compiled.domains.vocabulary)]
    rows = max(1, _NUMBERS_AT_ONCE // decoder.config.max_seq_len // max(decoder.config.ff_dim, 1))

    def run(tokens: Tensor, batch: Batch) -> Outputs:
        column, values = batch.column(definition)
        known = torch.tensor([typed(value) in token_of for value in values])[torch.from_numpy(column)]
        right = torch.tensor([token_of.get(typed(value), 0) for value in values])[torch.from_numpy(column)][..., None]
        with evaluating(decoder):
            logits = torch.cat([decoder(part) for part in tokens.split(rows)]).double()
        others = logits.scatter(2, right, -torch.inf).logsumexp(2) - logits.gather(2, right)[..., 0]
        wrong = (logits.argmax(2) != right[..., 0]) | ~known
        return Outputs(others.sigmoid().numpy(), (-others).sigmoid().numpy(), wrong.numpy())

    return certify(compiled, definition, letters, run, 0.5, wrong_bound(program, deadline), limit, deadline)


def wrong_bound(program: DecoderProgram, deadline: float = math.inf) -> Checked:
    """An upper bound on the probability of all tokens but the right one, for any sequence."""
    compiled, decoder = program.compiled, program.decoder
    found = Checked(math.inf, "modules or weights of another form")
    assert compiled.program is not None
    if decoder.config != _config(compiled, len(program.values)):
        return found
    for scale in (1e-12, 1e-10, 1e-8):  # what norms may be off by is claimed, and checked
        network = network_of_decoder(decoder, compiled.domains, scale)
        if network is not None:
            arguments = network, compiled.domains, compiled.program, program.values, compiled.claims or (), deadline
            found = check_tokens(*arguments)
        if math.isfinite(found.error):
            break
    # What is measured is rounded as well.
    return found._replace(error=found.error * (1 + 1e-9) + 1e-300)


def network_of_decoder(decoder: Decoder, domains: Domains, scale: float) -> Network | None:
    """A decoder's weights as those of a transformer without norms, rotations and gates; None for others of this form.

    Args:
        decoder: Whose last coordinate is a constant that nothing adds to.
        domains: Vocabulary and greatest length.
        scale: What norms may be off by, besides rounding.
    """
    table = _array(decoder.embedding.weight)
    width, constant, dtype = table.shape[1], float(table[0, -1]), torch.finfo(decoder.output.weight.dtype)
    letters = table[: len(domains.vocabulary)]
    ok = constant > 0 and bool((letters[:, -1] == constant).all()) and decoder.config.norm_eps * width <= 1
    root, layers, turn = math.sqrt(width), [], 0.0

    def read(norm: RMSNorm, linear: nn.Linear) -> Affine:
        """What a map gives of the stream: its norm divides by the constant's share of the root mean square."""
        weight, factor = _array(linear.weight), _array(norm.weight)
        return Affine(weight[:, :-1] * (factor[:-1] * (root / constant)), weight[:, -1] * (factor[-1] * root))

    def written(weight: np.ndarray, count: int) -> Affine:
        return Affine(weight[:-1], np.zeros(count))

    for each in decoder.layers:
        block: Any = each
        attention, ffn = block.attention, block.ffn
        kinds = (type(block), type(block.attention_norm), type(block.ffn_norm), type(ffn))
        ok &= kinds == (Block, RMSNorm, RMSNorm, SwiGLU) and (attention.scale, attention.cap) == (None, None)
        if not ok:
            return None
        heads, half = attention.num_heads, attention.head_dim // 2
        q, k, v = (read(block.attention_norm, each) for each in (attention.query, attention.key, attention.value))
        whole = np.concatenate([np.column_stack(each).reshape(heads, 2, half, -1) for each in (q, k)])
        pairs = np.flatnonzero(whole.any((0, 1, 3))) if whole.any() else np.array([half - 1])
        turn = max(turn, float(decoder.rotary._frequencies.double()[pairs].max()))
        chosen = (np.arange(heads)[:, None] * attention.head_dim + pairs).ravel()
        # attend() divides scores by the root of a head's size.
        q, k = (Affine(each.weight[chosen], each.bias[chosen]) for each in (q, k))
        q = Affine(*(each * math.sqrt(len(pairs) / attention.head_dim) for each in q))
        output, down = _array(attention.output.weight), _array(ffn.down.weight)
        up, gate = read(block.ffn_norm, ffn.up), read(block.ffn_norm, ffn.gate)
        ok &= not whole[:, 1].any() and not output[-1].any() and not down[-1].any() and not up.weight.any()
        gate = Affine(gate.weight / SLOPE, gate.bias / SLOPE)
        sinks = None if attention.sinks is None else _array(attention.sinks)
        parts = written(output, width - 1), sinks, gate, written(down * (SLOPE * up.bias), width - 1)
        layers.append(LayerWeights(heads, q, k, v, *parts))
    norm = decoder.final_norm
    if not ok or not isinstance(norm, RMSNorm):
        return None
    roundoff = dtype.eps / 2
    scale += gamma(width + 40, roundoff) + gamma(width + 40, FLOAT64_ROUNDOFF)
    places = np.zeros((domains.max_len, width - 1))
    return Network(
        letters[:, :-1],
        places,
        layers,
        read(norm, decoder.output),
        roundoff,
        dtype.tiny,
        dtype.max,
        constant=constant,
        scale=scale,
        more=8,
        turn=2 * turn * domains.max_len,
        slope=SLOPE,
    )


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
