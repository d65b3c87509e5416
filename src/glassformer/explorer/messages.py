"""The requests and answers of the page's calls, validated when they are made.

A call has the same name on every transport: ``POST /api/NAME`` of the server, a message of the
notebook's widget, or an answer recorded in a saved page. The calls ``weights`` and ``rows`` answer
with little-endian float32 numbers, whose shape follows from the request and from :class:`Run`, and
``page`` with HTML; all others answer with JSON.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TILE = 256
MOST_TOKENS = 4096
MOST_CHARACTERS = 65_536
MOST_UNITS = 256
MOST_CELLS = 4096
"""Largest number of entries of one matrix of a hand-designed head."""

View = Literal[
    "flow", "attention", "design", "program", "scramble", "sampling", "experts", "whatif", "patch"
]
Kind = Literal["head", "program", "encoder", "encoder_decoder", "decoder"]
Part = Literal["self", "encoder", "decoder", "cross"]
Origin = Literal["shipped", "run", "given"]
"""Bundled, stored as a run or checkpoint, or passed from Python."""

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
"""The name of a model or a run in requests: a key of a table in memory, never a path."""
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Units = Annotated[list[Annotated[str, Field(max_length=80)]], Field(max_length=MOST_UNITS)]


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


WHOLE = BeforeValidator(_whole)
"""JSON has one type of number, so 3.0 is an integer even in a strict request."""
Order = Annotated[
    list[Annotated[int, Field(ge=0, lt=MOST_UNITS), WHOLE]], Field(max_length=MOST_UNITS)
]
Index = Annotated[int, Field(ge=0, lt=MOST_TOKENS), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**53), WHOLE]
"""Up to the largest integer that JavaScript represents exactly."""
OutcomeId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]
"""A token id of the output's vocabulary, or the number of a class."""
Strength = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
MOST_EDITS = 64
"""Largest number of heads to remove; of edges to forbid; and of experts to replace."""
LARGEST = 1e300
"""Largest absolute value in a matrix of a hand-designed head."""
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
Cells = Annotated[
    list[Annotated[list[Finite], Field(max_length=MOST_CELLS)]], Field(max_length=MOST_CELLS)
]


