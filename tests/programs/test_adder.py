"""The adder: sums of numbers, its proof, and proofs of broken adders, which must fail."""

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.observe.capture import capture
from glassformer.programs.adder import Adder, _weights, addition_texts, verify_adder

EDGES = [
    (0, 0),
    (0, 1),
    (9_999_999_999, 0),
    (9_999_999_999, 1),
    (9_999_999_999, 9_999_999_999),
    (5_000_000_000, 5_000_000_000),
    (1_111_111_111, 8_888_888_889),
    (1_234_567_890, 9_876_543_210),
    (1, 9_999_999_999),
]
"""AdderBoard's."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_proved_for_all_pairs_and_right_on_many(dtype: torch.dtype) -> None:
    model = Adder(10).to(dtype)
    certificate = verify_adder(model)
    assert certificate.holds
    assert certificate.num_pairs == 10**20
    assert certificate.num_cases == 20_000
    assert 0 < certificate.leak < 1e-6
    assert certificate.num_parameters == sum(each.numel() for each in model.parameters()) <= 100
    assert "HOLDS for all 1e+20" in str(certificate)
    pairs = np.concatenate([EDGES, np.random.default_rng(2025).integers(0, 10**10, (2000, 2))])
    assert (model.add(pairs) == pairs.sum(1)).all()


@pytest.mark.parametrize("num_digits", [6, 9, 15, 18])
def test_numbers_of_other_lengths(num_digits: int) -> None:
    model = Adder(num_digits)
    assert verify_adder(model).holds
    pairs = np.random.default_rng(0).integers(0, 10**num_digits, (200, 2))
    assert (model.add(pairs) == pairs.sum(1)).all()


def test_the_bound_covers_what_the_stream_holds() -> None:
    model = Adder(6).double()
    certificate = verify_adder(model)
    pairs = np.random.default_rng(0).integers(0, 10**6, (500, 2))
    tokens = torch.from_numpy(addition_texts(pairs, 6))
    total = tokens[:, -7:].numpy()
    with torch.inference_mode():
        stream = model.layers[0](model.embedding(tokens), rotation=model.rotary.rotation(tokens.shape[1]))
    read = stream[:, 14:21, 0].numpy()
    assert np.abs(read - total).max() <= certificate.error


def cases() -> np.ndarray:
    """All that one step can see: digits of two places, and the carry into the lower one."""
    return np.stack(np.meshgrid(*[np.arange(10)] * 4, np.arange(2), indexing="ij"), axis=-1).reshape(-1, 5)


def test_lemma_1_the_carry_can_be_read_off_the_digits_below() -> None:
    low_a, low_b, _, _, carry = cases().T
    total = low_a + low_b + carry
    u = low_a + low_b - total % 10
    assert set(u[total >= 10]) == {9, 10}
    assert set(u[total < 10]) == {-1, 0}


def test_lemma_2_one_step_takes_ten_off() -> None:
    low_a, low_b, a, b, carry = cases().T
    below = low_a + low_b + carry
    total = a + b + below // 10
    z = a + b + 2 * (low_a + low_b - below % 10) / 19
    assert np.abs(z - total).max() <= 2 / 19 + 1e-12
    assert z[total <= 9].max() < 9.2 < 9.75 < z[total >= 10].min()
    x = z - 10 * np.clip((z - 9.2) / 0.55, 0, 1)
    assert np.abs(x - total % 10).max() <= 2 / 19 + 1e-12


def test_lemma_3_attention_depends_on_positions_alone() -> None:
    model = Adder(6)
    pairs = np.random.default_rng(0).integers(0, 10**6, (50, 2))
    with capture(model) as seen:
        model(torch.from_numpy(addition_texts(pairs, 6)))
    (weights,) = seen.weights.values()
    assert torch.equal(weights, weights[:1].expand_as(weights))
    attention, rotary = model.layers[0].attention, model.rotary
    for query in range(14, 21):  # before each digit of the sum
        with torch.inference_mode():
            proved, off = _weights(attention, rotary, query)
        assert np.abs(weights[0, :, query, : query + 1].double().numpy() - proved).sum(1).max() <= off < 1e-3
        distances = query - np.arange(query + 1)
        for head, distance in enumerate((0, 6)):
            wanted = distances % 7 == distance
            assert np.abs(proved[head, wanted] - 1 / wanted.sum()).max() < 1e-9
            assert proved[head, ~wanted].sum() < 1e-9


def test_lemma_4_the_output_takes_the_nearest_digit() -> None:
    model = Adder(6).double()
    near = torch.arange(10.0, dtype=torch.float64)[:, None] + torch.linspace(-0.499, 0.499, 101, dtype=torch.float64)
    assert torch.equal(model.output(near[..., None]).argmax(-1), torch.arange(10)[:, None].expand(10, 101))


@pytest.mark.parametrize(
    ("name", "index", "change"),
    [
        ("layers.0.attention.query.bias", 1, -155.0),
        ("layers.0.attention.query.bias", 5, 200.0),
        ("layers.0.attention.output.weight", 4, -0.2),
        ("layers.0.attention.output.bias", 0, 0.5),
        ("layers.0.attention.value.bias", 0, 0.5),
        ("layers.0.ffn.up.bias", 0, 1.5),
        ("layers.0.ffn.down.weight", 1, 2.0),
        ("embedding.weight", 7, 0.2),
        ("output.weight", 3, 0.5),
        ("output.bias", 3, 3.0),
    ],
)
def test_a_broken_adder_is_not_proved(name: str, index: int, change: float) -> None:
    model = Adder(6)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[index] += change
    assert not verify_adder(model).holds


def test_what_cannot_be_proved_or_added_is_refused() -> None:
    model = Adder(6)
    for number in (10**6, -1):
        with pytest.raises(InputError):
            model.add(np.array([[number, 1]]))
    for number in (5, 19):  # the sums of 19 digits overflow int64
        with pytest.raises(InputError):
            Adder(number)
    with torch.no_grad():
        model.get_parameter("layers.0.attention.query.weight")[0, 0] = 0.1
    with pytest.raises(InputError):
        verify_adder(model)
