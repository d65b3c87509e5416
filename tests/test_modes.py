import contextlib
from contextlib import suppress

from torch import nn
from torch.nn.modules import module as torch_module

from glassformer.modes import evaluating, keeping_modes
from interrupts import interrupted


def frozen_inside() -> nn.Module:
    model = nn.Sequential(
        nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), nn.Dropout()
    ).train()
    model[1].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [each.training for each in model.modules()]


def test_evaluation_leaves_a_frozen_block_frozen() -> None:
    model = frozen_inside()
    before = modes(model)
    with evaluating(model):
        assert not any(modes(model))
    assert modes(model) == before


def test_modes_come_back_whatever_happens_in_between() -> None:
    model = frozen_inside()
    before = modes(model)
    with suppress(KeyError), keeping_modes(model):
        model.train()
        raise KeyError
    assert modes(model) == before


def test_modes_come_back_wherever_ctrl_c_comes() -> None:
    model = frozen_inside()
    before = modes(model)

    def act() -> None:
        with evaluating(model):
            pass

    for _ in interrupted(act, {contextlib.__file__, torch_module.__file__}):
        assert modes(model) == before
