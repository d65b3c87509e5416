from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from glassformer.explorer.messages.sampling import AskNext, AskSteps, Steps


@pytest.mark.parametrize("asked", [AskNext, AskSteps])
@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": 101}, {"top_k": 0}, {"top_k": 1.5}, {"top_p": 1.1}, {"top_p": float("nan")}],
)
def test_rules_that_there_are_not_are_refused(asked: type[AskNext | AskSteps], wrong: dict[str, Any]) -> None:
    asked(model="a", text="")
    with pytest.raises(ValidationError):
        asked(model="a", text="", **wrong)


def test_a_continuation_says_why_it_ended() -> None:
    assert Steps(text="a", steps=[], ended="model").ended == "model"
    for more in ({}, {"ended": "tired"}):
        with pytest.raises(ValidationError):
            Steps(text="a", steps=[], **more)  # type: ignore[arg-type]
