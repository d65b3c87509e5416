"""Load language models, look inside them and change them. Names are loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.explorer.model_page import ModelPage
    from glassformer.generation.language_model import LanguageModel
    from glassformer.observe import edits, lens, sweep
    from glassformer.observe.capture import capture
    from glassformer.observe.intervene import intervene

__version__ = "0.1.0"
__all__ = [
    "LanguageModel",
    "capture",
    "edits",
    "explore",
    "intervene",
    "lens",
    "load",
    "sweep",
]

_MODULES = {"edits", "lens", "sweep"}
"""Modules of :mod:`glassformer.observe` that are attributes here, loaded on first use."""
_NAMES = {
    "LanguageModel": "glassformer.generation.language_model",
    "capture": "glassformer.observe.capture",
    "intervene": "glassformer.observe.intervene",
}
"""Modules of the class and the functions, loaded on first use."""


def explore(
    model: Any = None, text: Any = None, *, tokenizer: Any = None, source: Any = None, **state: Any
) -> ModelPage:
    """Look into a model: ``glassformer.explore(model, "some text")`` shows it in a notebook's cell.

    Elsewhere the result writes the page to a file that opens by itself (``.save("page.html")``) or
    opens it in the browser (``.serve()``).

    Args:
        model: A model of glassformer, the result of :func:`load`, or a GPT-2, Llama, Mistral,
            Qwen2, Mixtral, GptOss, BERT or RoBERTa of transformers; or a directory, a GGUF file or
            a name such as ``"sentiment"``, as for the command. None: the bundled models and the
            runs under ``./runs``.
        text: Text, or tokens as numbers in a list, an array or a tensor. None: a text that suits
            the model; an encoder-decoder in memory needs a text and a source.
        tokenizer: Tokenizer of a model in memory.
        source: Input of the encoder, for an encoder-decoder.
        state: First state of the page, as in its address: ``view``, ``part``, ``layer``, ``head``,
            ``pin``, ``versus=(layer, head)``, ``temperature`` and so on. Layers, heads and tokens
            are counted from 0.

    Raises:
        InputError: If the model cannot be shown, a directory has none, or a state is unknown.
    """
    # Imported here, so that `import glassformer` takes no time.
    from glassformer.errors import naming_extras

    with naming_extras():
        from glassformer.explorer.model_page import open_page

    return open_page(model, text, tokenizer=tokenizer, source=source, **state)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"glassformer.observe.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'glassformer' has no attribute {name!r}")


def load(source: Any, **options: Any) -> LanguageModel:
    """Open a language model: a GGUF file, a directory, a name on the hub, or a short name.

    The result holds the decoder (``.model``), its tokenizer and its chat template::

        lm = glassformer.load("smollm2")
        lm.generate("The capital of France is", max_new_tokens=1)

    Arguments and errors are those of :func:`glassformer.generation.language_model.load`.
    """
    from glassformer.generation.language_model import load

    return load(source, **options)
