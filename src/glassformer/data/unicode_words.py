"""Letters of all scripts, by Unicode's general categories, and invisible signs.

A letter may be followed by marks, which are separate signs and distinguish words: vowel signs and
viramas of Indic scripts, tones of Thai and Burmese, vowels of Arabic and Hebrew, accents without a
composed form.
"""

import re
import unicodedata
from functools import lru_cache

NON_JOINER = "\u200c"
JOINER = "\u200d"
_SPACE_WITHOUT_WIDTH = "\u200b"
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
MARK = "\0"
"""Replacement of a mark in :func:`outline`; texts that are :func:`unified` have no NUL."""

# The same rules for JavaScript, whose regular expressions know the categories.
_AFTER_CASELESS = r"(?<=[\p{Lo}\p{Lm}\p{M}])"
JAVASCRIPT = {
    "letter": r"[\p{L}\p{M}\p{N}_\u200c\u200d]",
    "boundary": _AFTER_CASELESS + r"\u200b",
    "invisible": "|".join(
        (
            rf"{_AFTER_CASELESS.replace('<=', '<!')}[\u200c\u200d]",
            r"\u200c(?![\p{L}\p{M}])",
            r"(?![\u200c\u200d])[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\p{Cf}\p{Cs}"
            r"\ufe00-\ufe0f\u{e0100}-\u{e01ef}]",
        )
    ),
}
"""Regular expressions: a letter in a word, a word boundary that becomes a space, removed signs."""


def unified(text: str) -> str:
    """Return ``text`` in lower case and in Unicode's form NFKC, without invisible signs.

    Variants (full-width letters, ligatures, curly apostrophes) become one. Controls, format
    characters such as direction marks and soft hyphens, variation selectors and unpaired surrogates
    are removed. Tabs, line ends and other white space stay.

    After a mark or a letter without case, three format characters distinguish words. The joiner
    (U+200D) stays, and the non-joiner (U+200C) before another letter. The space without width
    (U+200B), which ends a word in Thai or Khmer, becomes a space. ``str.lower`` folds upper case;
    it keeps German "Maße" and "Masse" apart.
    """
    # Lower-casing can decompose a letter, so it is normalized twice.
    lower = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    if lower.isascii():
        return _CONTROLS.sub("", lower)
    # Letters that an invisible sign separated may be composed now.
    return unicodedata.normalize("NFKC", _visible(lower)).replace("’", "'")


def outline(text: str) -> str:
    """Return ``text`` with :data:`MARK` for each mark and joiner; positions stay.

    ``\\w`` of Python's ``re`` lacks marks and joiners.
    """
    if text.isascii():
        return text
    return "".join(MARK if is_mark(sign) else sign for sign in text)


def _visible(text: str) -> str:
    if not any(map(_is_invisible, set(text))):
        return text
    signs = list(text)
    for place, sign in enumerate(text):
        if _is_invisible(sign):
            signs[place] = _replacement(text, place)
    return "".join(signs)


def _replacement(text: str, place: int) -> str:
    """Return the replacement of an invisible sign: a space, the sign or nothing."""
    sign = text[place]
    if place == 0 or not _is_caseless(text[place - 1]):
        return ""
    if sign == _SPACE_WITHOUT_WIDTH:
        return " "
    before_letter = place + 1 < len(text) and unicodedata.category(text[place + 1])[0] in "LM"
    stays = sign == JOINER or (sign == NON_JOINER and before_letter)
    return sign if stays else ""


@lru_cache(maxsize=4096)
def _is_invisible(sign: str) -> bool:
    """Return whether it is a control, a format character, a surrogate or a variation selector.

    White space is not.
    """
    if sign.isspace():
        return False
    if unicodedata.category(sign) in ("Cc", "Cf", "Cs"):
        return True
    return unicodedata.name(sign, "").startswith("VARIATION SEL")


@lru_cache(maxsize=4096)
def _is_caseless(sign: str) -> bool:
    """Return whether it is a mark, or a letter without upper and lower case."""
    kind = unicodedata.category(sign)
    return kind in ("Lo", "Lm") or kind.startswith("M")


@lru_cache(maxsize=4096)
def is_mark(sign: str) -> bool:
    """Return whether it belongs to the letter before it: a combining mark or a joiner."""
    return sign in (JOINER, NON_JOINER) or unicodedata.category(sign).startswith("M")
