"""Define the requests and answers of the page's calls, validated when they are made.

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
"""Origin of a model: bundled, stored as a run or checkpoint, or passed from Python."""

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
"""Name of a model or a run in requests: a key of a table in memory, never a path."""
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
"""Seed, at most the largest integer that JavaScript represents exactly."""
OutcomeId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]
"""Token id of the output's vocabulary, or number of a class."""
Strength = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
MOST_EDITS = 64
"""Largest number of heads to remove, of edges to forbid, and of experts to replace."""
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
    """Reason why a request was not answered."""

    got: str
    expected: str
    fix: str


class Attention(Message):
    """One stack of attention of a run: ``layers`` layers of ``heads`` heads each."""

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
    """Number of keys that a query of each layer sees, itself included; None for all keys."""
    sinks: bool
    """True if there is an attention sink, so that rows sum to less than 1."""


class ModelCard(Message):
    """Description of a model."""

    name: Name
    title: str
    kind: Kind
    about: str
    """One or two sentences that say what the model does and what to look for."""
    views: list[View]
    text: Text
    source: Units | None = None
    """Units that an encoder-decoder's encoder reads at first, as in ``Ask.source``."""
    samples: list[Text] = Field(default=[])
    second: Text = ""
    """Text of as many tokens as ``text`` with another answer, to be compared with it."""
    input_help: str
    """Valid texts, such as "letters A, B and C" or "numbers from 0 to 10 between spaces"."""
    words: list[str] | None = None
    """Vocabulary, if it is small; None if any text is valid."""
    layer: Index = 0
    head: Index = 0
    blank: str = ""
    """Text of a program that is also an exercise, with a part left out."""
    code: str = ""
    """Python source of a program of the library."""
    origin: Origin


class Catalogue(Message):
    """Every model, in the order in which they are listed."""

    models: list[ModelCard]
    version: str


class HeadWeightsMessage(Request):
    """Matrices of a hand-designed head."""

    Km: Cells
    Qm: Cells
    Vm: Cells
    pos: Cells | None = None


class RemovedHead(Request):
    """Head whose output is set to 0."""

    part: Part
    layer: Index
    head: Index


class ForbiddenEdge(Request):
    """Key that a query may not attend to."""

    part: Part
    layer: Index | None
    """Layer; None for every layer of the part."""
    head: Index | None
    query: Index
    key: Index


class Steering(Request):
    """Vector that is added to the residual stream after a layer, at all positions.

    Through the final norm's weight, its direction raises the logit of ``toward`` most, or the
    difference from the logit of ``away``.
    """

    layer: Index
    toward: OutcomeId
    away: OutcomeId | None
    strength: Strength
    """Length of the vector, as a multiple of the stream's median length.

    The median is used because the first token of some models is a hundred times as long.
    """


class ReplacedExpert(Request):
    """Expert that gets no tokens."""

    layer: Index
    expert: Index
    instead: Index | None
    """Expert that gets its probability where it was chosen; None for the next best expert."""


class PatchedPlace(Request):
    """Place of the residual stream, a layer and a position, that is replaced by another text's."""

    text: Text
    """Other text, of as many tokens."""
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
    """A model and a text: for an encoder-decoder the decoder's initial text, which may be empty."""

    model: Name
    text: Text


class Ask(AskText):
    """A model and its input."""

    source: Units | None = None
    """Units that an encoder-decoder's encoder reads; by default the card's units."""
    order: Order | None = None
    """Permutation of ``source``: place i is read from ``source[order[i]]``. None: no change."""
    weights: HeadWeightsMessage | None = None
    """Matrices of a hand-designed head; by default its design."""
    changes: Changes | None = None
    """Changes of the model that reads. The tokens are the same as without changes."""


class Said(Message):
    """Output of a model."""

    headline: str
    """Output in a line, such as "positive, 93 %"."""
    classes: list[tuple[str, float]] = Field(default=[])
    """Probabilities of classes or next tokens, the likeliest first; empty if there are none."""
    words: list[str] = Field(default=[])


class Run(Message):
    """A model's forward pass on a text. The same request gives the same name and numbers."""

    run: Name
    ask: Ask
    tokens: list[str]
    source: list[str] | None
    attentions: list[Attention]
    said: Said
    place: int | None = None
    """Position whose logits ``said`` reports, the first one if there are several.

    None for a classifier, a head or a program.
    """


class AskTile(Request):
    """A request for a part of an attention matrix: ``TILE`` x ``TILE`` cells, fewer at the edge.

    At level l a cell is the maximum of 2**l x 2**l neighbouring weights; level 0 is the matrix
    itself. Tile (row, column) begins at cell (row * TILE, column * TILE) of its level. The answer
    is float32 [rows, columns].
    """

    run: Name
    part: Part
    layer: Index
    head: Index
    level: Annotated[int, Field(ge=0, le=12), WHOLE] = 0
    row: Index = 0
    column: Index = 0
    passed: bool = False
    """True for shares of what is passed on instead of weights.

    A share is the weight times the length of the value after the output projection, divided by the
    sum of its row.
    """


