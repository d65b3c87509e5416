"""Random models of every kind, and random edits of them: as the library makes them, and on a tensor
of a plain run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import plain
import torch
from plain import Place
from torch import Tensor, nn

from glassformer.handcraft.single_head import SingleHead
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.observe import edits
from glassformer.observe.captured import AXES, Captured
from small_models import BERT, decoder, encoder, encoder_decoder
from transformers_models import bert, exact, gpt2, gpt_oss, llama, mistral, mixtral, qwen2, roberta


@dataclass(frozen=True)
class Subject:
    """A model, the plain form of it, and two inputs of one shape."""

    model: Any
    formula: Callable[..., Tensor]
    ours: tuple[Any, ...]
    theirs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    near: float = 1e-12
    real: Tensor | None = None
    """Positions whose values have a meaning."""

    def run(self, given: Sequence[Any] | None = None) -> Tensor:
        """What the model puts out."""
        given = self.ours if given is None else given
        if getattr(self.model, "classifier", self.model) is None:
            return self.model.pool(self.model.hidden(*given), given[0] != 0)
        out = self.model(*given, **self.options)
        return out if isinstance(out, Tensor) else next(iter(out.values()))

    def plainly(self, visit: plain.Visit, given: Sequence[Any] | None = None) -> Tensor:
        """The same by its formula."""
        return self.formula(
            self.model, visit, *(self.ours if given is None else given), **self.options
        )

    def record(self, given: Sequence[Any] | None = None) -> dict[Place, Tensor]:
        """Every tensor of a plain run without edits."""
        found: dict[Place, Tensor] = {}

        def note(place: Place, tensor: Tensor, choices: Tensor | None) -> Tensor:
            found[place] = tensor
            return tensor

        self.plainly(note, given)
        return found


def texts(chance: Random, rows: int, length: int, low: int = 1, high: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(chance.randint(0, 2**31))
    return torch.randint(low, high, (rows, length), generator=generator)


def drawn(chance: Random, model: nn.Module) -> Any:
    """The model in float64 and inference mode, with weights far from their start."""
    torch.manual_seed(chance.randint(0, 2**31))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3) if weight.dim() == 1 else weight.mul_(1.5)
    return model.double().eval()


def padded(chance: Random, rows: int, length: int) -> Tensor | None:
    """Which positions are real in texts that are padded on the left; None: all."""
    first = (
        [chance.randint(0, length - 2) for _ in range(rows)]
        if chance.random() < 0.5
        else [0] * rows
    )
    return torch.arange(length) >= torch.tensor(first)[:, None] if any(first) else None


def own_decoder(chance: Random, **changes: Any) -> Subject:
    heads = chance.choice([1, 2, 4])
    sizes: dict[str, Any] = {
        "num_layers": chance.randint(1, 3),
        "num_heads": heads,
        "num_kv_heads": chance.choice([each for each in (1, 2, 4) if heads % each == 0]),
        "head_dim": chance.choice([2, 6]),
        "rope_layout": chance.choice(["half-split", "interleaved"]),
        **{
            name: chance.random() < 0.5
            for name in ("attention_bias", "ff_bias", "sinks", "key_weights", "tied_output")
        },
        "window": chance.choice([None, 1, 2, 3, 5]),
        "windowed_layers": chance.choice(["odd", "even", "all"]),
        "rope_scaling": chance.choice([None, Yarn(4.0)]),
        "clamp": chance.choice([None, Clamp()]),
        **changes,
    }
    model = drawn(chance, decoder(**sizes))
    rows = chance.randint(1, 3)
    length = chance.randint(2, 9)
    real = padded(chance, rows, length)
    options = {} if real is None else {"key_padding": real}
    ours = texts(chance, rows, length)
    theirs = texts(chance, rows, length)
    return Subject(model, plain.decoder, (ours,), (theirs,), options, real=real)


def own_experts(chance: Random, **changes: Any) -> Subject:
    experts = chance.randint(2, 5)
    return own_decoder(chance, num_experts=experts, top_k=chance.randint(1, experts), **changes)


def packed(chance: Random) -> Subject:
    """In float32, as the kernel of packed weights is."""
    subject = own_experts(chance, hidden_dim=32, ff_dim=32)
    from glassformer.layers.quantized.packed_experts import PackedMixture

    model = subject.model.float()
    for block in model.layers:
        block.ffn = PackedMixture.pack(block.ffn)
    return Subject(
        model, plain.decoder, subject.ours, subject.theirs, subject.options, 1e-4, subject.real
    )


def own_encoder(chance: Random, **changes: Any) -> Subject:
    options: dict[str, Any] = {
        "num_layers": chance.randint(1, 3),
        "num_heads": chance.choice([1, 2, 4]),
        "norm_first": chance.random() < 0.5,
        "final_norm": chance.random() < 0.5,
        "pooling": chance.choice(["mean", "cls", "max"]),
        "positions": chance.choice(["sinusoidal", "learned", "none"]),
        "activation": chance.choice(["relu", "gelu"]),
        **changes,
    }
    model = drawn(chance, encoder(**options))
    rows = chance.randint(1, 3)
    length = chance.randint(2, 9)
    ours = texts(chance, rows, length)
    theirs = texts(chance, rows, length)
    if chance.random() < 0.5:
        ours[0, chance.randint(1, length - 1) :] = 0
    return Subject(model, plain.encoder, (ours,), (theirs,))


def own_encoder_decoder(chance: Random) -> Subject:
    fields = chance.choice([1, 2])
    options: dict[str, Any] = {
        "num_encoder_layers": chance.randint(1, 2),
        "num_decoder_layers": chance.randint(1, 3),
        "num_heads": chance.choice([1, 2, 4]),
        "norm_first": chance.random() < 0.5,
        "final_norm": chance.random() < 0.5,
        "fields_per_slot": fields,
        "source_positions": chance.choice(["sinusoidal", "learned", "none"]),
    }
    model = drawn(chance, encoder_decoder(**options))
    rows = chance.randint(1, 3)
    length = chance.randint(2, 9)
    written = chance.randint(2, 6)

    def pair() -> tuple[Tensor, Tensor]:
        source = texts(chance, rows, length * fields).view(
            rows, length, *([fields] if fields > 1 else [])
        )
        return source, texts(chance, rows, written)

    ours = pair()
    theirs = pair()
    if chance.random() < 0.5:
        ours[0][0, chance.randint(1, length - 1) :] = 0
        ours[1][0, -1] = 0
    return Subject(model, plain.encoder_decoder, ours, theirs)


def own_single_head(chance: Random) -> Subject:
    model = drawn(chance, SingleHead(5, chance.randint(1, 4), 3, chance.choice([None, 2])))
    rows = chance.randint(1, 3)
    length = chance.randint(2, 9)
    ours, theirs = (torch.randn(rows, length, 5, dtype=torch.float64) for _ in range(2))
    return Subject(model, plain.single_head, (ours,), (theirs,))


def foreign(
    make: Callable[..., nn.Module], formula: Callable[..., Tensor], implementations: Sequence[str]
) -> Any:
    def made(chance: Random) -> Subject:
        model = drawn(chance, make())
        exact(model)
        implementation = chance.choice(implementations)
        model.set_attn_implementation(implementation)
        rows = chance.randint(1, 3)
        length = chance.randint(2, 9)
        # Eager attention in Llama's relatives has a softmax in float32, in which float64's lowest
        # number is -inf: NaN.
        narrow = implementation == "eager" and make in (llama, mistral, qwen2, mixtral)
        real = None if narrow else padded(chance, rows, length)
        ours = texts(chance, rows, length)
        theirs = texts(chance, rows, length)
        options = {} if real is None else {"attention_mask": real.long()}
        near = 1e-6 if narrow or make is mixtral else 1e-12  # Mixtral's routing weights are float32
        return Subject(model, formula, (ours,), (theirs,), options, near, real)

    return made


BOTH = ("sdpa", "eager")
KINDS: dict[str, Callable[[Random], Subject]] = {
    "decoder": own_decoder,
    "attention only": lambda chance: own_decoder(chance, ff_dim=0, ff_bias=False, clamp=None),
    "experts": own_experts,
    "packed": packed,
    "encoder": own_encoder,
    "classifier-free BERT": lambda chance: own_encoder(chance, **{**BERT, "norm_first": False}),
    "encoder-decoder": own_encoder_decoder,
    "single head": own_single_head,
    "gpt2": foreign(gpt2, plain.gpt2, BOTH),
    "gpt2 scaled by layer": foreign(
        lambda: gpt2(scale_attn_by_inverse_layer_idx=True), plain.gpt2, BOTH
    ),
    "llama": foreign(llama, plain.llama, BOTH),
    "mistral": foreign(mistral, plain.llama, BOTH),
    "qwen2": foreign(qwen2, plain.llama, BOTH),
    "mixtral": foreign(mixtral, plain.llama, BOTH),
    "gpt-oss": foreign(gpt_oss, plain.llama, ("eager",)),
    "bert": foreign(bert, plain.bert, BOTH),
    "roberta": foreign(roberta, plain.bert, BOTH),
}

_SELECTORS = {
    "head": "heads",
    "query": "queries",
    "key": "keys",
    "expert": "experts",
    "batch": "examples",
}
_STREAM = ("zero", "scale", "add", "put", "change", "patch", "mean")
_OPERATIONS = {
    "scores": ("scale", "add", "put", "change", "forbid"),
    "weights": ("zero", "scale", "put", "change"),
    "sinks": ("remove",),
    "router": ("zero", "scale", "change", "force"),
    "experts": ("zero", "scale", "add", "change"),
}


@dataclass(frozen=True)
class Case:
    """One edit, as data."""

    site: str
    operation: str
    where: dict[str, Any]
    number: float
    vector: Tensor

    def edit(self, other: Captured) -> edits.Edit:
        """As the library makes it."""
        where = self.where
        site = self.site
        if self.operation == "force":
            rest = {name: each for name, each in where.items() if name != "experts"}
            return edits.force_experts(where["experts"], **rest)
        return {
            "zero": lambda: edits.zero(site, **where),
            "scale": lambda: edits.scale(site, self.number, **where),
            "add": lambda: edits.add(site, self.vector, **where),
            "put": lambda: edits.put(site, self.vector, **where),
            "change": lambda: edits.change(site, lambda values: _bent(site, values), **where),
            "patch": lambda: edits.patch(site, other, **where),
            "mean": lambda: edits.mean(site, other, **where),
            "forbid": lambda: edits.forbid(**where),
            "remove": lambda: edits.remove_sinks(**where),
        }[self.operation]()

    def apply(self, tensor: Tensor, choices: Tensor | None, there: Tensor) -> tuple[Tensor, Tensor]:
        """The edited tensor, and where it is edited; ``there``: the tensor of the other run."""
        axes = AXES[self.site]
        chosen = torch.ones(tensor.shape, dtype=torch.bool)
        for axis, size in zip(axes, tensor.shape, strict=True):
            given = self.where.get(_SELECTORS.get(axis, ""))
            if given is not None and not (axis == "expert" and self.operation == "force"):
                chosen &= _among(given, size).view([size if each == axis else 1 for each in axes])
        if choices is not None and self.where.get("experts") is not None:
            chosen &= torch.isin(choices, torch.tensor(self.where["experts"]))[..., None]
        across = (0, axes.index("key" if self.site in ("k", "v") else "query"))
        new = {
            "zero": lambda: tensor * 0,
            "scale": lambda: tensor * self.number,
            "add": lambda: tensor + self.vector,
            "put": lambda: self.vector.expand(tensor.shape),
            "change": lambda: _bent(self.site, tensor),
            "patch": lambda: there,
            "mean": lambda: there.mean(across, keepdim=True),
            "forbid": lambda: torch.full_like(tensor, -torch.inf),
            "remove": lambda: torch.full_like(tensor, -torch.inf),
            "force": lambda: tensor * _among(self.where["experts"], tensor.shape[-1]),
        }[self.operation]()
        return torch.where(chosen, new, tensor), chosen


def _bent(site: str, values: Tensor) -> Tensor:
    if site == "weights":  # masked ones stay 0
        return values.sin()
    return values.square() if site == "router" else values.sin().nan_to_num() + 0.1


def resolved(given: Any, size: int) -> list[int]:
    """The indices of a selection."""
    if isinstance(given, slice):
        return list(range(size))[given]
    return [each % size for each in ((given,) if isinstance(given, int) else given)]


def _among(given: Any, size: int) -> Tensor:
    return torch.isin(torch.arange(size), torch.tensor(resolved(given, size)))


def sites(record: dict[Place, Tensor]) -> list[str]:
    return sorted({place.site for place in record})


def case(chance: Random, site: str, record: dict[Place, Tensor], whole: bool) -> Case:
    """A random edit of this site, somewhere in the model.

    Only where ``whole``, every position has a meaning: means and weights of padding do not.
    """
    there = [(place, tensor) for place, tensor in record.items() if place.site == site]
    axes = AXES[site]
    left_out = () if whole else ("put", "change") if site == "weights" else ("mean",)
    operation = chance.choice(
        [each for each in _OPERATIONS.get(site, _STREAM) if each not in left_out]
    )
    stacks = {(place.source, place.cross) for place, _ in there}
    counts = [
        max(place.layer for place, _ in there if (place.source, place.cross) == each) + 1
        for each in stacks
    ]
    where: dict[str, Any] = {}
    if site not in ("embedding", "logits"):
        where["layers"] = selection(chance, min(counts))
    for axis in axes:
        size = min(tensor.shape[axes.index(axis)] for _, tensor in there)
        name = _SELECTORS.get(axis)
        allowed = name is not None and not (site == "sinks" and axis != "head")
        if allowed and axis == "expert" and operation in ("zero", "force"):
            most = size - 1 if operation == "zero" else size
            where["experts"] = tuple(chance.sample(range(size), chance.randint(1, most)))
        elif allowed:
            where[name] = selection(chance, size)
    if site == "experts":
        size = next(tensor.shape[-1] for place, tensor in record.items() if place.site == "router")
        where["experts"] = tuple(chance.sample(range(size), chance.randint(1, size)))
    where = {name: each for name, each in where.items() if each is not None}
    width = there[0][1].shape[-1] if site not in ("scores", "weights", "router", "sinks") else None
    vector = torch.randn([] if width is None else [width], dtype=there[0][1].dtype)
    factors = (0.5, 3.0) if site == "router" else (0, 0.5, -1.5)
    return Case(site, operation, where, chance.choice(factors), vector)


def selection(chance: Random, size: int) -> Any:
    """None, an index, several, or a slice of at least one."""
    kind = chance.choice(["all", "one", "several", "slice"])
    if kind == "slice":
        return slice(chance.randint(0, size - 1), None, chance.randint(1, 3))
    several = tuple(chance.randint(-size, size - 1) for _ in range(chance.randint(1, 3)))
    return {"all": None, "one": several[0], "several": several}[kind]
