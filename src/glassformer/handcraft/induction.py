r"""An induction circuit by hand: an attention-only decoder of two layers, built and verified.

The task: after the start token and some letters, the prediction at each letter is the letter that
followed its latest earlier occurrence, and the start token where it has not occurred before.

The circuit: each layer has one head. The stream has the parts *token*, *previous*, *answer* and a
constant 1. The head of layer 0 attends to the previous place and copies its token into *previous*.
The head of layer 1 attends to the latest place whose *previous* is the query's *token*, or else to
the start, and copies that place's token into *answer*, which the output reads.

The bound of :func:`verify_induction` takes the weights alone and holds for every text up to the
model's length:

1. A head whose wanted key is ahead of all others by a margin m gives others at most
   ``n e^-m / (1 + n e^-m)`` together (:func:`~glassformer.handcraft.bounds.leakage`), so its output
   is within that share of the largest distance of two values from the wanted value.
2. In layer 0 the margin is a minimum over all pairs of tokens and all distances. After it, the
   stream of a place is one of (letters + 1)² ideal vectors, given by its token and the previous
   one, up to an error of bounded length.
3. RMSNorm maps a vector x to ``sqrt(h) g x / |x|``, so an error of length d becomes at most
   ``max|g| sqrt(h) d / (|x| - d)``, which moves the scores of layer 1 by a bounded amount. Its
   margin is a minimum over all ideal queries and keys at all distances: a match at distance d
   against non-matches at smaller distances and anything at larger ones; the start against
   non-matches.
4. In the same way, the difference of two logits is that of ideal vectors up to a bounded error.

Rounding, with unit roundoff u, hidden width h, head width d, n positions and ``gamma(N, u)`` of
:mod:`glassformer.handcraft.bounds`: a norm is off by ``gamma(h + 8, u)`` of itself, a score by
``gamma(2 h + d + 24, u)`` times the sum of the sizes of its products, what a head adds by
``gamma(2 (h + d) + n + 64, u)`` times that of its own, with exponentials exact to 20 units in the
last place; all of it again with the unit roundoff of float64, in which the bound is computed.
Angles are computed in float32: each is off by at most ``(n + 4) 2^-21`` radians.

Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895; Elhage et
al. 2021.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import InputError
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, gamma, leakage, require_as_built
from glassformer.handcraft.proof_settings import proof_settings
from glassformer.handcraft.sequences import SequenceSpace, format_count
from glassformer.handcraft.subject import DefinitionDigest, Subject, weights_digest
from glassformer.kernels.rotation import rotate
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.text import rounded_down, rounded_up

_FAST = 6
"""Number of pairs that tell distances apart; the others hardly turn over the whole length."""
_SLOWEST = 1e-3
"""Largest angle by which a slow pair turns over the whole length, in radians."""
_LARGEST = 1e7
"""Largest absolute value of a weight, so that no sum of products overflows."""
_ANY_VALUE = frozenset(
    {
        "hidden_dim",
        "head_dim",
        "num_kv_heads",
        "max_seq_len",
        "rope_base",
        "norm_eps",
        "tied_output",
        "dropout",
        "windowed_layers",
        "top_k",
        "balance_experts",
    }
)
"""Fields of a configuration that the proof follows, or that compute nothing in an attention-only
decoder without windows. The others have their default, or the value of the circuit."""
_RUN_AT_ONCE = 256
_SAMPLES = 1000


class RotaryHead:
    """A head of a decoder in the half-split layout, with weights written as a sum of relations.

    The residual stream is divided into *parts*: ranges of coordinates with the one-hot vector of a
    token, and a coordinate ``one`` that is 1 everywhere. Pair f of a query's and a key's
    coordinates adds ``cos(distance theta_f + angle)`` times both lengths to their score, so fast
    pairs tell distances apart, and slow ones compare contents at any distance. Each relation has
    pairs of its own.
    """

    def __init__(self, model: Decoder, layer: int) -> None:
        attention: Any = model.layers[layer].attention
        self._pairs = model.config.head_dim // 2
        turns = torch.arange(self._pairs, dtype=torch.float64) / self._pairs
        self.frequencies = torch.pow(model.config.rope_base, -turns)
        self._query = attention.query.weight.detach().zero_()
        self._key = attention.key.weight.detach().zero_()
        self._value = attention.value.weight.detach().zero_()
        self._output = attention.output.weight.detach().zero_()

    def at_distance(self, distance: int, weight: float, pairs: Sequence[int], one: int) -> None:
        """Score the key ``distance`` before the query by ``weight`` in each pair, others less."""
        for pair in pairs:
            self._write(pair, one, one, weight, -distance * float(self.frequencies[pair]))

    def latest(self, weight: float, pair: int, one: int) -> None:
        """Score later keys higher: ``weight cos(pi / 4 + distance theta)``, falling to 3/4 pi."""
        self._write(pair, one, one, weight, math.pi / 4)

    def match(self, query: range, key: range, weight: float, pairs: Sequence[int]) -> None:
        """Score keys whose part ``key`` equals the query's part ``query``.

        The score is ``weight cos(distance theta)``.
        """
        for pair, asks, answers in zip(pairs, query, key, strict=True):
            self._write(pair, asks, answers, weight)

    def attend_to(self, key: int, weight: float, pair: int, one: int) -> None:
        """Score keys whose coordinate ``key`` is 1 by ``weight cos(distance theta)``."""
        self._write(pair, one, key, weight)

    def copy(self, read: range, write: range) -> None:
        """Add the part ``read`` of the attended key to the part ``write`` of the query's stream."""
        for coordinate, (source, target) in enumerate(zip(read, write, strict=True)):
            self._value[coordinate, source] = 1.0
            self._output[target, coordinate] = 1.0

    def _write(self, pair: int, query: int, key: int, weight: float, angle: float = 0.0) -> None:
        """Write one relation into a pair that has none."""
        if bool(self._key[pair].any()):
            raise InputError(
                got=f"pair {pair}, which has a relation",
                expected="a free pair",
                fix="Use a larger head_dim.",
            )
        length = weight * math.sqrt(2 * self._pairs)
        self._query[pair, query] = length * math.cos(angle)
        self._query[pair + self._pairs, query] = length * math.sin(angle)
        self._key[pair, key] = 1.0


