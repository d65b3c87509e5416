"""The course's own names: transformers, plots and comparison; its cases as loops, its log, its
training loop.
"""

import json
import linecache
import math
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.course.lessons import read_lesson
from glassformer.labs.hand_designed import (
    NumpyTransformer,
    PlotConfig,
    PytorchTransformer,
    TrainingConfig,
    compare_transformers,
    course_tasks,
    hand_designed_weights,
    make_batch_first,
    make_batch_identity,
    make_batch_unique,
    rescale_and_plot,
    save_figure,
    set_random_seed,
    train_loop,
)
from refusals import refused

PANELS = ["Km", "Qm", "Vm", "K", "Q", "V", "Attn", "Out"]
ONE_HOT = list(np.eye(3))
WITH_CLS = list(np.eye(4)[:3])
GENERATE = {
    "identity": (course_tasks.generate_test_cases_identity, ONE_HOT),
    "copy_first": (course_tasks.generate_test_cases_first, ONE_HOT),
    "unique": (course_tasks.generate_test_cases_unique, WITH_CLS),
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The titles of the panels of every figure that was shown."""
    seen: list[list[str]] = []
    monkeypatch.setattr(plt, "show", lambda: seen.append([ax.get_title() for ax in plt.gcf().axes]))
    return seen


def test_verbose_prints_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    eye = np.eye(2)
    NumpyTransformer(eye, 3 * eye, 7 * eye).forward(eye, verbose=True)
    text = capsys.readouterr().out
    score = 3 / np.sqrt(2)
    weight = np.exp(3 / np.sqrt(2)) / (1 + np.exp(3 / np.sqrt(2)))
    for number in (3, 7, score, weight, 7 * weight):
        assert f"{number:.4f}" in text


def image(ax) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def test_a_matrix_is_rescaled_to_the_unit_interval() -> None:
    _, axes = plt.subplots(1, 2)
    rescale_and_plot(np.array([[3, 5], [7, 4]]), "T", axes[0], "columns", "rows")
    np.testing.assert_allclose(image(axes[0]), [[0, 0.5], [1, 0.25]])
    assert (axes[0].images[0].get_clim(), axes[0].images[0].get_cmap().name) == ((0, 1), "Reds")
    assert (axes[0].get_title(), axes[0].get_xlabel(), axes[0].get_ylabel()) == (
        "T",
        "columns",
        "rows",
    )
    assert [*axes[0].get_xticks(), *axes[0].get_yticks()] == []
    plt.sca(axes[1])
    rescale_and_plot(
        np.full((2, 3), 7.0), colormap="Blues", vmin=-1, vmax=2, show_xticks=True, show_yticks=True
    )
    assert (image(axes[1]) == 0).all()
    assert axes[1].images[0].get_clim() == (-1, 2)
    assert (axes[1].get_xticks().tolist(), axes[1].get_yticks().tolist()) == ([0, 1, 2], [0, 1])
    plt.close("all")


def test_the_panels_are_shown_and_saved(
    shown: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = PlotConfig(
        save_dir=str(tmp_path), add_timestamp=False, save_format="svg", nrows=2, ncols=5
    )
    transformer = NumpyTransformer(**hand_designed_weights("copy_first"))
    transformer.forward(np.eye(3), plot=True, config=config)
    assert [titles[:8] for titles in shown] == [PANELS]
    assert not list(tmp_path.iterdir())
    transformer.forward(
        np.eye(3), save_plot=True, plot_name="head", run_name="first", config=config
    )
    assert len(shown) == 1
    saved = tmp_path / "first" / "head.svg"
    assert "Attn" in saved.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"figure saved: {saved}\n"
    transformer.forward(
        np.eye(3), config=PlotConfig(save_dir=str(tmp_path), add_timestamp=False, auto_save=True)
    )
    assert (tmp_path / "transformer_attention.png").exists()
    assert plt.get_fignums() == []


def test_files_carry_name_time_and_format(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    timed = save_figure(figure, "a", str(tmp_path), "pdf", run_name="run 1")
    assert timed.parent == tmp_path / "run 1"
    assert re.fullmatch(r"a_\d{8}_\d{6}\.pdf", timed.name)
    assert timed.read_bytes().startswith(b"%PDF")
    heights = [
        plt.imread(save_figure(figure, "b", str(tmp_path), "png", dpi, add_timestamp=False)).shape[
            0
        ]
        for dpi in (40, 80)
    ]
    assert heights[1] == pytest.approx(2 * heights[0], abs=2)
    with refused("^name = "):
        save_figure(figure, "../up", str(tmp_path), add_timestamp=False)
    with refused("'gif'"):
        save_figure(figure, "a", str(tmp_path), "gif")


def test_comparing_draws_both_and_returns_both_outputs(
    shown: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand = NumpyTransformer(**hand_designed_weights("unique"))
    learned = PytorchTransformer(4, hand.qk_dim, 1, 5, 5)
    sequence = np.eye(4)[[3, 0, 1, 2, 2]]
    config = PlotConfig(save_dir=str(tmp_path), add_timestamp=False)
    outputs = compare_transformers(
        hand, learned, sequence, save_plot=True, run_name="unique", config=config
    )
    assert outputs[0][1:].ravel().tolist() == pytest.approx([1, 1, -1, -1], abs=1e-9)
    np.testing.assert_allclose(
        outputs[1], learned(torch.tensor(sequence).float()).detach().numpy(), rtol=1e-5
    )
    assert shown == [PANELS, PANELS]
    assert {path.name for path in (tmp_path / "unique").iterdir()} == {
        "hand_designed.png",
        "learned.png",
    }
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip("= ") for line in lines if line.startswith("=")] == [
        "Hand Designed",
        "Learned",
    ]


@pytest.mark.parametrize("task", GENERATE)
def test_designed_weights_solve_random_cases(task: str) -> None:
    weights, (generate, tokens) = hand_designed_weights(task), GENERATE[task]
    assert set(weights) == {"Km", "Qm", "Vm", "pos"}
    assert (weights["pos"] is None) == (task == "identity")
    for _ in range(50):
        sequence, target = generate(tokens)
        output = NumpyTransformer(**weights).forward(sequence)
        np.testing.assert_allclose(output[-len(target) :], target, atol=1e-9)
    for other in ("sort", "parity"):
        with refused(anywhere=other):
            hand_designed_weights(other)


def drawn(seed: int, max_len: int) -> list[int]:
    """The letters that the course's generator draws: a length from NumPy, the letters from Python."""
    set_random_seed(seed)
    length = np.random.randint(1, max_len)  # noqa: NPY002
    return random.choices(range(3), k=length)


@pytest.mark.parametrize("seed", range(8))
def test_each_task_gives_the_courses_sequence_and_target(seed: int) -> None:
    letters = drawn(seed, 7)
    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_identity(ONE_HOT)
    assert sequence.argmax(axis=1).tolist() == target.argmax(axis=1).tolist() == letters

    letters = drawn(seed, 5)
    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_first(ONE_HOT)
    assert sequence.argmax(axis=1).tolist() == letters
    assert target.argmax(axis=1).tolist() == [letters[0]] * len(letters)

    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_unique(WITH_CLS)
    assert sequence.argmax(axis=1).tolist() == [3, *letters]
    assert target.ravel().tolist() == [
        1 if letters.count(letter) == 1 else -1 for letter in letters
    ]


def test_batches_are_the_same_cases_in_float32() -> None:
    for task, (generate, tokens) in GENERATE.items():
        set_random_seed(5)
        batch = course_tasks.MAKE_BATCH[task]()
        set_random_seed(5)
        for tensor, expected in zip(batch, generate(tokens), strict=True):
            assert tensor.dtype == torch.float32
            assert (tensor.numpy() == expected).all()


def test_any_vectors_may_be_tokens() -> None:
    tokens = [np.array([2, 2, 0]), np.array([1, 3, 0])]
    sequence, target = course_tasks.generate_test_cases_unique(tokens, max_len=40)
    rows = [tuple(row) for row in sequence[1:]]
    assert sequence[0].tolist() == [0, 0, 1]
    assert target.ravel().tolist() == [1 if rows.count(row) == 1 else -1 for row in rows]


def test_the_shown_sequences_are_the_courses() -> None:
    vectors, names = course_tasks.shown_sequence("unique")
    assert names == ["CLS", "A", "B", "C", "C"]
    assert vectors.argmax(axis=1).tolist() == [3, 0, 1, 2, 2]
    assert course_tasks.shown_sequence("copy_first")[1] == ["A", "B", "B"]
    assert course_tasks.shown_sequence("identity")[1] == ["A", "B", "B", "C", "C"]


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    return json.loads(json.dumps(course_tasks.submission(), allow_nan=False))


def test_the_log_has_the_courses_entries(log: dict[str, Any]) -> None:
    torch_part = {f"torch_transformer_{name}" for name in ("shape", "value", "init", "forward")}
    content = {"attention_by_content", *(f"attention_by_content_{name}" for name in "QKV")}
    position = {
        "attention_by_position",
        *(f"attention_by_position_{name}" for name in ("pos", *"QKV")),
    }
    assert set(log) == {"time"} | torch_part | content | position
    assert (
        log["attention_by_content_Q"] == hand_designed_weights("identity")["Qm"].flatten().tolist()
    )


def test_the_log_has_every_entry_that_the_document_names(
    log: dict[str, Any], documents: Path
) -> None:
    text = (documents / "hand_designed.txt").read_text(encoding="utf-8")
    assert list(log) == ["time", *re.findall(r'TO_SAVE\["(\w+)"\] =', text)]


def test_the_torch_part_is_the_result_of_the_courses_seed(log: dict[str, Any]) -> None:
    torch.manual_seed(1998)
    pos = torch.nn.Embedding(9, 2).weight
    query, key, value = (torch.nn.Linear(9, size, bias=False).weight for size in (4, 4, 3))
    x = torch.cat([torch.randn(8, 7), pos[:8]], dim=1)
    out = ((x @ query.T) @ (x @ key.T).T / 2).softmax(dim=-1) @ (x @ value.T)
    assert log["torch_transformer_shape"] == [8, 3]
    assert log["torch_transformer_value"] == pytest.approx(out.flatten()[2:7].tolist(), rel=1e-5)


def test_the_lesson_saves_the_same_entries_with_its_own_class(
    log: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = []
    for cell in read_lesson("hand_designed"):
        if (
            cell.exercise
            or "setup" in cell.metadata.get("tags", ())
            or "submission_log.json" in cell.source
        ):
            sources += [cell.source] if cell.kind == "code" else []
        sources += re.findall(
            r"^def draw\(.*?^    return .*?\n", cell.source, re.MULTILINE | re.DOTALL
        )
    text = "\n\n".join(sources)
    # Where inspect finds a source, as it does in a notebook.
    monkeypatch.setitem(
        linecache.cache, "<lesson>", (len(text), None, text.splitlines(keepends=True), "<lesson>")
    )
    names = {"__name__": "lesson"}
    exec(compile(text, "<lesson>", "exec"), names)
    saved = json.loads((tmp_path / "submission_log.json").read_text(encoding="utf-8"))
    assert set(saved) == set(log)
    assert saved["torch_transformer_value"] == pytest.approx(
        log["torch_transformer_value"], rel=1e-5
    )
    for name in ("attention_by_content", "attention_by_position"):
        assert saved[name] == pytest.approx(log[name], abs=1e-3)
    assert "softmax(dim=-1) @ V" in saved["torch_transformer_forward"]
    assert saved["torch_transformer_init"].count("nn.Linear") == 3


def test_the_logged_sources_are_the_whole_computation(log: dict[str, Any]) -> None:
    """A class of nothing but the two texts and PyTorch gives the logged numbers; only checks of
    sizes are left out.
    """
    names = {"torch": torch, "nn": nn, "math": math, "Tensor": Tensor, "Float": Float}
    names |= dict.fromkeys(("_require_sizes", "_require_sequence"), lambda *sizes: None)
    exec(
        f"class Rebuilt(nn.Module):\n{log['torch_transformer_init']}\n{log['torch_transformer_forward']}",
        names,
    )
    torch.manual_seed(1998)
    out = names["Rebuilt"](7, 4, 3, 2, 9)(torch.randn(8, 7))
    assert log["torch_transformer_value"] == out.flatten().tolist()[2:7]


def test_the_published_log_is_that_of_todays_sources(log: dict[str, Any]) -> None:
    folder = Path(__file__).resolve().parents[3] / "docs" / "labs" / "hand-designed"
    published = json.loads((folder / "submission_log.json").read_text(encoding="utf-8"))
    assert (
        json.loads((folder / "results.json").read_text(encoding="utf-8"))["submission"] == published
    )
    assert list(published) == list(log)
    for name, value in log.items():
        if isinstance(value, str):
            assert published[name] == value
        elif name != "time":
            assert published[name] == pytest.approx(value, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "seed", "max_len", "first"),
    [("attention_by_content", 1997, 7, False), ("attention_by_position", 2017, 5, True)],
)
def test_the_logged_weights_give_the_target(
    log: dict[str, Any], name: str, seed: int, max_len: int, first: bool
) -> None:
    letters = drawn(seed, max_len)
    x = np.eye(3)[letters]
    if first:
        x = np.concatenate([x, np.reshape(log[f"{name}_pos"], (4, -1))[: len(x)]], axis=1)
    K, Q, V = (x @ np.reshape(log[f"{name}_{key}"], (x.shape[1], -1)) for key in "KQV")
    weights = np.exp(Q @ K.T / math.sqrt(K.shape[1]))
    expected = weights / weights.sum(axis=1, keepdims=True) @ V
    assert log[name] == pytest.approx(expected.flatten().tolist(), abs=1e-12)
    wanted = np.eye(3)[[letters[0]] * len(letters) if first else letters]
    assert log[name] == pytest.approx(wanted.flatten().tolist(), abs=1e-3)


# The run-time check of annotations draws from Python's generator, as the course's batches do.
unchecked = pytest.mark.usefixtures("without_type_checks")
SGD = torch.optim.SGD


@unchecked
@pytest.mark.parametrize(
    ("make_batch", "sizes", "config", "optimizer"),
    [
        (make_batch_identity, (3, 3, 3), {}, partial(SGD, lr=0.1)),
        (make_batch_first, (3, 1, 3, 4, 4), {}, partial(SGD, lr=0.1)),
        (make_batch_unique, (4, 8, 1, 4, 5), {}, partial(SGD, lr=0.1)),
        (
            make_batch_identity,
            (3, 3, 3),
            {"momentum": 0.5, "weight_decay": 0.1},
            partial(SGD, lr=0.1),
        ),
        # Of a sequence of one letter the gradients of Qm and Km are rounding, which Adam would make
        # steps of.
        (
            make_batch_unique,
            (4, 8, 1, 4, 5),
            {"optimizer": "adam"},
            partial(torch.optim.Adam, lr=0.1),
        ),
        (make_batch_identity, (3, 3, 3), {"loss_fn": "cross_entropy"}, partial(SGD, lr=0.1)),
    ],
)
def test_it_makes_the_updates_of_a_plain_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]],
    sizes: tuple[int, ...],
    config: dict[str, Any],
    optimizer: Callable[..., torch.optim.Optimizer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {
        "remove_cls": make_batch is make_batch_unique,
        "num_epochs": 30,
        "lr": 0.1,
        "log_interval": 10,
    }
    head, loss = train_loop(
        make_batch, *sizes, **options, seed=227, config=TrainingConfig(**config)
    )
    shown = capsys.readouterr().out.split()
    set_random_seed(227)
    plain = PytorchTransformer(*sizes)
    losses = []
    stepper = optimizer(plain.parameters(), **config if "momentum" in config else {})
    loss_fn = nn.CrossEntropyLoss() if "loss_fn" in config else nn.MSELoss()
    for _ in range(30):
        x, target = make_batch()
        if plain.pos is not None:
            x = torch.cat([x, plain.pos.weight[: len(x)]], dim=1)
        q = plain.Qm(x)
        k = plain.Km(x)
        v = plain.Vm(x)
        output = (q @ k.T / q.shape[1] ** 0.5).softmax(dim=1) @ v
        step_loss = loss_fn(output[int(options["remove_cls"]) :], target)
        stepper.zero_grad()
        step_loss.backward()
        stepper.step()
        losses.append(step_loss.item())
    torch.testing.assert_close(
        dict(head.state_dict()), dict(plain.state_dict()), rtol=1e-4, atol=1e-5
    )
    assert loss == pytest.approx(losses[-1], rel=1e-4)
    assert shown[1::4] == ["0:", "10:", "20:"]
    assert [float(number) for number in shown[3::4]] == pytest.approx(
        [losses[i] for i in (0, 10, 20)], abs=2e-6
    )


def test_a_seed_starts_all_three_generators() -> None:
    drawn = []
    for _ in range(2):
        set_random_seed(7)
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    set_random_seed()
    assert random.random() == random.Random(42).random()


def test_defaults_are_the_courses() -> None:
    assert TrainingConfig() == TrainingConfig(10_001, 3e-2, 1000, "sgd", 0.0, 0.0, "mse")


@unchecked
def test_bad_trainings_are_refused() -> None:
    with refused(r"seq of shape \[\d, 3\]"):
        train_loop(make_batch_identity, 4, 3, 3)
    with refused("target of shape", fix="v_dim or remove_cls"):
        train_loop(make_batch_unique, 4, 3, 1, 4, 5)
    with refused("lr = 1000000", fix="Lower lr"):
        train_loop(make_batch_identity, 3, 3, 3, num_epochs=2000, lr=1e6, seed=0)
    assert math.isnan(train_loop(make_batch_identity, 3, 3, 3, num_epochs=0)[1])
