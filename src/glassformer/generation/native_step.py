"""A decoding step: the logits after new tokens of each text, natively where the model is all of known parts."""

from __future__ import annotations

import math
from operator import is_
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

from glassformer.errors import InputError
from glassformer.kernels import native
from glassformer.kernels.blocks import KINDS
from glassformer.kernels.decode_step import ACTIVATIONS, Layer, Matrix, Norm, Rotation, decode_step
from glassformer.kernels.decode_step import Decoder as Weights
from glassformer.kernels.dispatch import use_definition
from glassformer.kernels.lossless import fits
from glassformer.layers.attention import is_observed
from glassformer.layers.blocks import Block
from glassformer.layers.cache import Cache, LayerCache
from glassformer.layers.embedding import check_tokens
from glassformer.layers.experts import MixtureOfExperts, Router, Score, is_collected
from glassformer.layers.feedforward import MLP, Linear, NoFeedForward, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm, SoftCap
from glassformer.layers.options import LongRope
from glassformer.layers.positions import RotaryEmbedding
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.layers.quantized.int8 import Int8Linear
from glassformer.layers.quantized.lossless import LosslessLinear
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.decoder import Decoder
from glassformer.modes import evaluating

_DTYPES = (torch.float32, torch.bfloat16)
_KINDS = (
    *(nn.Embedding, Linear, nn.Linear, nn.Identity, RMSNorm, nn.LayerNorm, Block, GroupedQueryAttention),
    *(NoFeedForward, SwiGLU, MLP, MixtureOfExperts, PackedMixture, Router, Score, SoftCap),
    *(Int8Linear, LosslessLinear, BlockLinear, BlockEmbedding),
)
_LINEAR = (Linear, nn.Linear, Int8Linear, LosslessLinear, BlockLinear)
# What the native form stands for, unless other methods are in their place.
_METHODS = [
    (kind, name, getattr(kind, name))
    for kind, name in (
        *((Decoder, name) for name in ("forward", "logits", "hidden", "embed", "rotations", "run_layers")),
        *((kind, "forward") for kind in _KINDS),
    )
]
# New positions of all texts, above which torch's products are faster.
_MOST_TOKENS = 64
# Products of a weight and a number per thread, below which another thread does not pay.
_PRODUCTS_PER_THREAD = 2**17