def distance_gap(frequencies: Float[Tensor, " pair"], distance: int, longest: int) -> float:
    """Return the least lead in score of the key at ``distance`` over any other, for weight 1.

    Distances go up to ``longest``. It is the gap of :meth:`RotaryHead.at_distance`:
    ``sum over pairs of 1 - cos((d - distance) theta)``.
    """
    away = torch.arange(longest + 1, dtype=torch.float64) - distance
    return float((1 - torch.outer(away[away != 0], frequencies).cos()).sum(1).min())


def induction_target(
    texts: Int[np.ndarray, "text letter"], start: int
) -> Int[np.ndarray, "text letter"]:
    """Return the letter that followed each letter's latest earlier occurrence.

    It is ``start`` where a letter is new.
    """
    targets = np.full_like(texts, start)
    for place in range(1, texts.shape[1]):
        for earlier in range(place):
            same = texts[:, earlier] == texts[:, place]
            targets[same, place] = texts[same, earlier + 1]
    return targets


def build_induction(
    letters: str, max_len: int, *, margin: float = 30.0, confidence: float = 20.0
) -> Decoder:
    """Build the decoder of this module in float32.

    Tokens are the letters in their order, the start token last.

    Args:
        max_len: The longest text, in letters; the start token is not counted.
        margin: The lead of the wanted key's score.
        confidence: The lead of the wanted logit.
    """
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    if not (margin > 0 and confidence > 0):
        raise InputError(
            got=f"margin = {margin}, confidence = {confidence}",
            expected="above 0",
            fix="Use 30 and 20.",
        )
    tokens = space.num_tokens
    start = space.num_tokens - 1
    token = range(tokens)
    previous = range(tokens, 2 * tokens)
    answer = range(2 * tokens, 3 * tokens)
    one = 3 * tokens
    pairs = _FAST + tokens + 1
    config = DecoderConfig(
        vocab_size=tokens,
        num_layers=2,
        hidden_dim=3 * tokens + 1,
        ff_dim=0,
        num_heads=1,
        head_dim=2 * pairs,
        max_seq_len=space.num_positions,
        rope_base=(max_len / _SLOWEST) ** (pairs / _FAST),
    )
    with torch.random.fork_rng(devices=[]):
        model = Decoder(config).double()
    with torch.no_grad():
        for weight in (model.embedding.weight, model.output.weight):
            weight.zero_()
        model.embedding.weight[:, list(token)] = torch.eye(tokens, dtype=torch.float64)
        model.embedding.weight[:, one] = 1
        # Streams are one-hot vectors and the constant, so their lengths are sqrt(2), sqrt(3) and 2.
        # Norms divide by the length.
        norms = ("layers.0.attention_norm", "layers.1.attention_norm", "final_norm")
        for ones, name in enumerate(norms, start=2):
            model.get_parameter(f"{name}.weight").fill_(math.sqrt(ones / config.hidden_dim))
        model.output.weight[:, list(answer)] = confidence * torch.eye(tokens, dtype=torch.float64)

        first = RotaryHead(model, 0)
        fast = range(_FAST)
        gap = distance_gap(first.frequencies[:_FAST], 1, max_len)
        first.at_distance(1, margin / gap, fast, one)
        first.copy(token, previous)

        second = RotaryHead(model, 1)
        frequencies = second.frequencies
        slow_enough = [pair for pair in fast if float(frequencies[pair]) * max_len <= 1]
        pair = slow_enough[0]
        distances = torch.arange(max_len + 1, dtype=torch.float64)
        angles = math.pi / 4 + distances * frequencies[pair]
        falls = angles.cos()
        nearer = margin / float((falls[:-1] - falls[1:]).min())
        ahead = nearer * float(falls[0] - falls[-1]) + margin
        second.latest(nearer, pair, one)
        second.match(token, previous, 2 * ahead, range(_FAST, pairs - 1))
        second.attend_to(start, ahead, pairs - 1, one)
        second.copy(token, answer)
    return model.float().eval()


