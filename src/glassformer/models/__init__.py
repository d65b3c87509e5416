"""Networks, built of layers by a configuration."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.models.decoder import Decoder as Decoder
    from glassformer.models.decoder_config import DecoderConfig as DecoderConfig
    from glassformer.models.encoder import Encoder as Encoder
    from glassformer.models.encoder import EncoderConfig as EncoderConfig
    from glassformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from glassformer.models.encoder_decoder import EncoderDecoderConfig as EncoderDecoderConfig

_NAMES = {
    "decoder": ("Decoder",),
    "decoder_config": ("DecoderConfig",),
    "encoder": ("Encoder", "EncoderConfig"),
    "encoder_decoder": ("EncoderDecoder", "EncoderDecoderConfig"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    # Loaded when they are used: configurations need no torch.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
