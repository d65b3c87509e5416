from collections.abc import Callable

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.data.batches import TextBatches, in_length_order, pad
from refusals import refused

ROWS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=40)


@given(rows=ROWS, extra=st.none() | st.integers(0, 5))
def test_padding_fills_up_on_the_right(rows: list[list[int]], extra: int | None) -> None:
    longest = max(map(len, rows))
    tokens, real = pad(rows, 7, None if extra is None else longest + extra)
    assert tokens.shape == real.shape == (len(rows), longest + (extra or 0))
    for row, filled, mask in zip(rows, tokens.tolist(), real.tolist(), strict=True):
        assert filled == row + [7] * (len(filled) - len(row))
        assert mask == [True] * len(row) + [False] * (len(filled) - len(row))


@given(lengths=st.lists(st.integers(1, 9), max_size=30), size=st.integers(1, 8))
def test_the_order_of_lengths_has_every_row_once(lengths: list[int], size: int) -> None:
    batches = in_length_order(lengths, size)
    order = [row for batch in batches for row in batch]
    assert order == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert len(batches) == -(-len(lengths) // size)


@given(rows=ROWS, size=st.integers(1, 7), seed=st.integers(0, 99))
@example(rows=[[1]] * 101, size=1, seed=0)  # in more than one pool
@settings(max_examples=50, deadline=None)
def test_an_epoch_has_every_text_once_with_its_label(
    rows: list[list[int]], size: int, seed: int
) -> None:
    labels = list(range(len(rows)))
    batches = TextBatches(rows, labels, 0, seed=seed)
    steps = batches.steps_per_epoch(size)
    for epoch in range(2):
        seen = []
        sizes = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            batch = batches(step, size)
            sizes.append(len(batch["labels"]))
            lengths = batch["real"].sum(dim=1)
            assert int(lengths.max()) == batch["tokens"].shape[1]
            for tokens, real, label in zip(
                batch["tokens"], batch["real"], batch["labels"].tolist(), strict=True
            ):
                assert tokens[real].tolist() == rows[label]
                seen.append(label)
        assert sorted(seen) == labels
        left = len(rows) % size or size
        assert sorted(sizes) == sorted([size] * (steps - 1) + [left])


def test_a_batch_is_a_function_of_the_step_alone() -> None:
    rows = [[label] * (1 + label % 5) for label in range(23)]
    forwards = TextBatches(rows, range(23), 0, seed=3)
    backwards = TextBatches(rows, range(23), 0, seed=3)
    expected = [forwards(step, 4) for step in range(18)]
    for step in reversed(range(18)):
        for name, tensor in backwards(step, 4).items():
            assert torch.equal(tensor, expected[step][name])
    # Another size in between, and the same again.
    backwards(2, 5)
    assert torch.equal(backwards(0, 4)["tokens"], expected[0]["tokens"])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    rows = [[label + 1] for label in range(100)]
    orders = {
        tuple(TextBatches(rows, range(100), 0, seed=seed)(epoch, 100)["labels"].tolist())
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6


def test_neighbours_in_length_need_little_padding() -> None:
    rng = np.random.default_rng(0)
    rows = [[1] * length for length in rng.integers(2, 60, size=1600).tolist()]

    batches = TextBatches(rows, [0] * len(rows), 0)
    sorted_, in_order = (
        1 - float(torch.stack([batch["real"].float().mean() for batch in found]).mean())
        for found in (
            [batches(step, 32) for step in range(50)],
            [batches.gather(range(32 * step, 32 * step + 32)) for step in range(50)],
        )
    )
    assert sorted_ < 0.05
    assert in_order > 0.4


def test_labels_may_be_numpys_and_rows_very_long() -> None:
    batches = TextBatches([[1] * 100_001, [2]], np.array([1, 0]), 0)  # type: ignore[arg-type]
    batch = batches.gather([0, 1])
    assert batch["labels"].tolist() == [1, 0]
    assert batch["tokens"].shape == (2, 100_001)
    assert batch["real"].sum(1).tolist() == [100_001, 1]


def test_sorted_batches_come_in_no_order_of_length() -> None:
    rows = [[1] * length for length in range(1, 401)]
    batches = TextBatches(rows, [0] * 400, 0)
    widths = [batches(step, 8)["tokens"].shape[1] for step in range(50)]
    # The correlation of fifty places in random order is within 0.46 in 99.9 % of the cases; sorted,
    # it would be 1.
    assert abs(np.corrcoef(widths, range(50))[0, 1]) < 0.46


def test_wrong_arguments_are_refused() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: pad([], 0), "no rows"),
        (lambda: pad([[1], []], 0), "a row without tokens"),
        (lambda: pad([[1, 2]], 0, length=1), "length = 1 for a row of 2"),
        (lambda: pad(["12"], 0), "the text '12' as a row"),  # type: ignore[list-item]
        (lambda: TextBatches(["12"], [0], 0), "the text '12' as a row"),  # type: ignore[list-item]
        (lambda: TextBatches([[1], [2]], [0], 0), "2 texts with 1 labels"),
        (lambda: TextBatches([], [], 0), "0 texts"),
        (lambda: TextBatches([[1]], [-1], 0), "the label -1"),
        (lambda: TextBatches([[]], [0], 0), "a row without tokens"),
        (lambda: TextBatches([[1]], [0], 0, seed=-1), "seed"),
        (lambda: TextBatches([[1]], [0], 0)(-1, 1), "step"),
        (lambda: TextBatches([[1]], [0], 0)(0, 0), "size"),
        (lambda: in_length_order([1], 0), "size"),
    ]
    for call, got in calls:
        with refused(got, expected="token ids" if "12" in got else None):
            call()
    for row in ([1.5], ["3"], [2**70], np.array([2.0])):
        with refused("a row with another thing than tokens", expected="whole numbers"):
            pad([[1], row], 0)  # type: ignore[list-item]
    for label in (0.5, "1", None, 1 << 40, float("nan")):
        with refused(f"the label {label!r}$", expected="whole numbers from 0"):
            TextBatches([[1], [2]], [1, label], 0)  # type: ignore[list-item]
