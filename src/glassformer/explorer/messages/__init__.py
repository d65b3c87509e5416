"""What the page asks and what it is answered: one request and one answer for each call, checked when made.

The page knows a call by its name, whoever carries it: ``POST /api/NAME`` of the server, a message of the notebook's
widget, or the answers that a saved page holds. Two calls, ``weights`` and ``rows``, answer with bare little-endian
float32 numbers, whose shape follows from the question and from :class:`Run`; all others answer with JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from glassformer.explorer.messages.base import (
    MOST_CELLS,
    MOST_CHARACTERS,
    MOST_TOKENS,
    MOST_UNITS,
    TILE,
    WHOLE,
    Cells,
    Finite,
    Index,
    Kind,
    Message,
    Name,
    Order,
    Origin,
    Part,
    Text,
    Units,
    View,
)
from glassformer.explorer.messages.heads import (
    AskCheck,
    AskHead,
    CertificateMessage,
    Check,
    FailureMessage,
    Head,
    HeadWeightsMessage,
    Numbers,
)
from glassformer.explorer.messages.sampling import AskNext, AskSteps, Candidate, Ended, Next, Step, Steps

__all__ = [
    "MOST_CELLS",
    "MOST_CHARACTERS",
    "MOST_TOKENS",
    "MOST_TOLD",
    "MOST_UNITS",
    "THUMBNAIL",
    "TILE",
    "Ask",
    "AskCheck",
    "AskExperts",
    "AskHead",
    "AskMeasures",
    "AskNext",
    "AskPage",
    "AskRows",
    "AskScramble",
    "AskSteps",
    "AskTile",
    "Attention",
    "Candidate",
    "Catalogue",
    "Cells",
    "CertificateMessage",
    "Check",
    "Ended",
    "ExpertLayer",
    "Experts",
    "FailureMessage",
    "Finite",
    "Head",
    "HeadWeightsMessage",
    "Index",
    "Kind",
    "Measures",
    "Message",
    "ModelCard",
    "Name",
    "Next",
    "Nothing",
    "Numbers",
    "Order",
    "Part",
    "Refusal",
    "Run",
    "Said",
    "Scrambled",
    "Step",
    "Steps",
    "Text",
    "Units",
    "View",
]


class Nothing(Message):
    """A request that says nothing more than its name."""


class Refusal(Message):
    """Why a request was not answered."""

    got: str
    expected: str
    fix: str


class Attention(Message):
    """One stack of attentions of a run: ``layers`` matrices of ``heads`` heads each."""

    part: Part
    label: str
    """What a person calls it, such as "cross-attention"."""
    layers: int
    heads: int
    queries: int
    keys: int
    queries_are: Literal["tokens", "source"]
    """Whose words stand at the queries: those of ``Run.tokens`` or of ``Run.source``."""
    keys_are: Literal["tokens", "source"]
    causal: bool
    windows: list[int | None]
    """For each layer how many keys a query sees, itself included; None: all."""
    sinks: bool
    """Whether a share of each row goes to a sink, so that rows sum to less than 1."""


class ModelCard(Message):
    """A model that can be looked into."""

    name: Name
    title: str
    kind: Kind
    about: str
    """One or two sentences: what it does, and what to look for."""
    views: list[View]
    """What can be done with it; the first is shown first."""
    text: Text
    """What to begin with."""
    source: Units | None = None
    """For an encoder-decoder: the things that its encoder reads, in their order, as ``Ask.source`` takes them."""
    samples: list[Text] = Field(default=[])
    """Other texts to try."""
    input_help: str
    """What may be typed, such as "letters A, B and C" or "numbers from 0 to 10 between spaces"."""
    words: list[str] | None = None
    """Every word that it knows, where they are few; None: any text will do."""
    layer: Index = 0
    """The head that is shown when the model is chosen."""
    head: Index = 0
    origin: Origin


class Catalogue(Message):
    """Every model, in the order in which they are offered."""

    models: list[ModelCard]
    version: str


class Ask(Message):
    """A model and what it is to read."""

    model: Name
    text: Text
    """The text; for an encoder-decoder what the decoder is given to begin with, possibly nothing."""
    source: Units | None = None
    """For an encoder-decoder: the things that its encoder reads. None: those of the card."""
    order: Order | None = None
    """An order of ``source``: place i is read from ``source[order[i]]``. None: as they are."""
    weights: HeadWeightsMessage | None = None
    """For a hand-designed head: the matrices to read with. None: those of its design."""


class Said(Message):
    """What a model makes of what it read."""

    headline: str
    """The answer in a line, such as "positive, 93 %"."""
    classes: list[tuple[str, float]] = Field(default=[])
    """Probabilities by name, the likeliest first; empty where it gives none."""
    words: list[str] = Field(default=[])
    """Tokens that it wrote."""


class Run(Message):
    """A text that has been read. Asking the same again gives the same name and the same numbers."""

    run: Name
    ask: Ask
    tokens: list[str]
    source: list[str] | None
    """The tokens that the encoder of an encoder-decoder read, in the order in which it read them."""
    attentions: list[Attention]
    said: Said


class AskTile(Message):
    """A part of an attention matrix: ``TILE`` x ``TILE`` cells, less at the edge.

    At level l a cell is the largest weight of 2**l x 2**l neighbouring ones; level 0 is the matrix itself. Tile (row,
    column) begins at cell (row * TILE, column * TILE) of its level. Answer: float32 [rows, columns].
    """

    run: Name
    part: Part
    layer: Index
    head: Index
    level: Annotated[int, Field(ge=0, le=12), WHOLE] = 0
    row: Index = 0
    column: Index = 0


class AskRows(Message):
    """What one query reads in every layer and head, or in one of them. Answer: float32 [layer, head, key]."""

    run: Name
    part: Part
    query: Index
    layer: Index | None = None
    head: Index | None = None


class AskMeasures(Message):
    """Which stack to measure."""

    run: Name
    part: Part


THUMBNAIL = 32
"""Rows and columns of the largest thumbnail."""


class Measures(Message):
    """What every head of a stack does, in figures and in small: all lists are [layer][head].

    Of a head with weights that are no numbers, as those of a model whose training went astray, there is None each.
    """

    entropy: list[list[float | None]]
    """Mean entropy of a query's weights, in bits."""
    distance: list[list[float | None]] | None
    """Mean distance from a query to what it reads, in tokens; None where the keys are another text."""
    sink: list[list[float | None]] | None
    """Mean share that goes to the sink; None without sinks."""
    thumbnails: list[list[list[list[float]]]]
    """[layer][head][row][column]: the largest weight of each of at most ``THUMBNAIL`` x ``THUMBNAIL`` cells; no rows
    where weights are no numbers."""


