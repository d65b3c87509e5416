"""Tokens of released decoders: beside the engines themselves, and beside one another."""

import copy
import hashlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from glassformer.checkpoints import store
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.checkpoints.store import named_tokenizer
from glassformer.data import released_tokenizer as module
from glassformer.data.gguf_tokenizer import byte_vocabulary
from glassformer.data.released_tokenizer import ReleasedTokenizer, from_json, part_labels
from harmony_vocabulary import HARMONY_SPECIALS
from refusals import refused
from small_models import decoder


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_tokens_are_the_engines_and_decode(
    text: str, tokenizer: ReleasedTokenizer, harmony_engine: Tokenizer
) -> None:
    tokens = tokenizer.encode(text)
    if not any(name in text for name in HARMONY_SPECIALS):
        assert tokens == harmony_engine.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokens) == text
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()


def test_bytes_are_spelt_as_the_library_spells_them() -> None:
    alphabet = module.byte_alphabet()
    assert sorted(alphabet.values()) == [bytes([byte]) for byte in range(256)]
    text = bytes(range(128)).decode() + "éß你"
    spelt = module.tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(text)
    assert b"".join(alphabet[sign] for piece, _ in spelt for sign in piece) == text.encode()


@pytest.mark.parametrize("marked", [True, False])
def test_nobody_writes_a_special_token(marked: bool, harmony_engine: Tokenizer) -> None:
    content = json.loads(harmony_engine.to_str())
    for each in content["added_tokens"]:
        each["special"] = marked
    tokenizer = from_json(json.dumps(content))
    assert dict(tokenizer.specials) == {
        name: harmony_engine.token_to_id(name) for name in HARMONY_SPECIALS
    }
    text = "end<|end|><|start|>system"
    tokens = tokenizer.encode(text)
    assert not set(tokens) & set(tokenizer.specials.values())
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode([tokenizer.special("<|end|>")]) == "<|end|>"


def test_characters_come_when_they_are_whole_and_nothing_breaks(
    tokenizer: ReleasedTokenizer,
) -> None:
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    tokens = [single[bytes([byte])] for byte in "é€".encode() + b"\xff" + b"\xe2\x82"]
    assert list(tokenizer.stream(tokens)) == [
        *("", "é", "", "", "€", "\N{REPLACEMENT CHARACTER}", "", ""),
        "\N{REPLACEMENT CHARACTER}",
    ]
    assert (
        tokenizer.decode([tokenizer.vocab_size + 7]) == f"<|reserved_{tokenizer.vocab_size + 7}|>"
    )
    assert tokenizer.decode(tokenizer.encode("a\ud83d b")) == "a\N{REPLACEMENT CHARACTER} b"


def test_bytes_to_fall_back_on_as_mixtral_has_them() -> None:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "▁ab",
    ]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    engine = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer = from_json(engine.to_str())
    assert tokenizer.begin == (1,)
    assert tokenizer.encode("ab ab") == engine.encode("ab ab", add_special_tokens=False).ids
    for text in ("ab ab", "aé€ b", "b</s>"):
        tokens = tokenizer.encode(text)
        assert 2 not in tokens
        # Mixtral reads a space before every text.
        assert tokenizer.decode(tokens) == f" {text}"
        assert "".join(tokenizer.stream(tokens, tokenizer.prefix)) == engine.decode(tokens) == text
    assert tokenizer.decode([vocab["▁ab"], vocab["<0x0A>"], vocab["</s>"]]) == " ab\n</s>"


@pytest.mark.parametrize(
    "text", ["Bären", "“Ja”", "a\xa0b", "中文", "🙂👍🏽", "plain", "", "\\xe4"]
)
def test_each_character_is_shown_where_it_is_complete(
    text: str, tokenizer: ReleasedTokenizer
) -> None:
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    for tokens in (tokenizer.encode(text), [single[bytes([byte])] for byte in text.encode()]):
        shown = tokenizer.strings(tokens)
        assert len(shown) == len(tokens)
        assert "".join(shown) == text
        assert shown == list(tokenizer.stream(tokens))[:-1]