class Message(BaseModel):
    """A request or an answer. Unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Request(Message):
    """A request, or a part of one. Values are not converted to the types of their fields."""

    model_config = ConfigDict(strict=True)


class Nothing(Request):
    """A request without fields."""


class Refusal(Message):
    """The reason why a request was not answered."""

    got: str
    expected: str
    fix: str


class Attention(Message):
    """One stack of attentions of a run: ``layers`` matrices of ``heads`` heads each."""

    part: Part
    label: str
    layers: int
    heads: int
    queries: int
    keys: int
    queries_are: Literal["tokens", "source"]
    keys_are: Literal["tokens", "source"]
    causal: bool
    windows: list[int | None]
    """The number of keys that a query of each layer sees, itself included; None: all."""
    sinks: bool
    """Whether there is an attention sink, so that rows sum to less than 1."""


class ModelCard(Message):
    """The description of a model."""

    name: Name
    title: str
    kind: Kind
    about: str
    """One or two sentences: what the model does, and what to look for."""
    views: list[View]
    text: Text
    source: Units | None = None
    """For an encoder-decoder: the units that its encoder reads at first, as in ``Ask.source``."""
    samples: list[Text] = Field(default=[])
    second: Text = ""
    """A text of as many tokens as ``text`` with another answer, to be compared with it."""
    input_help: str
    """Valid texts, such as "letters A, B and C" or "numbers from 0 to 10 between spaces"."""
    words: list[str] | None = None
    """The vocabulary, if it is small; None: any text is valid."""
    layer: Index = 0
    head: Index = 0
    blank: str = ""
    """Of a program that is also an exercise: its text with a part left out."""
    code: str = ""
    """Of a program of the library: its source in Python."""
    origin: Origin


class Catalogue(Message):
    """Every model, in the order in which they are listed."""

    models: list[ModelCard]
    version: str


class HeadWeightsMessage(Request):
    """The matrices of a hand-designed head."""

    Km: Cells
    Qm: Cells
    Vm: Cells
    pos: Cells | None = None


class RemovedHead(Request):
    """A head whose output is set to 0."""

    part: Part
    layer: Index
    head: Index


class ForbiddenEdge(Request):
    """A key that a query may not attend to."""

    part: Part
    layer: Index | None
    """None: in every layer of the part."""
    head: Index | None
    query: Index
    key: Index


class Steering(Request):
    """A vector that is added to the residual stream after a layer, at all positions.

    Its direction is the one that raises the logit of ``toward`` most, or its difference from the
    logit of ``away``, through the final norm's weight.
    """

    layer: Index
    toward: OutcomeId
    away: OutcomeId | None
    strength: Strength
    """Its length, as a multiple of the stream's median length: some models' first token has a
    hundred times as much.
    """


class ReplacedExpert(Request):
    """An expert that gets no tokens."""

    layer: Index
    expert: Index
    instead: Index | None
    """The expert that gets its share of the router's probability, where it was chosen. None: the
    next best.
    """


class PatchedPlace(Request):
    """The residual stream after a layer at one position, as it is where the model reads another
    text.
    """

    text: Text
    """Of as many tokens."""
    layer: Index
    position: Index


Removed = Annotated[list[RemovedHead], Field(max_length=MOST_EDITS)]
Forbidden = Annotated[list[ForbiddenEdge], Field(max_length=MOST_EDITS)]
Replaced = Annotated[list[ReplacedExpert], Field(max_length=MOST_EDITS)]


class Changes(Request):
    """Changes of a model."""

    removed: Removed = Field(default=[])
    forbidden: Forbidden = Field(default=[])
    steer: Steering | None = None
    swaps: Replaced = Field(default=[])
    patch: PatchedPlace | None = None


class AskText(Request):
    """A model and a text, for an encoder-decoder the decoder's initial one, which may be empty."""

    model: Name
    text: Text


class Ask(AskText):
    """A model and its input."""

    source: Units | None = None
    """For an encoder-decoder: the units that its encoder reads. None: those of the card."""
    order: Order | None = None
    """A permutation of ``source``: place i is read from ``source[order[i]]``. None: the order of
    ``source``.
    """
    weights: HeadWeightsMessage | None = None
    """For a hand-designed head: its matrices. None: those of its design."""
    changes: Changes | None = None
    """Changes of the model that reads; the tokens are those that it reads without them."""


class Said(Message):
    """The output of a model."""

    headline: str
    """The output in a line, such as "positive, 93 %"."""
    classes: list[tuple[str, float]] = Field(default=[])
    """Probabilities of classes or next tokens, the likeliest first; empty if there are none."""
    words: list[str] = Field(default=[])


class Run(Message):
    """A model's forward pass on a text. The same request gives the same name and the same numbers."""

    run: Name
    ask: Ask
    tokens: list[str]
    source: list[str] | None
    attentions: list[Attention]
    said: Said
    place: int | None = None
    """The position whose logits ``said`` reports, the first of several; None for a classifier, a
    head or a program.
    """


class AskTile(Request):
    """A request for a part of an attention matrix: ``TILE`` x ``TILE`` cells, fewer at the edge.

    At level l a cell is the maximum of 2**l x 2**l neighbouring weights; level 0 is the matrix
    itself. Tile (row, column) begins at cell (row * TILE, column * TILE) of its level. Answer:
    float32 [rows, columns].
    """

    run: Name
    part: Part
    layer: Index
    head: Index
    level: Annotated[int, Field(ge=0, le=12), WHOLE] = 0
    row: Index = 0
    column: Index = 0
    passed: bool = False
    """Instead of weights, shares of what is passed on: weight times length of the value after the
    output projection, divided by the sum of its row.
    """


