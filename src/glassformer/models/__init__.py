"""Parts and a configuration make a network."""

from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, embed
from glassformer.models.encoder_config import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "embed",
]
