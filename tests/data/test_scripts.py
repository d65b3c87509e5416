"""Words and equal texts in the scripts of the world: marks belong to their letters, and distinguish
texts.
"""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.examples import Example, leaked, normalized, split_by_text
from glassformer.data.tokenizer import WordTokenizer, split_words
from glassformer.data.unicode_words import outline, unified

LANGUAGES = {
    "Adlam": "𞤆𞤵𞤤𞤢𞤪", "Ahom": "𑜒𑜑𑜪𑜨", "Arabic": "العَرَبِيَّة", "Armenian": "Հայերեն", "Avestan": "𐬀𐬎𐬌𐬯𐬙𐬁",
    "Balinese": "ᬩᬲᬩᬮᬶ", "Batak": "ᯅᯖᯂ᯲", "Bengali": "বাংলা", "Bopomofo": "ㄅㄆㄇ", "Brahmi": "𑀩𑁆𑀭𑀸𑀳𑁆𑀫𑀻",
    "Buginese": "ᨅᨔᨕᨘᨁᨗ", "Burmese": "မြန်မာဘာသာ", "Chakma": "𑄌𑄋𑄴𑄟𑄳𑄦", "Cham": "ꨌꩌ", "Cherokee": "ᏣᎳᎩ",
    "Chinese": "中文", "Coptic": "ⲙⲉⲧⲣⲉⲙⲛ̀ⲭⲏⲙⲓ", "Cree": "ᓀᐦᐃᔭᐍᐏᐣ", "Cyrillic": "русский", "Devanagari": "हिन्दी",
    "Ethiopic": "አማርኛ", "Georgian": "ქართული", "Gothic": "𐌲𐌿𐍄𐌹𐍃𐌺", "Grantha": "𑌗𑍍𑌰𑌨𑍍𑌥", "Greek": "Ελληνικά",
    "Gujarati": "ગુજરાતી", "Gurmukhi": "ਪੰਜਾਬੀ", "Hangul": "한국어", "Hebrew": "עִבְרִית", "Inuktitut": "ᐃᓄᒃᑎᑐᑦ",
    "Japanese": "日本語", "Javanese": "ꦧꦱꦗꦮ", "Kannada": "ಕನ್ನಡ", "Kayah Li": "ꤊꤢꤛꤢ꤭", "Kharoshthi": "𐨑𐨪𐨆𐨮𐨿𐨛𐨁",
    "Khmer": "ភាសាខ្មែរ", "Lao": "ພາສາລາວ", "Latin": "Tiếng", "Lepcha": "ᰛᰩᰵ", "Limbu": "ᤕᤰᤌᤢᤱ", "Malayalam": "മലയാളം",
    "Mandaic": "ࡋࡉࡔࡀࡍࡀ", "Marathi": "मराठी", "Meetei": "ꯃꯩꯇꯩꯂꯣꯟ", "Mongolian": "ᠮᠣᠩᠭᠣᠯ", "Nepali": "नेपाली",
    "Newa": "𑐣𑐾𑐥𑐵𑐮", "N'Ko": "ߒߞߏ", "Odia": "ଓଡ଼ିଆ", "Ol Chiki": "ᱥᱟᱱᱛᱟᱲᱤ", "Osage": "𐓏𐓘𐓻𐓘𐓻𐓟", "Pashto": "پښتو",
    "Persian": "فارسی", "Rohingya": "𐴌𐴟𐴇𐴥𐴝𐴚𐴒𐴙𐴝", "Samaritan": "ࠏࠁࠓࠅࠕ", "Saurashtra": "ꢱꣃꢬꢵꢰ꣄ꢜ꣄ꢬꢵ", "Sinhala": "සිංහල",
    "Sundanese": "ᮞᮥᮔ᮪ᮓ", "Syloti": "ꠍꠤꠟꠐꠤ", "Syriac": "ܣܘܼܪܝܵܝܵܐ", "Tai Tham": "ᨣᩤᩴᨾᩮᩬᩥᨦ", "Tamil": "தமிழ்", "Telugu": "తెలుగు",
    "Thaana": "ދިވެހި", "Thai": "ภาษาไทย", "Tibetan": "བོད", "Tifinagh": "ⵜⴰⵎⴰⵣⵉⵖⵜ", "Tigrinya": "ትግርኛ",
    "Tirhuta": "𑒧𑒻𑒟𑒱𑒪𑒲", "Urdu": "اُردُو", "Uyghur": "ئۇيغۇرچە", "Vai": "ꕙꔤ", "Yi": "ꆈꌠꉙ", "Yiddish": "ייִדיש",
    "Yoruba": "Yorùbá̩",
}  # fmt: skip
"""Names of languages and scripts in themselves."""

WORDS = {
    "Arabic with a superscript alef": "ذٰلِكَ", "Persian with a non-joiner": "می‌خواهم", "Bengali with a joiner": "র‍্যাব",
    "Sinhala with a joiner": "ශ්‍රී", "Malayalam with a joiner at its end": "അവന്‍", "Khmer with a coeng": "ស្ត្រី",
    "Burmese stacked": "တက္ကသိုလ်", "Hebrew with cantillation": "בְּרֵאשִׁ֖ית", "Thai with a tone": "น้ำ",
}  # fmt: skip