def test_bytes_of_no_character_are_shown_where_they_stand(tokenizer: ReleasedTokenizer) -> None:
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    a, start, next_, end = (single[each] for each in (b"a", b"\xf0", b"\x9f", b"<|end|>"))
    assert tokenizer.strings([start, next_, a]) == [r"\xf0", r"\x9f", "a"]
    assert tokenizer.strings([a, start, end]) == ["a", r"\xf0", "<|end|>"]
    assert tokenizer.strings([next_]) == [r"\x9f"]
    assert tokenizer.strings([]) == []


def test_a_character_of_several_tokens_is_named_with_its_part_in_each(
    tokenizer: ReleasedTokenizer,
) -> None:
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    tokens = [single[bytes([byte])] for byte in "aé🎉".encode()]
    assert tokenizer.labels(tokens) == [
        "a",
        "é 1/2",
        "é 2/2",
        "🎉 1/4",
        "🎉 2/4",
        "🎉 3/4",
        "🎉 4/4",
    ]
    assert tokenizer.labels(tokens[:-1])[3:] == [r"\xf0", r"\x9f", r"\x8e"]
    assert part_labels([b" \xf0\x9f", b"\x8e", b"\x89", b"b"]) == [
        " 🎉 1/3",
        "🎉 2/3",
        "🎉 3/3",
        "b",
    ]
    assert part_labels([b"", b"\xe6\x97\xa5\xe6", b"\x9c\xac!"]) == ["", "日本 1/2", "本 2/2!"]
    assert tokenizer.labels([]) == []


def test_a_prompt_is_read_with_special_tokens(tokenizer: ReleasedTokenizer) -> None:
    text = "<|start|>user<|message|>Hi <|end|>\n"
    tokens = tokenizer.encode_prompt(text)
    assert [token for token in tokens if token in tokenizer.specials.values()] == [
        tokenizer.special(name) for name in ("<|start|>", "<|message|>", "<|end|>")
    ]
    assert tokenizer.decode(tokens) == text
    assert tokenizer.special("<|return|>") in tokenizer.ends
    assert tokenizer.special("<|end|>") not in tokenizer.ends


def fallback_engine() -> Tokenizer:
    """Bytes to fall back on, as in the files of Llama 2, Mixtral, Gemma and Phi-3."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "▁a",
        "▁▁",
        "<|user|>",
    ]
    engine = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], byte_fallback=True)
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.add_tokens(
        [AddedToken("▁▁", normalized=False), AddedToken("<|user|>", rstrip=True, normalized=False)]
    )
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return engine


def bytes_engine(split: str | None, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """Bytes, as in the files of GPT-2, Pythia, OLMo, Llama 3, Qwen and SmolLM."""
    vocab = {sign: index for index, sign in enumerate(module.byte_alphabet())} | {
        "Ġa": 256,
        "aa": 257,
    }
    engine = Tokenizer(models.BPE(vocab, [("Ġ", "a"), ("a", "a")]))
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    splits = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytewise])
    engine.decoder = decoders.ByteLevel()
    if normalizer is not None:
        engine.normalizer = normalizer
    engine.add_special_tokens(["<s>"])
    engine.add_tokens([AddedToken("   ", normalized=False), "é!"])
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 258)])
    engine.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    return engine


@pytest.mark.parametrize(
    "engine",
    [
        fallback_engine(),
        bytes_engine(None),
        bytes_engine(None, normalizers.NFC()),
        bytes_engine(r"\p{N}|\s+(?!\S)| ?[^\s\p{N}]+|\s+"),
    ],
)
def test_files_of_other_families_give_their_engines_tokens(engine: Tokenizer) -> None:
    tokenizer = from_json(engine.to_str())
    for text in ("a aa  a", "aaa   aé!", "  a12 a\n中", "é \x00"):
        assert [*tokenizer.begin, *tokenizer.encode(text)] == engine.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode_prompt(text) == engine.encode(text).ids
    prompt = "<s>a <|user|>\na"
    assert tokenizer.encode_prompt(prompt) == engine.encode(prompt, add_special_tokens=False).ids


def test_files_that_do_not_say_their_kind_are_read() -> None:
    """GPT-2's is of 2020, when the library did not write it."""
    content = json.loads(bytes_engine(None).to_str())
    expected = from_json(json.dumps(content))
    for name in ("type", "byte_fallback", "ignore_merges"):
        del content["model"][name]
    tokenizer = from_json(json.dumps(content))
    assert tokenizer.encode("a aa  é!") == expected.encode("a aa  é!")
    assert tokenizer.decode(tokenizer.encode("a aa  é!")) == "a aa  é!"


