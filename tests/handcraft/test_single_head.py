import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead, run_head
from refusals import refused


def random_head(
    seed: int,
    input_dim: int = 4,
    qk_dim: int = 3,
    v_dim: int = 2,
    pos_dim: int = 0,
    scale: float = 1.0,
) -> HeadWeights:
    rng = np.random.default_rng(seed)
    rows = input_dim + pos_dim
    km, qm, vm = (scale * rng.normal(size=(rows, columns)) for columns in (qk_dim, qk_dim, v_dim))
    return HeadWeights(km, qm, vm, rng.normal(size=(6, pos_dim)) if pos_dim else None)


shapes = {
    "input_dim": st.integers(1, 5),
    "qk_dim": st.integers(1, 5),
    "v_dim": st.integers(1, 4),
    "pos_dim": st.integers(0, 4),
}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 6),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    **shapes,
)
def test_the_twins_agree_with_one_another_and_with_the_textbook(
    seed: int, length: int, scale: float, input_dim: int, qk_dim: int, v_dim: int, pos_dim: int
) -> None:
    head = random_head(seed, input_dim, qk_dim, v_dim, pos_dim, scale)
    seq = np.random.default_rng(seed + 1).normal(size=(length, input_dim))
    by_numpy = NumpyHead(head)(seq)
    by_torch = SingleHead.from_weights(head)(torch.from_numpy(seq)).detach().numpy()
    np.testing.assert_allclose(by_numpy, by_torch, rtol=1e-12, atol=1e-12)
    x = head.with_positions(seq)
    q, k, v = (torch.from_numpy(x @ matrix) for matrix in (head.Qm, head.Km, head.Vm))
    textbook = torch.nn.functional.scaled_dot_product_attention(q, k, v).numpy()
    np.testing.assert_allclose(by_numpy, textbook, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("pos_dim", [0, 2])
def test_a_padded_batch_is_its_sequences_one_by_one(pos_dim: int) -> None:
    head = random_head(0, pos_dim=pos_dim)
    rng = np.random.default_rng(1)
    sequences = [rng.normal(size=(length, 4)) for length in (3, 6, 1)]
    batch = torch.full((3, 6, 4), 7.0, dtype=torch.float64)
    real = torch.zeros(3, 6, dtype=torch.bool)
    for row, seq in enumerate(sequences):
        batch[row, : len(seq)], real[row, : len(seq)] = torch.from_numpy(seq), True
    out = SingleHead.from_weights(head)(batch, real).detach().numpy()
    for row, seq in enumerate(sequences):
        np.testing.assert_allclose(
            out[row, : len(seq)], NumpyHead(head)(seq), rtol=1e-12, atol=1e-12
        )
        assert (out[row, len(seq) :] == 0).all()


def test_scores_whose_exponential_overflows_are_weights_like_any_others() -> None:
    head = HeadWeights([[1000.0], [0.0]], [[1.0], [1.0]], np.eye(2))
    seq = np.eye(2)
    with np.errstate(over="raise", invalid="raise"):
        out = NumpyHead(head)(seq)
    np.testing.assert_array_equal(out, [[1, 0], [1, 0]])
    np.testing.assert_array_equal(
        SingleHead.from_weights(head)(torch.from_numpy(seq)).detach().numpy(), out
    )


def test_a_trace_holds_what_its_names_say() -> None:
    head = random_head(3, pos_dim=2)
    seq = np.random.default_rng(4).normal(size=(5, 4))
    trace = NumpyHead(head).trace(seq)
    x = head.with_positions(seq)
    for found, matrix in ((trace.K, head.Km), (trace.Q, head.Qm), (trace.V, head.Vm)):
        np.testing.assert_allclose(found, x @ matrix, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        trace.scores, (x @ head.Qm) @ (x @ head.Km).T / math.sqrt(3), rtol=1e-12
    )
    np.testing.assert_allclose(trace.weights.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(trace.output, trace.weights @ trace.V, rtol=1e-12, atol=1e-14)
    assert (trace.K.shape, trace.Q.shape, trace.V.shape) == ((5, 3), (5, 3), (5, 2))


def test_the_explanation_shows_every_table() -> None:
    head = HeadWeights([[1.0], [0.0]], [[2.0], [0.0]], [[3.0], [4.0]])
    text = NumpyHead(head).explain(np.eye(2), ["first", "second"])
    assert "query 0 (first)" in text
    assert "first     2.0000     0.8808" in text  # score 2, weight 1 / (1 + e^-2)
    assert "output      3.1192" in text
    with refused(r"3 names for 2 positions"):
        NumpyHead(head).explain(np.eye(2), ["a", "b", "c"])


@pytest.mark.parametrize("pos_dim", [0, 3])
def test_weights_go_to_the_other_twin_and_back_unchanged(pos_dim: int) -> None:
    head = random_head(5, pos_dim=pos_dim)
    back = SingleHead.from_weights(head).to_weights()
    assert list(back.matrices) == list(head.matrices)
    for name, matrix in head.matrices.items():
        np.testing.assert_array_equal(back.matrices[name], matrix)


def test_from_weights_takes_a_dtype() -> None:
    assert {
        p.dtype for p in SingleHead.from_weights(random_head(6), torch.float32).parameters()
    } == {torch.float32}


def test_weights_are_copied_and_read_only() -> None:
    given_matrix = np.ones((2, 2))
    head = HeadWeights(given_matrix, given_matrix, given_matrix)
    given_matrix[0, 0] = 5
    assert head.Km[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        head.Km[0, 0] = 5


def test_gradients_reach_every_weight() -> None:
    head = SingleHead(3, 2, 2, pos_dim=2, max_seq_len=4)
    head(torch.randn(5, 4, 3), torch.arange(4).expand(5, 4) < 3).square().sum().backward()
    assert {
        name for name, p in head.named_parameters() if p.grad is not None and bool(p.grad.any())
    } == {
        "Qm.weight",
        "Km.weight",
        "Vm.weight",
        "pos.weight",
    }


square = np.eye(3)


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ({"Km": np.eye(2)}, r"Km of shape \[2, 2\], Qm of shape \[3, 3\]"),
        ({"Km": np.ones((3, 2))}, r"Km of shape \[3, 2\], Qm of shape \[3, 3\]"),
        ({"Vm": np.ones((4, 3))}, r"Vm of shape \[4, 3\]"),
        ({"pos": np.ones((4, 3))}, "pos of 3 columns with matrices of 3 rows"),
        ({"Km": np.ones(3)}, r"Km of shape \[3\]"),
        ({"Vm": np.ones((3, 0))}, r"Vm of shape \[3, 0\]"),
        ({"Qm": np.diag([1, np.nan, 1])}, r"Qm\[1, 1\] = nan"),
        ({"Vm": np.diag([1, 1, -np.inf])}, r"Vm\[2, 2\] = -inf"),
        ({"Km": [[1.0, 2.0], [3.0]]}, "Km, which is not a table"),
        ({"Km": [["a"]]}, "a matrix of numbers"),
        ({"Km": np.array([[None]])}, "a matrix of numbers"),
        ({"Km": np.array([[1j]])}, "a matrix of numbers"),
    ],
)
def test_matrices_that_are_none_are_refused(matrices: dict[str, Any], message: str) -> None:
    with refused(anywhere=message):
        HeadWeights(**{"Km": square, "Qm": square, "Vm": square, **matrices})


def test_sequences_that_do_not_fit_are_refused() -> None:
    head = random_head(7, pos_dim=2)
    for twin in (NumpyHead(head), lambda seq: SingleHead.from_weights(head)(torch.from_numpy(seq))):
        with refused(r"(vectors of length 5|shape \[2, 5\])"):
            twin(np.ones((2, 5)))
        with refused("a sequence of 7 positions"):
            twin(np.ones((7, 4)))
    with refused(expected="at least one row"):
        NumpyHead(head)(np.ones((0, 4)))
    with refused("real with a single sequence"):
        run_head(
            torch.ones(2, 3),
            torch.ones(3, 1),
            torch.ones(3, 1),
            torch.ones(3, 1),
            None,
            torch.ones(1, 2).bool(),
        )


def test_sizes_that_are_none_are_refused() -> None:
    with refused("qk_dim = 0"):
        SingleHead(3, 0, 2)
    with refused("pos_dim = 2 without max_seq_len"):
        SingleHead(3, 1, 2, pos_dim=2, max_seq_len=None)
