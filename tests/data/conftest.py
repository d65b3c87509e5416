"""A small tokenizer of gpt-oss's kind."""

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from glassformer.data.released_tokenizer import O200K_PATTERN, ReleasedTokenizer, from_json
from harmony_vocabulary import HARMONY_SPECIALS

TEXT = """The Quick brown fox doesn't jump over 12345 lazy dogs; it's 3/4 of the way there, isn't it?
  Über den Fluß!\r\n\r\n你好，世界 — привет мир. You're HERE: foo(bar)[0] != x_1
\tfinal user
 assistant analysis system 2 + 2 = 4
"""


@pytest.fixture(scope="session")
def harmony_engine() -> Tokenizer:
    """Byte pairs over bytes with o200k's pattern and harmony's special tokens, as a released
    ``tokenizer.json``.
    """
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator([TEXT] * 3, trainer)
    engine.add_special_tokens([AddedToken(name, special=True) for name in HARMONY_SPECIALS])
    return engine


@pytest.fixture(scope="session")
def tokenizer(harmony_engine: Tokenizer) -> ReleasedTokenizer:
    return from_json(harmony_engine.to_str())