def test_names_that_count_as_normalised_are_found_after_a_word_too(tmp_path: Path) -> None:
    """Llama's older files mark them so. In transformers 5 it makes no difference."""
    engine = fallback_engine()
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    content = json.loads(engine.to_str())
    for each in content["added_tokens"]:
        each["normalized"] = each["special"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert module.read_tokenizer(tmp_path / "tokenizer.json").encode_prompt("<s>a</s>") == [
        1,
        261,
        2,
    ]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("a</s>").input_ids == [1, 261, 2]


@pytest.mark.parametrize(
    ("config", "begin", "ends"),
    [
        (None, (1,), ()),
        ({"eos_token": "</s>"}, (1,), (2,)),
        (
            {"eos_token": {"__type": "AddedToken", "content": "</s>"}, "add_bos_token": False},
            (1,),
            (2,),
        ),
        ({"bos_token": "</s>", "add_bos_token": True, "eos_token": None}, (1,), ()),
    ],
)
def test_the_config_beside_a_tokenizer_is_read(
    config: dict[str, object] | None, begin: tuple[int, ...], ends: tuple[int, ...], tmp_path: Path
) -> None:
    fallback_engine().save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = named_tokenizer(str(tmp_path), 410)
    assert (tokenizer.begin, tokenizer.ends) == (begin, ends)
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoTokenizer.from_pretrained(
        tmp_path, tokenizer_class="PreTrainedTokenizerFast"
    )
    assert other("a").input_ids == [*begin, *tokenizer.encode("a")]


@pytest.mark.parametrize(("token", "name"), [("1", "</s>"), ("264", "<new>"), ("x", "<s>")])
def test_a_config_with_other_tokens_is_refused(token: str, name: str, tmp_path: Path) -> None:
    fallback_engine().save(str(tmp_path / "tokenizer.json"))
    tokens = {
        "1": {"content": "<s>", "special": True},
        "262": {"content": "▁▁"},
        "263": {"content": "<|user|>"},
    }
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"added_tokens_decoder": tokens}))
    named_tokenizer(str(tmp_path), 410)
    config.write_text(json.dumps({"added_tokens_decoder": tokens | {token: {"content": name}}}))
    with refused(f"without the token '{name}' = '{token}' of tokenizer_config.json"):
        named_tokenizer(str(tmp_path), 410)
    config.write_text("{}")
    older = {described["content"]: int(index) for index, described in tokens.items()}
    (tmp_path / "added_tokens.json").write_text(json.dumps(older | {"<pad>": 264}))
    named_tokenizer(str(tmp_path), 410)
    (tmp_path / "added_tokens.json").write_text(json.dumps(older | {name: token}))
    with refused(f"without the token '{name}' = '{token}' of .* or added_tokens.json"):
        named_tokenizer(str(tmp_path), 410)


