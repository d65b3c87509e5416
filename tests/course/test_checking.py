"""The engine of the checks: what is compared, what a student reads, and that a check leaves no
trace.
"""

import contextlib
import random
import signal
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course.checked import said
from glassformer.course import checking
from glassformer.course.checking import Exercise, Judgement, Lesson, Verdict, WrongAnswer, build
from glassformer.course.comparing import difference, show
from glassformer.course.lessons import answer as lesson_answer
from glassformer.course.lessons import changed, read_lesson, run_cells
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
        assert (check.case is None, printed) == ("\n" not in message, []), (
            "the arguments that it shows are kept"
        )
        return message
    assert len(printed) == 1
    return printed[0]


def doubled_cases(generator):
    for dtype in (torch.float32, torch.float64):
        for shape in ((1,), (2, 3)):
            yield (torch.randn(shape, generator=generator, dtype=dtype),)


DOUBLED = Exercise("doubled", lambda x: 2 * x, doubled_cases)
RIGHT = "doubled: right (4 cases, values and gradients)"


@pytest.mark.parametrize(
    "answer", [lambda x: x + x, lambda x: (x.t() * 2).t() if x.ndim > 1 else x * 2]
)
def test_a_right_answer_passes(monkeypatch, answer):
    assert checked(monkeypatch, DOUBLED, answer) == RIGHT


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda x: 2 * x if x.dtype == torch.float32 else 3 * x,
            "wrong in 2 of 4 cases. The smallest is case 3",
        ),
        (lambda x: 3 * x, "wrong in 4 of 4 cases. The smallest is case 1:\n  x = float32 [1]"),
        (lambda x: 2 * x.flatten(), "Expected the shape [2, 3], found [6]"),
        (lambda x: (2 * x).detach(), "no gradient reaches the inputs"),
        (lambda x: 2 * x.detach() + (x - x.detach()), "Values are right, gradients are not"),
        (lambda x: (2 * x).tolist(), "Expected a PyTorch tensor, found a list"),
        (lambda x: (2 * x, x), "found a tuple"),
        (lambda x: 2 * x.numpy(), "Expected a PyTorch tensor, found a NumPy array"),
        (lambda x: None, "found None.\n  Is a return missing?"),
        (lambda x: (2 * x.double() * (1 + 3e-5)).to(x.dtype), "where"),
        (
            lambda x: (x.add_(0), 2 * x)[1],
            "The answer changes its input; it should work on a copy.",
        ),
        (lambda x: 2 * x > 0, "found truth values"),
        (
            lambda x: x * 2 if x.shape[0] == 1 else 2 * x[:1].expand(2, -1),
            "3 of 6 differ, most at [1, ",
        ),
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
    thread = threading.Thread(
        target=lambda: said.append(checked(monkeypatch, DOUBLED, lambda x: 2 * x))
    )
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
    assert settings == (
        torch.get_num_threads(),
        threading.active_count(),
        signal.getsignal(signal.SIGALRM),
    )
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
        "Expected the weights project.weight [2, 3], project.bias [2], found layer.weight [2, 3], "
        "layer.bias [2]." in checked(monkeypatch, linear, Renamed)
    )
    message = checked(monkeypatch, linear, WithoutBiasGradient)
    assert "expected gradient of project.bias" in message
    assert "wide = 3\n  out = 2\n  x = float32 [4, 3]" in message
    assert "not expected: spare, more." in checked(monkeypatch, linear, WithAnotherWeight)


def linear_cases(generator):
    for length in (1, 3):
        for dtype in (torch.float32, torch.float64):
            yield (3, 2), torch.randn(length, 3, generator=generator, dtype=dtype)


LINEAR = Exercise("linear", Linear, linear_cases, run=build)


class Kept(Linear):
    def forward(self, x):
        self.kept = getattr(self, "kept", None)
        if self.kept is None:
            self.kept = self.project(x)
        return self.kept


class KeptByClass(Linear):
    def __init__(self, wide, out):
        super().__init__(wide, out)
        KeptByClass.last = self.project

    def forward(self, x):
        return KeptByClass.last(x)


class InTraining(Linear):
    def forward(self, x):
        return self.project(x) + 0.1 * self.training


class Shrinking(Linear):
    def forward(self, x):
        output = self.project(x)
        self.project.weight.data *= 0.99
        return output