PAIRS = [
    ("कि", "की"), ("बल", "बाल"), ("दिन", "दीन"), ("ไม่", "ไม้"), ("มา", "ม้า"), ("பல", "பால"), ("மல", "மலை"),
    ("বল", "বেল"), ("দিন", "দীন"), ("ਕਲ", "ਕਾਲ"), ("કલ", "કાલ"), ("ବଲ", "ବାଲ"), ("కల", "కాల"), ("ಕಲ", "ಕಾಲ"),
    ("കല", "കാല"), ("කල", "කාල"), ("က", "ကာ"), ("ကား", "ကာ"), ("កា", "កី"), ("ກາ", "ກາ້"), ("བད", "བོད"),
    ("عَلِمَ", "عُلِمَ"), ("שָׁם", "שֵׁם"), ("ܡܲܢ", "ܡܸܢ"), ("ދި", "ދު"), ("ọ̀rọ̀", "ọrọ"), ("ߒ߫", "ߒ߬"),
    ("تنها", "تن‌ها"), ("അവന്‍", "അവന്"), ("it was 1.5", "it was 15"), ("score 5+5", "score 55"),
    ("loved it 😀", "loved it 😡"), ("a C++ book", "a C book"), ("Maße", "Masse"), ("Я е", "Я ё"),
]  # fmt: skip
"""Different texts that a comparison of letters alone confuses."""


def categories(text: str) -> set[str]:
    return {unicodedata.category(sign) for sign in text}


def test_languages_are_of_many_scripts() -> None:
    scripts = {unicodedata.name(name[0]).split()[0] for name in LANGUAGES.values()}
    assert len(LANGUAGES) >= 70
    assert len(scripts) >= 60


@pytest.mark.parametrize("word", [*LANGUAGES.values(), *WORDS.values()], ids=[*LANGUAGES, *WORDS])
def test_letters_and_marks_between_spaces_are_one_word(word: str) -> None:
    plain = unicodedata.normalize("NFKC", word.lower())
    assert list(split_words(f" {word} ")) == [plain]
    assert list(split_words(f"a {word}, {word}! ({word})")) == [
        "a",
        plain,
        ",",
        plain,
        "!",
        "(",
        plain,
        ")",
    ]
    # The tokenizer gives it back.
    tokenizer = WordTokenizer.from_texts([word])
    assert tokenizer.words == (plain,)
    assert tokenizer.decode(tokenizer.encode(word)) == plain


def test_no_mark_of_unicode_parts_a_word() -> None:
    marks = [
        sign
        for sign in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(sign).startswith("M")
    ]
    variants = [sign for sign in marks if "VARIATION SELECTOR-" in unicodedata.name(sign)]
    assert len(marks) > 2000
    assert len(variants) == 256
    parted = [hex(ord(mark)) for mark in marks if len(list(split_words(f"क{mark}क"))) != 1]
    assert parted == []
    # All but selectors of a letter's shape distinguish texts.
    confused = {mark for mark in marks if normalized(f"क{mark}क") == normalized("कक")}
    assert confused == set(variants)


def test_letters_and_digits_of_unicode_are_words_alone_and_together() -> None:
    alone = {"L", "N"}
    for sign in map(chr, range(sys.maxunicode + 1)):
        plain = unified(sign)
        if {kind[0] for kind in categories(sign)} <= alone and {
            kind[0] for kind in categories(plain)
        } <= alone:
            assert list(split_words(f"{sign}a")) == [f"{plain}a"], hex(ord(sign))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_texts_that_differ_in_a_mark_are_different(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)
    first = Example(f"{one} abc", 0)
    second = Example(f"{other} abc", 1)
    assert leaked([first], [second]) == ()
    assert len(split_by_text([first, second], (0.5, 0.5))) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("क़लम", "क\u093cलम"), ("café", "cafe\u0301"), ("ＦＵＬＬ", "full"), ("it´s", "it's"), ("``good''", "good"),
        ("हिन्दी!", "हिन्दी ।"), ("ΟΔΟΣ", "οδος"), ("a\u200bb", "ab"), ("a\u00adb\ufeff", "ab"),
        ("\u202bשלום\u202c", "שלום"),
        ("❤️ it", "❤ it"), ("10/10", "10 / 10"), ("fa\u200cmily", "family"),
    ],
)  # fmt: skip
def test_variants_of_form_are_the_same_text(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ភាសា\u200bខ្មែរ", ["ភាសា", "ខ្មែរ"]),
        ("ภาษา\u200bไทย", ["ภาษา", "ไทย"]),
        ("fa\u200bmily", ["family"]),
        ("при\u200bвет", ["привет"]),
        ("fa\u200cmi\u200dly", ["family"]),
        ("کتاب\u200c ", ["کتاب"]),
        ("👨\u200d👩\u200d👧", ["👨", "👩", "👧"]),
        ("\u2067שלום\u2069", ["שלום"]),
        ("ᠭᠠᠵᠠᠷ\u180eᠠ", ["ᠭᠠᠵᠠᠷᠠ"]),
        ("did\u200bn't", ["did", "n't"]),
        ("बुरा नहीं, didn't", ["बुरा", "नहीं", ",", "did", "n't"]),
    ],
)
def test_signs_without_width(text: str, words: list[str]) -> None:
    assert list(split_words(text)) == words


@given(text=st.text(st.characters(exclude_categories=()), max_size=40))
@settings(max_examples=200, deadline=None)
def test_words_are_runs_of_letters_marks_and_digits(text: str) -> None:
    plain = unified(text).replace("'", " ")
    words = []
    current = ""
    for sign in plain + " ":
        kind = unicodedata.category(sign)
        if kind[0] in "LMN" or sign in "_\u200c\u200d":
            current += sign
            continue
        words += [part for part in (current, sign) if part.strip()]
        current = ""
    assert list(split_words(plain)) == words
    assert unified(plain) == plain
    assert len(outline(plain)) == len(plain)


def test_python_and_categories_agree_on_letters() -> None:
    signs = [chr(code) for code in range(sys.maxunicode + 1)]
    differing = {
        s
        for s in signs
        if bool(re.match(r"\w", s)) != (unicodedata.category(s)[0] in "LN" or s == "_")
    }
    assert differing == set()