class AskRows(Request):
    """The attention weights of one query in every layer and head, or in one. Answer: float32
    [layer, head, key].
    """

    run: Name
    part: Part
    query: Index
    layer: Index | None = None
    head: Index | None = None
    passed: bool = False
    """As in :class:`AskTile`."""


class AskMeasures(Request):
    """A request for the measures of a stack."""

    run: Name
    part: Part


THUMBNAIL = 32


class Measures(Message):
    """Measures and thumbnails of every head of a stack: all lists are [layer][head].

    The measures of a head with weights that are not finite, as after a diverged training, are None.
    """

    entropy: list[list[float | None]]
    """Mean entropy of a query's weights, in bits."""
    distance: list[list[float | None]] | None
    """Mean distance from a query to its keys, weighted, in tokens; None if the keys are another
    text.
    """
    sink: list[list[float | None]] | None
    """Mean weight of the sink; None without sinks."""
    most_read: list[list[int]]
    """The key that gets most attention: with the largest mean weight of all queries that see more
    than one key.
    """
    on_one: list[list[float | None]]
    """That mean weight."""
    passed: list[list[float | None]] | None
    """The mean share of what is passed on that comes from it, as in ``AskTile.passed``; None where
    it is unknown.
    """
    thumbnails: list[list[list[list[float]]]]
    """[layer][head][row][column]: the largest weight of each of at most ``THUMBNAIL`` x
    ``THUMBNAIL`` cells; no rows if weights are not finite.
    """


class AskDetect(Request):
    """A request for what each head of a decoder looks for."""

    model: Name


class Detected(Message):
    """The mean weights, [layer][head], of a decoder's heads on four kinds of keys, for random
    tokens that are read twice; see :class:`~glassformer.observe.detectors.HeadScores`. They are of
    the model, whatever text is shown.
    """

    previous: list[list[float]]
    """The token before the query."""
    first: list[list[float]]
    """The first token, and the sink."""
    duplicate: list[list[float]]
    """The earlier occurrence of the query's token."""
    induction: list[list[float]]
    """The token after that, which is what comes next."""


class AskExperts(Request):
    """A request for the expert choices of a run."""

    run: Name


MOST_EXPERT_NUMBERS = 1 << 20
"""Largest number of numbers in an answer about experts: some 9 MB of JSON. Answers for longer texts
omit probabilities; texts whose choices and routing weights alone exceed it are refused.
"""


class ExpertLayer(Message):
    """The choices of one layer's router."""

    layer: int
    choices: list[list[int]]
    """[token][choice]: the chosen experts, the best first."""
    shares: list[list[float]]
    """[token][choice]: the routing weights, which sum to 1."""
    probabilities: list[list[float]]
    """[token][expert]: the router's softmax over all experts. Empty in every layer if the answer
    would exceed ``MOST_EXPERT_NUMBERS`` numbers.
    """
    load: list[float]


class Experts(Message):
    """The experts that every token was routed to."""

    num_experts: int
    top_k: int
    layers: list[ExpertLayer]


class AskHead(Request):
    """A request for the design of a head."""

    model: Name


class Head(Message):
    """A task and the weights designed for it."""

    task: str
    summary: str
    letters: list[str]
    has_cls: bool
    max_len: int
    weights: HeadWeightsMessage
    inputs: list[str]
    """The names of the rows of Km, Qm and Vm: the tokens, then the coordinates of the position."""
    positions: list[str]
    why: dict[str, str]


class AskCheck(Request):
    """A request to run weights and to prove or refute them."""

    model: Name
    weights: HeadWeightsMessage
    text: Text


class Numbers(Message):
    """A matrix with names of its rows and columns."""

    rows: list[str]
    columns: list[str]
    cells: list[list[float]]


class FailureMessage(Message):
    """One wrong output; see ``handcraft.verification.Failure``."""

    sequence: str
    position: int
    output: list[float]
    target: list[float]
    error: float


