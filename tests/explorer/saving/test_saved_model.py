"""The engine of a saved page, in Node, against the server: the same answers to the same requests."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend, parse
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.loaded_model import LoadedDecoder
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.saving import saved_model as saving
from glassformer.explorer.saving.saved_model import saved_model
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Linear
from glassformer.models.decoder import Decoder
from small_models import decoder

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on the PATH: apt-get install nodejs")

Asks = list[tuple[str, dict[str, Any]]]
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 3},
    {"top_p": 0.6},
    {"temperature": 1.7, "top_k": 5, "top_p": 0.9},
]


def in_node(work: list[tuple[dict[str, Any] | None, Asks]]) -> list[list[Any]]:
    """The engine's answers to the requests about each model."""
    driver = Path(__file__).with_name("engine.mjs")
    told = json.dumps([{"model": model, "asks": asks} for model, asks in work])
    command = [str(NODE), str(driver), str(PAGE / "explorer.js")]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    answers: list[list[Any]] = json.loads(done.stdout)
    return answers


def by_server(backend: Backend, call: str, ask: dict[str, Any]) -> Any:
    try:
        answer = backend.answer(call, parse(call, ask))
    except InputError as error:
        return {"refusal": {"got": error.got, "expected": error.expected, "fix": error.fix}}
    if isinstance(answer, bytes):
        return np.frombuffer(answer, "<f4").tolist()
    assert isinstance(answer, m.Message)
    return answer.model_dump(mode="json")


def check_same(expected: Any, found: Any, where: str = "", logits: float = 1.0) -> None:
    """Equal, numbers to 1e-5: relative above 1, and of logits relative to the largest one, as all are sums of as large
    numbers (of the bundled decoder the server's own error is 1.1e-5, the engine's 3e-6). Thumbnails have four digits.
    """
    if isinstance(expected, dict):
        assert sorted(expected) == sorted(found), where
        for key in expected:
            check_same(expected[key], found[key], f"{where}.{key}", logits)
    elif isinstance(expected, list):
        assert len(expected) == len(found), where
        if where.endswith(".candidates"):
            logits = max(1.0, *(abs(each["logit"]) for each in expected))
        for place, pair in enumerate(zip(expected, found, strict=True)):
            check_same(*pair, f"{where}[{place}]", logits)
    elif isinstance(expected, float) and found is not None:
        bound = 1.01e-4 if ".thumbnails" in where else 1e-5
        size = logits if where.endswith(".logit") else max(1.0, abs(expected))
        assert abs(expected - found) <= bound * size, (where, expected, found)
    else:
        assert expected == found, (where, expected, found)


