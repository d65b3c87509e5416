"""Flags of every command except ``train``.

Nothing here imports torch, so that ``--help`` answers at once.
"""

import datetime
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, OmitSubcommandPrefixes, Positional, arg, subcommand

from glassformer.config import Count, Fraction, NonNegative, Positive, Seed, Size, config
from glassformer.errors import InputError
from glassformer.files import require_absent
from glassformer.layers.quantized import Pack

TaskName = Literal[
    "identity",
    "copy_first",
    "unique",
    "previous_token",
    "last_token",
    "majority_letter",
    "occurs_earlier",
    "parity",
]
"""The built-in tasks by name: the keys of :data:`~glassformer.handcraft.tasks.TASKS`."""

LabName = Literal["hand-designed", "sentiment", "lookup", "gpt-oss"]
LABS_WITH_DATA: tuple[LabName, ...] = ("sentiment",)
View = Literal[
    "flow", "attention", "design", "program", "scramble", "sampling", "experts", "whatif", "patch"
]
"""The views of :data:`glassformer.explorer.messages.View`."""
Effort = Literal["low", "medium", "high"]
Target = Literal["openai", "glassformer"]
Experts = Literal["mxfp4", "bfloat16"]
GgufKind = Literal["F32", "F16", "BF16", "Q8_0"]

_MODEL = arg(
    metavar="MODEL",
    help="A GGUF file, the directory of a model or of a run, owner/name, owner/name:file.gguf or "
    "owner/name:Q4_K_M on the Hugging Face hub, or a short name: smollm2, gemma-3-270m, "
    "gpt-oss-20b.",
)
Tokenizer = Annotated[
    str | None,
    arg(
        metavar="PATH|NAME|bytes|numbers",
        help="Tokenizer: a tokenizer.json, a directory or GGUF file with one, a model on the hub "
        "or a short name; bytes or numbers for a model whose tokens these are. None: the model's "
        "own.",
    ),
]
Device = Annotated[str, arg(help="cpu, cuda, or auto (a GPU if there is one).")]
PackFlag = Annotated[
    Pack | None,
    arg(
        help="Format in which a directory's linear layers are packed. Q8_0: 8 bits per weight and "
        "a scale for 32 weights; faster than 16 bits, less precise. None: as stored."
    ),
]
Temperature = Annotated[
    NonNegative | None,
    arg(
        help="Divides the logits: 0 always takes the most likely token, 1 samples from the model's "
        "distribution. None: the model's rule."
    ),
]
TopK = Annotated[
    Size | None, arg(help="Sample from this many most likely tokens only. None: the model's rule.")
]
TopP = Annotated[
    Fraction | None,
    arg(
        help="Sample from the most likely tokens that together reach this probability. None: the "
        "model's rule."
    ),
]
MinP = Annotated[
    Fraction | None,
    arg(
        help="Sample from tokens with at least this share of the largest probability. None: the "
        "model's rule."
    ),
]
RepetitionPenalty = Annotated[
    Positive | None,
    arg(
        help="Makes tokens of the text so far less likely: 1 is off, 1.1 is mild. None: the "
        "model's rule."
    ),
]
EndLoops = Annotated[bool, arg(help="End a text that repeats itself endlessly, and report it.")]
Overwrite = Annotated[FlagCreatePairsOff[bool], arg(help="Replace files that exist.")]
RunPython = Annotated[
    FlagCreatePairsOff[bool],
    arg(help="Allow a Python file to run, which can do anything on this computer."),
]
Letters = Annotated[
    str | None, arg(metavar="ABC", help="Alphabet. None: the task's default, usually ABC.")
]
MaxLen = Annotated[
    int | None,
    arg(help="Maximum sequence length, CLS not counted. None: the task's default, 4 to 6."),
]


