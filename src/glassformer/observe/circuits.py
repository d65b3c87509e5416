"""QK and OV circuits of trained heads as products of thin matrices, and their composition.

A head reads the residual stream through a norm. With row vectors x, which are the stream divided by
its root mean square (for a LayerNorm also without its mean)::

    score of query i and key j = x_i QK x_jᵀ          what key j adds to query i = weight_ij x_j OV

QK and OV are ``[hidden, hidden]`` of rank head_dim, in float32 or wider. The norm's weight is part
of both, biases are not. With LayerNorms, what is written along the mean is left out of OV, as every
reader subtracts it.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", sections on
splitting attention head terms into circuits, and on composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.rotation import rotate
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe import hugging_face
from glassformer.observe.capture import find_hook_points, network_of
from glassformer.observe.hook_points import AttentionPoint, HookPoint, of_kind, select
from glassformer.observe.lens import readout_of
from glassformer.observe.linear_maps import require_linear
from glassformer.observe.module_hooks import other_hooks
from glassformer.observe.results import Result, Table

_ROWS_AT_ONCE = 1024
_SUPPORTED = {
    "norm_place": "before",
    "qk_norm": None,
    "attention_cap": None,
    "embedding_norm": False,
}
"""Options of a decoder, and their only values for which scores are products of matrices."""


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """The matrix ``left @ right.T``, which is never formed unless ``matrix`` is asked for."""

    left: Float[Tensor, "row rank"]
    right: Float[Tensor, "column rank"]

    def __repr__(self) -> str:
        shape = f"{len(self.left):,} x {len(self.right):,}"
        return f"Circuit: {shape} of rank {self.left.shape[1]}, norm {self.norm:.4g}"

    @property
    def matrix(self) -> Float[Tensor, "row column"]:
        """All entries."""
        return self.left @ self.right.T

    @property
    def diagonal(self) -> Float[Tensor, " row"]:
        """The diagonal of a square circuit."""
        return (self.left * self.right).sum(1)

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        left = self.left.double()
        right = self.right.double()
        return math.sqrt(max(0.0, float(((left.T @ left) * (right.T @ right)).sum())))

    @property
    def eigenvalues(self) -> Complex[Tensor, " rank"]:
        """The eigenvalues of a square circuit that may differ from 0."""
        return torch.linalg.eigvals(self.right.T @ self.left)

    @property
    def positivity(self) -> float:
        """Sum of the eigenvalues over the sum of their sizes, in [-1, 1]; 1 for a copying head."""
        values = self.eigenvalues
        return float(values.real.sum() / values.abs().sum())

    @property
    def diagonal_share(self) -> float:
        """The share of rows whose largest entry is on the diagonal."""
        hits = 0
        for start in range(0, len(self.left), _ROWS_AT_ONCE):
            best = (self.left[start : start + _ROWS_AT_ONCE] @ self.right.T).argmax(1)
            hits += int((best == torch.arange(start, start + len(best), device=best.device)).sum())
        return hits / len(self.left)

    @property
    def T(self) -> Circuit:
        """The transposed circuit."""
        return Circuit(self.right, self.left)

    def __matmul__(self, other: Circuit) -> Circuit:
        return Circuit(self.left @ (self.right.T @ other.left), other.right)

    def between(
        self, rows: Float[Tensor, "row hidden"], columns: Float[Tensor, "column hidden"]
    ) -> Circuit:
        """``rows @ self @ columns.T``: with :func:`token_vectors`, the circuit between tokens."""
        return Circuit(rows @ self.left, columns @ self.right)


@torch.no_grad()
def qk_circuit(model: Any, layer: int, head: int, *, distance: int = 0) -> Circuit:
    """Return the scores of a head between directions of the residual stream, queries by keys.

    Args:
        model: A pre-norm decoder, as for :func:`~glassformer.observe.lens.logit_lens`.
        distance: From the key to the query, for a model with rotary positions.
    """
    return _Reader(model).qk(layer, head, distance)


@torch.no_grad()
def ov_circuit(model: Any, layer: int, head: int) -> Circuit:
    """Return the contribution of a head to the residual stream for its input at a key.

    Arguments are those of :func:`qk_circuit`.
    """
    return _Reader(model).ov(layer, head)


@torch.no_grad()
def token_vectors(
    model: Any,
) -> tuple[Float[Tensor, "vocab hidden"], Float[Tensor, "vocab hidden"]]:
    """Return the embedding of each token, and the direction that its logit reads.

    The latter includes the final norm's weight.

    ``qk.between(embedding, embedding)`` is the full QK circuit,
    ``ov.between(embedding, unembedding)`` the full OV circuit; both up to the norms' scales.
    """
    return _Reader(model).vectors()


@dataclass(frozen=True, eq=False, repr=False)
class Composition(Result):
    """The share of each earlier head's output that each head reads.

    NaN for a sender that is not in an earlier layer.

    Args:
        q, k, v: Composition with the receiver's queries, keys and values: ``|OV₁ QK₂|``,
            ``|QK₂ OV₁ᵀ|``, ``|OV₁ OV₂|`` over the product of the norms of both, all Frobenius
            norms.
        random: Mean and standard deviation of this ratio for random matrices of equal shapes and
            equal ranks.
    """

    q: Float[Tensor, "layer head layer head"]
    k: Float[Tensor, "layer head layer head"]
    v: Float[Tensor, "layer head layer head"]
    random: tuple[float, float]

    def table(self) -> Table:
        """Columns ``q``, ``k`` and ``v``."""
        layers, heads = map(range, self.q.shape[:2])
        senders = {"sender_layer": layers, "sender_head": heads}
        receivers = {"receiver_layer": layers, "receiver_head": heads}
        return Table(senders | receivers, {"q": self.q, "k": self.k, "v": self.v}, ("q", "k", "v"))

    def about(self) -> str:
        """Return the numbers of heads, and the ratio of random matrices."""
        mean, spread = self.random
        return f"{super().about()}\nof random matrices {mean:.3g}, give or take {spread:.2g}"


@torch.no_grad()
def composition_scores(
    model: Any, *, distance: int = 0, samples: int = 50, seed: int = 0
) -> Composition:
    """Return the composition of every pair of heads.

    The first two axes are the sender, the others the receiver.

    Args:
        model: As for :func:`qk_circuit`.
        distance: As for :func:`qk_circuit`, between the receivers' queries and keys.
        samples: Number of random pairs for the baseline, drawn with ``seed``.
    """
    require_positive(samples=samples)
    reader = _Reader(model)
    layers = len(reader.points)
    heads = reader.points[0].heads
    qk = [[reader.qk(layer, head, distance) for head in range(heads)] for layer in range(layers)]
    ov = [[reader.ov(layer, head) for head in range(heads)] for layer in range(layers)]
    ratios = torch.full((3, layers, heads, layers, heads), math.nan)
    senders = product(range(layers), range(heads))
    receivers = list(product(range(layers), range(heads)))
    for sender_layer, sender_head in senders:
        writes = ov[sender_layer][sender_head]
        for layer, head in receivers:
            if layer > sender_layer:
                pairs = [
                    (writes, qk[layer][head]),
                    (qk[layer][head], writes.T),
                    (writes, ov[layer][head]),
                ]
                ratios[:, sender_layer, sender_head, layer, head] = torch.tensor(
                    [_ratio(first, second) for first, second in pairs]
                )
    width, rank = ov[0][0].left.shape
    generator = torch.Generator().manual_seed(seed)

    def random_circuit() -> Circuit:
        return Circuit(*torch.randn(2, width, rank, generator=generator, dtype=torch.float64))

    random = torch.tensor([_ratio(random_circuit(), random_circuit()) for _ in range(samples)])
    q, k, v = ratios
    return Composition(q, k, v, (float(random.mean()), float(random.std(unbiased=False))))


def _wide(values: Tensor) -> Tensor:
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))


def _ratio(first: Circuit, second: Circuit) -> float:
    return (first @ second).norm / (first.norm * second.norm)


def _check_parts(config: DecoderConfig) -> None:
    """Refuse a decoder with parts between the matrices of a circuit."""
    unsupported = [
        f"{name} = {getattr(config, name)!r}"
        for name, value in _SUPPORTED.items()
        if getattr(config, name) != value
    ]
    if unsupported:
        raise InputError(
            got=f"circuits of a model with {', '.join(unsupported)}",
            expected="scores that are products of matrices",
            fix="Use another model.",
        )


class _Reader:
    """The matrices of the heads of a pre-norm decoder."""

    def __init__(self, model: Any) -> None:
        self._model = model = network_of(model)
        if isinstance(model, Encoder | EncoderDecoder):
            raise InputError(
                got=f"circuits of {type(model).__name__}",
                expected="a decoder",
                fix="Pass a decoder with its output layer.",
            )
        readout = readout_of(model)
        hugging_face.require_resumable(readout.model, readout.of("block"))
        config = getattr(model, "config", None)
        if isinstance(config, DecoderConfig):
            _check_parts(config)
        self._final = readout.norm
        self._output = readout.output
        self.points = of_kind(find_hook_points(model), AttentionPoint)
        self._centred = isinstance(self._final, nn.LayerNorm)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all tokens, and the directions that their logits read."""
        model: Any = self._model
        factor = 1.0
        if isinstance(model, Decoder):
            embedding: Any = model.embedding
            factor = model.config.embedding_scale
        else:
            embedding = model.get_input_embeddings()
        device = next(model.parameters()).device
        tokens = torch.arange(embedding.num_embeddings, device=device)
        embedded = embedding(tokens[None])[0]
        width = embedded.shape[1]
        output = require_linear(self._output, "the output projection", width, like=embedded)
        return _wide(embedded * factor), self._read(self._final, output.matrix)

    def qk(self, layer: int, head: int, distance: int) -> Circuit:
        """Return the QK circuit of a head."""
        point, head = self._point(layer, head)
        attention: Any = point.module
        norm = self._norm(point)
        query, key, _ = self._projections(point)
        num_kv_heads = point.heads // point.group
        q = self._read(norm, query.unflatten(0, (point.heads, -1))[head])
        k = self._read(norm, key.unflatten(0, (num_kv_heads, -1))[head // point.group])
        scale_name = "scaling" if hasattr(attention, "scaling") else "scale"
        scale = getattr(attention, scale_name, None) or len(q) ** -0.5
        if getattr(attention, "key_weights", None) is not None:
            scale = scale * attention.key_weights[head]
        return Circuit(self._rotated(q, point, distance).T * scale, self._rotated(k, point, 0).T)

    def ov(self, layer: int, head: int) -> Circuit:
        """Return the OV circuit of a head."""
        point, head = self._point(layer, head)
        _, _, values = self._projections(point)
        num_kv_heads = point.heads // point.group
        value = values.unflatten(0, (num_kv_heads, -1))[head // point.group]
        width = value.shape[0] * point.heads
        projection = require_linear(point.out_proj, f"the projection of {point.name}", width).matrix
        writes = _wide(projection).unflatten(1, (point.heads, -1))[:, head]
        if self._centred:
            writes = writes - writes.mean(0)
        return Circuit(self._read(self._norm(point), value).T, writes)

    def _point(self, layer: int, head: int) -> tuple[AttentionPoint, int]:
        point = self.points[select("layer", layer, len(self.points))[0]]
        return point, select("head", head, point.heads)[0]

    def _read(self, norm: Any, weight: Tensor) -> Tensor:
        """Return rows of a matrix after a norm as rows that read the stream over its scale."""
        weight = _wide(weight) * _wide(norm.weight)
        if self._centred:
            return weight - weight.mean(1, keepdim=True)
        return weight

    def _norm(self, point: HookPoint) -> Any:
        block: Any = point.block
        names = ("attention_norm", "input_layernorm", "ln_1")
        norm = next(getattr(block, name) for name in names if hasattr(block, name))
        if other_hooks(norm) or "forward" in vars(norm):
            raise InputError(
                got=f"the norm before {point.name}, which has hooks",
                expected="the norm alone",
                fix="Remove them.",
            )
        return norm

    def _projections(self, point: HookPoint) -> tuple[Tensor, Tensor, Tensor]:
        attention: Any = point.module
        width = self._norm(point).weight.shape[0]

        def matrix(name: str) -> Tensor:
            module = getattr(attention, name)
            return require_linear(module, f"{name} of {point.name}", width).matrix

        if hasattr(attention, "c_attn"):
            query, key, value = matrix("c_attn").chunk(3)
            return query, key, value
        if isinstance(attention, GroupedQueryAttention):
            return matrix("query"), matrix("key"), matrix("value")
        return matrix("q_proj"), matrix("k_proj"), matrix("v_proj")

    def _rotated(self, rows: Tensor, point: HookPoint, position: int) -> Tensor:
        """Return the rows of a query or key matrix, rotated by ``position``, with YaRN's factor."""
        positions = torch.tensor([position], device=rows.device)
        if isinstance(self._model, Decoder):
            rotations = self._model.rotations(lambda rotary: rotary.rotation_at(positions), rows)
            rotation = rotations[point.layer]
            if rotation is not None:
                attention: Any = point.module
                return rotate(rows.T[None, :, None], rotation, attention.layout)[0, :, 0].T
        rotary = getattr(getattr(self._model, "model", None), "rotary_emb", None)
        if rotary is not None:
            cos, sin = rotary(rows, positions[None])
            half = len(rows) // 2
            rotation = (cos[..., :half], sin[..., :half])
            return rotate(rows.T[None, :, None], rotation)[0, :, 0].T
        if position != 0:
            raise InputError(
                got=f"distance = {position} in {type(self._model).__name__}",
                expected="a model with rotary positions",
                fix="Omit distance.",
            )
        return rows