class CertificateMessage(Message):
    """What is proved about the weights; see ``handcraft.verification.Certificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    covers: str
    """The sequences, with their letters and lengths."""
    rests_on: str
    criterion: str
    num_checked: int
    num_possible: float
    num_right: int
    num_outputs: int
    num_undecided: int
    """Outputs for which rounding decides whether they are right."""
    largest_error: float
    margin: float | None
    bound: float | None
    counterexample: FailureMessage | None
    undecided: FailureMessage | None
    """The first output for which rounding decides."""
    rounding: float | None
    """How far other ways of computing that output may be from it; None if that is not known."""
    text: str


class Check(Message):
    """All intermediate values for one sequence, and what is proved about the weights for all
    sequences.
    """

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
    reads: list[str]
    wanted: list[str]
    right: list[bool]
    """Whether each output is right by the task's criterion: if several letters are equally right,
    any of them is.
    """
    certificate: CertificateMessage


class AskProgram(Request):
    """A request for a compiled program on the text of a run."""

    run: Name


MOST_PROGRAM_NUMBERS = 1 << 18
"""Largest number of attention weights and of numbers of the residual stream in an answer about a
program.
"""


class ProgramPart(Message):
    """A variable or a selector of a program; see ``programs.graph.Node``."""

    name: str
    kind: Literal["input", "function", "select", "combined", "aggregate", "width"]
    sources: list[int]
    """Places of the parts that it reads."""
    domain: str
    values: list[str]
    """[position]: its value by the definition; of a selector the selected keys."""


class ProgramHead(Message):
    """A head of a compiled program."""

    layer: int
    head: int
    select: str
    writes: list[str]
    weights: list[list[float]]
    """[query][key]"""
    sink: list[float] | None


class ProgramVariable(Message):
    """A variable in the residual stream; see ``programs.parts.StreamVariable``."""

    name: str
    born: int
    read: int
    coordinates: list[int]
    values: list[str]
    """[position]: its value, decoded from the stream; several where its coordinates do not tell
    them apart.
    """


class Program(Message):
    """A compiled program on a text."""

    stages: list[str]
    """The embedding, attention and network of each layer, and the output."""
    parts: list[ProgramPart]
    """Each after its sources, the program last; empty for a model without its definition."""
    heads: list[ProgramHead]
    variables: list[ProgramVariable]
    stream: list[list[list[float]]]
    """[stage][position][coordinate]: the residual stream after each stage but the output."""
    outputs: list[str]
    definition: list[str] | None
    """What the definition gives at each position; None without it, or where it has no value."""
    right: list[bool] | None
    num_parameters: int


class AskProof(Request):
    """A request to verify a compiled program."""

    model: Name


class ProgramFailure(Message):
    """One wrong output."""

    text: Text
    position: int
    wanted: str
    found: str


class Proof(Message):
    """What is proved about a compiled program; see ``programs.certificate.ProgramCertificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: str
    dtype: str
    num_checked: int
    num_different: float
    """Sequences that differ by more than tokens that are alike for the program."""
    num_possible: float
    num_wrong: int
    largest_error: float | None
    bound: float | None
    allowed: float | None
    """None: any error, since there is one value."""
    counterexample: ProgramFailure | None
    reason: str
    """Why it is undecided; empty where it is not."""


class AskAttempt(Request):
    """A request to read a program that was written for the task of a compiled one, and to compare
    the two.
    """

    model: Name
    program: Text
    text: Text


class Attempt(Message):
    """A written program on a text, and whether it does the task; see
    ``programs.written.Comparison``.
    """

    tokens: list[str]
    outputs: list[str] | None
    """What it gives at each position; None where it has no value."""
    definition: list[str] | None
    """What the task is."""
    right: list[bool] | None
    verdict: Literal["holds", "fails", "undecided"]
    rests_on: Literal["every sequence", "samples"]
    num_checked: int
    num_possible: int
    counterexample: ProgramFailure | None
    fault: Refusal | None
    """Why it cannot be read, or has no value."""


class AskScramble(AskText):
    """A request to reorder an encoder-decoder's source, in one way or in all."""

    source: Units
    order: Order | None = None
    """The order to compare with the given one; None: all orders, or 500 if there are more."""


