"""Random places of sweeps of all sites against single runs, on models whose norms amplify what
rounding leaves.

``python tests/observe/sweep_search.py 3000`` searches as many places, in about a quarter of an hour
on two cores.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

import torch
from sweep_cases import KINDS, OURS, of_class
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.captured import AXES
from glassformer.observe.edits import change, zero
from glassformer.observe.hook_points import ROLES
from glassformer.observe.intervene import intervene
from glassformer.observe.sweep import SWEPT, ablation_sweep, patch_sweep
from small_models import decoder, encoder
from transformers_models import exact, packed

CONFIGURATIONS: dict[str, Callable[[], nn.Module]] = {
    **KINDS,
    "own layer norms": lambda: decoder(num_layers=3, norm="layer"),
    "own layer norms after": lambda: decoder(num_layers=3, norm="layer", norm_place="after"),
    "own norms after alone": lambda: decoder(num_layers=3, norm_place="after", num_kv_heads=1),
    "own layer norms, both": lambda: decoder(
        num_layers=2, norm="layer", norm_place="both", window=3
    ),
    "own parallel layer norms": lambda: decoder(
        num_layers=3, norm="layer", parallel=True, num_kv_heads=2
    ),
    "own attention only": lambda: decoder(num_layers=3, ff_dim=0),
    "own with caps": lambda: decoder(
        num_layers=3, attention_cap=5.0, logit_cap=20.0, norm_place="both"
    ),
    "own with norms of queries": lambda: decoder(num_layers=3, qk_norm="head", num_kv_heads=2),
    "own multi-query window": lambda: decoder(num_layers=3, num_kv_heads=1, window=2, sinks=True),
    "own experts after": lambda: decoder(num_layers=2, num_experts=4, top_k=2, norm_place="both"),
    "own one expert": lambda: decoder(num_layers=2, num_experts=3, top_k=1, ff_bias=True),
    "own packed experts": lambda: packed(num_layers=2, num_kv_heads=2, window=3, sinks=True),
    "encoder of the first token": lambda: encoder(pooling="cls"),
    "pre-norm encoder of the first token": lambda: encoder(
        norm_first=True, final_norm=True, pooling="cls"
    ),
    "opt": of_class("OPT", num_key_value_heads=4, ffn_dim=48, word_embed_proj_dim=32),
    "starcoder2": of_class("Starcoder2"),
    "stablelm": of_class("StableLm"),
}
"""40 models: families of norms, windows, groups, sinks, experts, parallel blocks, encoders, two
stacks.
"""

_NARROW = ("gpt-oss", "own packed experts", "mixtral")
_OWN = (*OURS, "encoder")


class Deviation(NamedTuple):
    """A place of a sweep, and how far it is from its single run, as a share of the largest logit."""

    place: str
    share: float
    allowed: float


def model_of(name: str, chance: Random) -> nn.Module:
    """A model of a configuration, one of whose parts is far louder than the others, or all are
    quiet.
    """
    torch.manual_seed(chance.randrange(2**31))
    model: Any = CONFIGURATIONS[name]().eval()
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) * 0.2) if weight.dim() == 1 else weight.mul_(2.0)
    for module in model.modules():
        for eps in ("eps", "variance_epsilon"):
            if "Norm" in type(module).__name__ and isinstance(getattr(module, eps, None), float):
                setattr(module, eps, 1e-12)
    points = find_hook_points(model)
    loud = chance.choice([None, "ffn", "out_proj", "embedding", "quiet"])
    if loud in ("ffn", "out_proj"):
        point = chance.choice(
            [each for each in points if each.role == ("ffn" if loud == "ffn" else "attention")]
        )
        part = point.reads if loud == "ffn" else point.out_proj
        for weight in () if part is None else part.parameters():
            weight.mul_(1e4)
    elif loud is not None:
        embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        for module in embeddings:
            module.weight.mul_(1e6 if loud == "embedding" else 1e-6)
    if name not in _NARROW and chance.random() < 0.7:
        model = model.double()
        if name in ("llama", "mistral", "qwen2"):
            exact(model)
    if name == "gemma2":
        model.set_attn_implementation("eager")
    return model


@torch.no_grad()
def search(name: str, seed: int, places: int) -> tuple[list[Deviation], Counter[str]]:
    """Random places of every site of a configuration, until there are as many; and what was
    refused.
    """
    chance = Random(f"{name} {seed}")
    found: list[Deviation] = []
    refused: Counter[str] = Counter()
    for _ in range(20 * places):
        model = model_of(name, chance)
        site = chance.choice(SWEPT)
        clean, corrupted, parts = texts_of(name, chance)
        options: dict[str, Any] = {
            "site": site,
            "part": chance.choice(parts),
            "batch_size": chance.choice([2, 8, 128]),
        }
        axes = [
            axis for axis in ("head", "expert", "neuron", "position") if axis in sweepable(site)
        ]
        some = [axis for axis in axes if chance.random() < 0.5]
        options["by"] = ("layer", *some)
        try:
            found += compared(chance, model, clean, corrupted, options, min(5, places - len(found)))
        except InputError as refusal:
            refused[f"{site}: {refusal.got}"[:70]] += 1
        if len(found) >= places:
            break
    return found, refused


def sweepable(site: str) -> tuple[str, ...]:
    """The axes of a site, without that of its numbers."""
    if site == "experts":
        return ("expert", "position")
    return tuple({"query": "position", "key": "position"}.get(axis, axis) for axis in AXES[site])


def texts_of(name: str, chance: Random) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Any]]:
    """Two batches that differ at one position, and the parts of the model that can be swept."""
    rows = chance.randint(1, 2)
    length = chance.randint(2, 5)
    clean = torch.randint(2, 20, (rows, length))
    corrupted = clean.clone()
    corrupted[:, chance.randrange(length)] = 1
    if "encoder-decoder" in name:
        pairs = ({"source": tokens, "target": tokens} for tokens in (clean, corrupted))
        return next(pairs), next(pairs), [None, "encoder", "cross"]
    field = "tokens" if name.startswith(_OWN) else "input_ids"
    return {field: clean}, {field: corrupted}, [None]


def compared(
    chance: Random,
    model: nn.Module,
    clean: Mapping[str, Tensor],
    corrupted: Mapping[str, Tensor],
    options: Mapping[str, Any],
    count: int,
) -> list[Deviation]:
    """Some places of a sweep beside their single runs."""
    site = options["site"]
    part = options["part"]
    kind = (
        chance.choice(["zero", "zero", "patch", "position", "all"]) if site != "experts" else "zero"
    )
    chosen = chance.randrange(2)

    def metric(logits: Tensor) -> Tensor:
        return logits[:, -1, chosen]

    reference = {name: values.flip(0) for name, values in clean.items()}
    if kind == "patch":
        sweep = patch_sweep(model, clean, corrupted, metric, **options)
    else:
        average: Any = {} if kind == "zero" else {"reference": reference, "mean": kind}
        sweep = ablation_sweep(model, corrupted, metric, **options, **average)
    assert sweep.by_text is not None
    new: dict[str, Tensor] = {}
    if kind != "zero":
        with capture(model, what=site) as seen:
            run(model, clean if kind == "patch" else reference)
        new = seen.last(site)
    near = 1e-6 if next(model.parameters()).dtype == torch.float64 else 1e-4
    found = []
    for _ in range(count):
        cell = tuple(chance.randrange(size) for size in sweep.values.shape)
        where = dict(zip(sweep.axes[1:], cell[1:], strict=True))
        point = next(
            each
            for each in find_hook_points(model)
            if each.role == ROLES[site]
            and each.layer == sweep.layers[cell[0]]
            and (each.source, each.cross) == (part == "encoder", part == "cross")
        )
        if site == "experts":
            places = {"queries": where["position"]} if "position" in where else {}
            places |= {"experts": where["expert"]} if "expert" in where else {}
            edit = zero(site, modules=[point.name], **places)
        else:
            edit = change(
                site, written(site, where, new.get(point.name), kind), modules=[point.name]
            )
        try:
            with intervene(model, edit):
                logits = run(model, corrupted)
        except InputError as refusal:
            if "no call reached" not in refusal.got:  # an expert that no token chose
                raise
            logits = run(model, corrupted)
        error = (sweep.by_text[cell] - metric(logits)).abs().max()
        told = (
            f"{type(model).__name__} {next(model.parameters()).dtype} {kind} {dict(options)} {cell}"
        )
        share = 0.0 if error == 0 else float(error / logits.abs().max())
        found.append(Deviation(told, share, near))
    return found


def written(
    site: str, where: Mapping[str, int], new: Tensor | None, kind: str
) -> Callable[[Tensor], Tensor]:
    """The change of one place, as a function of the whole tensor of the site."""
    names = [{"query": "position", "key": "position"}.get(axis, axis) for axis in AXES[site]]
    index = tuple(where.get(name, slice(None)) for name in names)

    def changed(values: Tensor) -> Tensor:
        theirs = torch.zeros_like(values)
        if kind == "patch":
            assert new is not None
            theirs = new
        elif new is not None:
            over = 0 if kind == "position" else (0, names.index("position"))
            theirs = new.mean(over, keepdim=True).expand_as(values)
        values[index] = theirs[index]
        return values

    return changed


def run(model: Any, texts: Mapping[str, Tensor]) -> Tensor:
    """The logits, [text, position, class]."""
    out = model(**texts)
    out = out if isinstance(out, Tensor) else out.logits
    return out if out.dim() == 3 else out[:, None]


def main(places: int, seed: int) -> None:
    """Search, and print the counts and the largest deviations."""
    found: list[Deviation] = []
    for name in CONFIGURATIONS:
        here, refused = search(name, seed, -(-places // len(CONFIGURATIONS)))
        wrong = [each for each in here if not each.share <= each.allowed]
        largest = max((each.share for each in here), default=0.0)
        print(
            f"{name}: {len(here)} places, largest {largest:.1e}, {len(wrong)} wrong, refused "
            f"{refused.total()}"
        )
        for each in wrong[:5]:
            print("   ", each)
        found += here
        sys.stdout.flush()
    print(f"{len(found)} places, {sum(not each.share <= each.allowed for each in found)} wrong")
    for near in (1e-6, 1e-4):
        print(
            f"largest where {near:.0e} is allowed: "
            f"{max(each.share for each in found if each.allowed == near):.1e}"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in (*sys.argv[1:], *("3000", "0")[len(sys.argv) - 1 :])))
