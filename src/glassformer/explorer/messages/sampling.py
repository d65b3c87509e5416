"""What is asked and answered about the next tokens of a decoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from glassformer.explorer.messages.base import WHOLE, Message, Name, Seed, Temperature, Text, TopK, TopP


class AskNext(Message):
    """A decoder's text, and the rule by which its next token is chosen."""

    model: Name
    text: Text
    temperature: Temperature = 1.0
    top_k: TopK | None = None
    top_p: TopP = 1.0


class Candidate(Message):
    """A token that could come next."""

    id: int
    token: str
    logit: float
    plain: float
    """Its probability before the rule: softmax of the logits."""
    tempered: float
    """After temperature alone; 1 or 0 at temperature 0."""
    final: float
    """After the whole rule; 0 where it is cut."""
    kept: bool
    obeys: bool | None
    """Whether the recurrence allows it; None where no rule is known."""


class Next(Message):
    """The distribution of the next token."""

    tokens: list[str]
    """The tokens of the text, as the model read them."""
    candidates: list[Candidate]
    """The 64 likeliest, the likeliest first."""
    rest: int
    """How many more tokens there are."""
    rest_plain: float
    """Their probability in all before the rule."""
    kept: int
    """Tokens that the rule leaves a chance."""
    entropy: float
    """Of the final distribution, in bits."""
    rule: str | None
    """What the text follows, such as "x[t] = 3 x[t-1] + 2 x[t-2] mod 11", where that is known."""


class AskSteps(Message):
    """A text to continue."""

    model: Name
    text: Text
    temperature: Temperature = 1.0
    top_k: TopK | None = None
    top_p: TopP = 1.0
    seed: Seed = 0
    steps: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    first: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """The id of the token to write first, whatever the rule says; None: drawn as the others are."""


Ended = Literal["asked", "model", "text", "read", "wordless"]
"""Why a continuation ended: as many tokens were written as were asked for; the model reads no more; the text would be
longer than a message holds; 65,536 tokens have been read in all; or the drawn token has no text, as padding."""


class Step(Message):
    """One token that was written."""

    token: str
    probability: float
    """With which the rule chose it."""
    obeys: bool | None
    """Whether the recurrence allows it."""


class Steps(Message):
    """A continuation. Each draw follows from the seed and its position: one step and one more give the same as two."""

    text: Text
    """The text with what was written."""
    steps: list[Step]
    ended: Ended
    """Why no more was written."""