@config
class LabFlags:
    """Run a lab from start to end: train, measure, draw, write the report.

    For example:
      glassformer lab lookup --quick
      glassformer lab sentiment --data reviews.csv --out runs/reviews

    The results are written to one directory: report.md, the figures (PNG and SVG) and results.json.
    """

    name: Positional[LabName]
    """Name of the lab."""
    quick: FlagCreatePairsOff[bool] = False
    """Run a short version, in under two minutes; its report says what it leaves out."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Output directory; by default runs/NAME, or runs/NAME-quick."""
    seed: Seed = 0
    """Seed of the data, the initial weights and the sampling."""
    resume: FlagCreatePairsOff[bool] = False
    """Continue an interrupted run in the directory; if there is none, start one."""
    data: Annotated[str | None, arg(metavar="PATH|NAME")] = None
    """Labelled texts for the sentiment lab: a TSV, CSV or JSONL file, a directory with such files
    for train, dev and test, or a data set on the Hugging Face hub. None: the bundled reviews.
    """
    hand_in: Annotated[Path | None, arg(metavar="DIR")] = None
    """Also write the files to hand in, to a new directory and a zip archive beside it. They are
    the lab's notebook with solutions, executed, its PDF and the files it writes, and the report
    with its figures. Needs --author and the packages of glassformer[hand-in]. The notebook takes
    minutes and has no short version. If interrupted, it continues with --resume.
    """
    author: Annotated[str | None, arg(metavar="NAME")] = None
    """Name below the titles of the files to hand in."""
    student_id: Annotated[str | None, arg(metavar="ID")] = None
    """Student ID below the name; by default none."""
    date: Annotated[str | None, arg(metavar="YYYY-MM-DD")] = None
    """Date below the name; by default today."""

    def __post_init__(self) -> None:
        if self.data is not None and self.name not in LABS_WITH_DATA:
            raise InputError(
                got=f"--data for the lab {self.name}, which makes its own data",
                expected="the lab sentiment",
                fix="Leave --data out.",
            )
        signed = [
            flag
            for flag, value in (
                ("author", self.author),
                ("student-id", self.student_id),
                ("date", self.date),
            )
            if value is not None
        ]
        if self.hand_in is None and signed:
            raise InputError(
                f"--{signed[0]} without --hand-in", "both or neither", "Add --hand-in DIR."
            )
        if self.hand_in is not None and self.author is None:
            raise InputError("--hand-in without --author", "both", "Add --author NAME.")
        _ = self.day  # to refuse a wrong date

    @property
    def day(self) -> datetime.date:
        """Return the date; today if none was passed."""
        if self.date is None:
            return datetime.date.today()
        try:
            return datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise InputError(
                f"--date {self.date}", "a date as 2026-03-31", "Write year-month-day."
            ) from error

    @property
    def directory(self) -> Path:
        """Return the output directory: ``out``, or one under ``runs/`` named after the lab."""
        if self.out is not None:
            return self.out
        return Path("runs", f"{self.name}-quick" if self.quick else self.name)


@config
class GenerateFlags:
    """Continue a text; prints the text and its continuation.

    For example:
      glassformer generate smollm2 "The capital of France is" --temperature 0
      glassformer generate runs/mine - --max-new-tokens 50 < prompt.txt
    """

    model: Annotated[Positional[str], _MODEL]
    prompt: Annotated[Positional[str], arg(metavar="TEXT")]
    """Text to continue, or numbers such as "1 2 3" for a model of the recurrence. -: from standard
    input, without its last line end.
    """
    tokenizer: Tokenizer = None
    max_new_tokens: Size = 200
    """Maximum number of new tokens."""
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    seed: int | None = None
    """Seed of the sampling: the same seed gives the same text. None: a different text each time."""
    end_loops: EndLoops = True
    stop: tuple[str, ...] = ()
    """Special tokens that also end the text, by name or number."""
    stream: bool = True
    """Print each token when it is generated; otherwise all at the end."""
    speed: bool = True
    """Print the number of tokens per second at the end, to standard error."""
    pack: PackFlag = None
    device: Device = "auto"