class DecodingStep:
    """Reads the next tokens of the texts in a cache: ``model.output(model.hidden(tokens, cache=cache))``.

    In evaluation mode, without gradients. On the CPU one native call computes the whole step, if nothing could tell the
    difference: the model is a :class:`Decoder` whose parts are all as it built them, in float32 or bfloat16, without
    hooks, interventions or captures. This is looked at again in each step, and so is where weights and cache lie in
    memory; settings of parts, such as ``top_k``, once. Anything else takes the ordinary forward pass.

    The native form computes activations in float32, whatever the dtype of the weights is. Logits of float32 models are
    those of the ordinary pass to 1e-5 of their size; their packed experts take the ordinary way. Logits have the same
    bits for any number of threads, of texts beside one another and of tokens that are read at a time.

    Args:
        model: The decoder; it is left in the mode it is in.
        cache: Its cache, which may hold a prompt.
        constant: Look at the model, the cache's tensors, contexts and settings in the first step only. Pass True where
            nothing can change them between two steps.
    """

    def __init__(self, model: Decoder, cache: Cache, *, constant: bool = False) -> None:
        self._model, self._cache, self._constant = model, cache, constant
        self._plan: _Plan | None = None
        self._library: native.Library | None = None

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        """Logits after each token, of the model's dtype or wider."""
        with torch.inference_mode():
            logits = self._natively(tokens)
            if logits is None:
                with evaluating(self._model):
                    logits = self._model(tokens, cache=self._cache)
        return logits

    def _natively(self, tokens: Tensor) -> Tensor | None:
        model, cache = self._model, self._cache
        if self._plan is None or not self._constant:
            self._library = native.library() if _nothing_watches(tokens) else None
            if self._library is None:
                return None
            if self._plan is None or not self._plan.is_current():
                self._plan = _Plan.of(model, cache)
        start = cache.length
        if self._library is None or self._plan is None or any(layer.length != start for layer in cache.layers):
            return None
        check_tokens(tokens, model.config.max_seq_len, start)
        if tokens.numel() > _MOST_TOKENS:
            return None
        before = cache.padding
        if before is not None and model.positions is not None:  # which count real tokens
            return None
        batch, new = tokens.shape
        padding = cache.begin(batch, new, None)
        threads = max(1, min(torch.get_num_threads(), self._plan.size * tokens.numel() // _PRODUCTS_PER_THREAD))
        weights, given = self._plan.weights, tokens.to(torch.int64).contiguous()
        logits = None
        try:
            logits = decode_step(self._library, weights, given, start, padding, threads)
        finally:
            if logits is None:
                cache.padding = before
        if logits is None:
            return None
        for layer in cache.layers:
            layer.length, layer.in_order = start + new, layer.window is None or new > 1
        return logits


def _nothing_watches(tokens: Tensor) -> bool:
    """Whether no setting, context or hook outside the model asks for the ordinary forward pass."""
    return not (
        use_definition()
        or tokens.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
        or is_observed()
        or is_collected()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or any(getattr(kind, name) is not method for kind, name, method in _METHODS)
    )


class _Unknown(Exception):
    """A part that the native step does not know."""


class _Plan:
    """A decoder and its cache as the native step reads them, and what tells whether they are still the same.

    Addresses stay valid as long as the plan does, since it keeps the memory of the tensors it has found.
    """

    def __init__(self, model: Decoder, cache: Cache) -> None:
        self._attributes: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        """What ``self._attributes[i][self._names[i]]`` was: modules, tensors, and None where there is none."""
        self._modules: list[nn.Module] = []
        self._types: list[type] = []
        self._sizes: list[int] = []
        """How many attributes a module has: a method of its own is one more."""
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []
        self._memory: list[Tensor] = []
        self._handles = -1
        """``RemovableHandle.next_id`` when the modules had no hooks: it grows with every hook of any module."""
        self._model, self._cache, self._caches = model, cache, list(cache.layers)
        self._module({"": model}, "", Decoder)
        _require(type(cache) is Cache and len(model.layers) == len(cache.layers))
        self.dtype, self._batch, self.size = model.dtype, len(cache.layers[0].keys), 0
        _require(self.dtype in _DTYPES)
        self.weights = self._decoder(model)

    @classmethod
    def of(cls, model: Decoder, cache: Cache) -> _Plan | None:
        """The plan; None if the model has a part that the native step does not know, or a hook."""
        try:
            plan = cls(model, cache)
        except (_Unknown, InputError):  # the second of addresses
            return None
        return plan if plan.is_current() else None

    def is_current(self) -> bool:
        """Whether modules, weights and cache are those that the plan was made of, and no module has a hook."""
        return (  # in each step, so without a line of Python for each part
            all(map(is_, map(dict.get, self._attributes, self._names), self._values))
            and list(map(type, self._modules)) == self._types
            and native.addresses(self._tensors) == self._addresses
            and list(map(len, map(vars, self._modules))) == self._sizes
            and (self._handles == RemovableHandle.next_id or self._has_no_hooks())
            and len(self._model.layers) == len(self._caches)
            and self._cache.layers == self._caches
        )

    def _has_no_hooks(self) -> bool:
        self._handles = RemovableHandle.next_id
        return not any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)

    def _decoder(self, model: Decoder) -> Weights:
        config, width = model.config, model.config.hidden_dim
        for name in ("positions", "local_rotary", "logit_cap"):
            if model._modules.get(name) is None:
                self._remember(model._modules, name, None)
        embedding, positions = self._embedding(model, "embedding", config.vocab_size), Matrix()
        if model.positions is not None:
            positions = self._embedding(model, "positions", config.max_seq_len)
        layers = (Layer * len(self._module(model._modules, "layers", nn.ModuleList)))()
        rotations = self._rotations(model)
        cap = None if model.logit_cap is None else self._module(model._modules, "logit_cap", SoftCap)
        output, bias = self._linear(model, "output", config.vocab_size, width)
        _require(not bias and not isinstance(config.rope_scaling, LongRope))
        for number, layer in enumerate(layers):
            block = self._module(model.layers._modules, str(number), Block)
            self._attention(layer, block, self._cache.layers[number], width)
            local = model.local_rotary is not None and config.layer_window(number) is not None
            layer.rotation = -1 if config.learned_positions or number in config.unrotated_layers else int(local)
            self._feed_forward(layer, block, width)
        return Weights(
            embedding=embedding,
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
            logit_cap=0.0 if cap is None else cap.cap,
        )

    def _embedding(self, model: Decoder, name: str, rows: int) -> Matrix:
        table, width = self._module(model._modules, name, nn.Embedding, BlockEmbedding), model.config.hidden_dim
        _require(table.max_norm is None and table.num_embeddings >= rows)
        if isinstance(table, BlockEmbedding):
            return self._blocks(table, table.num_embeddings, width)
        return self._matrix(table, "weight", table.num_embeddings, width)

    def _blocks(self, owner: BlockLinear | BlockEmbedding, rows: int, width: int) -> Matrix:
        _require(self.dtype == torch.float32)  # in which their layers compute
        kind = KINDS[owner.kind]
        _require(width % kind.block == 0)
        blocks = self._address(owner._buffers, "blocks", torch.uint8, rows, kind.row_bytes(width))
        return Matrix.blocks(blocks, kind, width)

    def _rotations(self, model: Decoder) -> Any:
        """The rotation of all layers and that of windowed ones; none with learned positions."""
        found = [self._module(model._modules, "rotary", RotaryEmbedding)]
        if model.local_rotary is not None:
            found.append(self._module(model._modules, "local_rotary", RotaryEmbedding))
        rotations = (Rotation * len(found))()
        for rotation, rotary in zip(rotations, found, strict=True):
            pairs = rotary.head_dim // 2
            _require(rotary.layout == model.config.rope_layout and pairs <= model.config.head_dim // 2)
            rotation.frequencies = self._address(vars(rotary), "_frequencies", torch.float32, pairs)
            rotation.pairs = pairs
            rotation.concentration = 1.0 if rotary.scaling is None else rotary.scaling.concentration
        return rotations

    def _norm(self, owner: nn.Module, name: str, width: int) -> Norm:
        """A norm over ``width`` numbers; without a weight where there is none."""
        if owner._modules.get(name) is None:
            self._remember(owner._modules, name, None)
            return Norm()
        norm = self._module(owner._modules, name, nn.Identity, RMSNorm, nn.LayerNorm)
        if isinstance(norm, nn.Identity):
            return Norm()
        centred = isinstance(norm, nn.LayerNorm)
        bias = self._vector(norm, "bias", width) if centred else None
        return Norm(self._vector(norm, "weight", width), bias, centred, norm.eps)

    def _attention(self, layer: Layer, block: Block, cache: LayerCache, width: int) -> None:
        attention = self._module(block._modules, "attention", GroupedQueryAttention)
        heads, kv_heads, head_dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
        window = attention.pattern.window
        _require(attention.layout == self._model.rotary.layout and head_dim == self._model.config.head_dim)
        _require(type(cache) is LayerCache and attention.pattern.causal and attention.pattern.key_padding is None)
        _require(cache.window == window if cache.window is not None else window is None or window >= cache.max_seq_len)
        for name in ("attention_norm", "attention_post_norm"):
            setattr(layer, name, self._norm(block, name, width))
        if (norm := attention.query_norm) is not None:
            layer.norm_of_all_heads = norm.normalized_shape[0] != head_dim
        for name, count in (("query_norm", heads), ("key_norm", kv_heads)):
            over = count * head_dim if layer.norm_of_all_heads else head_dim
            setattr(layer, name, self._norm(attention, name, over))
        for name, rows in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
            self._set_linear(layer, name, attention, name, rows * head_dim, width)
        self._set_linear(layer, "output", attention, "output", width, heads * head_dim)
        for name in ("key_weights", "sinks"):
            setattr(layer, name, self._vector(attention, name, heads))
        shape = (self._batch, kv_heads, cache.slots, head_dim)
        for name in ("keys", "values"):
            setattr(layer, name, self._address(vars(cache), name, self.dtype, *shape))
        layer.num_heads, layer.num_kv_heads, layer.slots = heads, kv_heads, cache.slots
        layer.scale = head_dim**-0.5 if attention.scale is None else attention.scale
        layer.cap = attention.cap or 0.0

    def _feed_forward(self, layer: Layer, block: Block, width: int) -> None:
        ffn = self._module(block._modules, "ffn", NoFeedForward, SwiGLU, MLP, MixtureOfExperts, PackedMixture)
        for name in ("ffn_norm", "ffn_post_norm"):
            setattr(layer, name, self._norm(block, name, width))
        layer.parallel = block.parallel
        if isinstance(ffn, NoFeedForward):
            return
        layer.gated, clamp = not isinstance(ffn, MLP), getattr(ffn, "clamp", None)
        layer.activation = ACTIVATIONS.index("clamped" if clamp else getattr(ffn, "activation", "silu"))
        if clamp is not None:
            layer.alpha, layer.limit = clamp.alpha, clamp.limit
        if isinstance(ffn, MLP | SwiGLU):
            layer.num_experts, layer.top_k, layer.ff_dim = 1, 1, ffn.up.out_features
            for to, name in (("gate", "gate"), ("up", "up")) if layer.gated else (("gate", "up"),):
                self._set_linear(layer, to, ffn, name, layer.ff_dim, width)
            self._set_linear(layer, "down", ffn, "down", width, layer.ff_dim)
            return
        router = self._module(ffn._modules, "router", Router)
        experts, layer.ff_dim, layer.top_k = router.num_experts, ffn.ff_dim, router.top_k
        layer.num_experts = experts
        self._set_linear(layer, "router", router, "score", experts, width, Score)
        packed = isinstance(ffn, PackedMixture)
        _require(not packed or self.dtype == torch.bfloat16)  # tokens in fixed point are not exact enough for float32
        shapes = {"gate_up": (2 * ffn.ff_dim, width)} if packed else dict.fromkeys(("gate", "up"), (ffn.ff_dim, width))
        for name, shape in (shapes | {"down": (width, ffn.ff_dim)}).items():
            to = name.removesuffix("_up")
            matrix = self._packed(ffn, name, experts, *shape) if packed else self._matrix(ffn, name, experts, *shape)
            setattr(layer, to, matrix)
            setattr(layer, f"{to}_bias", self._vector(ffn, f"{name}_bias", experts, shape[0]))
            self.size += shape[0] * shape[1] * layer.top_k

    def _module(self, parts: dict[str, Any], name: str, *kinds: type) -> Any:
        """The module of this name, of exactly one of these types and without methods of its own."""
        module: Any = parts.get(name)
        _require(type(module) in kinds and module._compiled_call_impl is None)
        _require(not any(callable(getattr(type(module), own, None)) for own in vars(module)))
        self._remember(parts, name, module)
        self._modules.append(module)
        self._types.append(type(module))
        self._sizes.append(len(vars(module)))
        return module

    def _remember(self, attributes: dict[str, Any], name: str, value: nn.Module | Tensor | None) -> None:
        self._attributes.append(attributes)
        self._names.append(name)
        self._values.append(value)

    def _address(self, tensors: dict[str, Any], name: str, dtype: torch.dtype, *shape: int) -> int:
        tensor: Any = tensors.get(name)
        _require(type(tensor) in (Tensor, nn.Parameter) and tensor.shape == shape)
        self._addresses.append(native.address(tensor, dtype, math.prod(shape)))
        self._remember(tensors, name, tensor)
        self._tensors.append(tensor)
        self._memory.append(tensor.detach())
        return self._addresses[-1]

    def _vector(self, owner: nn.Module, name: str, *shape: int) -> int | None:
        """The address of a parameter; None where there is none."""
        if getattr(owner, name) is None:
            self._remember(owner._parameters, name, None)
            return None
        return self._address(owner._parameters, name, self.dtype, *shape)

    def _matrix(self, owner: nn.Module, name: str, *shape: int) -> Matrix:
        return Matrix.of(self._address(owner._parameters, name, self.dtype, *shape), self.dtype, shape[-1])

    def _packed(self, owner: nn.Module, name: str, experts: int, rows: int, width: int) -> Matrix:
        shape = (experts, rows, width // 32)
        scales = self._address(owner._buffers, f"{name}_scales", torch.uint8, *shape)
        blocks = self._address(owner._buffers, f"{name}_blocks", torch.uint8, *shape, 16)
        return Matrix.of(blocks, torch.uint8, width, scales)

    def _linear(self, owner: nn.Module, name: str, rows: int, width: int, *kinds: type) -> Any:
        """The weights of a linear layer and the address of its bias."""
        linear = self._module(
            owner._modules, name, *(kinds or (Linear, nn.Linear, Int8Linear, LosslessLinear, BlockLinear))
        )
        self.size += rows * width
        bias = self._vector(linear, "bias", rows)
        if isinstance(linear, BlockLinear):
            return self._blocks(linear, rows, width), bias
        if isinstance(linear, LosslessLinear):
            packed: Any
            index: Any
            packed, index = (linear._buffers.get(name) for name in ("packed", "index"))
            _require(packed is not None and index is not None and len(packed) == rows and fits(packed, index, width))
            address = self._address(linear._buffers, "packed", torch.uint8, *packed.shape)
            entries = self._address(linear._buffers, "index", torch.int32, *index.shape)
            return Matrix.lossless(address, entries, width), bias
        if not isinstance(linear, Int8Linear):
            return self._matrix(linear, "weight", rows, width), bias
        _require(self.dtype == torch.bfloat16)  # as packed experts
        scales = self._address(linear._buffers, "scales", torch.bfloat16, rows, width // 32)
        integers = self._address(linear._buffers, "integers", torch.int8, rows, width)
        return Matrix.of(integers, torch.int8, width, scales), bias

    def _set_linear(self, layer: Layer, to: str, *linear: Any) -> None:
        matrix, bias = self._linear(*linear)
        setattr(layer, to, matrix)
        setattr(layer, f"{to}_bias", bias)


def _require(condition: bool) -> None:
    if not condition:
        raise _Unknown