class Growing(Linear):
    def __init__(self, wide, out):
        super().__init__(wide, out)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.project(x) * (1 if self.calls < 2 else 2)


class KeptByLength(Linear):
    """A cache that is right: by what it depends on."""

    tables: ClassVar[dict] = {}

    def forward(self, x):
        key = x.shape, x.dtype
        if key not in self.tables:
            self.tables[key] = torch.ones(x.shape[0], 1, dtype=x.dtype)
        return self.project(x) * self.tables[key]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Kept,
            "right in the first call of an instance, wrong in a second one:\n  wide = 3, out = "
            "2\n  first call: x =",
        ),
        (Growing, "right in the first call of an instance, wrong in a second one"),
        (KeptByClass, "wrong"),
        (InTraining, "right in evaluation mode, wrong in training mode"),
        (Shrinking, "changes its weight project.weight"),
    ],
)
def test_a_module_that_depends_on_other_calls_is_refused(monkeypatch, answer, words):
    message = checked(monkeypatch, LINEAR, answer)
    assert words in message
    assert len(message.splitlines()) <= checking.MOST_LINES


def test_a_cache_by_all_that_counts_is_right(monkeypatch):
    assert "right" in checked(monkeypatch, LINEAR, KeptByLength)


def test_a_function_that_depends_on_other_calls_is_refused(monkeypatch):
    def kept_by_shape(x, cache={}):  # noqa: B006 - the fault
        return cache.setdefault((x.shape, x.dtype), 2 * x.detach()) + 2 * (x - x.detach())

    assert "wrong in a second round with other numbers" in checked(
        monkeypatch, DOUBLED, kept_by_shape
    )


def test_a_number_has_to_be_one_where_a_number_is_asked_for(monkeypatch):
    def cases(generator):
        yield (torch.randn(3, generator=generator),)

    for asked, passes in ((True, False), (False, True)):
        total = Exercise(
            "total", lambda x: x.sum().item(), cases, gradients=False, same_dtype=asked
        )
        assert ("right" in checked(monkeypatch, total, torch.sum)) == passes
        assert "right" in checked(monkeypatch, total, lambda x: float(x.sum()))
        assert "right" in checked(monkeypatch, total, lambda x: x.sum().numpy()[()])


def lesson_names(lab, *changes):
    """The names of a lesson with several solutions changed."""
    cells = [
        cell
        for cell in read_lesson(lab)
        if cell.exercise or "setup" in cell.metadata.get("tags", ())
    ]
    edits = {exercise: (before, after) for exercise, before, after in changes}
    return run_cells(
        changed(cell.source, *edits[cell.exercise]) if cell.exercise in edits else cell.source
        for cell in cells
    )


NO_ROOT = ("attention", " / q.shape[-1] ** 0.5", "")


@pytest.mark.parametrize(
    ("exercise", "name"),
    [("heads", "MultiHeadAttention"), ("encoder_layer", "EncoderLayer"), ("model", None)],
)
def test_a_wrong_earlier_exercise_is_named(exercise, name):
    names = lesson_names("lookup", NO_ROOT)
    message = said("lookup", exercise, names[name or "CrossAttentionLookupModel"])
    first, second = message.splitlines()[:2]
    assert first == (
        f"{exercise}: wrong. It uses scaled_dot_product_attention of the exercise attention, "
        "which is wrong; "
        "correct that first."
    )
    assert second.startswith("attention: wrong in ")
    assert len(message.splitlines()) <= checking.MOST_LINES
    assert said("lookup", "dataset", names["LookupDataset"]) is None


def test_a_wrong_exercise_after_right_ones_is_its_own():
    names = lesson_names(
        "lookup", ("heads", "heads.transpose(1, 2).flatten(2)", "heads.reshape(x.shape)")
    )
    assert said("lookup", "heads", names["MultiHeadAttention"]).startswith("heads: wrong in ")


def test_the_lowest_training_loss_is_told_from_the_last_epoch():
    change = (
        "if val_loss < lowest:",
        "val_loss = history['train_loss'][-1]\n        if val_loss < lowest:",
    )
    message = said("lookup", "training", lesson_answer("lookup", "training", change))
    assert message.endswith(
        "the weights with the lowest training loss are kept; the validation loss decides."
    )
    assert len(message.splitlines()) <= checking.MOST_LINES


