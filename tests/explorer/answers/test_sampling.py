"""The next token and the ones after it: the rule's own numbers, and draws that do not depend on how
they were asked.
"""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from glassformer.data.tokenizer import WordTokenizer
from glassformer.explorer.answers.sampling import MOST_CANDIDATES, draw_at, find, next_token, steps
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import (
    MOST_CHARACTERS,
    AskFind,
    AskNext,
    AskSteps,
    ModelCard,
    Step,
)
from glassformer.generation.sampling import SamplingRule
from refusals import refused
from small_models import decoder
from transformers_models import transformers


def logits(loaded: LoadedDecoder, text: str) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(torch.tensor([loaded.encode(text)]))[0, -1].double()


class Fixed(torch.nn.Module):
    """Logits that were given, whatever it reads."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__()
        self.row = torch.nn.Parameter(row)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.row.expand(*tokens.shape, -1)


def fixed(row: torch.Tensor, **changes: object) -> LoadedDecoder:
    card = ModelCard(
        name="f",
        title="",
        kind="decoder",
        about="",
        views=[],
        text="",
        input_help="",
        origin="given",
    )
    parts: dict[str, object] = {
        "encode": lambda text: [int(each) for each in text.split()],
        "word": str,
        "join": lambda tokens: " ".join(map(str, tokens)),
    }
    return LoadedDecoder(card, Fixed(row), **{**parts, **changes})


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, 1.0), (0.5, 3, 1.0), (2.0, None, 0.6), (0.0, None, 1.0)],
)
def test_the_distribution_is_the_rules(
    temperature: float, top_k: int | None, top_p: float, by_name: dict[str, LoadedModel]
) -> None:
    loaded = by_name["decoder"]
    ask = AskNext(model="decoder", text="1 2 3", temperature=temperature, top_k=top_k, top_p=top_p)
    found = next_token(loaded, ask)
    row = logits(loaded, "1 2 3")
    final = SamplingRule(temperature=temperature, top_k=top_k, top_p=top_p).distribution(row)
    tempered = SamplingRule(temperature=temperature).distribution(row)
    assert sorted(each.id for each in found.candidates) == list(range(11))
    for each in found.candidates:
        assert each.logit == pytest.approx(float(row[each.id]), abs=1e-5)
        assert each.plain == pytest.approx(float(row.softmax(-1)[each.id]), abs=1e-6)
        assert each.tempered == pytest.approx(float(tempered[each.id]), abs=1e-6)
        assert each.final == pytest.approx(float(final[each.id]), abs=1e-6)
        assert each.kept == (each.final > 0)
        assert each.obeys == (each.id == 4)
    assert [each.logit for each in found.candidates] == sorted(
        (each.logit for each in found.candidates), reverse=True
    )
    assert found.kept == int((final > 0).sum())
    kept = final[final > 0].numpy()
    assert found.entropy == pytest.approx(-float((kept * np.log2(kept)).sum()), abs=1e-5)
    assert (found.tokens, found.rest, found.rest_plain) == (["1", "2", "3"], 0, 0)
    assert found.rule == "x[t] = x[t-1] + 1"


def test_of_many_tokens_the_likeliest_are_listed() -> None:
    row = torch.arange(1000, dtype=torch.float64) / 100
    found = next_token(fixed(row), AskNext(model="f", text="1"))
    assert [each.id for each in found.candidates] == list(range(999, 999 - MOST_CANDIDATES, -1))
    assert found.rest == 1000 - MOST_CANDIDATES
    plain = row.softmax(-1)
    assert found.rest_plain == pytest.approx(float(plain[: 1000 - MOST_CANDIDATES].sum()))
    assert found.kept == 1000


def test_equals_rank_as_the_rule_cuts_them() -> None:
    found = next_token(fixed(torch.zeros(6)), AskNext(model="f", text="1", top_k=2))
    assert [each.id for each in found.candidates] == list(range(6))
    assert [each.kept for each in found.candidates] == [True, True, False, False, False, False]
    assert found.entropy == 1


@settings(max_examples=40, deadline=None)
@given(
    temperature=st.floats(0, 100) | st.sampled_from([5e-324, 1e-9]),
    top_k=st.none() | st.integers(1, 1_000_000),
    top_p=st.floats(0, 1),
    row=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=80),
)
def test_every_rule_gives_numbers(
    temperature: float, top_k: int | None, top_p: float, row: list[float]
) -> None:
    ask = AskNext(model="f", text="1", temperature=temperature, top_k=top_k, top_p=top_p)
    found = next_token(fixed(torch.tensor(row)), ask)
    assert 1 <= found.kept <= len(row)
    assert 0 <= found.entropy <= math.log2(found.kept) + 1e-9
    assert sum(each.plain for each in found.candidates) + found.rest_plain == pytest.approx(1)


def test_logits_that_are_no_numbers_are_refused() -> None:
    for number in (float("nan"), float("inf"), float("-inf")):
        loaded = fixed(torch.tensor([0.0, number, 1.0]))
        for answer, ask in (
            (next_token, AskNext(model="f", text="1")),
            (steps, AskSteps(model="f", text="1")),
        ):
            with refused("finite"):
                answer(loaded, ask)


def test_one_text_is_read_once_until_the_weights_change() -> None:
    loaded = fixed(torch.tensor([0.0, 1.0]))
    other = fixed(torch.tensor([2.0, 0.0]))
    with patch.object(Fixed, "forward", autospec=True, side_effect=Fixed.forward) as read:
        first = next_token(loaded, AskNext(model="f", text="1"))
        assert (
            next_token(loaded, AskNext(model="f", text="1", temperature=0.5)).candidates[0].id == 1
        )
        assert read.call_count == 1
        assert next_token(other, AskNext(model="f", text="1")).candidates[0].id == 0
        next_token(loaded, AskNext(model="f", text="1 1"))
        assert read.call_count == 3
        with torch.no_grad():
            loaded.model.get_parameter("row").add_(torch.tensor([5.0, 0.0]))
        assert next_token(loaded, AskNext(model="f", text="1")).candidates[0].id == 0
    assert first.candidates[0].id == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_one_step_at_a_time_gives_the_same(
    temperature: float, by_name: dict[str, LoadedModel]
) -> None:
    loaded = by_name["decoder"]
    at_once = steps(
        loaded, AskSteps(model="decoder", text="1 2 3", temperature=temperature, seed=7, steps=12)
    )
    text = "1 2 3"
    one_by_one: list[Step] = []
    for _ in range(12):
        found = steps(loaded, AskSteps(model="decoder", text=text, temperature=temperature, seed=7))
        text = found.text
        one_by_one = [*one_by_one, *found.steps]
    assert (at_once.text, at_once.steps) == (text, one_by_one)
    assert at_once.text == "1 2 3 " + " ".join(step.token for step in at_once.steps)


def test_the_seed_decides_and_the_rule_is_kept(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    asks = [AskSteps(model="decoder", text="1 2 3", seed=seed, steps=20) for seed in (0, 0, 1)]
    first, same, other = (steps(loaded, ask) for ask in asks)
    assert first == same
    assert first.steps != other.steps
    tokens = [1, 2, 3]
    for step in first.steps:
        row = logits(loaded, " ".join(map(str, tokens))).softmax(-1)
        assert step.probability == pytest.approx(float(row[int(step.token)]), abs=1e-5)
        assert step.obeys == (int(step.token) == (tokens[-1] + 1) % 11)
        tokens.append(int(step.token))


def test_draws_follow_the_distribution() -> None:
    loaded = fixed(torch.tensor([0.7, 0.2, 0.1]).log())
    drawn = [
        int(steps(loaded, AskSteps(model="f", text="0 " * place + "0", seed=seed)).steps[0].token)
        for seed in range(400)
        for place in range(5)
    ]
    # 2,000 draws: three standard deviations of a share are at most 0.031.
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 2000, [0.7, 0.2, 0.1], atol=0.032)


def test_draws_of_neighbours_are_apart() -> None:
    numbers = [
        float(torch.rand((), generator=draw_at(seed, place)))
        for seed in range(20)
        for place in range(20)
    ]
    assert len(set(numbers)) == 400
    assert abs(float(np.corrcoef(numbers[:-1], numbers[1:])[0, 1])) < 0.2
    assert float(torch.rand((), generator=draw_at(2**53 - 1, 4095))) < 1


def test_a_text_keeps_how_it_was_typed() -> None:
    found = steps(
        fixed(torch.tensor([0.0, 9.0])), AskSteps(model="f", text="1 0", temperature=0, steps=2)
    )
    assert found.text == "1 0 1 1"
    joined = fixed(torch.tensor([0.0, 9.0]), join=lambda tokens: f"<{','.join(map(str, tokens))}>")
    assert steps(joined, AskSteps(model="f", text="1 0", temperature=0)).text == "<1,0,1>"


def test_it_ends_where_the_model_does(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    found = steps(loaded, AskSteps(model="decoder", text=" ".join(["1"] * 94), steps=64))
    assert len(found.steps) == 2
    assert found.ended == "model"
    assert steps(loaded, AskSteps(model="decoder", text="1", steps=2)).ended == "asked"
    with refused(expected="at most 95"):
        steps(loaded, AskSteps(model="decoder", text=" ".join(["1"] * 96)))
    assert len(next_token(loaded, AskNext(model="decoder", text=" ".join(["1"] * 96))).tokens) == 96


def test_no_text_grows_beyond_what_a_message_holds() -> None:
    long = fixed(
        torch.tensor([0.0, 9.0]),
        word=lambda token: "x" * 30_000,
        join=lambda tokens: "x" * 30_000 * len(tokens),
    )
    found = steps(long, AskSteps(model="f", text="1", temperature=0, steps=9))
    assert len(found.steps) == 2
    assert found.ended == "text"
    assert len(found.text) <= MOST_CHARACTERS


def test_after_so_much_has_been_read_it_ends_and_says_so() -> None:
    long = fixed(torch.tensor([0.0, 9.0]))
    found = steps(long, AskSteps(model="f", text=" ".join(["1"] * 4000), temperature=0, steps=64))
    assert (len(found.steps), found.ended) == (16, "read")


def test_it_ends_at_a_token_without_a_text() -> None:
    padding = fixed(
        torch.tensor([0.0, 9.0]),
        join=lambda tokens: " ".join(str(each) for each in tokens if each != 1),
    )
    found = steps(padding, AskSteps(model="f", text="0", temperature=0, steps=3))
    assert (found.text, found.steps, found.ended) == ("0", [], "wordless")


def test_bytes_of_a_character_are_written_on() -> None:
    euro = iter([*"€".encode(), 65])
    bytewise = fixed(
        torch.zeros(256),
        encode=lambda text: list(text.encode()),
        join=lambda tokens: bytes(tokens).decode(errors="replace"),
    )
    bytewise.model.forward = lambda tokens: (
        torch.eye(256)[next(euro)].mul(9).expand(*tokens.shape, -1)
    )
    found = steps(bytewise, AskSteps(model="f", text="a", temperature=0, steps=4))
    assert (found.text, found.ended) == ("a€A", "asked")


def test_other_models_are_refused(by_name: dict[str, LoadedModel]) -> None:
    with refused(expected="continues texts"):
        next_token(by_name["lookup"], AskNext(model="lookup", text="1"))


def test_a_person_may_choose_the_first_token(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    ask = AskSteps(model="decoder", text="1 2", temperature=0, steps=3, first=9)
    found = steps(loaded, ask)
    behind = steps(loaded, AskSteps(model="decoder", text="1 2 9", temperature=0, steps=2))
    assert (found.text, found.steps[1:]) == (behind.text, behind.steps)
    assert found.steps[0].token == "9"
    with refused("first = 11"):
        steps(loaded, ask.model_copy(update={"first": 11}))


WHOLE = {"fine": "fine", "Fine": "fine", " ": "␣", "\n": "⏎"}
FIRST = {" 1": "␣", "é": "\\xc3", "Ａ": None}
"""Of what is typed, the token that begins it; None: no token."""


@pytest.mark.parametrize(("text", "name"), [*WHOLE.items(), *FIRST.items()])
def test_a_typed_token_is_none_that_begins_every_text(text: str, name: str | None) -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = Tokenizer(models.BPE())
    model.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(["fine film"], trainer)
    model.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=model)
    loaded = wrap_model(decoder(vocab_size=len(fast)), "fine", fast)
    if name is None:
        with refused("the text"):
            find(loaded, AskFind(model="given", text=text))
        return
    found = find(loaded, AskFind(model="given", text=text))
    assert (found.name, found.whole) == (name, text in WHOLE)


def test_a_word_of_a_vocabulary_is_none_that_begins_every_text() -> None:
    words = WordTokenizer(("fine", "film"))
    loaded = wrap_model(decoder(vocab_size=5), "fine", words)
    assert find(loaded, AskFind(model="given", text="Film")).name == "film"
    with refused("the text 'bad'"):
        find(loaded, AskFind(model="given", text="bad"))