@config
class ChatFlags:
    """Talk with a model that was trained to chat.

    Answers go to standard output, everything else to standard error.

    For example:
      glassformer chat smollm2
      glassformer chat gpt-oss-20b --message "What is 2 + 2?" --effort low
    """

    model: Annotated[Positional[str], _MODEL]
    message: Annotated[str | None, arg(metavar="TEXT")] = None
    """Answer this message and exit; "-" reads it from standard input. None: a conversation; from a
    pipe, each line is a message.
    """
    effort: Effort = "medium"
    """How much gpt-oss reasons before it answers."""
    show_reasoning: bool = False
    """Print the reasoning too, dimmed if the terminal supports it. It may contain what an answer
    would not.
    """
    instructions: Annotated[str, arg(metavar="TEXT")] = ""
    """Instructions for the whole conversation; other programs call this the system prompt."""
    context: Size | None = None
    """Maximum tokens of the conversation; their memory is allocated at the start. None: 8192, or
    the model's maximum if that is less.
    """
    max_new_tokens: Size | None = None
    """Maximum tokens of each reply, reasoning included. None: 1024, or 8192 for a model that
    reasons.
    """
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    end_loops: EndLoops = True
    seed: int | None = None
    """Seed of the sampling: the same seed and messages give the same answers on the same day. None:
    different answers each time.
    """
    speed: bool = True
    """Print the number of tokens per second after each reply."""
    tokenizer: Tokenizer = None
    pack: PackFlag = None
    device: Device = "auto"


@config
class ClassifyFlags:
    """Classify texts with a trained encoder, such as the sentiment lab's.

    For example:
      glassformer classify --run sentiment "Not a bad film at all."
      glassformer classify --run runs/sentiment/classifier --file texts.txt --json

    Prints a line with the class, its probability and the text, and below it the tokens with the
    largest effects: the decrease of the class's probability, in percentage points, without the
    token. A negative effect favours another class.
    """

    run: Annotated[Path, arg(metavar="DIR")]
    """Directory of the trained encoder, or sentiment: the bundled one."""
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="[TEXT ...]")] = ()
    """Texts to classify, each in quotes; long texts are cut to 128 tokens, or to the encoder's
    maximum. With neither texts nor --file: lines from standard input.
    """
    file: Annotated[Path | None, arg(metavar="PATH")] = None
    """A UTF-8 file with one text per line."""
    tokens: Count = 5
    """Number of tokens whose effects are printed; 0 is faster."""
    json: FlagCreatePairsOff[bool] = False
    """Print JSON, one object per line: the probability of each class, the effect of each token."""

    def __post_init__(self) -> None:
        if self.texts and self.file:
            raise InputError(
                got=f"{len(self.texts)} texts and --file {self.file}",
                expected="one of the two",
                fix="Leave one out.",
            )


@config
class ExploreFlags:
    """Look inside models in the browser: attention, hand-designed heads, sampling and more.

    For example:
      glassformer explore smollm2 --text "The capital of France is"
      glassformer explore sentiment --save page.html

    Without arguments, the page begins with tours and questions, and offers the bundled models,
    language models from installed packages and every run under --runs. RUN comes first: a run, a
    checkpoint, a model's directory or a directory of several, a GGUF file, a head, a compiled
    program, or a name, bundled or on the hub. Without RUN, --text and --view are shown with the
    first model that reads the text and has the view.

    The page is served to this machine only, until Ctrl-C. With --save it is written to one file
    instead, which opens without a server and without network; with --save and --all to a directory,
    with a page for each bundled model.
    """

    run: Annotated[Positional[str | None], arg(metavar="[RUN]")] = None
    """Model to look into. None: all models here."""
    runs: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Directory that is searched for runs."""
    text: str | None = None
    """Text that the model reads. None: a text that suits the model."""
    view: View | None = None
    """View to show first. None: one that suits the model."""
    port: int = 8017
    """Port of the server; the next free one if it is taken. 0: any."""
    browser: bool = True
    """Open the page in the browser."""
    save: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the page to this file instead of serving it."""
    all: bool = False
    """Write every bundled model, with an index, to the directory that --save names."""
    overwrite: Overwrite = False


