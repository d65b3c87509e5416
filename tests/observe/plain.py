"""Every kind of model once more, in plain torch: each site is a tensor that a visitor may replace.

Norms, projections and feed-forward networks are the model's own modules; what joins them is written
out here: heads, rotation, masks, softmax, sinks, routing, the residual stream.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Place(NamedTuple):
    """Where a tensor is computed."""

    site: str
    """A key of ``AXES``; "choices" is never visited."""
    layer: int
    source: bool = False
    """Whether it belongs to the encoder of an encoder-decoder."""
    cross: bool = False


Visit = Callable[[Place, Tensor, Tensor | None], Tensor]
"""From a place, its tensor and, of experts, the choices to what replaces the tensor."""


class Attention(NamedTuple):
    """Of one attention: what its formula reads."""

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor]
    """From [batch, position, width] to [batch, position, head * dim]."""
    output: nn.Module
    head_dim: int
    scale: float | None = None
    """None: head_dim**-0.5."""
    turn: Callable[[Tensor], Tensor] = lambda heads: heads
    allowed: Tensor | None = None
    """[batch, 1, query, key], True = may attend."""
    sinks: Tensor | None = None
    key_weights: Tensor | None = None


class Mixture(NamedTuple):
    """Of one mixture of experts: what its formula reads."""

    scores: Callable[[Tensor], Tensor]
    experts: Sequence[Callable[[Tensor], Tensor]]
    top_k: int


class Part(NamedTuple):
    """What a block adds to its stream."""

    kind: str
    """attention, cross or ffn"""
    norm: nn.Module
    compute: Attention | Mixture | nn.Module


class Plain:
    """Runs a model as the formulas say."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def stack(
        self, x: Tensor, blocks: Any, pre_norm: bool, memory: Any = None, *, source: bool = False
    ) -> Tensor:
        """The stream after all blocks."""
        for layer, parts in enumerate(blocks):

            def visit(
                site: str,
                tensor: Tensor,
                choices: Tensor | None = None,
                layer: int = layer,
                *,
                cross: bool = False,
            ) -> Tensor:
                return self._visit(Place(site, layer, source, cross), tensor, choices)

            if layer == 0:
                x = visit("embedding", x)
            x = visit("residual_before", x)
            for kind, norm, part in parts:
                if kind == "ffn":
                    x = visit("residual_between", x)
                inner = norm(x) if pre_norm else x
                if isinstance(part, Attention):
                    cross = kind == "cross"
                    added = attended(
                        part, inner, memory if cross else inner, partial(visit, cross=cross)
                    )
                else:
                    made = mixed(part, inner, visit) if isinstance(part, Mixture) else part(inner)
                    added = visit("ffn", made[0] if isinstance(made, tuple) else made)
                x = x + added if pre_norm else norm(x + added)
            x = visit("residual", x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """What the model puts out; a classifier's [batch, class] are visited as one position."""
        found = self._visit(Place("logits", 0), x if x.dim() == 3 else x[:, None], None)
        return found if x.dim() == 3 else found[:, 0]


def attended(part: Attention, x: Tensor, source: Any, visit: Callable[..., Tensor]) -> Tensor:
    """The formula of ``attend``, with the projections around it."""

    def heads(flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (-1, part.head_dim)).transpose(1, 2)

    q = part.turn(heads(part.query(x)))
    k = part.turn(heads(part.key(source)))
    v = heads(part.value(source))
    q = visit("q", q)
    k = visit("k", k)
    v = visit("v", v)
    group = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    scale = part.head_dim**-0.5 if part.scale is None else part.scale
    scores = scale * torch.einsum("bhqd,bhkd->bhqk", q, k[:, group])
    if part.key_weights is not None:
        scores = scores * part.key_weights[:, None, None]
    allowed = torch.tensor(True) if part.allowed is None else part.allowed
    scores = visit("scores", scores.masked_fill(~allowed, -torch.inf)).masked_fill(
        ~allowed, -torch.inf
    )
    terms = scores.exp()
    total = terms.sum(-1)
    if part.sinks is not None:
        total = total + visit("sinks", part.sinks[:, None].expand(total.shape)).exp()
    weights = visit("weights", torch.where(total[..., None] > 0, terms / total[..., None], 0.0))
    merged = (
        visit("heads", torch.einsum("bhqk,bhkd->bhqd", weights, v[:, group]))
        .transpose(1, 2)
        .flatten(2)
    )
    return visit("attention", part.output(merged))


def mixed(part: Mixture, x: Tensor, visit: Callable[..., Tensor]) -> Tensor:
    """The mixture of the experts that have the highest probabilities."""
    chances = visit("router", part.scores(x).softmax(-1))
    best, choices = chances.topk(part.top_k, -1)
    made = torch.stack([expert(x) for expert in part.experts], 2)
    chosen = made.gather(2, choices[..., None].expand(*choices.shape, made.shape[-1]))
    return torch.einsum(
        "bpc,bpcd->bpd", best / best.sum(-1, keepdim=True), visit("experts", chosen, choices)
    )


def causal(length: int, window: int | None, real: Tensor | None = None) -> Tensor:
    """[batch or 1, 1, query, key]: key at most as late as the query, within the window, and not
    padding.
    """
    at = torch.arange(length)
    allowed = at <= at[:, None]
    if window is not None:
        allowed = allowed & (at > at[:, None] - window)
    return allowed[None, None] if real is None else allowed & real[:, None, None, :]


def turning(cos: Tensor, sin: Tensor, interleaved: bool = False) -> Callable[[Tensor], Tensor]:
    """The rotation by these angles, one for each pair of coordinates."""

    def turn(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        first, second = (
            (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
        )
        pair = first * cos - second * sin, second * cos + first * sin
        return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)

    return turn


def own_attention(module: Any, **more: Any) -> Attention:
    """Of a GroupedQueryAttention."""
    maps = module.query, module.key, module.value, module.output
    return Attention(
        *maps, module.head_dim, sinks=module.sinks, key_weights=module.key_weights, **more
    )


def own_ffn(module: Any) -> Any:
    """A mixture's experts one by one; a dense network as it is."""
    if not hasattr(module, "router"):
        return module
    dense = module if hasattr(module, "gate") else module.unpack(torch.float32)

    def expert(number: int) -> Callable[[Tensor], Tensor]:
        def compute(x: Tensor) -> Tensor:
            flat = x.flatten(0, -2)
            once = flat.new_ones(len(flat), 1)
            index = torch.full((len(flat), 1), number)
            return dense.mix(flat, once, index).view(x.shape)

        return compute

    score = module.router.score
    return Mixture(score, [expert(number) for number in range(module.num_experts)], module.top_k)


def decoder(model: Any, visit: Visit, tokens: Tensor, key_padding: Tensor | None = None) -> Tensor:
    """Of a Decoder."""
    config = model.config
    run = Plain(visit)
    turn = turning(*model.rotary.rotation(tokens.shape[1]), config.rope_layout == "interleaved")
    blocks = []
    for layer, block in enumerate(model.layers):
        allowed = causal(tokens.shape[1], config.layer_window(layer), key_padding)
        attention = own_attention(block.attention, turn=turn, allowed=allowed)
        ffn = Part("ffn", block.ffn_norm, own_ffn(block.ffn))
        blocks.append([Part("attention", block.attention_norm, attention), ffn])
    x = run.stack(model.embedding(tokens), blocks, True)
    return run.logits(model.output(model.final_norm(x)))


def encoder(model: Any, visit: Visit, tokens: Tensor) -> Tensor:
    """Of an Encoder; the pooled vector where it has no classifier."""
    config = model.config
    run = Plain(visit)
    real = tokens != config.pad_id
    blocks = []
    for block in model.layers:
        attention = own_attention(block.attention, allowed=real[:, None, None])
        blocks.append(
            [
                Part("attention", block.attention_norm, attention),
                Part("ffn", block.ffn_norm, block.ffn),
            ]
        )
    x = run.stack(first_input(model, model.layers[0], tokens), blocks, config.norm_first)
    x = x if model.final_norm is None else model.final_norm(x)
    pools = {
        "cls": lambda row: row[0],
        "mean": lambda row: row.mean(0),
        "max": lambda row: row.amax(0),
    }
    pooled = torch.stack(
        [pools[config.pooling](row[kept]) for row, kept in zip(x, real, strict=True)]
    )
    return pooled if model.classifier is None else run.logits(model.classifier(pooled))


def encoder_decoder(model: Any, visit: Visit, source: Tensor, target: Tensor) -> Tensor:
    """Of an EncoderDecoder."""
    config = model.config
    run = Plain(visit)
    read = (source if source.dim() == 2 else source.sum(-1)) != 0
    written = target != config.pad_id
    first = []
    second = []
    for block in model.encoder_layers:
        attention = own_attention(block.attention, allowed=read[:, None, None])
        first.append(
            [
                Part("attention", block.attention_norm, attention),
                Part("ffn", block.ffn_norm, block.ffn),
            ]
        )
    for block in model.decoder_layers:
        attention = own_attention(
            block.self_attention, allowed=causal(target.shape[1], None, written)
        )
        cross = own_attention(block.cross_attention, allowed=read[:, None, None])
        parts = (
            Part("attention", block.self_attention_norm, attention),
            Part("cross", block.cross_attention_norm, cross),
        )
        second.append([*parts, Part("ffn", block.ffn_norm, block.ffn)])
    x = first_input(model, model.encoder_layers[0], source, target)
    memory = run.stack(x, first, config.norm_first, source=True)
    memory = memory if model.encoder_norm is None else model.encoder_norm(memory)
    x = first_input(model, model.decoder_layers[0], source, target)
    x = run.stack(x, second, config.norm_first, memory)
    return run.logits(model.output(x if model.decoder_norm is None else model.decoder_norm(x)))


def single_head(model: Any, visit: Visit, seq: Tensor) -> Tensor:
    """Of a SingleHead with a batch of sequences."""
    if model.pos is not None:
        seq = torch.cat([seq, model.pos.weight[: seq.shape[1]].expand(len(seq), -1, -1)], -1)
    width = model.Qm.out_features
    q, k, v = (each(seq)[:, None] for each in (model.Qm, model.Km, model.Vm))

    def here(site: str, tensor: Tensor) -> Tensor:
        return visit(Place(site, 0), tensor, None)

    q = here("q", q)
    k = here("k", k)
    v = here("v", v)
    scores = here("scores", q @ k.mT / width**0.5)
    total = scores.exp().sum(-1, keepdim=True)
    weights = here("weights", torch.where(total > 0, scores.exp() / total, 0.0))
    return here("attention", (weights @ v)[:, 0])


def gpt2(
    model: Any, visit: Visit, tokens: Tensor, attention_mask: Tensor | None = None, **more: Any
) -> Tensor:
    """Of transformers' GPT2LMHeadModel."""
    body = model.transformer
    run = Plain(visit)
    real = None if attention_mask is None else attention_mask.bool()
    blocks = []
    for block in body.h:
        part = block.attn
        maps = [
            lambda x, part=part, third=third: part.c_attn(x).chunk(3, -1)[third]
            for third in range(3)
        ]
        allowed = causal(tokens.shape[1], None, real)
        attention = Attention(*maps, part.c_proj, part.head_dim, part.scaling, allowed=allowed)
        blocks.append(
            [Part("attention", block.ln_1, attention), Part("ffn", block.ln_2, block.mlp)]
        )
    x = first_input(model, body.h[0], tokens, attention_mask=attention_mask, **more)
    return run.logits(model.lm_head(body.ln_f(run.stack(x, blocks, True))))


def llama(
    model: Any, visit: Visit, tokens: Tensor, attention_mask: Tensor | None = None, **more: Any
) -> Tensor:
    """Of transformers' Llama, Mistral, Qwen2, Mixtral and GptOss."""
    body = model.model
    run = Plain(visit)
    config = model.config
    real = None if attention_mask is None else attention_mask.bool()
    given = {"attention_mask": attention_mask, **more}
    cos, sin = first_arguments(model, body.layers[0], tokens, **given)[1]["position_embeddings"]
    head_dim = body.layers[0].self_attn.head_dim
    turn = turning(cos[:, None, :, : head_dim // 2], sin[:, None, :, : head_dim // 2])
    blocks = []
    for layer, block in enumerate(body.layers):
        part = block.self_attn
        kinds = getattr(config, "layer_types", None)
        whole = kinds is not None and kinds[layer] == "full_attention"
        window = None if whole else getattr(config, "sliding_window", None)
        maps = part.q_proj, part.k_proj, part.v_proj, part.o_proj
        allowed = causal(tokens.shape[1], window, real)
        sinks = getattr(part, "sinks", None)
        attention = Attention(*maps, head_dim, turn=turn, allowed=allowed, sinks=sinks)
        ffn = Part("ffn", block.post_attention_layernorm, foreign_ffn(block.mlp))
        blocks.append([Part("attention", block.input_layernorm, attention), ffn])
    x = run.stack(first_input(model, body.layers[0], tokens, **given), blocks, True)
    return run.logits(model.lm_head(body.norm(x)))


def foreign_ffn(module: Any) -> Any:
    """Of transformers: a mixture's experts one by one; a dense network as it is."""
    gate = getattr(module, "gate", getattr(module, "router", None))
    if gate is None:
        return module
    experts = module.experts

    def mixtral_expert(x: Tensor, number: int) -> Tensor:
        first, up = (x @ experts.gate_up_proj[number].mT).chunk(2, -1)
        return (first * first.sigmoid() * up) @ experts.down_proj[number].mT

    def gpt_oss_expert(x: Tensor, number: int) -> Tensor:
        inside = x @ experts.gate_up_proj[number] + experts.gate_up_proj_bias[number]
        first = inside[..., 0::2].clamp(max=experts.limit)
        up = inside[..., 1::2].clamp(-experts.limit, experts.limit)
        product = first * (experts.alpha * first).sigmoid() * (up + 1)
        return product @ experts.down_proj[number] + experts.down_proj_bias[number]

    one = gpt_oss_expert if hasattr(experts, "gate_up_proj_bias") else mixtral_expert
    bias = getattr(gate, "bias", None)

    def scores(x: Tensor) -> Tensor:
        return x @ gate.weight.mT if bias is None else x @ gate.weight.mT + bias

    functions = [lambda x, number=number: one(x, number) for number in range(gate.num_experts)]
    return Mixture(scores, functions, gate.top_k)


def bert(model: Any, visit: Visit, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Of transformers' BertModel and RobertaModel: the last hidden state."""
    run = Plain(visit)
    allowed = None if attention_mask is None else attention_mask.bool()[:, None, None]
    blocks = []
    for block in model.encoder.layer:
        part = block.attention.self
        maps = part.query, part.key, part.value, block.attention.output.dense
        attention = Attention(*maps, part.attention_head_size, allowed=allowed)
        ffn = Part(
            "ffn", block.output.LayerNorm, nn.Sequential(block.intermediate, block.output.dense)
        )
        blocks.append([Part("attention", block.attention.output.LayerNorm, attention), ffn])
    x = first_input(model, model.encoder.layer[0], tokens, attention_mask=attention_mask)
    return run.stack(x, blocks, False)


def first_input(model: nn.Module, block: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """The stream that enters a block, of a run without edits."""
    given, named = first_arguments(model, block, *args, **kwargs)
    found: Tensor = given[0] if given else named["hidden_states"]
    return found


def first_arguments(
    model: nn.Module, block: nn.Module, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], Any]:
    found: list[tuple[tuple[Any, ...], Any]] = []
    with block.register_forward_pre_hook(
        lambda _, given, named: found.append((given, named)), with_kwargs=True
    ):
        (model if getattr(model, "classifier", model) is not None else model.hidden)(
            *args, **kwargs
        )
    return found[0]


@contextmanager
def replaced(
    module: nn.Module, of_input: bool, function: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """A plain hook, which replaces a module's input or output."""

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (function(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": function(kwargs["hidden_states"])}

    def after(_: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (function(output[0]), *output[1:])
        return function(output)

    if of_input:
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = module.register_forward_hook(after)
    with handle:
        yield
