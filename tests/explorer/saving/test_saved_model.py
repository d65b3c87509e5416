"""The engine of a saved page, in Node, against the server: the same answers to the same requests."""

import base64
import json
import operator
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import run_name
from glassformer.explorer.backend import CALLS, Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.designed import head_card, head_model, program_model
from glassformer.explorer.loading.loaded_model import LoadedHead, LoadedModel, LoadedProgram
from glassformer.explorer.loading.task_models import course_model, facts_model
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.saving import saved_model as saving
from glassformer.explorer.saving.saved_model import saved_model
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Linear
from glassformer.models import Decoder, Encoder, EncoderDecoder
from glassformer.programs.compiler import compile_program
from random_programs import RandomPrograms
from small_models import decoder, encoder, encoder_decoder

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node on the PATH: apt-get install nodejs")

NAMES = {call.asked: name for name, call in CALLS.items()}
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 3},
    {"top_p": 0.6},
    {"temperature": 1.7, "top_k": 5, "top_p": 0.9},
]


def in_node(work: Sequence[tuple[dict[str, Any] | None, Sequence[m.Message]]]) -> list[list[Any]]:
    """The engine's answers to the requests about each model."""
    driver = Path(__file__).with_name("engine.mjs")

    def named(ask: m.Message) -> tuple[Any, ...]:
        return NAMES[type(ask)], ask.model_dump(), run_name(ask) if type(ask) is m.Ask else None

    told = json.dumps([{"model": model, "asks": list(map(named, asks))} for model, asks in work])
    command = [str(NODE), str(driver), str(PAGE / "explorer.js")]
    done = subprocess.run(
        command, input=told, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[Any]] = json.loads(done.stdout)
    return answers


def by_server(backend: Backend, ask: m.Message) -> Any:
    try:
        answer = backend.answer(NAMES[type(ask)], ask)
    except InputError as error:
        return {"refusal": {"got": error.got, "expected": error.expected, "fix": error.fix}}
    if isinstance(answer, bytes):
        # as JSON has it
        return [None if np.isnan(each) else each for each in np.frombuffer(answer, "<f4").tolist()]
    return answer.model_dump(mode="json")


def check_same(
    expected: Any, found: Any, where: str = "", logits: float = 1.0, exact: bool = False
) -> None:
    """Equal, numbers to 1e-5: relative above 1, and of logits relative to the largest one, as all
    are sums of as large numbers (of the bundled decoder the server's own error is 1.1e-5, the
    engine's 3e-6). Log-odds and contributions are compared to 3e-5, as they are differences of
    logits. Thumbnails have four digits. What is computed in float64 is
    ``exact``: to 1e-12, and where it is rounded to float32 to 1e-6.
    """
    if isinstance(expected, dict):
        assert sorted(expected) == sorted(found), where
        for key in expected:
            check_same(expected[key], found[key], f"{where}.{key}", logits, exact)
    elif isinstance(expected, list):
        assert len(expected) == len(found), where
        if where.endswith(".candidates"):
            logits = max(1.0, *(abs(each["logit"]) for each in expected))
        if where.startswith("ffn ") and where.endswith((".raised", ".lowered", ".neurons")):
            # Which of two nearly equal ones comes first rests on rounding.
            key = "number" if where.endswith(".neurons") else "id"
            expected, found = (
                sorted(each, key=operator.itemgetter(key)) for each in (expected, found)
            )
        for place, pair in enumerate(zip(expected, found, strict=True)):
            check_same(*pair, f"{where}[{place}]", logits, exact)
    elif isinstance(expected, float) and found is not None:
        bound = 3e-5 if re.match("(sweep|patches|contributions|ffn) ", where) else 1e-5
        if exact:
            bound = 1e-6 if re.match("(rows|weights|measures) ", where) else 1e-12
        bound = 1.01e-4 if ".thumbnails" in where else bound
        size = logits if where.endswith(".logit") else max(1.0, abs(expected))
        assert abs(expected - found) <= bound * size, (where, expected, found)
    else:
        assert expected == found, (where, expected, found)