@config
class CaptureFlags:
    """Print what a language model computes on TEXT: attention weights, the logit lens, or heads.

    For example:
      glassformer capture smollm2 "The key to the cabinets" --layer 23
      glassformer capture smollm2 "The key to the cabinets" --what lens --save seen.npz

    --save writes the arrays too, with the tokens and their texts.
    """

    model: Annotated[Positional[str], _MODEL]
    text: Annotated[Positional[str], arg(metavar="TEXT")]
    """Text that the model reads. -: from standard input, without its last line end."""
    what: Literal["weights", "lens", "heads"] = "weights"
    """weights: the largest attention weights of the position. lens: the next token after each
    layer. heads: what each head and network adds to the logit of the most likely next token.
    """
    layer: int | None = None
    """Layer, from 0; negative ones count from the last. None: all."""
    head: int | None = None
    """Head, from 0. None: all."""
    position: int = -1
    """Token whose row is shown, from 0; -1 is the last."""
    top: Size = 12
    """Number of lines of the table."""
    save: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the arrays to this .npz or .safetensors file; weights then cover all positions."""
    overwrite: Overwrite = False
    tokenizer: Tokenizer = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        if self.what == "lens" and self.top != type(self).top:
            raise InputError(
                got="--top for the lens, which has a line for each layer",
                expected="weights or heads",
                fix="Leave it out; --layer shows one.",
            )
        if self.save is not None:
            if self.save.suffix not in (".npz", ".safetensors"):
                raise InputError(
                    got=f"--save {self.save}",
                    expected="a file that ends with .npz or .safetensors",
                    fix="Choose such a name.",
                )
            require_absent(self.save, self.overwrite)


@config
class InterveneFlags:
    """Print the next tokens of TEXT as a language model is, and with parts of it changed.

    For example:
      glassformer intervene smollm2 "The capital of France is" --without 23.3
      glassformer intervene smollm2 "My favourite season is" --steer " winter" " summer" --layer 15

    --without 23.3 sets head 3 of layer 23 to zero. --steer adds to the residual stream the
    direction between two words, each read after TEXT.
    """

    model: Annotated[Positional[str], _MODEL]
    text: Annotated[Positional[str], arg(metavar="TEXT")]
    """Text that the model reads. -: from standard input, without its last line end."""
    without: Annotated[tuple[str, ...], arg(metavar="PART")] = ()
    """Parts that are set to zero: LAYER.HEAD, LAYER.attention or LAYER.ffn."""
    steer: Annotated[tuple[str, str] | None, arg(metavar="TOWARDS AWAY")] = None
    """Two words: the residual stream after --layer moves towards the first and away from the
    second, at every token.
    """
    layer: int | None = None
    """Layer of --steer."""
    strength: float | None = None
    """Length of what --steer adds, as a share of the stream's norm at TEXT's last token. None: 0.5;
    texts often break around 1.
    """
    top: Size = 5
    """Number of likely tokens to show, before and after."""
    generate: Count = 0
    """Continue TEXT by this many tokens, before and after."""
    tokenizer: Tokenizer = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        if not self.without and self.steer is None:
            raise InputError(
                got="no change",
                expected="--without or --steer",
                fix="Pass --without 23.3, for example; 'glassformer capture' shows what heads do.",
            )
        if self.steer is not None and self.layer is None:
            missing = "--steer without --layer"
        elif self.layer is not None and self.steer is None:
            missing = "--layer without --steer"
        elif self.strength is not None and self.steer is None:
            missing = "--strength without --steer"
        else:
            return
        raise InputError(
            got=missing,
            expected="both of them",
            fix="Pass --steer TOWARDS AWAY --layer 12, for example.",
        )


@config
class DesignFlags:
    """Build an attention head that solves a task, prove that it does, and write its weights.

    For example:
      glassformer design unique head.json
      glassformer design unique head.npz --letters ABCD --max-len 5

    OUT ends in .json or .npz. 'glassformer verify OUT --task TASK' reads it again.
    """

    task: Positional[TaskName]
    """Task of the head; 'parity' shows how an impossible task is refused."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """File to write the weights to."""
    letters: Letters = None
    max_len: MaxLen = None
    largest_error: float = 1e-9
    """Largest allowed error of any output; a smaller error needs sharper attention."""
    overwrite: Overwrite = False


@config
class ProgramFlags:
    """Compile a program over sequences into a transformer; print its parts or its outputs.

    For example:
      glassformer program histogram abac
      glassformer program mine.py --run-python --verify --out model.json

    PROGRAM is a name of the library, such as histogram; a .json file that --out wrote, which
    contains no definition; or a Python file that defines
      program      built from glassformer.programs
      vocabulary   a text of one-character tokens, or a list of tokens
      max_len      tokens of the longest sequence
      causal       optional: True if queries see only keys up to their own position

    A Python file can do anything on this computer: read, change or delete files, use the network.
    It is run only with --run-python; read it first if you did not write it.

    Exit status 0: success; with --verify, proved for every sequence. 1: transformer and definition
    differ; with --verify, refuted or undecided. 2: PROGRAM cannot be compiled.
    """

    program: Annotated[Positional[str], arg(metavar="PROGRAM")]
    """Name of the program, a .json file or a .py file."""
    text: Annotated[Positional[tuple[str, ...]], arg(metavar="TEXT")] = ()
    """Input: characters if each token of the vocabulary is one, otherwise words. None: print the
    parts.
    """
    run_python: RunPython = False
    verify: FlagCreatePairsOff[bool] = False
    """Compare the transformer with the program on every sequence."""
    weights: Annotated[Path | None, arg(metavar="FILE")] = None
    """Take the weights from this file of --out instead of compiling the program."""
    dtype: Literal["float64", "float32", "bfloat16"] | None = None
    """Number format of the weights. None: float64, or that of the file."""
    limit: Size = 1_000_000
    """Number of sequences that --verify runs at most; if there are more, it uses a bound."""
    seconds: Positive | None = None
    """Processor time after which --verify gives up, undecided. None: no limit."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the transformer and the names of its parts to this .json file."""
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        usual = self.limit == type(self).limit and self.seconds is None
        if not self.verify and not usual:
            raise InputError(
                got="--limit or --seconds without --verify",
                expected="both of them",
                fix="Add --verify.",
            )


