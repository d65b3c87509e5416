"""Small tokenizers from the trainers of the library ``tokenizers``."""

from collections.abc import Iterable

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from glassformer.data.subword import SubwordTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]"]


def train_subwords(
    texts: Iterable[str], kind: str = "wordpiece", vocab_size: int = 500
) -> SubwordTokenizer:
    """Word pieces (``"wordpiece"``) or byte pairs (``"bpe"``), with ``[CLS]`` before every text."""
    options = {"vocab_size": vocab_size, "special_tokens": SPECIAL, "show_progress": False}
    if kind == "wordpiece":
        engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(**options)
        engine.normalizer = normalizers.BertNormalizer(lowercase=True)
        engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        engine.decoder = decoders.WordPiece()
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        engine = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(**options, initial_alphabet=alphabet)
        engine.normalizer = normalizers.Lowercase()
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        engine.decoder = decoders.ByteLevel()
    engine.train_from_iterator(texts, trainer=trainer)
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    return SubwordTokenizer(engine)
