"""A decoding step: the logits after the newest token of each text, computed natively if possible.

The native form computes models all of whose parts it knows.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

from glassformer.errors import InputError
from glassformer.kernels import native
from glassformer.kernels.decode_step import (
    ACTIVATIONS,
    FORMATS,
    MXFP4_APART,
    Layer,
    Matrix,
    Norm,
    Rotation,
    decode_step,
)
from glassformer.kernels.decode_step import Decoder as Weights
from glassformer.kernels.dispatch import use_definition
from glassformer.kernels.packed import KINDS
from glassformer.layers.attention import is_observed
from glassformer.layers.blocks import Block
from glassformer.layers.cache import Cache, LayerCache
from glassformer.layers.embedding import check_tokens
from glassformer.layers.experts import MixtureOfExperts, Router, Score
from glassformer.layers.feedforward import MLP, Linear, NoFeedForward, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm, SoftCap
from glassformer.layers.options import LongRope
from glassformer.layers.positions import RotaryEmbedding
from glassformer.layers.quantized.packed import (
    PACKED,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PackedWeight,
)
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.decoder import Decoder
from glassformer.modes import evaluating

_DTYPES = (torch.float32, torch.bfloat16)
_KINDS = (
    nn.Embedding,
    Linear,
    nn.Linear,
    nn.Identity,
    RMSNorm,
    nn.LayerNorm,
    Block,
    GroupedQueryAttention,
    NoFeedForward,
    SwiGLU,
    MLP,
    MixtureOfExperts,
    PackedMixture,
    Router,
    Score,
    SoftCap,
    *PACKED,
)
_LINEAR = (Linear, nn.Linear, PackedLinear)
# Methods that the native form replaces, unless others are in their place.
_METHODS = [
    (kind, name, getattr(kind, name))
    for kind, name in (
        *((Decoder, name) for name in ("forward", "logits", "hidden", "_embed", "rotations")),
        *((kind, "forward") for kind in _KINDS),
    )
]
# Texts above which torch's products are faster.
_MOST_TEXTS = 64
# Products of a weight and a number per thread, below which another thread does not pay.
_PRODUCTS_PER_THREAD = 2**17


class DecodingStep:
    """Reads one more token of each text in a cache: ``model(tokens, cache=cache)[:, -1]``.

    It runs in evaluation mode, without gradients. On the CPU, one native call computes the whole
    step if nothing could tell the difference: the model is a :class:`Decoder` whose parts are all
    as it built them, in float32 or bfloat16, without hooks, interventions or captures. Each step
    checks this again, and the places of weights and cache in memory. Settings of parts, such as
    ``top_k``, are read once. Anything else takes the ordinary forward pass.

    The native form computes activations in float32, whatever the dtype of the weights is. Logits of
    float32 models are those of the ordinary pass to 1e-5 of their size; their packed experts take
    the ordinary way. Logits have the same bits for any number of threads and of texts of one length
    beside one another.

    Args:
        model: The decoder; it is left in the mode it is in.
        cache: Its cache, which may hold a prompt.
        constant: Look at the model, the cache's tensors, contexts and settings in the first step
            only. Pass True where nothing can change them between two steps.
    """

    def __init__(self, model: Decoder, cache: Cache, *, constant: bool = False) -> None:
        self._model = model
        self._cache = cache
        self._constant = constant
        self._plan: _Plan | None = None
        self._library: native.Library | None = None

    def __call__(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch vocab"]:
        """Return the logits after these tokens, of the model's dtype or wider."""
        with torch.inference_mode():
            logits = self._natively(tokens)
            if logits is None:
                with evaluating(self._model):
                    logits = self._model(tokens, cache=self._cache)[:, -1]
        return logits

    def _natively(self, tokens: Tensor) -> Tensor | None:
        model = self._model
        cache = self._cache
        if self._plan is None or not self._constant:
            if _nothing_watches(tokens):
                self._library = native.library()
            else:
                self._library = None
            if self._library is None:
                return None
            if self._plan is None or not self._plan.is_current():
                self._plan = _Plan.of(model, cache)
        start = cache.length
        if (
            self._library is None
            or self._plan is None
            or any(layer.length != start for layer in cache.layers)
        ):
            return None
        check_tokens(tokens, model.config.max_seq_len, start)
        batch, new = tokens.shape
        if new != 1 or batch > _MOST_TEXTS:
            return None
        before = cache.padding
        if before is not None and model.positions is not None:  # which count real tokens
            return None
        padding = cache.begin(batch, 1, None)
        useful_threads = self._plan.size * batch // _PRODUCTS_PER_THREAD
        threads = max(1, min(torch.get_num_threads(), useful_threads))
        weights = self._plan.weights
        newest = tokens[:, 0].to(torch.int64).contiguous()
        logits = None
        try:
            logits = decode_step(self._library, weights, newest, start, padding, threads)
        finally:
            if logits is None:
                cache.padding = before
        if logits is None:
            return None
        for layer in cache.layers:
            layer.length = start + 1
            layer.in_order = layer.window is None
        return logits