@config
class ModelsFlags:
    """List the models with short names, how to get missing ones, and the bundled models.

    For example:
      glassformer models
      glassformer models --json

    Other models are named by their place; see MODEL of 'glassformer generate --help'.
    """

    json: FlagCreatePairsOff[bool] = False
    """Print JSON, with sizes in bytes."""


@config
class InfoFlags:
    """Print what a model's files contain and how much memory it needs; reads headers only.

    For example:
      glassformer info smollm2
      glassformer info openai/gpt-oss-20b --json
    """

    directory: Annotated[Positional[str], arg(metavar="MODEL")]
    """A model on disk, or on the Hugging Face hub. On disk: a GGUF file, a run of a decoder, or a
    directory with config.json and weights (a known family, gpt-oss also in OpenAI's layout, BERT
    models, glassformer's own). A short name (smollm2, gemma-3-270m, gpt-oss-20b),
    owner/name:file.gguf and owner/name:Q4_K_M are downloaded. The weights of owner/name are not
    downloaded.
    """
    json: FlagCreatePairsOff[bool] = False
    """Print JSON, with sizes in bytes."""


_OTHER_FILES = (".bin", ".ckpt", ".ggml", ".h5", ".npz", ".onnx", ".pt", ".pth", ".safetensors")


@config
class ConvertFlags:
    """Write a decoder's weights in another layout, as a directory or a GGUF file.

    For example:
      glassformer convert smollm2 smollm2-directory
      glassformer convert runs/mine mine.gguf --kind Q8_0

    A directory or a run (of 'glassformer train' or of the gpt-oss lab) becomes a directory tensor
    by tensor, so that memory holds only the largest tensor; so does a GGUF file. A model with parts
    that the new layout lacks is refused. A directory has the same logits, unless --experts rounds;
    in a GGUF file each --kind but F32 rounds. Packed weights are expanded, so that files grow:
    from 4 bits to 5 times their size in a directory, to 3 times in F16.
    """

    source: Annotated[Positional[str], arg(metavar="IN")]
    """A GGUF file, whose packed weights are expanded; a directory of weights; a run; owner/name,
    owner/name:file.gguf or owner/name:Q4_K_M on the Hugging Face hub; or a short name: smollm2,
    gemma-3-270m, gpt-oss-20b.
    """
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """Output directory, or a file that ends with .gguf; written completely or not at all."""
    to: Target | None = None
    """Layout of a directory. openai: gpt-oss in OpenAI's layout. glassformer: our own, which has
    every part. None: Hugging Face's, or our own for a model that no family describes.
    """
    kind: GgufKind | None = None
    """Format of a GGUF file's matrices. F16 and BF16 round float32 weights, Q8_0 rounds to 8 bits.
    None: F16.
    """
    experts: Experts | None = None
    """mxfp4: packed in 4.25 bits per weight, with rounding. bfloat16: unpacked, exactly. None:
    unchanged.
    """
    tokenizer: Tokenizer = None
    replace: FlagCreatePairsOff[bool] = False
    """Replace the weights in OUT as a whole."""

    def __post_init__(self) -> None:
        is_file = self.out.suffix.lower() == ".gguf"
        if is_file and (self.to is not None or self.experts is not None):
            raise InputError(
                got=f"--to or --experts for {self.out}",
                expected="--kind for a GGUF file",
                fix="Leave them out, or name a directory.",
            )
        if not is_file and self.kind is not None:
            raise InputError(
                got=f"--kind {self.kind}",
                expected="a file OUT that ends with .gguf",
                fix="Rename it.",
            )
        if self.out.suffix.lower() in _OTHER_FILES:
            raise InputError(
                got=f"{self.out}, the name of a file",
                expected="a directory, or a file that ends with .gguf",
                fix="Name a directory: its weights become model.safetensors.",
            )


