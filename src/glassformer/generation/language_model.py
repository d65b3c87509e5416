"""Language models as people have them: a decoder with its tokenizer, chat template and sampling
rule.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.checkpoints.assembly import Hold
from glassformer.checkpoints.decoders import save_decoder
from glassformer.checkpoints.store import build, open_model, weights_in_words
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.harmony import FINAL, Message, Setting, render
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.errors import InputError
from glassformer.generation.decoding import GREEDY, padded, stream
from glassformer.generation.model_files import write_model_files
from glassformer.generation.model_rule import DEFAULT_RULE, generation_config, overridden, rule_of
from glassformer.generation.sampling import SamplingRule
from glassformer.layers.quantized import Pack
from glassformer.layers.quantized.packed import PACKED
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models import Decoder
from glassformer.text import byte_size

Messages = Sequence[Mapping[str, Any]]
"""A conversation: ``[{"role": "user", "content": "Hello"}]``."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder with what turns texts into its tokens and back.

    ``model`` is an ordinary :class:`~glassformer.models.Decoder` in evaluation mode: sweeps and
    lenses take it. Capture and interventions take this object too, which reads texts and generates
    under them::

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
        """The logits after each token of a text, of several texts, or of what :meth:`tokens` gives,
        without gradients.

        Logits of several texts of different lengths are those of a batch that is padded on the
        left: ``[:, -1]`` is after the last token of each.
        """
        if isinstance(text, Tensor | Mapping):
            given = text
        else:
            given = self.tokens(text)
        logits: Tensor = self.model(**given) if isinstance(given, Mapping) else self.model(given)
        return logits

    @overload
    def tokens(self, text: str, *, special: bool = False) -> Int[Tensor, "1 position"]: ...
    @overload
    def tokens(self, text: list[str], *, special: bool = False) -> dict[str, Tensor]: ...
    def tokens(self, text: str | list[str], *, special: bool = False) -> Tensor | dict[str, Tensor]:
        """The tokens of ``text`` on the model's device, after the token that the model expects
        before every text.

        Args:
            text: A text, or a list of texts.
            special: The names of special tokens in ``text`` stand for these tokens.

        Returns:
            Tokens ``[1, position]`` of a text. Of a list ``{"tokens": tokens, "key_padding":
            real}``, both
            ``[text, position]``, padded on the left: ``key_padding`` is True where a token is real,
            as ``attention_mask`` of transformers, the opposite of ``key_padding_mask`` of PyTorch.
            Pass it as ``lm(batch)``, as ``lm.model(**batch)``, and to sweeps and lenses in the
            place of tokens.

        Example:
            >>> batch = lm.tokens(["a", "longer text"])  # doctest: +SKIP
            >>> logits = lm(batch)  # doctest: +SKIP
        """
        if not isinstance(text, str):
            _require_texts(text)
            rows = [self.tokens(each, special=special)[0].tolist() for each in text]
            numbers, real = padded(self.model, rows)
            return {
                "tokens": numbers,
                "key_padding": torch.ones_like(numbers).bool() if real is None else real,
            }
        encoder = self.tokenizer
        if special:
            found = encoder.encode_prompt(text)
        else:
            found = [*encoder.begin, *encoder.encode(text)]
        if len(found) <= 0:
            raise InputError(
                got="an empty text",
                expected="at least one character",
                fix="Begin the text.",
            )
        return torch.tensor([found], device=self.model.device)

    def token(self, text: str) -> int:
        """Return the id of the one token that ``text`` is within a text: without the token that
        begins every text.

        Example:
            >>> john = lm.token(" John")  # doctest: +SKIP

        Raises:
            InputError: A text of no token or of several.
        """
        numbers = self.tokenizer.encode(text)
        if len(numbers) != 1:
            pieces = ", ".join(map(repr, self.labels(numbers))) or "none"
            raise InputError(
                got=f"{text!r:.80} for one token, which has {len(numbers)}: {pieces:.200}",
                expected="a text of one token",
                fix='Begin a word with a space, as in " John", or choose one of its tokens from tokens().',
            )
        return numbers[0]

    @overload
    def strings(self, tokens: Tensor | Iterable[int]) -> list[str]: ...
    @overload
    def strings(self, tokens: Mapping[str, Tensor]) -> list[list[str]]: ...
    def strings(
        self, tokens: Tensor | Iterable[int] | Mapping[str, Tensor]
    ) -> list[str] | list[list[str]]:
        """What each token shows of the text; see :meth:`ReleasedTokenizer.strings`.

        Of several texts, as :meth:`tokens` gives them for a list, a list for each, without padding.
        """
        if isinstance(tokens, Mapping):
            return [self.tokenizer.strings(row) for row in _rows(tokens)]
        return self.tokenizer.strings(_one_row(tokens))

    def labels(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """What each token is called in a figure: parts of one character as "🎉 1/3" and so on."""
        return self.tokenizer.labels(_one_row(tokens))

    def text(self, tokens: Tensor | Iterable[int]) -> str:
        """The text of ``tokens``."""
        return self.tokenizer.decode(_one_row(tokens))

    def prompt(self, text: str | Messages) -> list[int]:
        """The tokens that a reply continues: of a text, or of a conversation by the model's chat
        template.
        """
        if isinstance(text, str):
            return self.tokens(text)[0].tolist()
        fits = (
            isinstance(text, Sequence)
            and len(text) > 0
            and all(isinstance(each, Mapping) for each in text)
        )
        fix = "Call it for each text, or pass a list of texts to generate()."
        if not fits:
            raise InputError(
                got=f"{text!r:.80}",
                expected="a text, or messages",
                fix=fix,
            )
        if self.chat_template is not None:
            return self.chat_template.tokens(text, self.tokenizer)
        has_harmony = "<|channel|>" in self.tokenizer.specials
        if not has_harmony:
            raise InputError(
                got=f"messages for {self.name}, which has no chat template",
                expected="a text",
                fix="Pass a string.",
            )
        roles = [each.get("role") for each in text]
        first = int(roles[:1] in (["system"], ["developer"]))  # gpt-oss's system message is another
        expected = "user and assistant, at most after one of system or developer"
        known = all(role in ("user", "assistant") for role in roles[first:])
        if not known:
            raise InputError(
                got=f"messages of {roles}",
                expected=expected,
                fix="Rename or join them.",
            )
        plain = all(
            each.keys() <= {"role", "content"} and isinstance(each.get("content"), str)
            for each in text
        )
        fix = "Leave other parts out, or render the messages with glassformer.data.harmony."
        if not plain:
            raise InputError(
                got="messages with other parts than a role and a text",
                expected="a role and a text in content",
                fix=fix,
            )
        messages = Setting(instructions=text[0]["content"] if first else "").messages()
        for each in text[first:]:
            messages.append(
                Message(
                    each["role"], each["content"], FINAL if each["role"] == "assistant" else None
                )
            )
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
        """The continuation of a text, or the reply to messages, piece by piece: each character when
        it is complete.

        Of a list of these, a list with the new piece of each after each step, which may be empty. A
        greedy continuation is that of the text alone, but for rounding: in bfloat16 and with packed
        weights it may differ where two tokens are nearly equally likely.

        Args:
            text: A text, or messages such as ``[{"role": "user", "content": "Hello"}]``; or a list
                of several.
            max_new_tokens: At most so many tokens.
            rule: How a token is chosen, the most likely one by default; ``lm.rule`` is what the
                model brings.
            temperature: As of :class:`~glassformer.generation.SamplingRule`, instead of the rule's;
                so are ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty`` and ``seed``. One of
                the first four replaces all four.
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
        if texts is text:
            return pieces
        return filter(None, (piece for (piece,) in pieces))

    def _pieces(
        self, steps: Iterator[list[int | None]], ends: set[int], prefixes: Sequence[bytes]
    ) -> Iterator[list[str]]:
        """What each step adds to each text; the last item is what remains of bytes that complete no
        character.
        """
        newest: list[int | None] = [None] * len(prefixes)

        def tokens_of(text: int) -> Iterator[int]:
            while (token := newest[text]) is not None and token not in ends:
                yield token

        readers = [
            self.tokenizer.stream(tokens_of(text), prefix) for text, prefix in enumerate(prefixes)
        ]
        for step in steps:
            newest[:] = step
            yield [next(reader, "") for reader in readers]
        newest[:] = [None] * len(readers)
        yield [next(reader, "") for reader in readers]

    @overload
    def generate(self, text: str | Messages, max_new_tokens: int = 200, **options: Any) -> str: ...
    @overload
    def generate(
        self, text: list[str] | list[Messages], max_new_tokens: int = 200, **options: Any
    ) -> list[str]: ...
    def generate(
        self,
        text: str | Messages | list[str] | list[Messages],
        max_new_tokens: int = 200,
        **options: Any,
    ) -> str | list[str]:
        """What :meth:`stream` gives, as a whole: a string, or a list with a string for each of
        several texts.

        Arguments and errors are those of :meth:`stream`.
        """
        pieces = self.stream(text, max_new_tokens, **options)
        if not _are_several(text):
            return "".join(pieces)
        return ["".join(parts) for parts in zip(*pieces, strict=True)]

    def save(
        self, directory: str | Path, *, layout: str | None = None, replace: bool = False
    ) -> None:
        """Write the model with its tokenizer, chat template, stop tokens and sampling rule, for
        :func:`load`.

        transformers, vLLM and other programs read the directory too, and ``glassformer convert``
        makes a GGUF file of it. Packed weights are written expanded. A model whose tokens are
        numbers is loaded with ``tokenizer="numbers"``.

        Args:
            directory: Where to: complete or, whatever happens, as it was before.
            layout: As for :func:`~glassformer.checkpoints.decoders.save_decoder`, as is
                ``replace``.

        Example:
            >>> lm = glassformer.load("smollm2", hold="dense")  # doctest: +SKIP
            >>> train_on_own_texts(lm.model)  # doctest: +SKIP
            >>> lm.save("tuned")  # doctest: +SKIP
            >>> glassformer.load("tuned").generate([{"role": "user", "content": "Hello"}])  # doctest: +SKIP
        """

        def beside(draft: Path) -> None:
            rule = generation_config(self.rule)
            write_model_files(
                draft, self.tokenizer, self.chat_template, self.stop_tokens, rule=rule
            )

        save_decoder(self.model, directory, layout=layout, replace=replace, beside=beside)

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        kind = f"{self.packing}, " if self.packing else ""
        count = count_weights(self.model)
        return f"{self.name}: {weights_in_words(count)}, {kind}{byte_size(self.size)}"

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
    if not fits:
        raise InputError(
            got=f"{texts!r:.80}",
            expected=(
                "a text, or messages; or a list of one or more texts, or of one or more "
                "conversations"
            ),
            fix="Pass strings alone, or conversations alone.",
        )


def count_weights(model: nn.Module) -> int:
    """Return the number of weights; those of an output that is the embedding count once."""
    counts: dict[Any, int] = {}
    for module in model.modules():
        if isinstance(module, PACKED):
            for weight in module.packed_weights().values():
                counts[weight.blocks.data_ptr()] = math.prod(weight.shape)
        elif isinstance(module, PackedMixture):
            counts[module] = 3 * module.num_experts * module.hidden_dim * module.ff_dim
        counts |= {
            parameter.data_ptr(): parameter.numel()
            for parameter in module.parameters(recurse=False)
        }
    return sum(counts.values())


def load(
    source: str | Path,
    *,
    device: str = "auto",
    hold: Hold = "blocks",
    dtype: torch.dtype | None = None,
    tokenizer: str | None = None,
    pack: Pack | None = None,
    allow_nonfinite: bool = False,
) -> LanguageModel:
    """Open a language model.

    Args:
        source: A GGUF file, of a model in several any of them; a directory of Hugging Face or of
            glassformer; a run of ``glassformer train``, of which the best weights are taken; a name
            on the Hugging Face hub, ``"owner/name"``, ``"owner/name:file.gguf"`` or, for its file
            in a format, ``"owner/name:Q4_K_M"``; or a short name of
            :data:`~glassformer.checkpoints.store.KNOWN`: "smollm2", "gemma-3-270m", "gpt-oss-20b".
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
        hold: ``"blocks"`` keeps a GGUF file's packed weights as they are, ``"dense"`` expands them,
            to be trained.
        dtype: Of expanded weights; None: of a directory as they are stored, of a GGUF file bfloat16
            if all matrices are stored so, or else float32.
        tokenizer: A tokenizer's file, or a GGUF file, a directory, a model on the hub or of a short
            name with one, whose chat template is used too if the model has none; ``"bytes"`` or
            ``"numbers"`` for a model whose tokens these are; None: the model's own.
        pack: Kind in which a directory's linear layers are packed; see
            :func:`~glassformer.checkpoints.store.build`.
        allow_nonfinite: Whether weights may be infinite or NaN, which is an error otherwise.

    Raises:
        CheckpointError: Files that are damaged, or an architecture that is not known.
        InputError: No such model, no tokenizer, or an option that does not fit.

    Example:
        >>> lm = glassformer.load("smollm2")  # doctest: +SKIP
        >>> lm.generate("The capital of France is", max_new_tokens=1)  # doctest: +SKIP
        ' Paris'
    """
    stored = open_model(source, tokenizer=tokenizer, allow_nonfinite=allow_nonfinite)
    return LanguageModel(
        name=stored.name,
        tokenizer=stored.require_tokenizer(),
        model=build(stored, device=device, hold=hold, dtype=dtype, pack=pack),
        chat_template=stored.chat_template,
        stop_tokens=stored.stop_tokens,
        size=stored.nbytes,
        packing=stored.packing,
        rule=rule_of(stored).rule,
    )


def _one_row(tokens: Tensor | Iterable[int]) -> list[int]:
    """The tokens of one text."""
    if isinstance(tokens, Mapping) or (
        isinstance(tokens, Tensor) and tokens.dim() > 1 and len(tokens) > 1
    ):
        if isinstance(tokens, Tensor):
            shape = f"of shape {list(tokens.shape)}"
        else:
            shape = "by name"
        raise InputError(
            got=f"tokens {shape}",
            expected="those of one text",
            fix=(
                "Pass tokens[0] for the first text. strings() takes the whole of what tokens() "
                "gives for a list."
            ),
        )
    return _listed(tokens)


def _rows(batch: Mapping[str, Tensor]) -> list[list[int]]:
    """The tokens of each text of a batch, without padding."""
    tokens = batch.get("tokens")
    real = batch.get("key_padding")
    if tokens is None or real is None:
        raise InputError(
            got=f"tokens with the names {', '.join(batch)}",
            expected="tokens and key_padding",
            fix="Pass what tokens() gives for a list of texts.",
        )
    return [row[kept].tolist() for row, kept in zip(tokens, real, strict=True)]


def _listed(tokens: Tensor | Iterable[int]) -> list[int]:
    if isinstance(tokens, Tensor):
        return tokens.flatten().tolist()
    return list(tokens)