def asks_about(
    backend: Backend, name: str, text: str, rules: list[dict[str, Any]], rng: random.Random
) -> list[m.Message]:
    """Requests of every call that the engine answers."""
    loaded = backend.model(name)
    card = loaded.card
    weights = (
        edited_at_random(loaded, rng)
        if isinstance(loaded, LoadedHead) and rng.random() < 0.7
        else None
    )
    source = card.source and rng.choices(card.source, k=rng.randint(1, 6))
    ask = m.Ask(model=name, text=text, source=source, weights=weights)
    asks: list[m.Message] = [ask]
    of: dict[str, Any] = {"model": name, "text": text}
    if isinstance(loaded, LoadedHead):
        design = by_server(backend, m.AskHead(model=name))["weights"]
        asks += [
            m.AskCheck(**of, weights=each)
            for each in (weights or design, edited_at_random(loaded, rng))
        ]
    for rule in rules if "sampling" in card.views else []:
        asks += [
            m.AskNext(**of, **rule),
            m.AskSteps(**of, **rule, seed=rng.randrange(2**53), steps=6),
        ]
    if card.kind in ("decoder", "encoder", "encoder_decoder"):
        asks.append(m.AskFind(**of))
    run = by_server(backend, ask)
    if "refusal" in run:
        return asks
    if "program" in card.views:
        return [*asks, m.AskProgram(run=run["run"])]
    for stack in run["attentions"]:
        part = {"run": run["run"], "part": stack["part"]}
        asks.append(m.AskMeasures(**part))
        for passed in (False, True):
            asks.append(m.AskRows(**part, query=rng.randrange(stack["queries"]), passed=passed))
        for level in range((max(stack["queries"], stack["keys"], 2) - 1).bit_length() + 1):
            last = [(-(-stack[axis] // 2**level) - 1) // m.TILE for axis in ("queries", "keys")]
            place = _head(stack, rng)
            row, column = (rng.randint(0, each) for each in last)
            passed = rng.random() < 0.5
            asks.append(
                m.AskTile(**part, **place, level=level, row=row, column=column, passed=passed)
            )
    if card.kind in ("decoder", "encoder", "encoder_decoder"):
        asks.append(m.AskExperts(run=run["run"]))
    if card.source is not None:
        orders = [None, rng.sample(range(len(run["source"])), len(run["source"]))]
        asks += [m.AskScramble(**of, source=run["source"], order=order) for order in orders]
    if "whatif" in card.views:
        asks += [each for _ in range(2) for each in asks_of_what_if(backend, ask, run, rng)]
    return asks


def greedy(card: m.ModelCard) -> list[m.Message]:
    """A long continuation, of a decoder."""
    text = card.text[:20].strip()
    return (
        [m.AskSteps(model=card.name, text=text, temperature=0.0, steps=40)]
        if "sampling" in card.views
        else []
    )


def asks_of_what_if(
    backend: Backend, ask: m.Ask, run: dict[str, Any], rng: random.Random
) -> list[m.Message]:
    """Changes at random, and what is shown beside them."""
    kind = backend.model(ask.model).card.kind
    count = len(run["tokens"])
    place = None if kind == "encoder" else rng.choice([None, *range(count)])
    about: dict[str, Any] = {"ask": ask.model_dump(), "place": place}
    plain = by_server(backend, m.AskWhatIf(**about))
    if "refusal" in plain:
        return [m.AskWhatIf(**about)]
    outcomes = [each["id"] for each in plain["outcomes"]]
    about["target"], other = rng.choice([None, *outcomes]), rng.choice([None, *outcomes])
    compared = {**about, "other": other}
    stacks = rng.choices(run["attentions"], k=6)
    removed = [{"part": each["part"], **_head(each, rng)} for each in stacks[: rng.randint(0, 3)]]
    forbidden = [
        {
            **{"part": each["part"], "layer": rng.choice([None, rng.randrange(each["layers"])])},
            **{"head": rng.choice([None, rng.randrange(each["heads"])])},
            **{"query": rng.randrange(each["queries"]), "key": rng.randrange(each["keys"])},
        }
        for each in stacks[: rng.randint(0, 6)]
    ]
    last = run["attentions"][-1]
    away = [None, *outcomes]
    steer = {
        "layer": rng.randrange(last["layers"]),
        "toward": rng.choice(outcomes),
        "away": rng.choice(away),
    }
    swaps = []
    if "experts" in plain["offers"]:
        experts = by_server(backend, m.AskExperts(run=run["run"]))
        every = [*range(experts["num_experts"])]
        swaps = [
            {
                "layer": each["layer"],
                "expert": rng.choice(every),
                "instead": rng.choice([None, *every]),
            }
            for each in rng.choices(experts["layers"], k=rng.randint(0, 2))
        ]
    changes = {"removed": removed, "forbidden": forbidden, "swaps": swaps}
    changes["steer"] = rng.choice([None, {**steer, "strength": rng.uniform(-2, 2)}])
    changed = ask.model_copy(update={"changes": m.Changes.model_validate(changes)})
    asks: list[m.Message] = [m.AskWhatIf(**compared, **changes), changed]
    again = by_server(backend, changed)
    if "refusal" not in again:
        asks.append(
            m.AskRows(run=again["run"], part=last["part"], query=rng.randrange(last["queries"]))
        )
    if "lens" in plain["offers"]:
        asks.append(m.AskLens(**about, first=rng.choice([0, 0, count // 2])))
    if "contributions" in plain["offers"]:
        asks.append(m.AskContributions(**compared))
        if kind == "decoder":
            asks.append(m.AskFfn(**about, layer=rng.randrange(last["layers"])))
    if kind != "encoder_decoder":
        # two halves of a text are mostly of other lengths, and refused
        half = ask.text[: len(ask.text) // 2]
        second = rng.choice([ask.text, ask.text[::-1], half])
        asks.append(m.AskPatches(**compared, second=second, done=2**31 - 1))
        if run["tokens"]:
            patch = {
                "text": second,
                "layer": rng.randrange(last["layers"]),
                "position": rng.randrange(count),
            }
            asks.append(m.AskWhatIf(**about, patch=patch))
    asks.append(m.AskSweep(**compared, done=2**31 - 1))
    return asks


def _head(stack: dict[str, Any], rng: random.Random) -> dict[str, int]:
    return {"layer": rng.randrange(stack["layers"]), "head": rng.randrange(stack["heads"])}


def check_all(backend: Backend, work: list[tuple[str, list[m.Message]]]) -> Counter[str]:
    """Compare the answers; how many questions of each call were asked."""
    models = [(saved_model(backend.model(name))[0], asks) for name, asks in work]
    asked = Counter[str]()
    for (name, asks), answers in zip(work, in_node(models), strict=True):
        assert len(asks) == len(answers), answers[0]
        exact = backend.model(name).card.kind in ("head", "program")
        for ask, found in zip(asks, answers, strict=True):
            call = NAMES[type(ask)]
            expected = by_server(backend, ask)
            for answer in (expected, found):
                answer_of(call, answer)
            if call == "scramble" and name.startswith("given-") and "refusal" not in expected:
                # Two tokens of a random model may be within rounding of one another, in all orders
                # of equal facts.
                off = abs(expected["changed_tokens"] - found.pop("changed_tokens"))
                assert off <= 0.05 * expected["orders"]
                del expected["changed_tokens"]
            check_same(expected, found, f"{call} {ask}", exact=exact)
            asked[call] += 1
    return asked


def answer_of(call: str, answer: Any) -> None:
    """Leave out what may differ: names of runs, the order of equal outcomes, the worst of rounding
    errors.
    """
    if call == "run" and "refusal" not in answer:
        del answer["run"]
    if call == "whatif" and "refusal" not in answer:
        answer["outcomes"].sort(key=lambda each: each["id"])
        answer.pop("changes", None)  # the page has its own words
    if call == "scramble" and answer.get("holds"):
        del answer["worst"]  # of changes by rounding
    if call == "check" and "refusal" not in answer:
        answer["certificate"].pop("text", None)  # the page has its own words


@pytest.fixture(scope="module")
def shipped() -> Backend:
    return Backend(bundled())


ODD = {
    "recurrence": ["1 2 9", "", "1\u20282\x1f3", "'", "4"],
    "induction": ["AB1", "", "a'\"\\", "A" * 65, "Q"],
    "sentiment": [
        "",
        "Didn't you\u2019ll \ufb01lm, \u0130stanbul! don'the caf\u0301e\u200b ***",
        "film " * 200,
    ],
    "lookup-course": ["", "GREEN", "[PAD] RED", "NOPE", "RED " * 12],
    "lookup-facts": ["", " ada ", "ada bob", "x"],
    "identity": ["", "ABD", "ABCABCA", "a\u00e9"],
    "unique": ["", "AB'", "CCCC"],
    "program-histogram": ["", "a \t b", "ab?", "\u00e9", "a" * 40],
    "program-machine": ["", "nope"],
    "program-shuffle-dyck-3": ["((", "[(])"],
}


LONG = pytest.param("recurrence", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [LONG if name == "recurrence" else name for name in ODD])
def test_a_bundled_model_answers_as_the_server_does(shipped: Backend, name: str) -> None:
    rng = random.Random(5)
    card = shipped.entries[name].card
    texts = card.text, *ODD[name]
    work = [(name, asks_about(shipped, name, text, rng.sample(RULES, 1), rng)) for text in texts]
    check_all(shipped, [*work, (name, greedy(card))])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrence", "induction"])
def test_so_it_does_on_random_texts(shipped: Backend, name: str) -> None:
    rng = random.Random(7)
    letters, between = (
        ("0123456", " ") if name == "recurrence" else ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "")
    )
    lengths = [rng.randint(1, 60) for _ in range(15)] + ([200] if name == "recurrence" else [])
    texts = [between.join(rng.choices(letters, k=length)) for length in lengths]
    # Below 1, a temperature multiplies the rounding errors of logits.
    rules = [
        {
            "temperature": rng.uniform(1, 2),
            "top_k": rng.choice([None, 2, 5]),
            "top_p": rng.uniform(0, 1),
        }
        for _ in texts
    ]
    pairs = zip(texts, rules, strict=True)
    check_all(
        shipped, [(name, asks_about(shipped, name, text, [rule], rng)) for text, rule in pairs]
    )


@pytest.mark.parametrize("blank", ["\ufeff", "\x1c", "\x85", "\u200b", "\xa0", "\u2028"])
def test_blanks_are_those_of_python(shipped: Backend, blank: str) -> None:
    facts = [("ada", f"ada{blank}=\t3{blank}"), (f"{blank}ada ", "ada=3")]
    asks: list[m.Message] = [
        m.Ask(model="lookup-facts", text=text, source=[unit, "ben=4"]) for text, unit in facts
    ]
    numbers = m.AskFind(model="recurrence", text=f"{blank}06 1")
    check_all(shipped, [("lookup-facts", asks), ("recurrence", [numbers])])


def random_decoder(rng: random.Random) -> Decoder:
    """Of any configuration that the engine computes, with weights of the size of trained ones."""
    heads = rng.choice([1, 2, 4, 6])
    layers = rng.randint(1, 3)
    dim = rng.choice([4, 6, 8])
    dense = rng.random() < 0.6
    window = rng.choice([None, 1, 3, 8])
    learned = rng.random() < 0.2
    plain = rng.random() < 0.5
    place = rng.choice(["before", "before", "after", "both"])
    ff_dim = rng.choice([0, 12, 20]) if dense and plain else 12
    parts: dict[str, Any] = {
        "norm": rng.choice(["rms", "layer"]),
        "norm_place": place,
        "parallel": place == "before" and ff_dim > 0 and rng.random() < 0.3,
        "qk_norm": rng.choice([None, "head", "all"]),
        "rotary_dim": None if learned else rng.choice([None, 2, dim]),
        "local_rope_base": 500.0
        if window is not None and not learned and rng.random() < 0.5
        else None,
        "unrotated_layers": (0,) if not learned and rng.random() < 0.3 else (),
        "learned_positions": learned,
        "attention_scale": rng.choice([None, 0.4]),
        "attention_cap": rng.choice([None, 3.0]),
        "logit_cap": rng.choice([None, 5.0]),
        "embedding_scale": rng.choice([1.0, 2.7]),
        "embedding_norm": rng.random() < 0.3,
    }
    if dense:
        activation = rng.choice(["silu", "gelu", "gelu_tanh", "relu", "relu2"])
        parts |= {"activation": activation, "gated": rng.random() < 0.5}
    torch.manual_seed(rng.randrange(2**31))
    return decoder(
        **({} if plain else parts),
        vocab_size=rng.choice([7, 50, 90, 256]),
        num_layers=layers,
        hidden_dim=rng.choice([8, 15, 32]),
        ff_dim=ff_dim,
        num_heads=heads,
        head_dim=dim,
        num_kv_heads=rng.choice(
            [each for each in (1, 2, 3, 6, None) if each is None or heads % each == 0]
        ),
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


def random_encoder(rng: random.Random) -> Encoder:
    """A classifier of any configuration."""
    torch.manual_seed(rng.randrange(2**31))
    return encoder(
        vocab_size=rng.choice([7, 50, 90]),
        num_layers=rng.randint(1, 3),
        hidden_dim=rng.choice([8, 24]),
        num_classes=rng.choice([2, 3, 9]),
        max_seq_len=40,
        **blocks(rng),
        positions=rng.choice(["sinusoidal", "learned", "none"]),
        embedding_norm=rng.random() < 0.5,
        token_types=rng.choice([0, 2]),
        pooling=rng.choice(["mean", "cls", "max"]),
        pad_id=rng.choice([0, 3]),
    )


def random_encoder_decoder(rng: random.Random, slots: bool) -> EncoderDecoder:
    """Of any configuration, for words, or for facts."""
    torch.manual_seed(rng.randrange(2**31))
    return encoder_decoder(
        vocab_size=20 if slots else 14,
        hidden_dim=rng.choice([8, 24]),
        num_encoder_layers=rng.randint(1, 2),
        num_decoder_layers=rng.randint(1, 2),
        max_target_len=rng.choice([4, 10]),
        fields_per_slot=1 + slots,
        **blocks(rng),
        source_positions=rng.choice(["sinusoidal", "learned", "none"]),
        target_positions=rng.choice(["sinusoidal", "learned", "none"]),
    )


def blocks(rng: random.Random) -> dict[str, Any]:
    """Of an encoder or an encoder-decoder."""
    flags = {name: rng.random() < 0.5 for name in ("norm_first", "final_norm", "scale_embeddings")}
    return {
        **flags,
        "activation": rng.choice(["gelu", "relu"]),
        "norm_eps": rng.choice([1e-5, 1e-6]),
    }


def wrapped(kind: str, number: int, rng: random.Random) -> LoadedModel:
    """A model with weights of the size of trained ones, a head or a program."""
    name = f"given-{number}"
    if kind == "head":
        return random_head(name, rng)
    if kind == "program":
        return random_program(name, rng)
    slots = rng.random() < 0.5
    made = {"decoder": random_decoder, "encoder": random_encoder}
    model = made[kind](rng) if kind in made else random_encoder_decoder(rng, slots)
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # biases, sinks and the weights of norms are all alike at first
            parameter.add_(0.3 * torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5)
    loaded: LoadedModel
    changes: dict[str, Any] = {"name": name}
    if isinstance(model, EncoderDecoder):
        cards = {card.name: card for card in (entry.card for entry in bundled())}
        if slots:
            numbers = [str(value) for value in range(14)]
            loaded = facts_model(cards["lookup-facts"], model, ["ada", "bob", "cleo"], numbers)
        else:
            loaded = course_model(cards["lookup-course"], model)
        changes |= {"source": ["ada=3", "bob=5", "cleo=3"]} if slots else {}
        changes |= {
            "text": rng.choice(["ada", "cleo"]) if slots else "RED GREEN"[: rng.choice([0, 3, 9])]
        }
    else:
        size = model.config.vocab_size
        text = None if size == 256 else [rng.randrange(size) for _ in range(rng.randint(1, 40))]
        loaded = wrap_model(model.eval(), text)
    return replace(loaded, card=loaded.card.model_copy(update=changes))


def random_head(name: str, rng: random.Random) -> LoadedHead:
    """A head of a random task, with random weights or those of its design."""
    while True:
        make = rng.choice(list(TASKS.values()))
        letters = "ABCDE"[: rng.randint(2, 4)]
        longest = rng.randint(3, 5)
        task = make(letters, longest)
        if task.count * task.space.num_positions**2 <= 1 << 13:
            break
    weights = (
        random_weights(task, rng)
        if task.description is None or rng.random() < 0.3
        else design(task).weights
    )
    text = "".join(rng.choices(letters, k=rng.randint(1, longest)))
    return head_model(head_card(name, task, "Given", "Given.", text, origin="given"), task, weights)


def random_weights(task: Task, rng: random.Random) -> HeadWeights:
    """Of any sizes that fit a task."""
    draw = np.random.default_rng(rng.randrange(2**32)).normal
    coordinates = rng.choice([0, 1, 2, 5])
    rows = task.space.num_tokens + coordinates
    columns = rng.randint(1, 6)
    size = rng.choice([0.3, 1.0, 4.0])
    Km, Qm = (draw(0, size, (rows, columns)) for _ in range(2))
    Vm = draw(0, 1, (rows, task.v_dim))
    positions = task.space.num_positions + rng.choice([0, 2])
    return HeadWeights(Km, Qm, Vm, draw(0, size, (positions, coordinates)) if coordinates else None)


def edited_at_random(loaded: LoadedHead, rng: random.Random) -> m.HeadWeightsMessage:
    """The design with edits, or other weights."""
    kind = rng.random()
    given = random_weights(loaded.task, rng) if kind < 0.4 else loaded.weights
    matrices = {name: matrix.tolist() for name, matrix in given.matrices.items()}
    for _ in range(rng.choice([0, 1, 3])):
        matrix = matrices[rng.choice(list(matrices))]
        row = rng.choice(matrix)
        row[rng.randrange(len(row))] = rng.choice(
            [rng.gauss(0, 3), rng.gauss(0, 1e-3), 1e200 if kind > 0.95 else 2.5]
        )
    return m.HeadWeightsMessage(**matrices)


def random_program(name: str, rng: random.Random) -> LoadedProgram:
    """A random program, or one of the library for other sequences."""
    while True:
        some = RandomPrograms(rng.randrange(2**32))
        program = some.variable(rng.randint(1, 3), letters=some.flip())
        try:
            model = compile_program(
                program, some.vocabulary, rng.randint(2, 6), causal=rng.random() < 0.5
            )
        except InputError:  # too many values
            continue
        if rng.random() < 0.2:
            model.program = None  # as of one from a file
        words = [
            str(token)
            for token in rng.choices(some.vocabulary, k=rng.randint(1, model.domains.max_len))
        ]
        return program_model(model, name, "Given", origin="given", text="".join(words))


CALLS = {
    "decoder": "run rows weights measures experts next steps find whatif lens contributions ffn sweep patches",
    "encoder": "run rows weights measures find whatif lens contributions sweep patches",
    "encoder_decoder": "run rows weights measures find whatif lens contributions sweep scramble",
    "head": "run rows weights measures check",
    "program": "run program",
}
"""What is asked about each kind."""


def check_random(kinds: Iterable[str], count: int, seed: int) -> Counter[str]:
    """Compare so many models of each kind."""
    rng = random.Random(seed)
    models = [wrapped(kind, number, rng) for number, kind in enumerate(count * list(kinds))]
    backend = Backend(models)
    work = []
    for each in models:
        name = each.card.name
        text = each.card.text
        words = each.card.words or []
        asks = asks_about(backend, name, text, rng.sample(RULES, 2), rng)
        if isinstance(each, LoadedProgram):
            other = rng.choices(words, k=rng.randint(1, each.model.domains.max_len))
            asks += asks_about(backend, name, "".join(other), [], rng)
        work.append((name, [*asks, *greedy(each.card)]))
    return check_all(backend, work)


def test_models_of_any_configuration_answer_as_the_server_does() -> None:
    asked = check_random(CALLS, 1, seed=0)
    assert set(asked) == {call for calls in CALLS.values() for call in calls.split()}


def test_the_parts_of_a_dense_decoder_sum_to_the_logit_and_its_neurons_are_those_of_the_server() -> (
    None
):
    backend = Backend([wrap_model(decoder(num_layers=2, ff_bias=True).eval(), [3, 1, 4, 1, 5])])
    ask = m.Ask(model="given", text="3 1 4 1 5")
    asks = [
        ask,
        m.AskContributions(ask=ask, place=3),
        *(m.AskFfn(ask=ask, layer=layer, place=3) for layer in (0, 1)),
    ]
    ((_, parts, *networks),) = in_node([(saved_model(backend.model("given"))[0], asks)])
    assert sum(part["value"] for part in parts["parts"]) == pytest.approx(parts["total"], abs=1e-4)
    own = [part["value"] for part in parts["parts"] if part["kind"] == "ffn"]
    assert [each["value"] for each in networks] == pytest.approx(own, abs=1e-4)
    assert all(len(each["neurons"]) == 8 for each in networks)
    for ask, found in zip(asks[1:], (parts, *networks), strict=True):
        check_same(by_server(backend, ask), found, f"{NAMES[type(ask)]} {ask}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", range(1, 1 + int(os.environ.get("GLASSFORMER_ENGINE_SEEDS", "10")))
)
def test_so_do_ten_more_of_each_kind(seed: int) -> None:
    """With 30 seeds, 300 of each kind, and of each call at least 500 questions."""
    asked = check_random(CALLS, 10, seed)
    assert all(asked[call] >= 17 for calls in CALLS.values() for call in calls.split()), asked


def test_what_the_engine_does_not_compute_is_recorded(
    shipped: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved_model(wrap_model(decoder(rope_scaling=Linear(2.0)))) == (None, [])
    assert saved_model(wrap_model(decoder().double())) == (None, [])
    watched = decoder()
    other = decoder()
    patched = decoder()
    watched.final_norm.register_forward_hook(lambda *_: None)
    other.layers[0].attention.output = torch.nn.Sequential(other.layers[0].attention.output)
    patched.final_norm.forward = lambda x: x
    assert [saved_model(wrap_model(each)) for each in (watched, other, patched)] == 3 * [(None, [])]
    words = WordTokenizer(("fine", "film"))
    assert saved_model(wrap_model(decoder(vocab_size=5), "fine", words)) == (None, [])
    assert saved_model(wrap_model(encoder(num_classes=None))) == (None, [])  # which says nothing
    monkeypatch.setattr(saving, "MOST_MODEL_BYTES", 1000)
    model, sentences = saved_model(shipped.model("induction"))
    assert model is None
    assert sentences == ["The model is left out: its weights take 74,008 bytes, more than 1,000."]


def test_matrices_of_other_shapes_are_refused(shipped: Backend) -> None:
    design = by_server(shipped, m.AskHead(model="unique"))["weights"]
    saved, _ = saved_model(shipped.model("unique"))
    changed = [{**design, name: design[name][:-1]} for name in design]
    changed += [{**design, name: [[*row, 1.0] for row in design[name]]} for name in design]
    changed += [{**design, "Km": [[]]}, {**design, "Qm": [*design["Qm"][:-1], []]}]
    [answers] = in_node(
        [(saved, [m.AskCheck(model="unique", text="AB", weights=each) for each in changed])]
    )
    assert [each["refusal"]["got"] for each in answers] == ["matrices of other shapes"] * len(
        changed
    )


def test_numbers_are_held_in_the_fewest_bits_that_hold_them(shipped: Backend) -> None:
    model, _ = saved_model(shipped.model("induction"))
    assert len(base64.b64decode(model["weights"])) == 74_008  # as in its file, in 16 bits
    lasting = decoder()
    other, _ = saved_model(wrap_model(lasting))
    assert len(base64.b64decode(other["weights"])) > 4 * sum(
        each.numel() for each in lasting.parameters()
    )


def test_changed_weights_are_refused() -> None:
    model = decoder()
    saved, _ = saved_model(wrap_model(model))
    kept = bytearray(base64.b64decode(saved["weights"]))
    kept[-3] ^= 1
    with torch.no_grad():
        model.embedding.weight[3, 2] = torch.nan
    not_finite, _ = saved_model(wrap_model(model))
    changed = [
        {**saved, "weights": weights} for weights in (base64.b64encode(kept).decode(), "not base64")
    ]
    answers = in_node(
        [(each, [m.AskFind(model="given", text="1")]) for each in (*changed, not_finite)]
    )
    expected = 2 * ["weights in this file that were changed"] + [
        "weights that are not finite (embedding.weight)"
    ]
    assert [answer["refusal"]["got"] for [answer] in answers] == expected
