"""What `make dist` makes, in empty environments without a compiler and without a network."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from glassformer.course.lessons import LABS, notebook
from glassformer.kernels import native

ROOT = Path(__file__).resolve().parent.parent
README = str(ROOT / "tests/test_readme.py")
pytestmark = pytest.mark.slow

LOGITS = """
import hashlib, torch
from glassformer.kernels import native
from glassformer.models import Decoder, DecoderConfig

torch.manual_seed(0)
torch.set_num_threads(2)
config = DecoderConfig(vocab_size=50, hidden_dim=64, ff_dim=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)
model = Decoder(config).eval()
with torch.no_grad():
    for dtype in (torch.float32, torch.bfloat16):
        logits = model.to(dtype)(torch.arange(96).view(2, 48) % 50)
        print(hashlib.sha256(logits.float().numpy().tobytes()).hexdigest())
"""
LIBRARY = """
import torch
from pathlib import Path
from glassformer.kernels import native

library = native.library()
assert library is not None and Path(library.code._name) == native.PREBUILT, library
runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in Path(line.split()[-1]).name}
assert len(runtimes) == 1 and "torch" in runtimes.pop(), runtimes
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("make") is None or not any(map(shutil.which, native._COMPILERS)):
        pytest.skip("needs make and a C++ compiler")
    folder = tmp_path_factory.mktemp("dist")
    installed = ["-o", f"{sys.prefix}/.installed-dev", f"VENV={sys.prefix}"]
    subprocess.run(
        ["make", *installed, "dist", f"DIST={folder}"], cwd=ROOT, check=True, timeout=1200
    )
    return folder


class Environment:
    """A virtual environment with one wheel, where what the wheel depends on is that of these tests."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin = folder / "env/bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        site = next((folder / "env").glob("lib/python*/site-packages"))
        (site / "dependencies.pth").write_text(
            sysconfig.get_path("purelib") + "\n", encoding="utf-8"
        )
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True
        )
        self.folder = folder
        self.variables = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=where or self.folder,
            env=self.variables,
            check=True,
            capture_output=True,
            text=True,
            timeout=1200,
        )


@pytest.fixture(scope="module")
def prebuilt(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    (wheel,) = set(dist.glob("*.whl")) - set(dist.glob("*-any.whl"))
    return Environment(tmp_path_factory.mktemp("prebuilt"), wheel)


@pytest.fixture(scope="module")
def pure(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    (wheel,) = dist.glob("*-any.whl")
    return Environment(tmp_path_factory.mktemp("pure"), wheel)


def test_the_library_of_the_wheel_is_the_one_compiled_here(prebuilt: Environment) -> None:
    prebuilt.run("python", "-c", LIBRARY)
    own = prebuilt.run("python", "-c", LOGITS)
    assert own.stderr == ""  # nothing is compiled
    here = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT / "src")}
    compiled = subprocess.run(
        [sys.executable, "-c", LOGITS], env=here, check=True, capture_output=True, text=True
    )
    assert own.stdout == compiled.stdout
    assert len(own.stdout.split()) == 2


def test_the_wheel_for_every_platform_says_that_it_has_no_compiler(pure: Environment) -> None:
    done = pure.run("python", "-c", LOGITS)
    assert done.stderr.count("Running without the C++ library") == 1
    assert len(done.stdout.split()) == 2


def test_the_readmes_samples_run(prebuilt: Environment) -> None:
    done = prebuilt.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", README
    )
    assert " passed" in done.stdout


def test_the_commands_run(prebuilt: Environment) -> None:
    prebuilt.run("glassformer", "lab", "hand-designed", "--quick")
    assert (prebuilt.folder / "runs/hand-designed-quick/report.md").is_file()
    prebuilt.run("glassformer", "explore", "induction", "--save", "page.html")
    assert (prebuilt.folder / "page.html").stat().st_size > 2**16


@pytest.mark.parametrize("lab", LABS)
def test_the_wheel_brings_the_lessons(lab: str, pure: Environment) -> None:
    pure.run("glassformer", "course", "start", lab.replace("_", "-"), "--solutions")
    written = json.loads((pure.folder / f"{lab}.ipynb").read_text(encoding="utf-8"))
    assert written == notebook(lab, solutions=True, published=False)
    answers = f"[answer('{lab}', name) for name in points('{lab}')]"
    pure.run("python", "-c", f"from glassformer.course.lessons import answer, points; {answers}")


def test_the_wheel_brings_the_report_that_a_lesson_quotes(pure: Environment) -> None:
    script = (
        "from glassformer.labs.sentiment.published import published; print(published('Takeaways'))"
    )
    assert "1. **" in pure.run("python", "-c", script).stdout


def test_users_types_are_checked_against_the_package(prebuilt: Environment) -> None:
    (prebuilt.folder / "users.py").write_text(
        "import glassformer\n"
        "from glassformer.observe import capture\n"
        'language_model = glassformer.load("smollm2")\n'
        'tokens: str = language_model.tokens("text")\n',
        encoding="utf-8",
    )
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        str(prebuilt.bin / "python"),
        "users.py",
    ]
    done = subprocess.run(mypy, cwd=prebuilt.folder, capture_output=True, text=True, timeout=600)
    (fault,) = [line for line in done.stdout.splitlines() if "error:" in line]
    assert "users.py:4" in fault
    assert "incompatible type" in fault.lower()
