"""Fields of a ``config.json``, read strictly: each is known and has a possible value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from glassformer.errors import InputError

_FIX = (
    "Download the file again, or take a model whose configuration transformers reads in the same "
    "way."
)

_INERT = """
architectures attn_implementation author auto_map bad_words_ids badwordsids bos_token_id
cache_implementation classifier_dropout created_date custom_pipelines decoder_start_token_id
do_sample dtype early_stopping embd_pdrop embed_dropout eos_token_id finetuning_task
gradient_checkpointing hidden_dropout id2label initializer_range is_decoder is_llama_config label2id
language length_penalty license max_length max_sequence_length min_length model_type n_ctx
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
output_hidden_states output_past output_router_logits pad_token_id predict_special_tokens prefix
pretraining_tp problem_type repetition_penalty resid_dropout resid_pdrop return_dict
router_aux_loss_coef router_jitter_noise sep_token_id summary_activation summary_first_dropout
summary_proj_to_labels summary_type summary_use_proj task_specific_params temperature
tokenizer_class top_k top_p torch_dtype transformers.js_config transformers_version typical_p
unk_token_id unsloth_fixed unsloth_version use_cache
"""
"""Fields that change no logits of a decoder in evaluation mode; nor do those that begin with _."""
_PACKED = ("quantization_config", "quantization", "compression_config")
"""Fields that say how weights are packed, such as GPTQ's."""
_OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})


class Fields:
    """The content of a ``config.json`` or of an object in it; it remembers which fields were read.

    Every method that returns a field raises :class:`InputError` with its name for a value that it
    does not accept.
    """

    def __init__(
        self, content: Mapping[str, Any], place: str = "", aliases: Mapping[str, str] | None = None
    ) -> None:
        self.content = dict(content)
        self.place = place
        self._known = set(_INERT.split())
        for alias, name in (aliases or {}).items():
            if alias in self.content:
                value = self.content.pop(alias)
                if self.content.setdefault(name, value) != value:
                    raise InputError(
                        got=f"{alias} = {value!r} and {name} = {self.content[name]!r}",
                        expected="the same in both",
                        fix=_FIX,
                    )

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field as it is, or ``default`` if it is absent."""
        self._known.add(name)
        return self.content.get(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 0 to 2**40, small enough for arithmetic on shapes."""
        value = self.get(name, default)
        if type(value) is not int or not 0 <= value < 2**40:
            raise InputError(
                got=self._got(name, value),
                expected="a whole number below 2**40",
                fix=_FIX,
            )
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.get(name, default)
        if not _is_finite(value):
            raise InputError(
                got=self._got(name, value),
                expected="a finite number",
                fix=_FIX,
            )
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if type(value) is not bool:
            raise InputError(
                got=self._got(name, value),
                expected="true or false",
                fix=_FIX,
            )
        return bool(value)

    def only(self, name: str, accepted: Any) -> None:
        """Refuse another value than this one; the field may be absent or null."""
        value = self.get(name, accepted)
        is_accepted = type(value) is type(accepted) and value == accepted
        if value is not None and not is_accepted:
            raise InputError(
                got=self._got(name, value),
                expected=f"{accepted!r}",
                fix=_FIX,
            )

    def part(self, name: str) -> Fields | None:
        """Return an object in it; None if it is absent, null or empty."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(
                got=self._got(name, value),
                expected="an object",
                fix=_FIX,
            )
        if not value:
            return None
        return Fields(value, f"{name}.")

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Return a list of positive finite numbers."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise InputError(
                got=self._got(name, value),
                expected=f"a list of {length} numbers",
                fix=_FIX,
            )
        if not all(_is_finite(number) and number > 0 for number in value):
            raise InputError(
                got=self._got(name, value),
                expected="finite numbers above 0",
                fix=_FIX,
            )
        return tuple(map(float, value))

    def names(self, name: str, length: int, accepted: Iterable[Any]) -> list[Any] | None:
        """Return a list of this length of accepted values; None if it is absent or null."""
        value = self.get(name)
        accepted = list(accepted)
        if value is None:
            return None
        is_list = isinstance(value, list) and len(value) == length
        if not is_list or not all(item in accepted for item in value):
            raise InputError(
                got=self._got(name, value),
                expected=f"{length} of {accepted}",
                fix=_FIX,
            )
        return list(value)

    def turns(self, name: str, length: int, accepted: Iterable[str]) -> list[str]:
        """Return the items of lists that are repeated: 24 of ``[[["global", "local"], 12]]``."""
        value = self.get(name)
        accepted = list(accepted)
        items: list[str] = []
        if isinstance(value, list) and all(map(_is_turn, value)):
            items = list(islice(_repeated(value), length + 1))
        if len(items) != length or not all(item in accepted for item in items):
            raise InputError(
                got=self._got(name, value),
                expected=f"pairs of a list of {accepted} and a number, for {length}",
                fix=_FIX,
            )
        return items

    def require_known(self) -> None:
        """Refuse a field that was not read, unless it is off: null, false, 0 or empty."""
        for name, value in self.content.items():
            if name in self._known or str(name).startswith("_") or value in _OFF:
                continue
            if name in _PACKED:
                raise InputError(
                    got=self._got(name, value),
                    expected="weights as numbers",
                    fix="Take the model that was packed, or a GGUF file of it.",
                )
            raise InputError(
                got=self._got(name, value),
                expected=(
                    "fields known to leave the computation as it is, or to change it as implemented"
                ),
                fix="Remove the field if the model was trained without what it stands for.",
            )

    def _got(self, name: str, value: Any) -> str:
        if name in self.content:
            return f"{self.place}{name} = {value!r:.300}"
        return f"no {self.place}{name}"


def alike(fields: Mapping[str, Any], default: float | None = None) -> float:
    """Return the number in fields that say the same thing; absent fields are None."""
    present = {name: value for name, value in fields.items() if value is not None}
    if not present:
        present = {"default": default}
    numbers = [*present.values()]
    in_words = " and ".join(f"{name} = {value!r}" for name, value in present.items())
    if not all(map(_is_finite, numbers)):
        raise InputError(got=in_words, expected="finite numbers", fix=_FIX)
    if not all(math.isclose(number, numbers[0], rel_tol=1e-6) for number in numbers):
        raise InputError(got=in_words, expected="the same number in both", fix=_FIX)
    return float(numbers[0])


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _repeated(turns: Iterable[tuple[list[str], int]]) -> Iterator[str]:
    for items, times in turns:
        for _ in range(times):
            yield from items


def _is_turn(value: Any) -> bool:
    """Return whether a value is a pair of a list and the number of its repetitions."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return isinstance(value[0], list) and type(value[1]) is int
