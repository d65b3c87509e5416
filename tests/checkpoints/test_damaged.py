"""Damaged checkpoints: each is refused with the file and the tensor named, in little time and
memory.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, Damage, Damaged
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss

from glassformer.checkpoints.decoders import save_decoder
from glassformer.models import Decoder, DecoderConfig
from processes import printed

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are measured as on Linux"
)

KINDS = ("huggingface", "openai", "pieces", "dense", "mixtral", "own")
SMALL = replace(GPT_OSS_TINY, vocab_size=64, num_layers=2, num_experts=4, num_heads=4)
MIXTRAL = DecoderConfig(
    vocab_size=64, num_layers=2, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=16, num_experts=4
)
BYTES = 2**28


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of each kind."""
    root = tmp_path_factory.mktemp("intact")
    write_random_gpt_oss(root / "huggingface", SMALL)
    write_random_gpt_oss(root / "openai", SMALL, layout="openai")
    write_random_gpt_oss(root / "pieces", SMALL, shard_bytes=40_000)
    write_random_gpt_oss(root / "dense", replace(SMALL, expert_format="dense"))
    Decoder(MIXTRAL).save_pretrained(root / "mixtral", layout="mixtral")
    save_decoder(Decoder.from_pretrained(root / "huggingface"), root / "own", layout="glassformer")
    return root


@pytest.fixture(scope="module")
def load(intact: Path) -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Loads a directory in a process of its own, which lasts; one that dies fails the test."""
    worker = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("damaged_worker.py")),
            *(str(intact / kind) for kind in KINDS),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(directory: Path) -> dict[str, Any]:
        print(json.dumps(str(directory)), file=worker.stdin, flush=True)
        answer = worker.stdout.readline()
        assert answer, f"the process died with status {worker.wait()}"
        return json.loads(answer)

    yield ask
    worker.stdin.close()
    assert worker.wait(timeout=600) == 0
    worker.stdout.close()


def check(
    damage: Damage, kind: str, rng: random.Random, intact: Path, root: Path, load: Any
) -> dict[str, Any] | None:
    """Damage a copy and load it."""
    directory = root / "damaged"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(intact / kind, directory)
    names = damage(Damaged(directory, intact / kind), rng)
    if names is None:
        return None
    told = {"damage": damage.__name__, "kind": kind, **load(directory)}
    assert told["outcome"] == "refused", told
    for name in (str(directory), *names):
        assert name in told["got"] or repr(name)[1:-1] in told["got"], told
    assert told["others"] == []
    assert told["outside"] == []
    assert told["bytes"] <= BYTES
    return told


SLOW_START = """
import runpy, sys, time
from glassformer.checkpoints import decoders
load = decoders.load_decoder
def load_slowly(directory):
    while time.process_time() < 8:  # as a slow machine does that imports what it needs first
        pass
    return load(directory)
decoders.load_decoder = load_slowly
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_what_the_worker_does_first_has_no_limit(intact: Path) -> None:
    worker = str(Path(__file__).with_name("damaged_worker.py"))
    printed(SLOW_START, arguments=[worker, str(intact / "own")], stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("kind", KINDS)
def test_intact_ones_load(kind: str, intact: Path, load: Any) -> None:
    told = load(intact / kind)
    assert (told["outcome"], told["others"], told["outside"]) == ("loaded", [], [])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_of_each_kind(damage: Damage, intact: Path, tmp_path: Path, load: Any) -> None:
    done = [
        check(damage, kind, random.Random(turn), intact, tmp_path, load)
        for kind in KINDS
        for turn in range(2)
    ]
    assert any(done)


@pytest.mark.slow
def test_five_hundred_damaged_checkpoints_are_refused(
    intact: Path, tmp_path: Path, load: Any
) -> None:
    @seed(500)
    @settings(
        max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        damage=st.sampled_from(DAMAGES),
        kind=st.sampled_from(KINDS),
        rng=st.randoms(use_true_random=True),
    )
    def search_on(damage: Damage, kind: str, rng: random.Random) -> None:
        # Not every kind has everything to damage.
        assume(check(damage, kind, rng, intact, tmp_path, load) is not None)

    search_on()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_change_anywhere(kind: str, intact: Path, tmp_path: Path, load: Any) -> None:
    """Some mean nothing and some only other weights; but nothing else happens than a refusal or a
    load.
    """
    rng = random.Random(kind)
    for _ in range(40):
        directory = tmp_path / "changed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(intact / kind, directory)
        file = rng.choice(sorted(directory.iterdir()))
        raw = bytearray(file.read_bytes())
        end = min(len(raw), 4000) if rng.random() < 0.7 else len(raw)  # where the header is, mostly
        for _ in range(rng.choice([1, 3, 30])):
            raw[rng.randrange(end)] = rng.randrange(256)
        file.write_bytes(raw)
        told = load(directory)
        assert told["outcome"] in ("refused", "loaded"), told
        assert told["others"] == []
        assert told["outside"] == []
