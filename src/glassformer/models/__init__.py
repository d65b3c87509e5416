"""Parts and a configuration make a network."""

from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig

__all__ = ["Decoder", "DecoderConfig"]
