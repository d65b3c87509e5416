"""The course's functions around the model, on models whose behaviour is known."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.generation.sampling import SamplingRule
from glassformer.labs import gpt_oss as lab


class Increment(nn.Module):
    """Predicts the token after each: the next number modulo 5."""

    def __init__(self, sharpness: float = 5.0) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.sharpness * F.one_hot((tokens + 1) % 5, 5).float()


def data() -> list[tuple[Tensor, Tensor]]:
    """Two batches of different sizes; the increment is right at positions 0 and 2, half of the time
    at 1.
    """
    x = torch.randint(5, (6, 3))
    y = (x + 1) % 5
    y[::2, 1] = x[::2, 1]
    return [(x[:4], y[:4]), (x[4:], y[4:])]


def test_accuracy_counts_every_token_of_every_batch_once() -> None:
    assert float(lab.eval_acc(Increment(), data())) == pytest.approx(15 / 18)
    per_position = lab.calc_per_token_acc(Increment(), data())
    assert isinstance(per_position, np.ndarray)
    np.testing.assert_allclose(per_position, [1, 0.5, 1])


def test_training_takes_a_gradient_step_of_the_mean_cross_entropy_for_each_batch() -> None:
    model = Increment()
    twin = Increment()
    calls: list[tuple[int, bool]] = []

    def evaluate(epoch: int, given: nn.Module) -> None:
        assert given is model
        calls.append((epoch, given.training))
        given.eval()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = data()
    means = lab.train(
        model=model, optimizer=optimizer, dataloader=batches, eval_fn=evaluate, num_epochs=2
    )
    losses = []
    for x, y in batches * 2:
        loss = -twin(x).log_softmax(-1).gather(-1, y[..., None]).mean()
        losses.append(float(loss.detach()))
        (slope,) = torch.autograd.grad(loss, twin.sharpness)
        twin.sharpness.data -= 0.5 * slope
    assert means == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    torch.testing.assert_close(model.sharpness, twin.sharpness)
    assert calls == [(0, True), (0, True), (1, True)]


def test_generation_appends_what_was_chosen() -> None:
    start = torch.tensor([[1], [3]])
    assert lab.generate(Increment(), start, 4).tolist() == [[2, 3, 4, 0], [4, 0, 1, 2]]
    seen: list[Tensor] = []

    def twos(logits: Tensor) -> Tensor:
        seen.append(logits)
        return torch.full((2, 1), 2)

    assert lab.generate(Increment(), start, 2, twos).tolist() == [[2, 2], [2, 2]]
    assert [tuple(logits.shape) for logits in seen] == [(2, 1, 5), (2, 2, 5)]
    assert seen[1][0].argmax(-1).tolist() == [2, 3]


@pytest.mark.parametrize(("top_p", "t"), [(0.0, 1.0), (0.7, 0.5), (0.95, 2.0), (1.0, 1.0)])
def test_the_distribution_is_that_of_the_librarys_rule(top_p: float, t: float) -> None:
    logits = torch.randn(2, 3, 6)
    found = lab.get_dist_after_with_temp_and_topp(logits, top_p=top_p, t=t)
    assert torch.equal(found, SamplingRule(temperature=t, top_p=top_p).distribution(logits))


def test_tokens_are_chosen_from_the_last_position() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[:, -1] = torch.tensor([[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    logits[:, 0, 2] = 99.0
    assert lab.token_choice_greedy(logits).tolist() == [[1], [3]]
    assert lab.token_choice_adv(logits, top_p=0.9, t=1.0).tolist() == [[1], [3]]
