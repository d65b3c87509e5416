"""What all messages of the page are made of: the base of each, and the types and bounds of what stands in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TILE = 256
"""Rows and columns of the largest tile of an attention matrix."""
MOST_TOKENS = 4096
"""The longest text that is looked at, in tokens."""
MOST_CHARACTERS = 65_536
"""The longest text that is taken, in characters."""
MOST_UNITS = 256
"""The most things whose order can be changed."""
MOST_CELLS = 4096
"""The most numbers of one matrix of a hand-designed head."""

View = Literal["attention", "design", "scramble", "sampling", "experts"]
Kind = Literal["head", "encoder", "encoder_decoder", "decoder"]
Part = Literal["self", "encoder", "decoder", "cross"]
Origin = Literal["shipped", "run", "given"]
"""Comes with the project, is a run of a lab or of ``glassformer train``, or was handed over from Python."""

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
"""What a model, a task or a run is called in requests: a key of a table in memory, never a path."""
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Units = Annotated[list[Annotated[str, Field(max_length=80)]], Field(max_length=MOST_UNITS)]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""JSON knows numbers of one kind only, so 3.0 is a whole number, however strictly a request is read."""
Order = Annotated[list[Annotated[int, Field(ge=0, lt=MOST_UNITS), WHOLE]], Field(max_length=MOST_UNITS)]
Index = Annotated[int, Field(ge=0, lt=MOST_TOKENS), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**53), WHOLE]
"""As large as the page's numbers are exact."""
LARGEST = 1e300
"""The largest number of a matrix of a hand-designed head."""
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
Cells = Annotated[list[Annotated[list[Finite], Field(max_length=MOST_CELLS)]], Field(max_length=MOST_CELLS)]


class Message(BaseModel):
    """A request or an answer: unknown fields and numbers that are none are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
