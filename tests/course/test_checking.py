"""The engine of the checks: what is compared, what a student reads, and that a check leaves no trace."""

import contextlib
import random
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from glassformer.course import checking
from glassformer.course.checking import Exercise, Judgement, Lesson, Verdict, WrongAnswer, build
from glassformer.course.comparing import difference, show
from glassformer.errors import InputError


def checked(monkeypatch, exercise, answer, seed=0):
    """The message of a check of an exercise that no lab has, and whether it passed."""
    monkeypatch.setattr(checking, "exercises", lambda lab: {exercise.name: exercise})
    printed = []
    monkeypatch.setattr(checking, "print", printed.append, raising=False)
    check = Lesson("lookup", seed)
    try:
        check(exercise.name, answer)
    except WrongAnswer as wrong:
        message = str(wrong)
        assert (check.case is None, printed) == ("\n" not in message, []), "the arguments that it shows are kept"
        return message
    assert len(printed) == 1
    return printed[0]


def doubled_cases(generator):
    for dtype in (torch.float32, torch.float64):
        for shape in ((1,), (2, 3)):
            yield (torch.randn(shape, generator=generator, dtype=dtype),)


DOUBLED = Exercise("doubled", lambda x: 2 * x, doubled_cases)
RIGHT = "doubled: right (4 cases, values and gradients)"


@pytest.mark.parametrize("answer", [lambda x: x + x, lambda x: (x.t() * 2).t() if x.ndim > 1 else x * 2])
def test_a_right_answer_passes(monkeypatch, answer):
    assert checked(monkeypatch, DOUBLED, answer) == RIGHT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: 2 * x + 1e-6 * x.abs(), "wrong in 2 of 4 cases. The smallest is case 3"),
        (lambda x: 3 * x, "wrong in 4 of 4 cases. The smallest is case 1:\n  x = float32 [1]"),
        (lambda x: 2 * x.flatten(), "Expected the shape [2, 3], found [6]"),
        (lambda x: (2 * x).detach(), "no gradient reaches the inputs"),
        (lambda x: 2 * x.detach() + (x - x.detach()), "Values are right, gradients are not"),
        (lambda x: (2 * x).tolist(), "Expected a PyTorch tensor, found a list"),
        (lambda x: (2 * x, x), "found a tuple"),
        (lambda x: 2 * x.numpy(), "Expected a PyTorch tensor, found a NumPy array"),
        (lambda x: None, "found None.\n  Is a return missing?"),
        (lambda x: (2 * x.double() * (1 + 3e-5)).to(x.dtype), "where"),
        (lambda x: (x.add_(0), 2 * x)[1], "The answer changes its input; it should work on a copy."),
        (lambda x: 2 * x > 0, "found truth values"),
        (lambda x: x * 2 if x.shape[0] == 1 else 2 * x[:1].expand(2, -1), "3 of 6 differ, most at [1, "),
        (lambda x: x.mul_(2), "changes its input x"),
        (lambda x: 2 * y, "NameError in <lambda>, line"),  # noqa: F821
        (lambda x: exit(), "SystemExit"),
        (lambda x, z: x, "TypeError"),
        (
            lambda x: (_ for _ in ()).throw(NotImplementedError()),
            "doubled: not answered yet (a blank is left in <genexpr>, line",
        ),
        (lambda x: (_ for _ in ()).throw(NotImplementedError("no such kernel")), "no such kernel"),
        (3, "expected a function or a class, found 3"),
    ],
)
def test_a_wrong_answer_is_explained(monkeypatch, answer, words):
    assert words in checked(monkeypatch, DOUBLED, answer)


def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 0.2)

    def endless(x):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    message = checked(monkeypatch, DOUBLED, endless)
    assert message.startswith("doubled: no result within 0.2 seconds")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert checked(monkeypatch, DOUBLED, lambda x: 2 * x) == RIGHT


def test_outside_the_main_thread_there_is_no_limit_and_the_check_works(monkeypatch):
    said = []
    thread = threading.Thread(target=lambda: said.append(checked(monkeypatch, DOUBLED, lambda x: 2 * x)))
    thread.start()
    thread.join()
    assert said == [RIGHT]


