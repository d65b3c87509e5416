"""Parts and a configuration make a network."""

from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder, embed
from glassformer.models.encoder_config import EncoderConfig

__all__ = ["Decoder", "DecoderConfig", "Encoder", "EncoderConfig", "embed"]
