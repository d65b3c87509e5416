"""The fields of a ``config.json``, read strictly: each is known, has a possible value, and
contradicts no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from glassformer.errors import InputError

_FIX = "Download the file again, or take a model whose configuration transformers reads in the same way."

_INERT = """
architectures attn_implementation author auto_map bad_words_ids badwordsids bos_token_id cache_implementation
classifier_dropout created_date custom_pipelines decoder_start_token_id do_sample dtype early_stopping embd_pdrop
embed_dropout eos_token_id finetuning_task gradient_checkpointing hidden_dropout id2label initializer_range is_decoder
is_llama_config label2id language length_penalty license max_length max_sequence_length min_length model_type n_ctx
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
output_past output_router_logits pad_token_id predict_special_tokens prefix pretraining_tp problem_type
repetition_penalty resid_dropout resid_pdrop return_dict router_aux_loss_coef router_jitter_noise sep_token_id
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params
temperature tokenizer_class top_k top_p torch_dtype transformers.js_config transformers_version typical_p unk_token_id
unsloth_fixed unsloth_version use_cache
"""
"""Fields that change no logits of a decoder in evaluation mode; those that begin with an underscore
change none.
"""
_PACKED = ("quantization_config", "quantization", "compression_config")
"""Fields that say how weights are packed, such as GPTQ's."""
_OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})


class Fields:
    """The content of a ``config.json``, or of an object in it, that remembers what was asked for.

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
                same = self.content.setdefault(name, value) == value
                if not same:
                    raise InputError(
                        got=f"{alias} = {value!r} and {name} = {self.content[name]!r}",
                        expected="the same in both",
                        fix=_FIX,
                    )

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it is, ``default`` where it is absent."""
        self._known.add(name)
        return self.content.get(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 to 2**40, small enough for arithmetic on shapes."""
        value = self.get(name, default)
        possible = type(value) is int and 0 <= value < 2**40
        if not possible:
            raise InputError(
                got=self._got(name, value),
                expected="a whole number below 2**40",
                fix=_FIX,
            )
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(name, default)
        finite = type(value) in (int, float) and abs(value) < 1e30
        if not finite:
            raise InputError(
                got=self._got(name, value),
                expected="a finite number",
                fix=_FIX,
            )
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
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
        same = value is None or (type(value) is type(accepted) and value == accepted)
        if not same:
            raise InputError(
                got=self._got(name, value),
                expected=f"{accepted!r}",
                fix=_FIX,
            )

    def part(self, name: str) -> Fields | None:
        """An object in it; None where it is absent, null or empty."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(
                got=self._got(name, value),
                expected="an object",
                fix=_FIX,
            )
        return Fields(value, f"{name}.") if value else None

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of positive finite numbers."""
        value = self.get(name)
        possible = isinstance(value, list) and len(value) == length
        if not possible:
            raise InputError(
                got=self._got(name, value),
                expected=f"a list of {length} numbers",
                fix=_FIX,
            )
        positive = all(type(each) in (int, float) and 0 < each < 1e30 for each in value)
        if not positive:
            raise InputError(
                got=self._got(name, value),
                expected="finite numbers above 0",
                fix=_FIX,
            )
        return tuple(map(float, value))

    def names(self, name: str, length: int, accepted: Iterable[Any]) -> list[Any] | None:
        """A list of this length of accepted values; None where it is absent or null."""
        value = self.get(name)
        accepted = list(accepted)
        if value is None:
            return None
        possible = (
            isinstance(value, list)
            and len(value) == length
            and all(each in accepted for each in value)
        )
        if not possible:
            raise InputError(
                got=self._got(name, value),
                expected=f"{length} of {accepted}",
                fix=_FIX,
            )
        return list(value)

    def turns(self, name: str, length: int, accepted: Iterable[str]) -> list[str]:
        """The items of lists that are repeated: ``[[["global", "local"], 12]]``; 24 of them."""
        value = self.get(name)
        accepted = list(accepted)
        possible = isinstance(value, list) and all(
            isinstance(each, list) and len(each) == 2 for each in value
        )
        possible = possible and all(
            isinstance(items, list) and type(times) is int for items, times in value
        )
        every = (
            item
            for items, times in (value if possible else [])
            for _ in range(times)
            for item in items
        )
        found = list(islice(every, length + 1))
        possible = len(found) == length and all(item in accepted for item in found)
        if not possible:
            raise InputError(
                got=self._got(name, value),
                expected=f"pairs of a list of {accepted} and a number, for {length}",
                fix=_FIX,
            )
        return found

    def require_known(self) -> None:
        """Refuse a field that nothing asked for, unless it is switched off (null, false, 0, empty)."""
        for name, value in self.content.items():
            known = name in self._known or str(name).startswith("_") or value in _OFF
            expected = (
                "fields known to leave the computation as it is, or to change it as implemented"
            )
            fix = "Remove the field if the model was trained without what it stands for."
            if name in _PACKED:
                expected = "weights as numbers"
                fix = "Take the model that was packed, or a GGUF file of it."
            if not known:
                raise InputError(
                    got=self._got(name, value),
                    expected=expected,
                    fix=fix,
                )

    def _got(self, name: str, value: Any) -> str:
        if name in self.content:
            return f"{self.place}{name} = {value!r:.300}"
        return f"no {self.place}{name}"


def alike(fields: Mapping[str, Any], default: float | None = None) -> float:
    """The number in fields that say the same thing; absent ones are None."""
    given = {name: value for name, value in fields.items() if value is not None} or {
        "default": default
    }
    got = " and ".join(f"{name} = {value!r}" for name, value in given.items())
    numbers = [
        value for value in given.values() if type(value) in (int, float) and abs(value) < 1e30
    ]
    if len(numbers) != len(given):
        raise InputError(
            got=got,
            expected="finite numbers",
            fix=_FIX,
        )
    same = all(math.isclose(value, numbers[0], rel_tol=1e-6) for value in numbers)
    if not same:
        raise InputError(
            got=got,
            expected="the same number in both",
            fix=_FIX,
        )
    return float(numbers[0])