class Scrambled(Message):
    """The effect of one order, or of all."""

    orders: int
    exhaustive: bool
    largest_change: float
    changed_tokens: int
    tolerance: float
    """Largest change that is attributed to rounding."""
    holds: bool
    worst: Order


class AskNext(AskText):
    """A request for the next token's distribution under a sampling rule."""

    temperature: Temperature = 1.0
    top_k: TopK | None = None
    top_p: TopP = 1.0


class Candidate(Message):
    """A possible next token."""

    id: int
    token: str
    logit: float
    plain: float
    """Its probability before the rule: softmax of the logits."""
    tempered: float
    """After temperature alone; 1 or 0 at temperature 0."""
    final: float
    """After the whole rule; 0 if it is cut off."""
    kept: bool
    obeys: bool | None
    """Whether the recurrence allows it; None if no rule is known."""


class Next(Message):
    """The distribution of the next token."""

    tokens: list[str]
    candidates: list[Candidate]
    """The 64 likeliest, the likeliest first."""
    rest: int
    rest_plain: float
    kept: int
    """Number of tokens with a probability above 0 after the rule."""
    entropy: float
    """Of the final distribution, in bits."""
    rule: str | None
    """The rule that the text follows, such as "x[t] = 3 x[t-1] + 2 x[t-2] mod 11", if it is known.
    """


class AskSteps(AskNext):
    """A request to continue a text."""

    seed: Seed = 0
    steps: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    first: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """The id of the first token, regardless of the rule; None: it is drawn like the others."""


Ended = Literal["asked", "model", "text", "read", "wordless"]
"""Why generation ended: after the requested number of tokens; the model reads no more; the text
would be too long for a message; 65,536 tokens have been read in all; or the drawn token has no
text, such as padding.
"""


class Step(Message):
    """One generated token."""

    token: str
    probability: float
    obeys: bool | None


class Steps(Message):
    """A continuation. Each draw depends on the seed and its position: two requests for one step
    equal one for two.
    """

    text: Text
    steps: list[Step]
    ended: Ended


class AskFind(AskText):
    """A request for a token of a decoder's vocabulary by its text."""


class Found(Message):
    """The first token of a text that follows another one."""

    id: OutcomeId
    name: str
    whole: bool


class AskOutcome(Request):
    """An output of a run: the next token after one of its tokens, or the class of its text."""

    ask: Ask
    place: Index | None = None
    """The token whose successor is predicted. None: the last one; of an encoder-decoder, the one
    before the first generated token. For a classifier only None.
    """
    target: OutcomeId | None = None
    """The token or class in question. None: the likeliest in the run."""


class AskWhatIf(AskOutcome, Changes):
    """A request for an output with and without changes of the model."""

    other: OutcomeId | None = None


Offer = Literal["heads", "edges", "steer", "experts", "sweep", "lens", "contributions"]


class Outcome(Message):
    """A possible next token, or a class."""

    id: OutcomeId
    name: str
    before: float
    after: float


class WhatIf(Message):
    """An output with and without changes of the model."""

    kind: Literal["token", "class"]
    place: int | None
    target: OutcomeId
    outcomes: list[Outcome]
    """All, or the 64 likeliest before and the 8 likeliest after, joined by those that the request
    names; those with the largest of both probabilities first.
    """
    rest: int
    rest_before: float
    rest_after: float
    distance: float
    """Half the sum of absolute differences over all outcomes, in [0, 1]."""
    changes: list[str]
    """Each change in words, in the order of the request."""
    offers: list[Offer]
    """The changes and the calls that the model allows."""


class AskSweep(AskOutcome):
    """A request to remove every head, one at a time. Each call computes for a moment and gives what
    is known by then: call again with the answer's ``done`` until that is its ``total``. A sweep
    that is not asked for any more stops.
    """

    other: OutcomeId | None = None
    """None: the log-odds of the target. Otherwise those of the target over this one."""
    done: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """How many exact heads the caller knows: the answer has more. None: nothing yet, so that an
    estimate will do.
    """