def asks_about(backend: Backend, name: str, text: str, rules: list[dict[str, Any]], rng: random.Random) -> Asks:
    """Requests of every call that the engine answers."""
    ask = m.Ask(model=name, text=text)
    asks: Asks = [("run", ask.model_dump())]
    of: dict[str, Any] = {"model": name, "text": text}
    for rule in rules:
        seed = rng.randrange(2**53)
        asks.append(("next", m.AskNext(**of, **rule).model_dump()))
        asks.append(("steps", m.AskSteps(**of, **rule, seed=seed, steps=6).model_dump()))
    asks.append(("find", m.AskFind(**of).model_dump()))
    run = by_server(backend, "run", asks[0][1])
    if "refusal" in run:
        return asks
    stack = run["attentions"][0]
    part = {"run": run["run"], "part": "self"}
    asks.append(("measures", m.AskMeasures(**part).model_dump()))
    asks.append(("rows", m.AskRows(**part, query=rng.randrange(stack["queries"])).model_dump()))
    for level in range((max(stack["queries"], 2) - 1).bit_length() + 1):
        last = (-(-stack["queries"] // 2**level) - 1) // m.TILE
        place = {"layer": rng.randrange(stack["layers"]), "head": rng.randrange(stack["heads"])}
        tile = {"row": rng.randint(0, last), "column": rng.randint(0, last)}
        asks.append(("weights", m.AskTile(**part, **place, level=level, **tile).model_dump()))
    if "experts" in next(card.views for card in backend.catalogue().models if card.name == name):
        asks.append(("experts", m.AskExperts(run=run["run"]).model_dump()))
    return asks


def check_all(backend: Backend, work: list[tuple[str, Asks]]) -> None:
    models = [(saved_model(backend.model(name))[0], asks) for name, asks in work]
    for (_, asks), answers in zip(work, in_node(models), strict=True):
        assert len(asks) == len(answers), answers[0]
        for (call, ask), found in zip(asks, answers, strict=True):
            check_same(by_server(backend, call, ask), found, f"{call} {ask}")


@pytest.fixture(scope="module")
def shipped() -> Backend:
    return Backend(bundled())


@pytest.mark.parametrize("name", ["recurrence", "induction"])
def test_a_bundled_decoder_answers_as_the_server_does(shipped: Backend, name: str) -> None:
    rng = random.Random(5)
    card = shipped.entries[name].card
    odd = {"recurrence": ["1 2 9", "", "1\u20282\x1f3", "'", "4"], "induction": ["AB1", "", "a'\"\\", "A" * 65, "Q"]}
    work = [(name, asks_about(shipped, name, text, rng.sample(RULES, 1), rng)) for text in (card.text, *odd[name])]
    greedy = m.AskSteps(model=name, text=card.text[:20].strip(), temperature=0.0, steps=40).model_dump()
    check_all(shipped, [*work, (name, [("steps", greedy)])])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrence", "induction"])
def test_so_it_does_on_random_texts(shipped: Backend, name: str) -> None:
    rng = random.Random(7)
    letters, between = ("0123456", " ") if name == "recurrence" else ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "")
    lengths = [rng.randint(1, 60) for _ in range(60)] + ([600] if name == "recurrence" else [])
    texts = [between.join(rng.choices(letters, k=length)) for length in lengths]
    # Below 1, a temperature multiplies the rounding errors of logits.
    rules = [
        {"temperature": rng.uniform(1, 2), "top_k": rng.choice([None, 2, 5]), "top_p": rng.uniform(0, 1)} for _ in texts
    ]
    pairs = zip(texts, rules, strict=True)
    check_all(shipped, [(name, asks_about(shipped, name, text, [rule], rng)) for text, rule in pairs])


def random_decoder(rng: random.Random) -> Decoder:
    """Of any configuration that the engine computes, with weights of the size of trained ones."""
    heads, layers, dim = rng.choice([1, 2, 4, 6]), rng.randint(1, 3), rng.choice([4, 6, 8])
    dense = rng.random() < 0.6
    window = rng.choice([None, 1, 3, 8])
    learned, plain = rng.random() < 0.2, rng.random() < 0.5
    place = rng.choice(["before", "before", "after", "both"])
    ff_dim = rng.choice([0, 12, 20]) if dense and plain else 12
    parts: dict[str, Any] = {
        "norm": rng.choice(["rms", "layer"]),
        "norm_place": place,
        "parallel": place == "before" and ff_dim > 0 and rng.random() < 0.3,
        "qk_norm": rng.choice([None, "head", "all"]),
        "rotary_dim": None if learned else rng.choice([None, 2, dim]),
        "local_rope_base": 500.0 if window is not None and not learned and rng.random() < 0.5 else None,
        "unrotated_layers": (0,) if not learned and rng.random() < 0.3 else (),
        "learned_positions": learned,
        "attention_scale": rng.choice([None, 0.4]),
        "attention_cap": rng.choice([None, 3.0]),
        "logit_cap": rng.choice([None, 5.0]),
        "embedding_scale": rng.choice([1.0, 2.7]),
        "embedding_norm": rng.random() < 0.3,
    }
    parts |= (
        {"activation": rng.choice(["silu", "gelu", "gelu_tanh", "relu", "relu2"]), "gated": rng.random() < 0.5}
        if dense
        else {}
    )
    torch.manual_seed(rng.randrange(2**31))
    model = decoder(
        **({} if plain else parts),
        vocab_size=rng.choice([7, 50, 90, 256]),
        num_layers=layers,
        hidden_dim=rng.choice([8, 15, 32]),
        ff_dim=ff_dim,
        num_heads=heads,
        head_dim=dim,
        num_kv_heads=rng.choice([each for each in (1, 2, 3, 6, None) if each is None or heads % each == 0]),
        window=window,
        windowed_layers=rng.choice(["odd", "even", "all", (0,)]),
        num_experts=None if dense else rng.choice([2, 5]),
        top_k=rng.choice([1, 2]),
        ff_bias=ff_dim > 0 and rng.random() < 0.5,
        clamp=Clamp() if not dense and rng.random() < 0.5 else None,
        key_weights=rng.random() < 0.3,
        sinks=rng.random() < 0.5,
        attention_bias=rng.choice([False, True, "qkv"]),
        rope_layout=rng.choice(["half-split", "interleaved"]),
        rope_base=rng.choice([10000.0, 500.0, 1e6]),
        norm_eps=rng.choice([1e-5, 1e-6]),
        tied_output=rng.random() < 0.4,
        max_seq_len=64,
    )
    with torch.no_grad():
        for parameter in model.parameters():  # biases, sinks and the weights of norms are all alike at first
            parameter.add_(0.3 * torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5)
    return model


def wrapped(model: Decoder, name: str, rng: random.Random) -> LoadedDecoder:
    size = model.config.vocab_size
    text = None if size == 256 else [rng.randrange(size) for _ in range(rng.randint(1, 40))]
    loaded = wrap_model(model.eval(), text)
    assert isinstance(loaded, LoadedDecoder)
    loaded.card.__dict__["name"] = name  # cards are frozen, and each needs its own name
    return loaded


def check_random(count: int, seed: int) -> None:
    rng = random.Random(seed)
    models = [wrapped(random_decoder(rng), f"given-{number}", rng) for number in range(count)]
    backend = Backend(models)
    work = []
    for each in models:
        asks = asks_about(backend, each.card.name, each.card.text, rng.sample(RULES, 2), rng)
        start = m.AskSteps(model=each.card.name, text=each.card.text, temperature=0.0, steps=40).model_dump()
        work.append((each.card.name, [*asks, ("steps", start)]))
    check_all(backend, work)


def test_decoders_of_any_configuration_answer_as_the_server_does() -> None:
    check_random(3, seed=0)


@pytest.mark.slow
def test_so_do_a_hundred_others() -> None:
    check_random(100, seed=1)


def test_what_the_engine_does_not_compute_is_recorded(shipped: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_model(shipped.model("sentiment")) == (None, [])
    assert saved_model(wrap_model(decoder(rope_scaling=Linear(2.0)))) == (None, [])
    assert saved_model(wrap_model(decoder().double())) == (None, [])
    watched, other = decoder(), decoder()
    watched.final_norm.register_forward_hook(lambda *_: None)
    other.layers[0].attention.output = torch.nn.Sequential(other.layers[0].attention.output)
    assert saved_model(wrap_model(watched)) == saved_model(wrap_model(other)) == (None, [])
    monkeypatch.setattr(saving, "MOST_MODEL_BYTES", 1000)
    model, sentences = saved_model(shipped.model("induction"))
    assert model is None
    assert sentences == ["The model is left out: its weights take 74,008 bytes, more than 1,000."]


def test_numbers_are_held_in_the_fewest_bits_that_hold_them(shipped: Backend) -> None:
    model, _ = saved_model(shipped.model("induction"))
    assert model is not None
    assert len(base64.b64decode(model["weights"])) == 74_008  # as in its file, in 16 bits
    lasting = decoder()
    other, _ = saved_model(wrap_model(lasting))
    assert other is not None
    assert len(base64.b64decode(other["weights"])) > 4 * sum(each.numel() for each in lasting.parameters())


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ("byte", "weights in this file that were changed"),
        ("letters", "weights in this file that were changed"),
        ("nan", "weights that are not finite (embedding.weight)"),
    ],
)
def test_changed_weights_are_refused(change: str, got: str) -> None:
    model = decoder()
    if change == "nan":
        with torch.no_grad():
            model.embedding.weight[3, 2] = torch.nan
    saved, _ = saved_model(wrap_model(model))
    assert saved is not None
    if change == "byte":
        kept = bytearray(base64.b64decode(saved["weights"]))
        kept[-3] ^= 1
        saved["weights"] = base64.b64encode(kept).decode()
    elif change == "letters":
        saved["weights"] = "not base64"
    [[answer]] = in_node([(saved, [("find", {"model": "given", "text": "1"})])])
    assert answer["refusal"]["got"] == got