class AskExperts(Message):
    """Which run's experts to tell."""

    run: Name


MOST_TOLD = 1 << 20
"""The most numbers of an answer about experts: some 9 MB of JSON. Of longer texts there are no probabilities, and of
still longer ones, whose choices and shares alone are more, no answer."""


class ExpertLayer(Message):
    """The choices of one layer's router."""

    layer: int
    choices: list[list[int]]
    """[token][choice]: the chosen experts, the best first."""
    shares: list[list[float]]
    """[token][choice]: what each counts; sums to 1."""
    probabilities: list[list[float]]
    """[token][expert]: the router's softmax over all experts. Empty in every layer where all layers together would tell
    more than ``MOST_TOLD`` numbers."""
    load: list[float]
    """[expert]: the share of all choices that fell on it."""


class Experts(Message):
    """Which experts every token went to."""

    num_experts: int
    top_k: int
    layers: list[ExpertLayer]


class AskScramble(Message):
    """An encoder-decoder's source, and whether to try one order or all."""

    model: Name
    text: Text
    source: Units
    order: Order | None = None
    """The order to compare with the given one; None: all orders, or 500 of them where there are more."""


class Scrambled(Message):
    """What another order, or all orders, changed."""

    orders: int
    """Orders that were tried."""
    exhaustive: bool
    largest_change: float
    """Largest absolute difference of a logit."""
    changed_tokens: int
    """Most likely tokens that changed."""
    tolerance: float
    """Largest change that counts as none: sums taken in another order differ by rounding."""
    holds: bool
    worst: Order
    """The order with the largest change."""


class AskPage(Message):
    """What the saved page is to show: the state in the address, as the page writes it."""

    state: Annotated[
        dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=MOST_CHARACTERS)]],
        Field(max_length=40),
    ]