def test_a_check_leaves_no_trace(monkeypatch, capsys):
    def untidy(x):
        print("noise")
        torch.manual_seed(7), np.random.seed(7), random.seed(7)  # noqa: NPY002
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        return x + x

    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    settings = torch.get_num_threads(), threading.active_count(), signal.getsignal(signal.SIGALRM)
    with torch.no_grad():
        # What it sets does not reach the library's form in the next case, whose gradients it lacks.
        assert "wrong in 4 of 4 cases" in checked(monkeypatch, DOUBLED, untidy)
        assert not torch.is_grad_enabled()
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert states[2] == random.getstate()
    assert settings == (torch.get_num_threads(), threading.active_count(), signal.getsignal(signal.SIGALRM))
    assert torch.get_default_dtype() == torch.float32
    assert capsys.readouterr().out == ""


def test_random_answers_are_compared_with_the_same_seed(monkeypatch):
    drawn = Exercise("drawn", lambda x: torch.rand_like(x) + x, doubled_cases)
    assert "right" in checked(monkeypatch, drawn, lambda x: x + torch.rand(x.shape, dtype=x.dtype))


class Linear(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.project = nn.Linear(wide, out)

    def forward(self, x):
        return self.project(x)


class Other(Linear):
    def __init__(self, wide, out):
        super().__init__(wide, out)
        self.register_buffer("unused", torch.ones(3))
        self.spare = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x @ self.project.weight.T + self.project.bias


class Renamed(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.layer = nn.Linear(wide, out)

    def forward(self, x):
        return self.layer(x)


class WithoutBiasGradient(Other):
    def forward(self, x):
        return x @ self.project.weight.T + self.project.bias.detach()


class WithAnotherWeight(Other):
    def __init__(self, wide, out):
        super().__init__(wide, out)
        self.more = nn.Parameter(torch.ones(out))

    def forward(self, x):
        return super().forward(x) * self.more


def test_changed_arrays_are_noticed(monkeypatch):
    def cases(generator):
        yield (np.ones(2),)

    halved = Exercise("halved", lambda x: x / 2, cases)

    def answer(x):
        x /= 2
        return x

    assert "changes its input x" in checked(monkeypatch, halved, answer)


def test_parts_of_a_case_have_the_names_of_the_exercise(monkeypatch):
    def cases(generator):
        yield 3, 4

    product = Exercise("product", lambda x, y: x * y, cases, names=("rows", "columns"))
    assert "rows = 3\n  columns = 4" in checked(monkeypatch, product, lambda x, y: x)


def test_classes_are_compared_with_weights_drawn_by_name(monkeypatch):
    def cases(generator):
        for dtype in (torch.float32, torch.float64):
            yield (3, 2), torch.randn(4, 3, generator=generator, dtype=dtype)

    linear = Exercise("linear", Linear, cases, run=build)
    assert checked(monkeypatch, linear, Linear) == "linear: right (2 cases, values and gradients)"
    assert "right" in checked(monkeypatch, linear, Other)
    assert (
        "Expected the weights project.weight [2, 3], project.bias [2], found layer.weight [2, 3], layer.bias [2]."
        in checked(monkeypatch, linear, Renamed)
    )
    message = checked(monkeypatch, linear, WithoutBiasGradient)
    assert "expected gradient of project.bias" in message
    assert "wide = 3\n  out = 2\n  x = float32 [4, 3]" in message
    assert "not expected: spare, more." in checked(monkeypatch, linear, WithAnotherWeight)


def test_a_verdict_judges_data(monkeypatch):
    seen = []

    def judge(data, seed):
        seen.append((data, seed))
        return Judgement(data == [[1.0, 2.0]], "on every input" if data == [[1.0, 2.0]] else "not on 'AB'", "AB")

    verdict = Verdict("weights", judge)
    assert checked(monkeypatch, verdict, np.array([[1, 2.0]]), seed=3) == "weights: on every input"
    assert checked(monkeypatch, verdict, lambda: torch.tensor([[1, 2.0]])) == "weights: on every input"
    assert checked(monkeypatch, verdict, ((1, 3.0),)) == "weights: not on 'AB'"
    assert seen == [([[1.0, 2.0]], 3), ([[1.0, 2.0]], 0), ([[1, 3.0]], 0)]
    assert "not answered yet" in checked(monkeypatch, verdict, lambda: (_ for _ in ()).throw(NotImplementedError()))
    assert "a number is NaN" in checked(monkeypatch, verdict, [float("nan")])
    assert "found a set; expected numbers" in checked(monkeypatch, verdict, [{1}])
    assert len(seen) == 3


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="lookup"):
        Lesson("looking")
    with pytest.raises(InputError, match="attention"):
        Lesson("lookup")("atention", lambda: None)


def test_in_a_notebook_the_verdict_is_kept_and_the_message_stands_alone(monkeypatch):
    kept = []
    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=kept.append))
    monkeypatch.setitem(__import__("sys").modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(checking, "points", lambda lab: {"doubled": 2})
    monkeypatch.setattr(checking, "exercises", lambda lab: {"doubled": DOUBLED})
    Lesson("lookup", 4)("doubled", lambda x: 2 * x)
    with pytest.raises(WrongAnswer) as wrong:
        Lesson("lookup", 4)("doubled", lambda x: x)
    passed, failed = (each[checking.MIME] for each in kept)
    common = {"lab": "lookup", "exercise": "doubled", "seed": 4, "of": 2}
    assert passed == common | {"passed": True, "points": 2, "message": RIGHT}
    assert failed == common | {"passed": False, "points": 0, "message": str(wrong.value)}
    assert kept[0]["text/plain"] == RIGHT
    assert wrong.value._render_traceback_() == str(wrong.value).splitlines()


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ((torch.ones(2), 3), [torch.ones(2), 3]),
        (1.5, torch.tensor(1.5)),
        (3.0, 3),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.tensor([torch.nan, -torch.inf, 1e6]), torch.tensor([torch.nan, -torch.inf, 1e6 + 1])),
        ({"a": "x"}, {"a": "x"}),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.tensor([3.0], dtype=torch.bfloat16), torch.tensor([3.03], dtype=torch.bfloat16)),
    ],
)
def test_equal_results(expected, found):
    assert difference(expected, found, 1e-5) is None


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (torch.tensor([True, False]), torch.tensor([1, 0])),
        (True, 1),
        ("a", "b"),
        ("a", None),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (torch.tensor([1.0, -torch.inf]), torch.tensor([1.0, torch.inf])),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0])),
        (torch.tensor([1.0, 0.0]), torch.tensor([1.0, torch.nan])),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 2.0 + 1e-8], dtype=torch.float64)),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (2, 2.5),
        (torch.zeros(0, 3), torch.zeros(0, 4)),
        (np.ones(2), [[1.0], [1.0, 2.0]]),
        (torch.tensor(2**60), torch.tensor(2**60 + 1)),
    ],
)
def test_different_results(expected, found):
    assert difference(expected, found, 1e-5) is not None


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_a_result_is_equal_to_itself_and_not_to_one_with_a_number_moved(numbers):
    one = torch.tensor(numbers, dtype=torch.float64)
    assert difference(one, one.clone(), 1e-5) is None
    other = one.clone()
    other[-1] += max(0.1, float(one.abs().max())) * 2e-9
    assert difference(one, other, 1e-5).text.startswith("1 of")


def test_small_tensors_are_shown_with_rounded_numbers_and_large_ones_by_their_shape():
    assert show(torch.tensor([[0.123456, 2.0], [-1e-9, 3.0]])) == "float32 [2, 2]\n[[0.1235, 2],\n [-1e-09, 3]]"
    assert show(torch.zeros(50)) == "float32 [50]"
    assert show((torch.tensor([True]), 3)) == "[0] bool [1] [True]\n[1] 3"
