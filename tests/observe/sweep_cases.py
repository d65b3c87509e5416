"""Random sweeps of random models, which carry adapters and hooks, within random edits; and whole
runs with plain hooks.

Each case is a seed. Hooks of the whole runs are torch's own, on modules that the model's hook
points name; edits of queries, keys, values and the stream between attention and ffn are made by
``intervene`` there too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from edit_cases import resolved
from plain import replaced
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.edits import Edit, add, change, forbid, put, scale, zero
from glassformer.observe.hook_points import ROLES, HookPoint
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import Sweep, ablation_sweep, patch_sweep
from small_models import decoder, encoder, encoder_decoder
from transformers_models import (
    WIDTHS,
    exact,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    qwen2,
    transformers,
)


def of_class(name: str, **changes: Any) -> Callable[[], nn.Module]:
    """A language model of a class of transformers, whose blocks are found by structure."""

    def made() -> nn.Module:
        sizes = {**WIDTHS, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, **changes}
        config = getattr(transformers, f"{name}{'Text' if name == 'Gemma3' else ''}Config")(
            vocab_size=50, **sizes
        )
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        return model

    return made


OWN = {"num_kv_heads": 2, "window": 3, "sinks": True, "key_weights": True, "attention_bias": True}
KINDS: dict[str, Callable[[], nn.Module]] = {
    "decoder": lambda: decoder(num_layers=3),
    "decoder with all": lambda: decoder(num_layers=3, **OWN),
    "own experts": lambda: decoder(num_layers=2, num_experts=4, top_k=2, **OWN),
    "norms after": lambda: decoder(num_layers=2, norm_place="both"),
    "parallel": lambda: decoder(num_layers=2, parallel=True),
    "encoder": lambda: encoder(dropout=0.3),
    "pre-norm encoder": lambda: encoder(norm_first=True, final_norm=True, dropout=0.3),
    "encoder-decoder": encoder_decoder,
    "pre-norm encoder-decoder": lambda: encoder_decoder(norm_first=True, final_norm=True),
    "gpt2": lambda: gpt2(resid_pdrop=0.2, attn_pdrop=0.0),
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "mixtral": mixtral,
    "gpt-oss": gpt_oss,
    "gemma2": of_class("Gemma2", sliding_window=3),
    "gemma3": of_class("Gemma3", sliding_window=3),
    "qwen3": of_class("Qwen3"),
    "olmo2": of_class("Olmo2"),
    "gpt-neox": of_class("GPTNeoX", num_key_value_heads=4),
    "granite": of_class("Granite", residual_multiplier=0.7, logits_scaling=3.0),
    "cohere": of_class("Cohere", logit_scale=0.3),
    "phi": of_class("Phi"),
}
OURS = ("decoder", "own", "norms", "parallel", "encoder", "pre-norm")
STREAM = ("residual_before", "residual", "attention", "ffn", "heads")


class Lora(nn.Module):
    """An adapter that hides the layer's weight."""

    def __init__(self, base: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(width, 2) / 4)
        self.b = nn.Parameter(torch.randn(2, out) / 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base(x) + x @ self.a.to(x.dtype) @ self.b.to(x.dtype)
        return made


class Quantised(nn.Module):
    """Integers and a scale for each row."""

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        scales = matrix.abs().amax(1, keepdim=True) / 127
        self.register_buffer("integers", (matrix / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("shift", torch.zeros(len(matrix)) if bias is None else bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.integers.to(x.dtype) * self.scales.to(x.dtype)
        return x @ matrix.T + self.shift.to(x.dtype)


class Curved(nn.Module):
    """No linear map."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        made = self.base(x)
        return made + torch.tanh(made) / 2


def wrapped(base: Any, sort: str) -> nn.Module:
    """A projection of a model as one of these."""
    matrix = base.weight.detach().T if type(base).__name__ == "Conv1D" else base.weight.detach()
    if sort == "quantised":
        return Quantised(matrix, base.bias)
    return Lora(base, *matrix.T.shape) if sort == "lora" else Curved(base)


@dataclass
class Case:
    """A model with what it carries, texts, edits of outer blocks, and what is swept."""

    kind: str
    model: Any
    clean: dict[str, Tensor]
    corrupted: dict[str, Tensor]
    told: list[str]
    """What makes the case, for a report of it."""
    plain: list[tuple[str, HookPoint, Callable[[Tensor], Tensor]]] = field(default_factory=list)
    """Outer edits as functions of a whole tensor."""
    edits: list[Edit] = field(default_factory=list)
    near: float = 1e-9


def drawn(seed: int) -> Case:
    """The case of a seed."""
    chance = Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(list(KINDS))
    model: Any = KINDS[kind]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2) if weight.dim() == 1 else weight.mul_(2.0)
    rounded = kind in ("gpt-oss", "gemma2", "gemma3", "qwen3", "olmo2", "granite", "cohere", "phi")
    model = (model if kind == "gpt-oss" else model.double()).eval()
    if not kind.startswith(OURS):
        if not rounded and kind != "gpt-neox":
            exact(model)
        # Elsewhere eager attention has a softmax in float32, in which float64's lowest number is
        # -inf: NaN in padding.
        either = (
            "eager"
            if kind == "gpt-oss"
            else chance.choice(["sdpa", "eager"])
            if kind == "gpt2"
            else "sdpa"
        )
        model.set_attn_implementation("eager" if kind == "gemma2" else either)
    near = (
        1e-3
        if kind == "gpt-oss"
        else 1e-5
        if rounded or kind in ("mixtral", "mistral", "llama", "qwen2")
        else 1e-9
    )
    told = [kind]
    rows = chance.randint(1, 3)
    length = chance.randint(3, 6)
    clean, corrupted = _texts(chance, kind, rows, length, told)
    case = Case(kind, model, clean, corrupted, told, near=near)
    _carry(chance, case)
    if chance.random() < 0.6:
        _edit(chance, case, rows, length)
    if chance.random() < 0.15:
        model.train()
        told.append("train mode")
    return case


def _texts(
    chance: Random, kind: str, rows: int, length: int, told: list[str]
) -> tuple[dict[str, Tensor], ...]:
    """Two batches that differ at one position, some of them padded on the left."""
    clean = torch.randint(2, 20, (rows, length))
    corrupted = clean.clone()
    corrupted[:, chance.randrange(length)] = 1
    if "encoder-decoder" in kind:
        return tuple(
            {"source": tokens, "target": tokens[:, :5].clone()} for tokens in (clean, corrupted)
        )
    name = "tokens" if kind.startswith(OURS) else "input_ids"
    masks: dict[str, Tensor] = {}
    if "encoder" not in kind and kind != "gemma2" and chance.random() < 0.4:
        first = [chance.randint(0, length - 2) for _ in range(rows)]
        real = torch.arange(length) >= torch.tensor(first)[:, None]
        told.append(f"padded {first}")
        masks = {"key_padding": real} if kind.startswith(OURS) else {"attention_mask": real.long()}
        if kind == "gpt2":
            masks["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    return tuple({name: tokens, **masks} for tokens in (clean, corrupted))


def _carry(chance: Random, case: Case) -> None:
    """Adapters and hooks."""
    points = find_hook_points(case.model)
    names = {id(module): name for name, module in case.model.named_modules()}
    for point in points:
        if point.role == "attention" and point.out_proj is not None and chance.random() < 0.15:
            name = names.get(id(point.out_proj))
            merged = point.out_proj
            if name is None or getattr(merged, "weight", None) is None:
                continue
            sort = chance.choice(["lora", "quantised", "curved"])
            case.model.set_submodule(name, wrapped(merged, sort))
            case.told.append(f"{sort} at {name}")
    case.model.to(next(case.model.parameters()).dtype)
    case.model.eval()
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        point = chance.choice(
            [each for each in find_hook_points(case.model) if each.role != "embedding"]
        )
        parts = (point.module, getattr(point, "out_proj", None), getattr(point, "between", None))
        module = chance.choice([each for each in parts if each is not None])
        sort = chance.choice(["add", "scale", "position", "row", "input"])
        case.told.append(f"hook {sort} at {names.get(id(module), type(module).__name__)}")
        if sort == "input":
            module.register_forward_pre_hook(
                lambda _, args: (args[0] * 1.3, *args[1:]) if args else None
            )
        else:
            module.register_forward_hook(_hook(sort))


def _hook(sort: str) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        new = first.clone()
        if sort == "add":
            new = new + 0.3
        elif sort == "scale":
            new = new * 1.2
        elif sort == "position" and new.dim() == 3 and new.shape[1] > 1:
            new[:, 1] += 0.5
        elif sort == "row":
            new[0] *= 1.4
        return (new, *output[1:]) if isinstance(output, tuple) else new

    return hook


def place_of(point: HookPoint, site: str) -> tuple[nn.Module | None, bool]:
    """The module that a site of the stream is read at, and whether that is its input."""
    module = point.place(site)[0] if site in ("attention", "heads") else point.module
    return module, site in ("residual_before", "heads")


def _edit(chance: Random, case: Case, rows: int, length: int) -> None:
    """Edits of outer blocks, each also as a function of the whole tensor where the site is one of
    the stream.
    """
    points = find_hook_points(case.model)
    width = min(length, 5)
    for _ in range(chance.randint(1, 3)):
        site = chance.choice([*STREAM, "k", "q", "residual_between", "scores", "logits"])
        there = [
            each
            for each in points
            if each.role == ROLES[site]
            and (site != "residual_between" or each.between is not None)
            and (site not in STREAM or place_of(each, site)[0] is not None)
        ]
        if not there:
            continue
        point = chance.choice(there)
        where: dict[str, Any] = {"modules": [point.name]}
        examples = chance.choice([None, None, 0, rows - 1])
        queries = chance.choice([None, None, 0, -1, (width - 1, 0), 1])
        queries = (
            None if site == "logits" and case.kind in ("encoder", "pre-norm encoder") else queries
        )
        heads = chance.choice([None, 0, (1, 0)]) if site == "heads" and point.heads > 1 else None
        selected = {
            "examples": examples,
            "queries": None if site == "k" else queries,
            "heads": heads,
        }
        where.update({name: each for name, each in selected.items() if each is not None})
        number = chance.choice([0.0, 0.5, 1.7])
        sort = chance.choice(["zero", "scale", "add", "put", "sine", "text"])
        case.told.append(f"edit {sort} {number} of {site} at {where}")
        if site == "scores":
            if queries is None or width < 3:
                continue
            case.edits.append(forbid(queries=queries, keys=0, modules=[point.name]))
            case.plain.append((site, point, lambda values: values))
            continue
        # A value for each text, which a copy must not mix up.
        each = (
            torch.arange(1 if examples is not None else rows).to(
                next(case.model.parameters()).dtype
            )
            / 3
            + 0.1
        )
        each = each.view(-1, *((1, 1, 1) if site in ("heads", "k", "q") else (1, 1)))
        edit, function = {
            "zero": (zero(site, **where), torch.zeros_like),
            "scale": (scale(site, number, **where), lambda values, number=number: values * number),
            "add": (add(site, number, **where), lambda values, number=number: values + number),
            "put": (
                put(site, number, **where),
                lambda values, number=number: torch.full_like(values, number),
            ),
            "sine": (change(site, torch.sin, **where), torch.sin),
            "text": (put(site, each, **where), lambda values, each=each: each.expand(values.shape)),
        }[sort]
        case.edits.append(edit)
        case.plain.append((site, point, _at(site, point, examples, queries, heads, function)))


def _at(site: str, point: HookPoint, examples: Any, queries: Any, heads: Any, function: Any) -> Any:
    """``function`` of a part of a tensor [batch, position, dim]."""

    def several(given: Any, size: int) -> list[int]:
        return resolved(slice(None) if given is None else given, size)

    def changed(values: Tensor) -> Tensor:
        split = (
            values.unflatten(-1, (point.heads, -1)).transpose(1, 2) if site == "heads" else values
        )
        lists = [several(examples, len(split))]
        lists += [several(heads, point.heads)] if site == "heads" else []
        lists += [several(queries, split.shape[len(lists)])]
        index = torch.meshgrid(*(torch.tensor(each) for each in lists), indexing="ij")
        new = split.clone()
        new[index] = function(split[index])
        return new.transpose(1, 2).flatten(2) if site == "heads" else new

    return changed


def run(case: Case, texts: Mapping[str, Tensor]) -> Tensor:
    """The logits, [batch, position, class]."""
    out: Any = case.model(**texts)
    out = out if isinstance(out, Tensor) else out.logits
    return out if out.dim() == 3 else out[:, None]


@contextmanager
def outside(case: Case, plainly: bool) -> Iterator[None]:
    """Within the outer edits; by plain hooks where all are of the stream and ``plainly``."""
    with ExitStack() as attached:
        if plainly and all(site in STREAM for site, _, _ in case.plain):
            for site, point, function in case.plain:
                module, of_input = place_of(point, site)
                attached.enter_context(replaced(module, of_input, function))
        else:
            for edit in case.edits:
                attached.enter_context(intervene(case.model, edit))
        yield


@torch.no_grad()
def check(seed: int) -> tuple[str, str]:
    """How the case of a seed ends: "equal", "refused", "different" or "raised"; and what it is."""
    chance = Random(seed + 1)
    case = drawn(seed)
    try:
        differences = _compare(chance, case)
    except InputError as error:
        return "refused", f"{case.told}: {error}"
    except Exception as error:
        return "raised", f"{case.told}: {type(error).__name__}: {error}"
    return ("different" if differences else "equal"), f"{case.told}: {differences}"


def _compare(chance: Random, case: Case) -> list[str]:
    rows, length = next(iter(case.clean.values())).shape[:2]
    sites = [
        "residual_before",
        "residual_between",
        "residual",
        "attention",
        "ffn",
        "heads",
        "heads",
        "q",
        "k",
        "v",
    ]
    site: Any = chance.choice([*sites, "attention_input", "ffn_input"])
    kind = chance.choice(["patch", "zero", "position", "all"])
    classes = torch.randint(
        0, 2, (2,), generator=torch.Generator().manual_seed(chance.randint(0, 99))
    )
    read = chance.choice([-1, -1, 0, (1, 0)])
    if "encoder" in case.kind and "decoder" not in case.kind:
        read = -1
    if any(each.startswith("padded") for each in case.told):  # logits of padding mean nothing
        read = -1

    def metric(logits: Tensor) -> Tensor:
        return (logits[:, :, classes[0]] - 2 * logits[:, :, classes[1]]).tanh().sum(1) + logits[
            :, 0, 1
        ]

    def measured(logits: Tensor) -> Tensor:
        places = [each % logits.shape[1] for each in (read if isinstance(read, tuple) else (read,))]
        return metric(logits[:, places])

    options: dict[str, Any] = {
        "site": site,
        "logits": read,
        "batch_size": chance.choice([1, rows, 4, 64]),
    }
    axis = "head" if site in ("heads", "q", "k", "v") else "position"
    if chance.random() < 0.3:
        options["by"] = (
            ("layer",)
            if axis == "position" or chance.random() < 0.3
            else ("layer", "head", "position")
        )
    case.told.append(f"{kind} {options} {rows}x{length}")
    reference = {name: each.flip(0) for name, each in case.corrupted.items()}
    found: Sweep
    with outside(case, plainly=False):
        if kind == "patch":
            found = patch_sweep(case.model, case.clean, case.corrupted, metric, **options)
        else:
            average: Any = {} if kind == "zero" else {"reference": reference, "mean": kind}
            found = ablation_sweep(case.model, case.corrupted, metric, **options, **average)
    case.model.eval()
    plainly = chance.random() < 0.7
    theirs = (
        None
        if kind == "zero"
        else _values(case, case.clean if kind == "patch" else reference, site)
    )
    differences = []
    everything = torch.cartesian_prod(*(torch.arange(size) for size in found.values.shape)).view(
        -1, found.values.dim()
    )
    for cell in chance.sample(everything.tolist(), min(4, len(everything))):
        point = _point(case, site, found.layers[cell[0]])
        where = dict(zip(found.axes[1:], cell[1:], strict=True))
        with outside(case, plainly):
            new = None if theirs is None else theirs[point.name]
            if new is not None and kind in ("position", "all"):
                new = new.mean(0 if kind == "position" else (0, new.dim() - 2), keepdim=True)
            expected = measured(_single(case, site, point, where, new))
        value = found.by_text[tuple(cell)]
        near = case.near * max(1.0, float(expected.abs().max()))
        error = float((value - expected).abs().max())
        if not error <= near:
            differences.append(
                f"{found.axes} {cell}: {error:.3g} of {[round(float(x), 4) for x in expected]}"
            )
    if not differences and not case.edits and not case.kind.startswith(("encoder", "pre-norm")):
        differences += _readings(case)
    return differences


def _point(case: Case, site: str, layer: int) -> HookPoint:
    points = [
        each
        for each in find_hook_points(case.model)
        if each.role == ROLES[site] and each.layer == layer
    ]
    return next(each for each in points if not each.source and not each.cross)


def _values(case: Case, texts: Mapping[str, Tensor], site: str) -> dict[str, Tensor]:
    """The values of a site in a run within the outer edits."""
    with outside(case, plainly=False), capture(case.model, what=site) as seen:
        run(case, texts)
    return seen.last(site)


def _single(
    case: Case, site: str, point: HookPoint, where: Mapping[str, int], new: Tensor | None
) -> Tensor:
    """The logits of a whole run of the corrupted texts with one place changed."""
    inner: dict[str, Any] = {}
    if "head" in where:
        inner["heads"] = where["head"]
    if "position" in where:
        inner["keys" if site in ("k", "v") else "queries"] = where["position"]

    def chosen(values: Tensor) -> Tensor:
        if new is None:
            return torch.zeros_like(values)
        whole = new.expand(len(values), *new.shape[1:])
        if "head" in where:
            whole = whole[:, [where["head"]]]
        if "position" in where:
            at = whole.dim() - 2
            whole = whole.narrow(at, where["position"], 1) if whole.shape[at] > 1 else whole
        return whole.expand(values.shape)

    module, of_input = place_of(point, site)
    # An edit of the stream between adds what the ffn had given before hooks of this run.
    mixed = site == "ffn" and any(each == "residual_between" for each, _, _ in case.plain)
    if site in STREAM and module is not None and not mixed:
        function = _at(site, point, None, where.get("position"), where.get("head"), chosen)
        with replaced(module, of_input, function):
            return run(case, case.corrupted)
    with intervene(case.model, change(site, chosen, modules=[point.name], **inner)):
        return run(case, case.corrupted)


def _readings(case: Case) -> list[str]:
    """What is wrong with the lens and with direct logits, where they do not refuse."""
    found = []
    given = case.clean
    logits = run(case, given)
    for name, look in (
        ("lens", lambda: logit_lens(case.model, given)[-1] - logits),
        (
            "total",
            lambda: (
                direct_logits(case.model, given, 3, 1).total - logits[:, -1, 3] + logits[:, -1, 1]
            ),
        ),
        (
            "sum",
            lambda: (lambda each: each.values.sum(0) - each.total)(
                direct_logits(case.model, given, 3, 1)
            ),
        ),
    ):
        try:
            error = float(look().abs().max())
        except InputError as refusal:
            case.told.append(f"{name} refused: {refusal.got}")
            continue
        if not error <= max(case.near, 1e-5) * max(1.0, float(logits.abs().max())):
            found.append(f"{name}: {error:.3g}")
    return found
