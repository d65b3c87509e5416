"""Models find the functions that read and write their files, and import none of them before."""

import subprocess
import sys
from pathlib import Path

from glassformer.checkpoints.bert import save_encoder
from glassformer.models import Decoder, DecoderConfig, Encoder, EncoderConfig

_PROGRAM = """
import sys
from glassformer.models import Decoder, Encoder
assert not any(name.startswith("glassformer.checkpoints") for name in sys.modules)
Decoder.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2], layout="glassformer")
assert Decoder.from_pretrained(sys.argv[2]).config.num_layers == 1
assert Encoder.from_pretrained(sys.argv[3]).config.num_layers == 2
"""


def test_models_read_and_write_files_when_only_models_was_imported(tmp_path: Path) -> None:
    config = DecoderConfig(8, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=1, head_dim=8)
    Decoder(config).save_pretrained(tmp_path / "decoder")
    save_encoder(
        Encoder(EncoderConfig(vocab_size=8, num_layers=2, hidden_dim=8, ff_dim=8, num_heads=1)), tmp_path / "encoder"
    )
    places = [str(tmp_path / name) for name in ("decoder", "written", "encoder")]
    subprocess.run([sys.executable, "-c", _PROGRAM, *places], check=True)