class AskRows(Request):
    """A request for the attention weights of one query, in every layer and head or in one.

    The answer is float32 [layer, head, key].
    """

    run: Name
    part: Part
    query: Index
    layer: Index | None = None
    head: Index | None = None
    passed: bool = False
    """See :class:`AskTile`."""


class AskMeasures(Request):
    """A request for the measures of a stack."""

    run: Name
    part: Part


THUMBNAIL = 32


class Measures(Message):
    """Measures and thumbnails of every head of a stack; all lists are [layer][head].

    The measures of a head with weights that are not finite, as after a diverged training, are None.
    """

    entropy: list[list[float | None]]
    """Mean entropy of a query's weights, in bits."""
    distance: list[list[float | None]] | None
    """Mean weighted distance from a query to its keys, in tokens; None between two texts."""
    sink: list[list[float | None]] | None
    """Mean weight of the sink; None without sinks."""
    most_read: list[list[int]]
    """Key with the largest mean weight, over all queries that see more than one key."""
    on_one: list[list[float | None]]
    """Mean weight of the key ``most_read``."""
    passed: list[list[float | None]] | None
    """Mean share of the key ``most_read``, as in ``AskTile.passed``; None if unknown."""
    thumbnails: list[list[list[list[float]]]]
    """[layer][head][row][column]: largest weight of each cell; no rows if weights are not finite.

    There are at most ``THUMBNAIL`` x ``THUMBNAIL`` cells.
    """


class AskDetect(Request):
    """A request for what each head of a decoder looks for."""

    model: Name


class Detected(Message):
    """Mean weights, [layer][head], of a decoder's heads on four kinds of keys.

    They are measured on random tokens that are read twice, and do not depend on the text that is
    shown; see :class:`~glassformer.observe.detectors.HeadScores`.
    """

    previous: list[list[float]]
    """Weight of the token before the query."""
    first: list[list[float]]
    """Weight of the first token, and of the sink."""
    duplicate: list[list[float]]
    """Weight of the earlier occurrence of the query's token."""
    induction: list[list[float]]
    """Weight of the token after the earlier occurrence, which comes next."""


class AskExperts(Request):
    """A request for the expert choices of a run."""

    run: Name


MOST_EXPERT_NUMBERS = 1 << 20
"""Largest number of numbers in an answer about experts: some 9 MB of JSON.

Answers for longer texts omit probabilities. Texts whose choices and routing weights alone exceed it
are refused.
"""


class ExpertLayer(Message):
    """Choices of one layer's router."""

    layer: int
    choices: list[list[int]]
    """[token][choice]: chosen experts, the best first."""
    shares: list[list[float]]
    """[token][choice]: routing weights, which sum to 1."""
    probabilities: list[list[float]]
    """[token][expert]: softmax of the router over all experts.

    Empty in every layer if the answer would exceed ``MOST_EXPERT_NUMBERS`` numbers.
    """
    load: list[float]
    """[expert]: share of all choices."""


