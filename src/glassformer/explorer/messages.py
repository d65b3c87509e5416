"""What the page asks and what it is answered: one request and one answer for each call, checked when made.

The page knows a call by its name, whoever carries it: ``POST /api/NAME`` of the server, a message of the notebook's
widget, or the answers that a saved page holds. Two calls, ``weights`` and ``rows``, answer with bare little-endian
float32 numbers, whose shape follows from the question and from :class:`Run`; all others answer with JSON.
"""

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
    """A request or an answer. Types are strict; unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


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
    """Every model, in the order in which they are entry_of."""

    models: list[ModelCard]
    version: str


class HeadWeightsMessage(Message):
    """The matrices of a hand-designed head."""

    Km: Cells
    Qm: Cells
    Vm: Cells
    pos: Cells | None = None


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


class AskHead(Message):
    """Which task's design to show."""

    model: Name


class Head(Message):
    """A task and the weights that somebody chose for it."""

    task: str
    summary: str
    letters: list[str]
    has_cls: bool
    max_len: int
    weights: HeadWeightsMessage
    inputs: list[str]
    """What each row of Km, Qm and Vm is of: the tokens, then the coordinates of the position."""
    positions: list[str]
    """What each row of pos is of."""
    why: dict[str, str]
    """For each matrix, in a sentence, why it is as it is."""


class AskCheck(Message):
    """Weights to run and to judge."""

    model: Name
    weights: HeadWeightsMessage
    text: Text
    """The sequence whose numbers are shown."""


class Numbers(Message):
    """A matrix with names on its rows and columns."""

    rows: list[str]
    columns: list[str]
    cells: list[list[float]]


class FailureMessage(Message):
    """One output that is not what was wanted; see ``handcraft.certificate.Failure``."""

    sequence: str
    position: int
    output: list[float]
    target: list[float]
    error: float


class CertificateMessage(Message):
    """What is proved of the weights; see ``handcraft.certificate.Certificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: str
    criterion: str
    num_checked: int
    num_possible: float
    num_right: int
    num_outputs: int
    largest_error: float
    margin: float | None
    bound: float | None
    counterexample: FailureMessage | None
    text: str
    """All of it as a person reads it."""


class Check(Message):
    """Every number on the way from a sequence to its outputs, and what is proved of the weights for all sequences."""

    tokens: list[str]
    inputs: Numbers
    """[position, input]: one-hot tokens, then positions."""
    K: Numbers
    Q: Numbers
    V: Numbers
    scores: Numbers
    weights: Numbers
    outputs: Numbers
    targets: Numbers
    """What is wanted; rows of the outputs that are judged."""
    reads: list[str]
    """What each judged output says."""
    wanted: list[str]
    """What it should say."""
    right: list[bool]
    """Whether it does, by the task's own reading: where several letters are wanted alike, any of them will do."""
    certificate: CertificateMessage


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


class AskPage(Message):
    """What the saved page is to show: the state in the address, as the page writes it."""

    state: Annotated[
        dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=MOST_CHARACTERS)]],
        Field(max_length=40),
    ]