class Compared(Message):
    """A token or class, and the one that it is compared with, if any."""

    target: OutcomeId
    name: str
    other: OutcomeId | None
    other_name: str | None


class SweptStack(Message):
    """The heads of one stack of attentions."""

    part: Part
    label: str
    after: list[list[float | None]]
    """[layer][head]: the log-odds without this head; None: not known yet."""
    exact: list[list[bool]]
    """[layer][head]: whether the model was run without this head; otherwise its value is a
    first-order estimate.
    """


class HeadSweep(Compared):
    """The log-odds of a token or class without each head: ``log(p / (1 - p))``, or ``log(p / q)``
    over another one.
    """

    before: float
    stacks: list[SweptStack]
    done: int
    """The number of exact heads."""
    total: int
    """How many will be exact: fewer than there are where that would take too long."""


class AskPatches(AskOutcome):
    """A request to run a second text with one place at a time as in the first, ``ask``. It is
    continued as a sweep.
    """

    second: Text
    """Of as many tokens as the first."""
    other: OutcomeId | None = None
    """As in :class:`AskSweep`."""
    done: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """How many places the caller knows."""


class Patches(Compared):
    """The log-odds of a token or class after a second text with one place of the residual stream as
    in the first.
    """

    tokens: list[str]
    second_tokens: list[str]
    first: float
    """The log-odds after the first text."""
    second: float
    patched: list[list[float | None]]
    """[layer][position]: those after the second text with this place; None: not known yet."""
    done: int
    total: int


class AskLens(AskOutcome):
    """A request for what the residual stream predicts after each layer, at all positions."""

    first: Index = 0


class Lens(Message):
    """The probabilities that the output projection gives after each layer. Of a classifier there is
    one position.
    """

    target: OutcomeId
    name: str
    first: int
    stages: list[str]
    """The names of the rows: "embedding", "layer 0" and so on."""
    positions: list[str]
    """The tokens from ``first`` on, at most 64."""
    names: list[list[str]]
    """[stage][position]: the likeliest token or class."""
    probabilities: list[list[float]]
    targets: list[list[float]]
    """[stage][position]: the probability of the likeliest, and of the target."""


class AskContributions(AskOutcome):
    """A request for what each part of a model adds to a logit."""

    other: OutcomeId | None = None
    """None: the logit of the target. Otherwise its difference from the logit of this one."""


class Contribution(Message):
    """What one part adds."""

    name: str
    kind: Literal["embedding", "head", "ffn", "expert", "bias", "interventions"]
    part: Part | None
    layer: int | None
    number: int | None
    value: float


class Contributions(Compared):
    """A logit, or a difference of two, as the sum over the parts of a model; see
    ``observe.lens.direct_logits``.
    """

    total: float
    parts: list[Contribution]


class AskFfn(AskOutcome):
    """A request for what the feed-forward network of one layer adds to the logits."""

    layer: Index


class AddedLogit(Message):
    """What is added to the logit of a token."""

    id: OutcomeId
    name: str
    value: float


class Neuron(Message):
    """A neuron of a feed-forward network: its activation, and what it adds to the target's logit."""

    number: int
    activation: float
    value: float


class Ffn(Message):
    """What a feed-forward network adds to the logits at one position; see
    ``observe.lens.ffn_logits``.
    """

    layer: int
    target: OutcomeId
    name: str
    value: float
    """To the logit of the target."""
    raised: list[AddedLogit]
    """At most 8 tokens, the one that is raised most first."""
    lowered: list[AddedLogit]
    neurons: list[Neuron] | None
    """At most 8, that with the largest effect on the target first; None for a mixture of experts.
    """


class AskPage(Request):
    """A request to save the page: its state, as the words of the address."""

    state: Annotated[
        dict[
            Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=MOST_CHARACTERS)]
        ],
        Field(max_length=40),
    ]
