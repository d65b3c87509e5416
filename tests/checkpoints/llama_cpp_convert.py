"""Converts directories of Hugging Face to GGUF with llama.cpp's own converter, leaving the
vocabulary out.

    llama_cpp_convert.py LLAMA_CPP DIRECTORY ...

Each becomes DIRECTORY.gguf in float32; what the converter refuses is printed and has no file.
"""

import json
import sys
from pathlib import Path

llama, *directories = sys.argv[1:]
sys.path[:0] = [llama, f"{llama}/gguf-py"]
import conversion  # noqa: E402 - from that directory
import gguf  # noqa: E402


def no_vocabulary(self) -> None:
    """What random weights need of a tokenizer: how many tokens there are."""
    self.gguf_writer.add_tokenizer_model("none")
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])


for directory in map(Path, directories):
    # transformers renames some fields that the converter asks for.
    fields = json.loads((directory / "config.json").read_text())
    hparams = conversion.ModelBase.load_hparams(directory, False) | fields
    model = conversion.get_model_class(
        conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    )
    try:
        type("Model", (model,), {"set_vocab": no_vocabulary, "model_arch": model.model_arch})(
            directory, gguf.LlamaFileType.ALL_F32, directory.with_suffix(".gguf"), hparams=hparams
        ).write()
    except Exception as error:
        directory.with_suffix(".gguf").unlink(missing_ok=True)
        print(f"{directory.name}: {error!r}", file=sys.stderr)