def _nothing_watches(tokens: Tensor) -> bool:
    """Return whether no setting, context or hook outside the model needs the ordinary pass."""
    return not (
        use_definition()
        or tokens.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
        or is_observed()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or any(getattr(kind, name) is not method for kind, name, method in _METHODS)
    )


class _Unknown(Exception):
    """A part that the native step does not know."""


class _Plan:
    """A decoder and its cache as the native step reads them, with a fingerprint of both.

    Addresses stay valid as long as the plan, which keeps the memory of all its tensors.
    """

    def __init__(self, model: Decoder, cache: Cache) -> None:
        self._cache = cache
        self._modules = [*model.modules()]
        _require(
            type(model) is Decoder
            and type(cache) is Cache
            and len(model.layers) == len(cache.layers)
        )
        _require(all(map(_is_unchanged, self._modules)))
        self.dtype = model.dtype
        self._batch = len(cache.layers[0].keys)
        self.size = 0
        _require(self.dtype in _DTYPES)
        self._tables: list[dict[str, Any]] = []
        for module in self._modules:
            # An attribute that moves into an empty table is one attribute less.
            tables = (module._parameters, module._buffers, module._modules)
            self._tables += [table for table in tables if table]
            if type(module) is RotaryEmbedding:  # its tensor is an ordinary attribute
                self._tables.append(vars(module))
        self._routers = [module for module in self._modules if isinstance(module, Router)]
        self._tensors: list[Tensor] = []
        self._memory: list[Tensor] = []
        self._handles = -1
        """``RemovableHandle.next_id`` when the modules had no hooks.

        It grows with every hook of any module.
        """
        self.weights = self._decoder(model)
        self._fingerprint = self._state()

    @classmethod
    def of(cls, model: Decoder, cache: Cache) -> _Plan | None:
        """Return the plan; None if the model has a part that is not known, or a hook."""
        try:
            plan = cls(model, cache)
        except (_Unknown, InputError):  # addresses raise the second
            return None
        return plan if plan.is_current() else None

    def is_current(self) -> bool:
        """Return whether the plan still holds: the same modules, weights and cache, unwatched.

        There may be no hooks and no collectors of routing.
        """
        if self._state() != self._fingerprint or any(router.collectors for router in self._routers):
            return False
        last_handles = self._handles
        self._handles = RemovableHandle.next_id
        return last_handles == self._handles or not any(
            module._forward_hooks or module._forward_pre_hooks for module in self._modules
        )

    def _state(self) -> tuple[list[Any], ...]:
        """Return a fingerprint of modules, weights and cache.

        It is computed in every step, so that it may not run a line of Python for each module.
        """
        layers = self._cache.layers
        return (
            [*map(id, chain.from_iterable(map(dict.values, self._tables)))],
            [(id(layer.keys), id(layer.values)) for layer in layers],
            [*map(type, self._modules)],
            [*map(len, map(vars, self._modules))],  # a method of its own is one attribute more
            native.addresses(self._tensors),
        )

    def _decoder(self, model: Decoder) -> Weights:
        config = model.config
        width = model.config.hidden_dim
        _require(not isinstance(config.rope_scaling, LongRope))
        positions = Matrix()
        if model.positions is not None:
            positions = self._embedding(model, "positions", config.max_seq_len)
        layers = (Layer * len(_part(model, "layers", nn.ModuleList)))()
        rotations = self._rotations(model)
        output, bias = self._linear(model, "output", config.vocab_size, width)
        _require(bias is None)
        logit_cap = 0.0
        if model.logit_cap is not None:
            logit_cap = _part(model, "logit_cap", SoftCap).cap
        for index, (layer, cache) in enumerate(zip(layers, self._cache.layers, strict=True)):
            block = _part(model.layers, str(index), Block)
            _require(block.norm_place != "sum" and block.cross_attention is None)
            self._attention(layer, block, cache, model)
            local = model.local_rotary is not None and model.layer_window(index) is not None
            if block.rotated and not config.learned_positions:
                layer.rotation = int(local)
            else:
                layer.rotation = -1
            self._feed_forward(layer, block, width)
        return Weights(
            embedding=self._embedding(model, "embedding", config.vocab_size),
            positions=positions,
            embedding_norm=self._norm(model, "embedding_norm", width),
            final_norm=self._norm(model, "final_norm", width),
            output=output,
            rotations=rotations,
            num_rotations=len(rotations),
            layers=layers,
            num_layers=len(layers),
            bfloat16=self.dtype == torch.bfloat16,
            vocab_size=config.vocab_size,
            hidden_dim=width,
            head_dim=config.head_dim,
            interleaved=model.rotary.layout == "interleaved",
            embedding_scale=float(torch.tensor(config.embedding_scale, dtype=self.dtype)),
            logit_cap=logit_cap,
        )

    def _embedding(self, model: Decoder, name: str, rows: int) -> Matrix:
        table = _part(model, name, nn.Embedding, PackedEmbedding)
        width = model.config.hidden_dim
        _require(table.max_norm is None and table.num_embeddings >= rows)
        # Rows of an embedding that is packed are float32, and so is what the ordinary pass computes
        # with them.
        _require(not isinstance(table, PackedEmbedding) or self.dtype == torch.float32)
        return self._weights(table, "weight", table.num_embeddings, width)

    def _rotations(self, model: Decoder) -> Any:
        """Return the rotation of all layers, and that of windowed layers if it is another."""
        names = ["rotary"]
        if model.local_rotary is not None:
            names.append("local_rotary")
        rotations = (Rotation * len(names))()
        for rotation, name in zip(rotations, names, strict=True):
            rotary = _part(model, name, RotaryEmbedding)
            pairs = rotary.head_dim // 2
            _require(
                rotary.layout == model.config.rope_layout and pairs <= model.config.head_dim // 2
            )
            rotation.frequencies = self._address(rotary._frequencies, torch.float32, pairs)
            rotation.pairs = pairs
            if rotary.scaling is None:
                rotation.concentration = 1.0
            else:
                rotation.concentration = rotary.scaling.concentration
        return rotations

    def _norm(self, owner: nn.Module, name: str, width: int) -> Norm:
        """Return a norm over ``width`` numbers; one without a weight if the module has none."""
        if getattr(owner, name) is None:
            return Norm()
        norm = _part(owner, name, nn.Identity, RMSNorm, nn.LayerNorm)
        if isinstance(norm, nn.Identity):
            return Norm()
        centred = isinstance(norm, nn.LayerNorm)
        _require(norm.weight is not None)
        dtype = norm.weight.dtype  # may be float32 beside bfloat16
        _require(dtype in (self.dtype, torch.float32))
        bias = None
        if centred and norm.bias is not None:
            bias = self._address(norm.bias, dtype, width)
        return Norm(
            self._address(norm.weight, dtype, width),
            bias,
            centred,
            dtype == torch.bfloat16,
            norm.eps,
        )

    def _attention(self, layer: Layer, block: Block, cache: LayerCache, model: Decoder) -> None:
        attention = _part(block, "attention", GroupedQueryAttention)
        width = model.config.hidden_dim
        heads = attention.num_heads
        kv_heads = attention.num_kv_heads
        head_dim = attention.head_dim
        window = attention.pattern.window
        _require(attention.layout == model.rotary.layout and head_dim == model.config.head_dim)
        _require(
            type(cache) is LayerCache
            and attention.pattern.causal
            and attention.pattern.key_padding is None
        )
        if cache.window is not None:
            _require(cache.window == window)
        else:
            _require(window is None or window >= cache.max_seq_len)
        for name in ("attention_norm", "attention_post_norm"):
            setattr(layer, name, self._norm(block, name, width))
        if (norm := attention.query_norm) is not None:
            layer.norm_of_all_heads = norm.normalized_shape[0] != head_dim
        for name, count in (("query_norm", heads), ("key_norm", kv_heads)):
            norm_width = count * head_dim if layer.norm_of_all_heads else head_dim
            setattr(layer, name, self._norm(attention, name, norm_width))
        for name, rows in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
            self._set_linear(layer, name, attention, name, rows * head_dim, width)
        self._set_linear(layer, "output", attention, "output", width, heads * head_dim)
        for name in ("key_weights", "sinks"):
            setattr(layer, name, self._vector(getattr(attention, name), heads))
        for name in ("keys", "values"):
            address = self._address(
                getattr(cache, name), self.dtype, self._batch, kv_heads, cache.slots, head_dim
            )
            setattr(layer, name, address)
        layer.num_heads = heads
        layer.num_kv_heads = kv_heads
        layer.slots = cache.slots
        if attention.scale is None:
            layer.scale = head_dim**-0.5
        else:
            layer.scale = attention.scale
        layer.cap = attention.cap or 0.0

    def _feed_forward(self, layer: Layer, block: Block, width: int) -> None:
        ffn = _part(
            block, "ffn", NoFeedForward, SwiGLU, MLP, MixtureOfExperts, PackedExperts, PackedMixture
        )
        for name in ("ffn_norm", "ffn_post_norm"):
            setattr(layer, name, self._norm(block, name, width))
        layer.parallel = block.parallel
        if isinstance(ffn, NoFeedForward):
            return
        layer.gated = not isinstance(ffn, MLP)
        clamp = getattr(ffn, "clamp", None)
        if clamp:
            activation = "clamped"
        else:
            activation = getattr(ffn, "activation", "silu")
        _require(activation in ACTIVATIONS)
        layer.activation = ACTIVATIONS.index(activation)
        if clamp is not None:
            layer.alpha = clamp.alpha
            layer.limit = clamp.limit
        if isinstance(ffn, MLP | SwiGLU):
            layer.num_experts = 1
            layer.top_k = 1
            layer.ff_dim = ffn.up.out_features
            if layer.gated:
                self._set_linear(layer, "gate", ffn, "gate", layer.ff_dim, width)
                self._set_linear(layer, "up", ffn, "up", layer.ff_dim, width)
            else:
                self._set_linear(layer, "gate", ffn, "up", layer.ff_dim, width)
            self._set_linear(layer, "down", ffn, "down", width, layer.ff_dim)
            return
        router = _part(ffn, "router", Router)
        experts = router.num_experts
        layer.ff_dim = ffn.ff_dim
        layer.top_k = router.top_k
        layer.num_experts = experts
        self._set_linear(layer, "router", router, "score", experts, width, Score)
        # Torch's topk takes other experts among equal scores, such as those of rows of zeros.
        _require(len(router.score.weight[:, :32].sum(1, dtype=torch.float64).unique()) == experts)
        if isinstance(ffn, PackedMixture):
            self._packed_mixture(layer, ffn, experts, width)
            return
        for name, shape in (
            ("gate", (ffn.ff_dim, width)),
            ("up", (ffn.ff_dim, width)),
            ("down", (width, ffn.ff_dim)),
        ):
            bias = self._vector(getattr(ffn, f"{name}_bias"), experts, shape[0])
            setattr(layer, name, self._weights(ffn, name, experts, *shape))
            setattr(layer, f"{name}_bias", bias)
            self.size += shape[0] * shape[1] * layer.top_k

    def _packed_mixture(self, layer: Layer, ffn: PackedMixture, experts: int, width: int) -> None:
        """Set a packed mixture, whose rows of gate and up are in turns, in one matrix."""
        # Tokens in fixed point are not exact enough for float32.
        _require(self.dtype == torch.bfloat16)
        for name, target, shape in (
            ("gate_up", "gate", (2 * ffn.ff_dim, width)),
            ("down", "down", (width, ffn.ff_dim)),
        ):
            bias = self._vector(getattr(ffn, f"{name}_bias"), experts, shape[0])
            setattr(layer, target, self._apart(ffn, name, experts, *shape))
            setattr(layer, f"{target}_bias", bias)
            self.size += shape[0] * shape[1] * layer.top_k

    def _address(self, tensor: Tensor, dtype: torch.dtype, *shape: int) -> int:
        _require(type(tensor) in (Tensor, nn.Parameter) and tensor.shape == shape)
        self._tensors.append(tensor)
        self._memory.append(tensor.detach())
        return native.address(tensor, dtype, math.prod(shape))

    def _vector(self, weight: Tensor | None, *shape: int) -> int | None:
        if weight is None:
            return None
        return self._address(weight, self.dtype, *shape)

    def _weights(self, owner: Any, name: str, *shape: int) -> Matrix:
        """Return the weights of this name, as numbers or packed."""
        if isinstance(owner, PACKED):
            return self._packed(owner.packed_weights()[name], *shape)
        address = self._address(getattr(owner, name), self.dtype, *shape)
        return Matrix(address, None, FORMATS[self.dtype], shape[-1])

    def _packed(self, weight: PackedWeight, *shape: int) -> Matrix:
        kind = KINDS[weight.kind]
        _require(shape[-1] % kind.block == 0)
        address = self._address(weight.blocks, torch.uint8, *kind.packed_shape(shape))
        return Matrix(address, None, kind.number, shape[-1])

    def _apart(
        self, owner: PackedMixture, name: str, experts: int, rows: int, width: int
    ) -> Matrix:
        shape = (experts, rows, width // 32)
        scales = self._address(getattr(owner, f"{name}_scales"), torch.uint8, *shape)
        blocks = self._address(getattr(owner, f"{name}_blocks"), torch.uint8, *shape, 16)
        return Matrix(blocks, scales, MXFP4_APART, width)

    def _linear(
        self, owner: nn.Module, name: str, rows: int, width: int, *kinds: type
    ) -> tuple[Matrix, int | None]:
        """Return the weights of a linear layer and the address of its bias."""
        linear = _part(owner, name, *(kinds or _LINEAR))
        self.size += rows * width
        bias = self._vector(linear.bias, rows)
        return self._weights(linear, "weight", rows, width), bias

    def _set_linear(self, layer: Layer, target: str, *linear: Any) -> None:
        matrix, bias = self._linear(*linear)
        setattr(layer, target, matrix)
        setattr(layer, f"{target}_bias", bias)


def _part(owner: nn.Module, name: str, *kinds: type) -> Any:
    """Return the module of this name, which must be of exactly one of these types."""
    part = owner._modules.get(name)
    _require(type(part) in kinds)
    return part


def _is_unchanged(module: nn.Module) -> bool:
    """Return whether a module is not compiled and hides no method of its class."""
    hides_method = any(callable(getattr(type(module), name, None)) for name in vars(module))
    return module._compiled_call_impl is None and not hides_method


def _require(condition: bool) -> None:
    if not condition:
        raise _Unknown