@dataclass(frozen=True)
class InductionCertificate:
    """The verdict on a decoder's predictions of :func:`induction_target`, for all texts.

    Attributes:
        subject: The weights and letters that it is about.
        holds: True if the bound proves that all predictions are right, and no text that was run
            contradicts it.
        num_texts: Number of texts that the bound covers.
        margins: The least margin of the wanted key's score in both layers, errors subtracted.
        leaks: The largest weight of all other keys together, in both layers.
        logit_margin: The least lead of the wanted logit over all others, errors subtracted.
        probability: The least probability of the wanted token by the logit margin, rounded down to
            nine decimals.
        num_run: Number of texts that were run.
        num_wrong: Number of wrong predictions in texts that were run.
        least_probability: The least probability of a target in texts that were run.
        counterexample: The first text with a wrong prediction.
    """

    subject: Subject
    holds: bool
    num_texts: int
    margins: tuple[float, float]
    leaks: tuple[float, float]
    logit_margin: float
    probability: float
    num_run: int
    num_wrong: int
    least_probability: float
    counterexample: str | None

    def require_subject(self, model: Decoder, letters: str) -> None:
        """Refuse to speak of another model or alphabet; :class:`InputError` names what differs."""
        self.subject.require(_subject(model, letters))

    def to_json(self) -> dict[str, Any]:
        """Return all attributes as JSON values, with null for numbers that JSON does not have."""
        named = asdict(self) | {"subject": self.subject.to_json()}
        values: dict[str, Any] = json.loads(json.dumps(named), parse_constant=lambda _: None)
        return values

    def __str__(self) -> str:
        first_margin, second_margin = (rounded_down(margin, 4) for margin in self.margins)
        first_leak, second_leak = (rounded_up(leak, 2) for leak in self.leaks)
        probability = rounded_down(self.probability, 9)
        verdict = "HOLDS" if self.holds else "NOT PROVED"
        wrong = f"{self.num_run:,}, with {self.num_wrong:,} wrong predictions"
        logit_margin = rounded_down(self.logit_margin, 4)
        lines = [
            f"induction: {verdict} for all {format_count(self.num_texts)} texts",
            f"  margins of scores  {first_margin} and {second_margin}",
            f"  leaks at most      {first_leak} and {second_leak}",
            f"  margin of logits   {logit_margin}, so a probability of at least {probability}",
            f"  texts run          {wrong}; the least probability was {self.least_probability:.9g}",
        ]
        if self.counterexample is not None:
            lines.append(f"  counterexample     {self.counterexample}")
        return "\n".join(lines)