@config
class VerifyFlags:
    """Check whether an attention head solves a task, on every sequence.

    For example:
      glassformer verify head.json --task unique
      glassformer verify head.npz --task-file examples.json --tolerance 1e-3

    Exit status 0: proved. 1: refuted, and the first failing sequence is shown with its attention;
    or undecided. 2: the weights or the task cannot be used.

    WEIGHTS is one of
      head.json    {"Km": [[1, 0], [0, 1]], "Qm": ..., "Vm": ..., "pos": ...}
      head.npz     arrays of these names, as numpy.savez writes them

    pos may be left out. Km, Qm and Vm have a row for each letter, then one for CLS if the task has
    it, then one for each column of pos; pos has a row for each position, CLS's first. Vm has a
    column for each number of an output.

    The task is one of
      --task NAME           a built-in task, for any letters and length
      --task-file my.json   a table of examples; only these are checked:
                            {"letters": "ABC", "examples": [{"input": "CA", "output": "CC"}]}
                            An output is text, a list of numbers or a list of lists; "cls" (true or
                            false), "readout" ("argmax" or "sign") and "tolerance" may be added.
      --task-file my.py     a Python file that defines letters, max_len and target(sequence), which
                            returns such an output; every sequence up to max_len is checked.
                            Optional: cls, readout, tolerance.

    A Python file can do anything on this computer: read, change or delete files, use the network.
    It is run only with --run-python; read it first if you did not write it. A table of examples is
    never run.
    """

    weights: Annotated[Positional[Path], arg(metavar="WEIGHTS")]
    """The head: a .json or .npz file."""
    task: TaskName | None = None
    """A built-in task."""
    letters: Letters = None
    max_len: MaxLen = None
    task_file: Annotated[Path | None, arg(metavar="FILE")] = None
    """A task of your own, in a .json or .py file."""
    run_python: RunPython = False
    tolerance: Positive | Literal["task", "readout"] = "task"
    """Largest error of an output. readout: only the largest entry, or the sign, has to be right.
    task: the task's own.
    """
    float32: FlagCreatePairsOff[bool] = False
    """Run the head in float32 instead of float64."""
    limit: Size = 1_000_000
    """Run all sequences if there are at most this many; else use a bound, which may not decide."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the certificate as JSON as well."""
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        if (self.task is None) == (self.task_file is None):
            raise InputError(
                got="no task" if self.task is None else "both --task and --task-file",
                expected="one of --task and --task-file",
                fix="Pass --task unique, for example; 'glassformer verify --help' lists the tasks.",
            )
        if self.task is None and (self.letters is not None or self.max_len is not None):
            raise InputError(
                got="--letters or --max-len with --task-file",
                expected="letters and length in the file itself",
                fix="Leave these flags out.",
            )
        if self.task_file is None and self.run_python:
            raise InputError(
                got="--run-python without --task-file",
                expected="a Python task file to run",
                fix="Leave --run-python out, or add --task-file FILE.",
            )
        if self.json is not None:
            inputs = [path.resolve() for path in (self.weights, self.task_file) if path is not None]
            if self.json.resolve() in inputs:
                raise InputError(
                    got=f"--json {self.json}, which is an input as well",
                    expected="another file to write to",
                    fix="Choose another name.",
                )