class Experts(Message):
    """Experts that every token was routed to."""

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
    """Names of the rows of Km, Qm and Vm: tokens, then coordinates of the position."""
    positions: list[str]
    why: dict[str, str]
    """Reason for the values of each matrix, by its name."""


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
    """Result of a proof about weights; see ``handcraft.verification.Certificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    covers: str
    """Description of the sequences, with their letters and lengths."""
    rests_on: str
    criterion: str
    num_checked: int
    num_possible: float
    num_right: int
    num_outputs: int
    num_undecided: int
    """Number of outputs for which rounding decides whether they are right."""
    largest_error: float
    margin: float | None
    bound: float | None
    counterexample: FailureMessage | None
    undecided: FailureMessage | None
    """First output for which rounding decides."""
    rounding: float | None
    """Largest difference that rounding can make to the output ``undecided``; None if unknown."""
    text: str


class Check(Message):
    """Intermediate values for one sequence, and the proof about the weights for all sequences."""

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
    """For each output, True if it is right by the task's criterion.

    If several letters are equally right, any of them counts.
    """
    certificate: CertificateMessage


class AskProgram(Request):
    """A request for a compiled program on the text of a run."""

    run: Name


MOST_PROGRAM_NUMBERS = 1 << 18
"""Largest number of attention weights and residual stream entries in an answer about a program."""


class ProgramPart(Message):
    """A variable or a selector of a program; see ``programs.graph.Node``."""

    name: str
    kind: Literal["input", "function", "select", "combined", "aggregate", "width"]
    sources: list[int]
    """Places in ``Program.parts`` of the parts that it reads."""
    domain: str
    """Possible values, in words."""
    values: list[str]
    """[position]: value by the definition, or the keys that a selector selects."""


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
    """[position]: value decoded from the stream, or several values with the same coordinates."""


class Program(Message):
    """A compiled program on a text."""

    stages: list[str]
    """Names of the stages: embedding, attention and network of each layer, and output."""
    parts: list[ProgramPart]
    """Parts of the definition, each after its sources; empty for a model without one."""
    heads: list[ProgramHead]
    variables: list[ProgramVariable]
    stream: list[list[list[float]]]
    """[stage][position][coordinate]: residual stream after each stage except the output."""
    outputs: list[str]
    definition: list[str] | None
    """[position]: value of the definition; None if there is no definition, or it has no value."""
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
    """Result of a proof about a program; see ``programs.certificate.ProgramCertificate``."""

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: str
    dtype: str
    num_checked: int
    num_different: float
    """Number of sequences that differ for the program, which may treat some tokens alike."""
    num_possible: float
    num_wrong: int
    largest_error: float | None
    bound: float | None
    allowed: float | None
    """Largest error that changes no output; None if there is only one value."""
    counterexample: ProgramFailure | None
    reason: str
    """Reason why the proof is undecided; empty if it is decided."""


class AskAttempt(Request):
    """A request to compare a written program with the compiled program whose task it does."""

    model: Name
    program: Text
    text: Text


class Attempt(Message):
    """Result of a written program; see ``programs.written.Comparison``."""

    tokens: list[str]
    outputs: list[str] | None
    """[position]: value of the written program; None if it has no value."""
    definition: list[str] | None
    """[position]: value of the task's definition; None if it has no value."""
    right: list[bool] | None
    verdict: Literal["holds", "fails", "undecided"]
    rests_on: Literal["every sequence", "samples"]
    num_checked: int
    num_possible: int
    counterexample: ProgramFailure | None
    fault: Refusal | None
    """Reason why the written program cannot be read or has no value."""


class AskScramble(AskText):
    """A request to reorder an encoder-decoder's source, in one way or in all."""

    source: Units
    order: Order | None = None
    """Order to compare with the source's; by default all orders, or 500 if there are more."""


class Scrambled(Message):
    """Effect of one order, or of all orders."""

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
    """Probability before the rule: softmax of the logits."""
    tempered: float
    """Probability after temperature alone; 1 or 0 at temperature 0."""
    final: float
    """Probability after the whole rule; 0 if the rule cuts the token off."""
    kept: bool
    obeys: bool | None
    """True if the recurrence allows the token; None if no rule is known."""


class Next(Message):
    """Distribution of the next token."""

    tokens: list[str]
    candidates: list[Candidate]
    """64 likeliest tokens, the likeliest first."""
    rest: int
    rest_plain: float
    kept: int
    """Number of tokens with a probability above 0 after the rule."""
    entropy: float
    """Entropy of the final distribution, in bits."""
    rule: str | None
    """Rule that the text follows, such as "x[t] = 3 x[t-1] + 2 x[t-2] mod 11"; None if unknown."""


class AskSteps(AskNext):
    """A request to continue a text."""

    seed: Seed = 0
    steps: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    first: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """Id of the first token, regardless of the rule; None to draw it like the others."""


Ended = Literal["asked", "model", "text", "read", "wordless"]
"""Reason why generation ended.

``asked``: the requested number of tokens was generated. ``model``: the model reads no more.
``text``: the text would be too long for a message. ``read``: 65,536 tokens have been read in all.
``wordless``: the drawn token has no text, such as padding.
"""


class Step(Message):
    """One generated token."""

    token: str
    probability: float
    obeys: bool | None


class Steps(Message):
    """A continuation of a text.

    Each draw depends on the seed and its position alone, so that two requests for one step equal
    one request for two steps.
    """

    text: Text
    steps: list[Step]
    ended: Ended


class AskFind(AskText):
    """A request for a token of a decoder's vocabulary by its text."""


class Found(Message):
    """First token of a text that continues another one."""

    id: OutcomeId
    name: str
    whole: bool


class AskOutcome(Request):
    """An output of a run: the next token after one of its tokens, or the class of its text."""

    ask: Ask
    place: Index | None = None
    """Token whose successor is predicted; None for a classifier.

    By default it is the last one or, for an encoder-decoder, the one before the first generated
    token.
    """
    target: OutcomeId | None = None
    """Token or class in question; by default the likeliest in the run."""


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
    """Outcomes, sorted by the larger of both probabilities.

    They are the 64 likeliest before, the 8 likeliest after, and those that the request names.
    """
    rest: int
    rest_before: float
    rest_after: float
    distance: float
    """Half the sum of absolute differences over all outcomes, in [0, 1]."""
    changes: list[str]
    """Descriptions of the changes, in the order of the request."""
    offers: list[Offer]
    """Changes and calls that the model allows."""