@proof_settings()
@torch.no_grad()
def verify_induction(model: Decoder, letters: str, *, limit: int = 20_000) -> InductionCertificate:
    """Prove that ``model`` predicts :func:`induction_target` on every text, and run it on some.

    The module's docstring has the proof. All texts up to some length are run, as many as ``limit``
    allows. Regular ones of several lengths and 1,000 random ones are run, too.

    Args:
        model: An attention-only decoder of two layers with one head each, without windows, sinks or
            biases.
        letters: Its alphabet; the token after the last letter is the start.
        limit: Largest number of short texts to run.
    """
    config = model.config
    _check_form(config, letters)
    require_as_built(model, Decoder, _LARGEST, like=Decoder(config))
    space = SequenceSpace(tuple(letters), config.max_seq_len - 1, has_cls=True)
    margins, leaks, logit_margin = _Bound(model, space).follow()
    proved = all(margin > 0 for margin in (*margins, logit_margin))  # NaN proves nothing
    others = space.num_tokens - 1
    if logit_margin > -700:
        probability = 1 / (1 + others * math.exp(-logit_margin))
    else:
        probability = 0.0
    run, missed, least, example = _run(model, space, limit)
    return InductionCertificate(
        subject=_subject(model, letters),
        holds=proved and missed == 0,
        num_texts=space.count,
        margins=margins,
        leaks=leaks,
        logit_margin=logit_margin,
        probability=math.floor(probability * 1e9) / 1e9,
        num_run=run,
        num_wrong=missed,
        least_probability=least,
        counterexample=example,
    )


def _check_form(config: DecoderConfig, letters: str) -> None:
    """Refuse a decoder with parts that the proof does not follow."""
    form: dict[str, Any] = {
        "vocab_size": len(letters) + 1,
        "num_layers": 2,
        "num_heads": 1,
        "ff_dim": 0,
    }
    expected = {field.name: field.default for field in fields(config)} | form
    wrong = [
        f"{name} = {getattr(config, name)!r}"
        for name, value in expected.items()
        if name not in _ANY_VALUE and getattr(config, name) != value
    ]
    if wrong:
        raise InputError(
            got=", ".join(wrong),
            expected=f"{form}, and the defaults of the other parts",
            fix="Build the model with build_induction().",
        )


def _subject(model: Decoder, letters: str) -> Subject:
    config = model.config
    return Subject(
        kind="induction",
        definition="induction",
        inputs=tuple(letters),
        max_len=config.max_seq_len - 1,
        readout="the largest logit",
        tolerance=None,
        dtype=str(model.embedding.weight.dtype).removeprefix("torch."),
        weights_digest=weights_digest(model.state_dict()),
        definition_digest=DefinitionDigest("induction", config.to_json()).hexdigest(),
    )


def _run(model: Decoder, space: SequenceSpace, limit: int) -> tuple[int, int, float, str | None]:
    """Run a model on texts.

    Returns:
        The number of texts, the number of wrong predictions, the least probability of a target, and
        the first text with a wrong prediction.
    """
    listed = space.longest_listable(limit)
    others = space.longer([*space.regular(8), *space.sample(_SAMPLES, seed=0)], listed)
    parts = [
        space.block(others[start : start + _RUN_AT_ONCE])
        for start in range(0, len(others), _RUN_AT_ONCE)
    ]
    blocks = chain(space.blocks(_RUN_AT_ONCE, listed), parts)
    run = 0
    wrong = 0
    least = np.float64(1.0)
    example = None
    for block in blocks:
        tokens = torch.from_numpy(block.tokens)
        probabilities = model(tokens).softmax(-1)[:, 1:]
        targets = torch.from_numpy(induction_target(block.tokens[:, 1:], space.num_tokens - 1))
        real = torch.from_numpy(block.real[:, 1:])
        missed = (probabilities.argmax(-1) != targets) & real
        of_targets = probabilities.gather(-1, targets[..., None])[..., 0][real]
        run += len(tokens)
        wrong += int(missed.sum())
        least = np.minimum(least, float(of_targets.min()))
        if example is None and bool(missed.any()):
            row = int(missed.any(1).nonzero()[0])
            example = space.decode(block.tokens[row, 1:][block.real[row, 1:]])
    return run, wrong, float(least), example