@config
class StartFlags:
    """Write a lab's notebook with blanks, hints and checks.

    In the notebook, replace each "raise NotImplementedError()" and run the cell below it, which
    checks the answer.
    """

    lab: Positional[LabName]
    """Name of the lab."""
    directory: Annotated[Positional[Path], arg(metavar="DIR")] = Path(".")
    """Directory to write LAB.ipynb to."""
    seed: Seed = 0
    """Variant of the tasks: another alphabet, recurrence or facts. 0: the course's own."""
    solutions: FlagCreatePairsOff[bool] = False
    """Write the instructor's version, with nbgrader's marks around the solutions."""
    otter: FlagCreatePairsOff[bool] = False
    """Also write Otter's tests: DIR/tests/NAME.py for each exercise."""
    overwrite: Overwrite = False


@config
class GradeFlags:
    """Grade notebooks and answers: points, evidence and feedback, a row for each exercise.

    Nothing in a notebook is executed. Weights, programs and other answers that are data are checked
    again on every input. For code, the notebook's own record of the check counts, and the row
    says "recorded, not re-run". A student can forge such a record: --run lets nbgrader's autograder
    execute the notebooks on this computer.
    """

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILES")]
    """Notebooks of the labs, answers that the page wrote, or patterns like 'submitted/*.ipynb'."""
    out: Annotated[Path, arg(metavar="FILE")]
    """Write the grades as CSV."""
    gradescope: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the results.json of Gradescope and Otter, for one submission."""
    seed: Annotated[
        int | None, arg(help="Variant that was handed out. None: the one that the file names.")
    ] = None
    run: FlagCreatePairsOff[bool] = False
    """Execute the notebooks with nbgrader (pip install nbgrader); use it only where untrusted code
    may run.
    """
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        if not self.files:
            raise InputError(
                got="no files",
                expected="one notebook or more",
                fix="Name the notebooks.",
            )
        if self.gradescope is not None and self.gradescope.resolve() == self.out.resolve():
            raise InputError(
                got=f"--gradescope {self.gradescope}, which is --out as well",
                expected="another file",
                fix="Choose another name.",
            )


@config
class CourseFlags:
    """The labs as a course: notebooks with blanks to fill, and their grading.

    For example:
      glassformer course start lookup week3
      glassformer course grade submitted/lookup.ipynb --out grades.csv
    """

    command: OmitSubcommandPrefixes[
        Annotated[StartFlags, subcommand("start")] | Annotated[GradeFlags, subcommand("grade")]
    ]
