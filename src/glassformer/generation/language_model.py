"""Language models: a decoder with its tokenizer, chat template and sampling rule."""

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
    """A decoder with the tokenizer and chat template that turn texts into its tokens and back.

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
    """Size of its files of weights, in bytes."""
    packing: str = ""
    """Format of most weights, such as ``"Q4_1"``; empty for a directory."""
    rule: SamplingRule = DEFAULT_RULE
    """Sampling rule of the model: ``lm.generate(text, rule=lm.rule)``."""

    @torch.no_grad()
    def __call__(
        self, text: str | list[str] | Int[Tensor, "batch position"] | Mapping[str, Tensor]
    ) -> Float[Tensor, "batch position vocab"]:
        """Return the logits after each token, without gradients.

        ``text`` is a text, several texts, or a result of :meth:`tokens`. Texts of different lengths
        are a batch that is padded on the left: ``[:, -1]`` is after the last token of each.
        """
        tokens = text
        if not isinstance(text, Tensor | Mapping):
            tokens = self.tokens(text)
        logits: Tensor
        if isinstance(tokens, Mapping):
            logits = self.model(**tokens)
        else:
            logits = self.model(tokens)
        return logits

    @overload
    def tokens(self, text: str, *, special: bool = False) -> Int[Tensor, "1 position"]: ...
    @overload
    def tokens(self, text: list[str], *, special: bool = False) -> dict[str, Tensor]: ...
    def tokens(self, text: str | list[str], *, special: bool = False) -> Tensor | dict[str, Tensor]:
        """Return the tokens of ``text``, on the model's device.

        They follow the token that the model expects before every text.

        Args:
            text: A text, or a list of texts.
            special: Read names of special tokens in ``text`` as these tokens.

        Returns:
            For a text, tokens ``[1, position]``. For a list, a dictionary of ``tokens`` and
            ``key_padding``, both ``[text, position]``, padded on the left. ``key_padding`` is True
            where a token is real, like ``attention_mask`` of transformers and the opposite of
            ``key_padding_mask`` of PyTorch. Pass the dictionary as ``lm(batch)`` or
            ``lm.model(**batch)``, and to sweeps and lenses in place of tokens.

        Example:
            >>> batch = lm.tokens(["a", "longer text"])  # doctest: +SKIP
            >>> logits = lm(batch)  # doctest: +SKIP
        """
        if not isinstance(text, str):
            _require_texts(text)
            rows = [self.tokens(row, special=special)[0].tolist() for row in text]
            tokens, real = padded(self.model, rows)
            if real is None:
                real = torch.ones_like(tokens).bool()
            return {"tokens": tokens, "key_padding": real}
        encoder = self.tokenizer
        if special:
            numbers = encoder.encode_prompt(text)
        else:
            numbers = [*encoder.begin, *encoder.encode(text)]
        if not numbers:
            raise InputError(
                got="an empty text",
                expected="at least one character",
                fix="Begin the text.",
            )
        return torch.tensor([numbers], device=self.model.device)

    def token(self, text: str) -> int:
        """Return the id of the one token of ``text``, without the token that begins every text.

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
                fix=(
                    'Begin a word with a space, as in " John", or choose one of its tokens from '
                    "tokens()."
                ),
            )
        return numbers[0]

    @overload
    def strings(self, tokens: Tensor | Iterable[int]) -> list[str]: ...
    @overload
    def strings(self, tokens: Mapping[str, Tensor]) -> list[list[str]]: ...
    def strings(
        self, tokens: Tensor | Iterable[int] | Mapping[str, Tensor]
    ) -> list[str] | list[list[str]]:
        """Return the part of the text of each token; see :meth:`ReleasedTokenizer.strings`.

        For the result of :meth:`tokens` for several texts, return a list for each, without padding.
        """
        if isinstance(tokens, Mapping):
            return [self.tokenizer.strings(row) for row in _rows(tokens)]
        return self.tokenizer.strings(_one_row(tokens))

    def labels(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """Return the label of each token in a figure, as "🎉 1/3" for a part of a character."""
        return self.tokenizer.labels(_one_row(tokens))

    def text(self, tokens: Tensor | Iterable[int]) -> str:
        """Return the text of ``tokens``."""
        return self.tokenizer.decode(_one_row(tokens))

    def prompt(self, text: str | Messages) -> list[int]:
        """Return the tokens that a reply continues.

        They are the tokens of a text, or of a conversation by the model's chat template.
        """
        if isinstance(text, str):
            return self.tokens(text)[0].tolist()
        if not _is_conversation(text):
            raise InputError(
                got=f"{text!r:.80}",
                expected="a text, or messages",
                fix="Call it for each text, or pass a list of texts to generate().",
            )
        if self.chat_template is not None:
            return self.chat_template.tokens(text, self.tokenizer)
        if "<|channel|>" not in self.tokenizer.specials:
            raise InputError(
                got=f"messages for {self.name}, which has no chat template",
                expected="a text",
                fix="Pass a string.",
            )
        return render(_harmony_messages(text), self.tokenizer)

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
        """Yield the continuation of a text, or the reply to messages, piece by piece.

        A character is yielded when it is complete. For a list of texts, each step yields a list
        with the new piece of each, which may be empty. A greedy continuation is that of the text
        alone, but for rounding: in bfloat16 and with packed weights it may differ where two tokens
        are nearly equally likely.

        Args:
            text: A text, or messages such as ``[{"role": "user", "content": "Hello"}]``; or a list
                of several.
            max_new_tokens: Greatest number of new tokens.
            rule: Rule by which a token is chosen, the most likely one by default. ``lm.rule`` is
                the rule of the model.
            temperature: Field of :class:`~glassformer.generation.SamplingRule` that replaces the
                rule's, as do ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty`` and ``seed``.
                One of the first four replaces all four.
            stop: Tokens that end the text, besides the model's.
        """
        several = _are_several(text)
        texts: Any = text if several else [text]
        ends = {*self.stop_tokens, *_listed(stop)}
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        options |= {"repetition_penalty": repetition_penalty, "seed": seed}
        rule = overridden(rule, options)
        prompts = [self.prompt(prompt) for prompt in texts]
        steps = stream(self.model, prompts, max_new_tokens, rule=rule, stop_tokens=tuple(ends))
        prefixes = [b"" if isinstance(prompt, str) else self.tokenizer.prefix for prompt in texts]
        pieces = self._pieces(steps, ends, prefixes)
        if several:
            return pieces
        return filter(None, (piece for (piece,) in pieces))

    def _pieces(
        self, steps: Iterator[list[int | None]], ends: set[int], prefixes: Sequence[bytes]
    ) -> Iterator[list[str]]:
        """Yield the characters that each step adds to each text.

        The last item is the rest: bytes that complete no character.
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
        """Return the pieces of :meth:`stream` as a whole: a string, or a list of them for a list.

        Arguments and errors are those of :meth:`stream`.
        """
        pieces = self.stream(text, max_new_tokens, **options)
        if not _are_several(text):
            return "".join(pieces)
        return ["".join(parts) for parts in zip(*pieces, strict=True)]

    def save(
        self, directory: str | Path, *, layout: str | None = None, replace: bool = False
    ) -> None:
        """Write a directory for :func:`load`: weights, tokenizer, chat template, stop tokens, rule.

        transformers, vLLM and other programs read the directory too, and ``glassformer convert``
        makes a GGUF file of it. Packed weights are written expanded. A model whose tokens are
        numbers is loaded with ``tokenizer="numbers"``.

        Args:
            directory: Directory to write. It is complete in the end or, whatever happens, as it
                was.
            layout: Layout of :func:`~glassformer.checkpoints.decoders.save_decoder`.
            replace: Replace the directory of another decoder as a whole.

        Example:
            >>> lm = glassformer.load("smollm2", hold="dense")  # doctest: +SKIP
            >>> train_on_own_texts(lm.model)  # doctest: +SKIP
            >>> lm.save("tuned")  # doctest: +SKIP
            >>> tuned = glassformer.load("tuned")  # doctest: +SKIP
            >>> tuned.generate([{"role": "user", "content": "Hello"}])  # doctest: +SKIP
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
    """Return whether ``text`` is a list of texts or conversations, not a text or a conversation."""
    if not isinstance(text, list | tuple) or _is_conversation(text):
        return False
    are_conversations = len(text) > 0 and all(isinstance(item, list | tuple) for item in text)
    if not are_conversations:
        _require_texts(text)
    return True


def _is_conversation(text: Any) -> bool:
    """Return whether ``text`` is a sequence of messages."""
    if not isinstance(text, Sequence) or len(text) == 0:
        return False
    return all(isinstance(message, Mapping) for message in text)


def _harmony_messages(messages: Messages) -> list[Message]:
    """Return a conversation for gpt-oss, whose own system message comes first."""
    roles = [message.get("role") for message in messages]
    has_instructions = roles[:1] in (["system"], ["developer"])
    turns = messages[1:] if has_instructions else messages
    if not all(turn.get("role") in ("user", "assistant") for turn in turns):
        raise InputError(
            got=f"messages of {roles}",
            expected="user and assistant, at most after one of system or developer",
            fix="Rename or join them.",
        )
    for message in messages:
        if not message.keys() <= {"role", "content"} or not isinstance(message.get("content"), str):
            raise InputError(
                got="messages with other parts than a role and a text",
                expected="a role and a text in content",
                fix="Leave other parts out, or render the messages with glassformer.data.harmony.",
            )
    instructions = messages[0]["content"] if has_instructions else ""
    rendered = Setting(instructions=instructions).messages()
    for turn in turns:
        channel = FINAL if turn["role"] == "assistant" else None
        rendered.append(Message(turn["role"], turn["content"], channel))
    return rendered


def _require_texts(texts: Any) -> None:
    is_list = isinstance(texts, list | tuple) and len(texts) > 0
    if not is_list or not all(isinstance(text, str) for text in texts):
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
        source: One of these.

            - A GGUF file, or any file of a model in several.
            - A directory of Hugging Face or of glassformer.
            - A run of ``glassformer train``: its best weights are taken.
            - A name on the Hugging Face hub: ``"owner/name"``, ``"owner/name:file.gguf"`` or, for
              the file in a format, ``"owner/name:Q4_K_M"``.
            - A short name of :data:`~glassformer.checkpoints.store.KNOWN`: "smollm2",
              "gemma-3-270m", "gpt-oss-20b".
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
        hold: ``"blocks"`` keeps a GGUF file's packed weights as they are, ``"dense"`` expands them,
            to be trained.
        dtype: Dtype of expanded weights. None: as they are stored in a directory; for a GGUF file
            bfloat16 if all matrices are stored so, or else float32.
        tokenizer: A tokenizer's file; or a GGUF file, a directory, a model on the hub or a short
            name, whose chat template is used too if the model has none; ``"bytes"`` or
            ``"numbers"`` if these are the model's tokens; None: the model's own.
        pack: Kind in which a directory's linear layers are packed; see
            :func:`~glassformer.checkpoints.store.build`.
        allow_nonfinite: Allow weights that are infinite or NaN, which is an error otherwise.

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
    """Return the tokens of one text; refuse those of several."""
    form = None
    if isinstance(tokens, Mapping):
        form = "by name"
    elif isinstance(tokens, Tensor) and tokens.dim() > 1 and len(tokens) > 1:
        form = f"of shape {list(tokens.shape)}"
    if form is not None:
        raise InputError(
            got=f"tokens {form}",
            expected="those of one text",
            fix=(
                "Pass tokens[0] for the first text. strings() takes the whole result of tokens() "
                "for a list."
            ),
        )
    return _listed(tokens)


def _rows(batch: Mapping[str, Tensor]) -> list[list[int]]:
    """Return the tokens of each text of a batch, without padding."""
    tokens = batch.get("tokens")
    real = batch.get("key_padding")
    if tokens is None or real is None:
        raise InputError(
            got=f"tokens with the names {', '.join(batch)}",
            expected="tokens and key_padding",
            fix="Pass the result of tokens() for a list of texts.",
        )
    return [row[mask].tolist() for row, mask in zip(tokens, real, strict=True)]


def _listed(tokens: Tensor | Iterable[int]) -> list[int]:
    if isinstance(tokens, Tensor):
        return tokens.flatten().tolist()
    return list(tokens)