@pytest.mark.parametrize("exercise", ["attention", "sliding-attention"])
def test_a_scale_that_is_ignored_is_shown_by_numbers(exercise):
    change = {
        "attention": ("scale * (q @", "q.shape[-1] ** -0.5 * (q @"),
        "sliding-attention": ("rope, scale, device", "rope, q.shape[-1] ** -0.5, device"),
    }[exercise]
    message = said("gpt_oss", exercise, lesson_answer("gpt_oss", exercise, change))
    for part in ("q = float32 [1, 1, 2, 2] [[", "scale = 1.0", "expected float32 [1, 1, 2, 2] [["):
        assert part in message


def test_of_failing_cases_the_smallest_is_shown(monkeypatch):
    def cases(generator):
        for length in (5, 2, 4, 3):
            yield (torch.randn(length, generator=generator),)

    doubled = Exercise("doubled", lambda x: 2 * x, cases)
    message = checked(monkeypatch, doubled, lambda x: x if len(x) > 2 else 2 * x)
    assert "wrong in 3 of 4 cases. The smallest is case 4:\n  x = float32 [3]" in message


def test_large_arguments_are_shown_in_few_lines(monkeypatch):
    def cases(generator):
        yield tuple(torch.randn(9, 30, generator=generator) for _ in range(12))

    message = checked(
        monkeypatch, Exercise("sum", lambda *parts: sum(parts), cases), lambda *parts: parts[0]
    )
    assert len(message.splitlines()) <= checking.MOST_LINES
    assert max(map(len, message.splitlines())) <= 2 * checking.WIDTH


def test_a_verdict_judges_data(monkeypatch):
    seen = []

    def judge(data, seed):
        seen.append((data, seed))
        return Judgement(
            data == [[1.0, 2.0]], "on every input" if data == [[1.0, 2.0]] else "not on 'AB'", "AB"
        )

    verdict = Verdict("weights", judge)
    assert checked(monkeypatch, verdict, np.array([[1, 2.0]]), seed=3) == "weights: on every input"
    assert (
        checked(monkeypatch, verdict, lambda: torch.tensor([[1, 2.0]])) == "weights: on every input"
    )
    assert checked(monkeypatch, verdict, ((1, 3.0),)) == "weights: not on 'AB'"
    assert seen == [([[1.0, 2.0]], 3), ([[1.0, 2.0]], 0), ([[1, 3.0]], 0)]
    assert "not answered yet" in checked(
        monkeypatch, verdict, lambda: (_ for _ in ()).throw(NotImplementedError())
    )
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
    monkeypatch.setitem(
        __import__("sys").modules, "IPython", SimpleNamespace(get_ipython=lambda: shell)
    )
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
        (
            torch.tensor([torch.nan, -torch.inf, 1e6]),
            torch.tensor([torch.nan, -torch.inf, 1e6 + 1]),
        ),
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
        (np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-8])),
        (
            torch.tensor([1.0, 2.0], dtype=torch.float64),
            torch.tensor([1.0, 2.0 + 1e-4], dtype=torch.float64),
        ),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (2, 2.5),
        (torch.zeros(0, 3), torch.zeros(0, 4)),
        (np.ones(2), [[1.0], [1.0, 2.0]]),
        (torch.tensor(2**60), torch.tensor(2**60 + 1)),
    ],
)
def test_different_results(expected, found):
    assert difference(expected, found, 1e-5) is not None


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30)
)
def test_a_result_is_equal_to_itself_and_not_to_one_with_a_number_moved(numbers):
    one = np.array(numbers, dtype=np.float64)
    assert difference(one, one.copy(), 1e-5) is None
    other = one.copy()
    other[-1] += max(0.1, float(np.abs(one).max())) * 2e-9
    assert difference(one, other, 1e-5).text.startswith("1 of")


def test_small_tensors_are_shown_with_rounded_numbers_and_large_ones_by_their_shape():
    assert (
        show(torch.tensor([[0.123456, 2.0], [-1e-9, 3.0]]))
        == "float32 [2, 2]\n[[0.1235, 2],\n [-1e-09, 3]]"
    )
    assert show(torch.zeros(50)) == "float32 [50]"
    assert show((torch.tensor([True]), 3)) == "[0] bool [1] [True]\n[1] 3"