class _Bound:
    """The bound of this module for one model, in float64."""

    def __init__(self, model: Decoder, space: SequenceSpace) -> None:
        config = model.config
        roundoff = torch.finfo(model.embedding.weight.dtype).eps / 2
        self._model = model
        self._tokens = space.num_tokens
        self._length = space.num_positions
        width = config.hidden_dim
        size = config.head_dim

        def both(roundings: int) -> float:
            """Return the relative rounding in the model and in this bound."""
            return gamma(roundings, roundoff) + gamma(roundings, FLOAT64_ROUNDOFF)

        self._norm_rounding = both(width + 8)
        self._score_rounding = both(2 * width + size + 24) + 2 * (self._length + 4) * 2.0**-21
        self._value_rounding = both(2 * (width + size) + 2 * self._length + 64)
        # The frequencies of the model itself are 0 where float32 cannot hold its base.
        distances = torch.arange(self._length).double()
        self._angles = torch.outer(distances, model.rotary._frequencies.double())

    def follow(self) -> tuple[tuple[float, float], tuple[float, float], float]:
        """Return margins and leaks of both layers, and the margin of the logits."""
        tokens = self._tokens
        start = self._tokens - 1
        embedding = self._model.embedding.weight.double()
        q, k, v, blur, drift = self._read(0, embedding, 0.0)
        first = self._first_margin(q, k) - 2 * blur
        leak, error = self._leak(first, v, drift)
        stream = embedding[:, None] + v[None]  # [token, previous]

        q, k, v, blur, drift = self._read(1, stream.flatten(0, 1), error)
        second = self._second_margin(q, k) - 2 * blur
        next_leak, moved = self._leak(second, v, drift)
        v = v.view(tokens, tokens, -1)
        letters = torch.arange(start)
        # A query with the token t copies a place of any token whose previous one is t, or else the
        # start. The axes are t, its previous token and the copied token.
        copied = stream[:start, :, None] + v[:start, :start].transpose(0, 1)[:, None]
        missing = stream[:start] + v[start, start]
        targets = letters.expand(copied.shape[:-1])
        margin_of_copied = self._logit_margin(copied, targets, error + moved)
        targets = torch.full(missing.shape[:-1], start)
        margin_of_missing = self._logit_margin(missing, targets, error + moved)
        logit_margin = float(np.min([margin_of_copied, margin_of_missing]))
        return (first, second), (leak, next_leak), logit_margin

    def _normalised(self, norm: Any, x: Tensor, error: float) -> tuple[Tensor, float]:
        """Return the norm of each row, and its error.

        Args:
            error: The length of the error of each row.
        """
        weight = norm.weight.double()
        shortest = float(x.norm(dim=-1).min())
        out = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * weight
        if not (shortest > error):
            return out, math.inf
        drift = float(weight.abs().max()) * math.sqrt(x.shape[-1]) * error / (shortest - error)
        return out, drift + self._norm_rounding * (float(out.norm(dim=-1).max()) + drift)

    def _read(
        self, layer: int, x: Tensor, error: float
    ) -> tuple[Tensor, Tensor, Tensor, float, float]:
        """Return the queries, keys and values of a layer's head, and their errors.

        Args:
            x: The ideal stream of each place.
            error: The length of the error of each stream.

        Returns:
            Scaled queries; keys; the vector that each place adds to the stream when it is attended
            to; the error of a score; and the error of an added vector.
        """
        block: Any = self._model.layers[layer]
        attention = block.attention
        query = attention.query.weight.double()
        key = attention.key.weight.double()
        value = attention.value.weight.double()
        query = query / math.sqrt(len(query))
        output = attention.output.weight.double()
        normed, drift = self._normalised(block.attention_norm, x, error)
        q = normed @ query.T
        k = normed @ key.T
        v = normed @ (output @ value).T
        q_drift = drift * float(torch.linalg.matrix_norm(query, 2))
        k_drift = drift * float(torch.linalg.matrix_norm(key, 2))
        q_length = float(q.norm(dim=1).max())
        k_length = float(k.norm(dim=1).max())
        blur = q_length * k_drift + k_length * q_drift + q_drift * k_drift
        sizes = normed.abs() + drift
        q_pairs = (sizes @ query.abs().T).unflatten(1, (2, -1)).sum(1)
        k_pairs = (sizes @ key.abs().T).unflatten(1, (2, -1)).sum(1)
        blur += self._score_rounding * float((q_pairs @ k_pairs.T).max())
        added = float((sizes @ (output.abs() @ value.abs()).T).norm(dim=1).max())
        rounding = self._value_rounding * (added + float(x.norm(dim=1).max()) + error)
        v_drift = drift * float(torch.linalg.matrix_norm(output @ value, 2))
        return q, k, v, blur, v_drift + rounding

    def _leak(self, margin: float, added: Tensor, drift: float) -> tuple[float, float]:
        """Return the largest weight of unwanted keys, and the error of the vector that is added."""
        leak = float(leakage(np.array(margin), np.array(self._length - 1)))
        radius = float((added - added.mean(0)).norm(dim=1).max())
        return leak, leak * 2 * (radius + drift) + drift

    def _scores(self, q: Tensor, k: Tensor) -> Iterator[Tensor]:
        """Yield the scores of all queries and keys at each distance."""
        for angles in self._angles:
            rotation = (angles.cos()[None], angles.sin()[None])
            yield rotate(q[None, :, None], rotation)[0, :, 0] @ k.T

    def _first_margin(self, q: Tensor, k: Tensor) -> float:
        """Return the margin of the previous place over all others, for every letter as a query."""
        scores_of_itself, scores_of_previous, *others = [
            scores[:-1] for scores in self._scores(q, k)
        ]
        best = scores_of_itself.diagonal()
        for scores in others:
            best = torch.maximum(best, scores.amax(1))
        return float((scores_of_previous.amin(1) - best).min())

    def _second_margin(self, q: Tensor, k: Tensor) -> float:
        """Return the margin of the latest match, or of the start where there is none."""
        tokens = self._tokens
        start = self._tokens - 1
        token = torch.arange(tokens**2) // tokens
        previous = torch.arange(tokens**2) % tokens
        letters = token != start
        match = (previous[None] == token[letters][:, None]) & letters
        other = (previous[None] != token[letters][:, None]) & letters
        lowest = []
        highest = []
        highest_other = []
        of_start = []
        for distance, scores in enumerate(self._scores(q[letters], k)):
            # At distance 0 the key is the query's own place.
            possible = torch.eye(tokens**2, dtype=torch.bool)[letters] | (distance > 0)
            no_match = ~(match & possible)
            no_other = ~(other & possible)
            lowest.append(scores.masked_fill(no_match, math.inf).amin(1))
            highest.append(scores.masked_fill(no_match, -math.inf).amax(1))
            highest_other.append(scores.masked_fill(no_other, -math.inf).amax(1))
            if distance > 0:
                of_start.append(scores[:, -1])
            else:
                of_start.append(torch.full((len(scores),), -math.inf))
        margin = math.inf
        # The highest score of a non-match at smaller distances, and of any key at larger ones.
        nearer = torch.full_like(lowest[0], -math.inf)
        further = [torch.full_like(nearer, -math.inf)]
        rows = zip(reversed(highest), reversed(highest_other), reversed(of_start), strict=True)
        for at_distance in rows:
            further.append(torch.stack([further[-1], *at_distance]).amax(0))
        for distance in range(self._length):
            rivals = torch.maximum(nearer, further[self._length - 1 - distance])
            margin = float(np.minimum(margin, float((lowest[distance] - rivals).min())))
            if distance > 0:
                margin = float(np.minimum(margin, float((of_start[distance] - nearer).min())))
            nearer = torch.maximum(nearer, highest_other[distance])
        return margin

    def _logit_margin(self, x: Tensor, targets: Int[Tensor, "*state"], error: float) -> float:
        """Return the least lead of a stream's target logit over all others."""
        output = self._model.output.weight.double()
        normed, drift = self._normalised(self._model.final_norm, x, error)
        logits = normed @ output.T
        best = logits.gather(-1, targets[..., None])[..., 0]
        rest = logits.scatter(-1, targets[..., None], -math.inf).amax(-1)
        off = drift * float(output.norm(dim=1).max())
        sizes = (normed.abs() + drift) @ output.abs().T
        off += self._norm_rounding * float(sizes.max())
        return float((best - rest).min()) - 2 * off