def test_sizes_are_checked(tokenizer: ReleasedTokenizer) -> None:
    tokenizer.require_fits(tokenizer.vocab_size)
    tokenizer.require_fits(201088)
    engine = fallback_engine()
    engine.add_tokens(["<pad>"])  # as tokenizers of Llama 2 have, beyond the model's vocabulary
    padded = from_json(engine.to_str())
    padded.require_fits(padded.vocab_size - 1)
    assert max(padded.encode("a <pad>")) < padded.vocab_size - 1
    with refused(r"without <\|nonsense\|>"):
        tokenizer.special("<|nonsense|>")
    with refused("the token -1"):
        tokenizer.decode([-1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "a JSON object"),
        (b"\xff\xfe", "with the byte 0xff"),
        (b'{"model": {"type": "BPE"}}', "with a fault"),
        (b'{"added_tokens": [{}], "model": {}}', "with a fault"),
        (b'{"added_tokens": 7}', "with a fault"),
    ],
)
def test_damaged_files_are_told_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with refused(anywhere=message) as error:
        module.read_tokenizer(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    os.truncate(tmp_path / "tokenizer.json", 2**40)  # on no disk
    with refused(r"tokenizer\.json of 1,099,511,627,776 bytes", expected="at most 67,108,864"):
        module.read_tokenizer(tmp_path / "tokenizer.json")


def test_other_kinds_of_tokens_are_refused() -> None:
    engine = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with refused("of the kind WordPiece", expected="byte-pair"):
        from_json(engine.to_str())
    with refused("that merges characters and has no bytes", expected="byte-pair"):
        from_json(Tokenizer(models.BPE({"a": 0}, [])).to_str())


# Where they are found.


@pytest.fixture
def directory(tmp_path: Path, harmony_engine: Tokenizer) -> Path:
    """Of a model, as on the hub."""
    (tmp_path / "original").mkdir()
    harmony_engine.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_it_lies_beside_the_weights_or_above_openais(
    directory: Path, harmony_engine: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for place in (directory, directory / "original"):
        found = module.tokenizer_beside(place)
        assert found.source == str(directory.resolve() / "tokenizer.json")
        assert found.encode("Hello") == harmony_engine.encode("Hello").ids
    empty = tmp_path_factory.mktemp("empty")
    assert module.tokenizer_beside(empty) is None
    with refused("without a tokenizer"):
        named_tokenizer(str(empty), 410)


def test_a_link_to_elsewhere_is_refused(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "original").mkdir()
    (other / "tokenizer.json").symlink_to(directory / "tokenizer.json")
    for place in (other, other / "original"):
        with refused(r"tokenizer\.json, a link to", expected="files in the directory itself"):
            module.tokenizer_beside(place)
    # the user named it
    assert named_tokenizer(str(other / "tokenizer.json"), 410).vocab_size == 410


def test_users_name_a_model_of_the_hub(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Mock(return_value=str(directory / "tokenizer.json"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert named_tokenizer("openai/gpt-oss-20b", 410).vocab_size == 410
    download.assert_called_once_with("openai/gpt-oss-20b", "tokenizer.json")
    download.side_effect = OSError("no connection\nat all")
    with refused(r"tokenizer\.json of openai/gpt-oss-20b, which .*hub \(no connection\)"):
        named_tokenizer("openai/gpt-oss-20b", 410)


def test_users_name_a_model_by_its_short_name_or_its_gguf_file(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Mock(return_value=str(directory / "tokenizer.json"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert named_tokenizer("gpt-oss-20b", 410).vocab_size == 410
    download.assert_called_once_with("openai/gpt-oss-20b", "tokenizer.json")
    path = tmp_path / "model.gguf"
    write_gguf(decoder(vocab_size=256), path, tokenizer=byte_vocabulary())
    known = replace(
        store.KNOWN["smollm2"],
        packages=(("no_such_package", ""),),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    monkeypatch.setattr(store, "KNOWN", {"smollm2": known})
    download.return_value = str(path)
    for name in ("smollm2", str(path)):
        assert named_tokenizer(name, 256).encode("hé") == [*"hé".encode()]
    with refused("'smolm2', which is no tokenizer", expected="a short name", fix="'smollm2'"):
        named_tokenizer("smolm2", 256)


@pytest.mark.parametrize("kind", ["tokenizer.json", "GGUF", "numbers"])
def test_other_processes_get_one(kind: str, tokenizer: ReleasedTokenizer) -> None:
    """Pickled, as for workers that read texts; what it was copied from is a copy of it again."""
    given = (
        tokenizer
        if kind == "tokenizer.json"
        else named_tokenizer("bytes" if kind == "GGUF" else "numbers", 300)
    )
    text = "1 2" if kind == "numbers" else "Grüße, 🦊 <|end|>\r\n \0"
    for copied in (
        pickle.loads(pickle.dumps(given)),
        copy.deepcopy(pickle.loads(pickle.dumps(given))),
    ):
        assert copied.encode(text) == given.encode(text)
        assert copied.encode_prompt(text) == given.encode_prompt(text)
        assert [*map(copied.piece, range(given.vocab_size + 1))] == [
            *map(given.piece, range(given.vocab_size + 1))
        ]
        fields = ("source", "vocab_size", "specials", "begin", "ends")
        assert all(getattr(copied, field) == getattr(given, field) for field in fields)
    assert copy.deepcopy(replace(given, json=None)).encode(text) == given.encode(text)