class AskSweep(AskOutcome):
    """A request to remove every head, one at a time.

    Each call computes for a moment and gives what is known by then. Call again with the answer's
    ``done`` until it equals ``total``. A sweep stops when it is not asked for any more.
    """

    other: OutcomeId | None = None
    """Token or class over which the target's log-odds are computed; None for all others."""
    done: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """Number of exact heads that the caller knows: the answer has more.

    None if the caller knows nothing yet, so that an estimate is enough.
    """


class Compared(Message):
    """A token or class, and the one that it is compared with, if any."""

    target: OutcomeId
    name: str
    other: OutcomeId | None
    other_name: str | None


class SweptStack(Message):
    """Heads of one stack of attention."""

    part: Part
    label: str
    after: list[list[float | None]]
    """[layer][head]: log-odds without this head; None if not known yet."""
    exact: list[list[bool]]
    """[layer][head]: True if the model was run without this head, False for an estimate."""


class HeadSweep(Compared):
    """Log-odds of a token or class without each head.

    They are ``log(p / (1 - p))`` or, over another token or class, ``log(p / q)``.
    """

    before: float
    stacks: list[SweptStack]
    done: int
    """Number of exact heads."""
    total: int
    """Number of heads that will be exact: not all of them if that would take too long."""


class AskPatches(AskOutcome):
    """A request to run a second text with one place at a time as in the first text, ``ask``.

    It is continued as a sweep.
    """

    second: Text
    """Second text, of as many tokens as the first."""
    other: OutcomeId | None = None
    """See :class:`AskSweep`."""
    done: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    """Number of places that the caller knows."""


class Patches(Compared):
    """Log-odds after a second text with one place of the residual stream as in the first text."""

    tokens: list[str]
    second_tokens: list[str]
    first: float
    """Log-odds after the first text."""
    second: float
    """Log-odds after the second text."""
    patched: list[list[float | None]]
    """[layer][position]: log-odds after the second text with this place; None if not known yet."""
    done: int
    total: int


class AskLens(AskOutcome):
    """A request for the logit lens: the predictions after each layer, at all positions."""

    first: Index = 0


class Lens(Message):
    """Probabilities that the output projection gives after each layer.

    A classifier has one position.
    """

    target: OutcomeId
    name: str
    first: int
    stages: list[str]
    """Names of the rows: "embedding", "layer 0" and so on."""
    positions: list[str]
    """Tokens from ``first`` on, at most 64."""
    names: list[list[str]]
    """[stage][position]: likeliest token or class."""
    probabilities: list[list[float]]
    """[stage][position]: probability of the likeliest token or class."""
    targets: list[list[float]]
    """[stage][position]: probability of the target."""


class AskContributions(AskOutcome):
    """A request for what each part of a model adds to a logit."""

    other: OutcomeId | None = None
    """Token or class whose logit is subtracted from the target's; None for none."""


class Contribution(Message):
    """Contribution of one part to a logit."""

    name: str
    kind: Literal["embedding", "head", "ffn", "expert", "bias", "interventions"]
    part: Part | None
    layer: int | None
    number: int | None
    value: float


class Contributions(Compared):
    """A logit, or a difference of two logits, as a sum over the parts of a model.

    See ``observe.lens.direct_logits``.
    """

    total: float
    parts: list[Contribution]


class AskFfn(AskOutcome):
    """A request for what the feed-forward network of one layer adds to the logits."""

    layer: Index


class AddedLogit(Message):
    """Number that is added to the logit of a token."""

    id: OutcomeId
    name: str
    value: float


class Neuron(Message):
    """Activation of a feed-forward network's neuron, and its contribution to the target's logit."""

    number: int
    activation: float
    value: float


class Ffn(Message):
    """Contribution of a feed-forward network to the logits at one position.

    See ``observe.lens.ffn_logits``.
    """

    layer: int
    target: OutcomeId
    name: str
    value: float
    """Contribution to the logit of the target."""
    raised: list[AddedLogit]
    """At most 8 tokens, the one that is raised most first."""
    lowered: list[AddedLogit]
    """At most 8 tokens, the one that is lowered most first."""
    neurons: list[Neuron] | None
    """At most 8 neurons, the largest effect on the target first; None for a mixture of experts."""


class AskPage(Request):
    """A request to save the page: its state, as the words of the address."""

    state: Annotated[
        dict[
            Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=MOST_CHARACTERS)]
        ],
        Field(max_length=40),
    ]
