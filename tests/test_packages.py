"""Modules and packages: no name hides a module, and what each extra brings is needed for its part
alone.
"""

import ast
import importlib
import json
import pkgutil
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import glassformer
from processes import printed

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = [
    "glassformer",
    *(
        found.name
        for found in pkgutil.walk_packages(glassformer.__path__, "glassformer.")
        if found.ispkg
    ),
]
# Names of packages to install that differ from the modules', and what packages of ours bring along.
INSTALLED_AS = {
    "sklearn": "scikit-learn",
    "starlette": "fastapi",
    "anyio": "fastapi",
    "traitlets": "anywidget",
}
INSTALLED_AS |= {"pydantic_core": "pydantic", "pypandoc": "pypandoc-binary"}
OF_OTHERS = {"transformers"}  # read only where the model is one of it


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_of_a_package_hides_one_of_its_modules(name: str) -> None:
    package = importlib.import_module(name)
    for found in pkgutil.iter_modules(package.__path__, f"{name}."):
        if found.name != "glassformer.__main__":
            module = importlib.import_module(found.name)
            attribute = getattr(package, found.name.rpartition(".")[2])
            assert isinstance(attribute, ModuleType), f"{found.name} is hidden by {attribute!r}"
            assert attribute is module


def named(requirements: list[str]) -> set[str]:
    """The packages of a list of requirements."""
    return {re.split(r"[<>=!~\[; ]", each, maxsplit=1)[0] for each in requirements} - {
        "glassformer"
    }


def test_the_constraints_pin_every_dependency() -> None:
    needed = named(
        [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    )
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert {name.lower() for name in needed} <= {pin.split("==")[0] for pin in pins}
    # A version of one platform ("2.13.0+cpu") could not be installed on another.
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin)] == []


def imported() -> set[str]:
    """The packages that src imports, by the names they are installed by."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names |= {each.name for each in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module)
                case ast.Call(
                    func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module))]
                ):
                    names.add(module)
    names = (
        {name.split(".")[0] for name in names}
        - {*sys.stdlib_module_names, "glassformer"}
        - OF_OTHERS
    )
    return {INSTALLED_AS.get(name, name).replace("_", "-") for name in names}


def test_src_imports_what_the_project_names() -> None:
    every = named(PROJECT["dependencies"]).union(
        *(named(EXTRAS[name]) for name in EXTRAS if name != "dev")
    )
    # torch.utils imports the first, Jupyter the second; who asks for a table of pandas has it.
    assert every - {"tensorboard", "ipykernel"} == imported() - {"tensorboard", "pandas"}
    assert not every & named(EXTRAS["dev"])
    (listed,) = EXTRAS["all"]
    assert listed == f"glassformer[{','.join(sorted(set(EXTRAS) - {'all', 'dev'}))}]"


def private_names(path: Path) -> set[str]:
    """The names of torch with a part that begins with an underscore, as ``torch.x._y``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts = [node.attr, *parts]
            node = node.value
        if isinstance(node, ast.Name) and node.id in known:
            name = ".".join([known[node.id], *parts]).removesuffix(".default")
            found |= {name} if re.search(r"\._[A-Za-z]", name) else set()
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def test_private_names_of_torch_are_listed() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Private names of torch")[2].partition("\n## ")[0]
    listed = {
        name
        for row in section.splitlines()
        for name in re.findall(r"`(torch[\w.]*\._[\w.]+)`", row)
    }
    assert set().union(*map(private_names, (ROOT / "src").rglob("*.py"))) == listed


def test_a_checkout_that_is_not_installed_can_be_imported() -> None:
    assert (
        printed("import glassformer; print(glassformer.__version__)", "-S")
        == f"{glassformer.__version__}\n"
    )


WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
from glassformer.errors import _EXTRAS, InputError

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {*_EXTRAS} - {"huggingface_hub"}:  # which tokenizers brings
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
import glassformer
for found in pkgutil.walk_packages(glassformer.__path__, "glassformer.", onerror=lambda name: None):
    if found.name in ("glassformer.__main__", "glassformer.labs", "glassformer.figures"):
        continue
    try:
        importlib.import_module(found.name)
    except (ModuleNotFoundError, InputError) as error:
        print(found.name, "|", error)
"""


def test_what_needs_an_extra_says_so_and_all_else_needs_none() -> None:
    lacking = dict(line.split(" | ") for line in printed(WITHOUT_EXTRAS).splitlines())
    lack = {name.split(".")[1] for name in lacking}
    assert lack <= {"explorer", "training", "figures", "labs", "course", "cli"}, lacking
    assert {name for name in lacking if ".cli." in name} <= {
        f"glassformer.cli.commands.{name}" for name in ("train", "explore")
    }
    drives = ("loop", "stepper", "in_context_lookup", "programs")
    assert {name for name in lacking if ".training." in name} <= {
        f"glassformer.training.{name}" for name in drives
    }


HAND_IN = "sys.exit(main(['lab', 'lookup', '--hand-in', '/dev/null/folder', '--author', 'Ann']))"
MISSING = (
    ("accelerate", "train", "from glassformer.training import train"),
    (
        "accelerate",
        "train",
        "sys.exit(main(['train', '--data', 'recurrence', '--run', '/dev/null/run']))",
    ),
    ("matplotlib", "figures", "import glassformer.figures.attention_maps"),
    ("matplotlib", "figures", "glassformer.explore('identity').figure()"),
    ("cachetools", "explore", "glassformer.explore('identity')"),
    ("fastapi", "explore", "sys.exit(main(['explore', '--no-browser']))"),
    ("uvicorn", "explore", "glassformer.explore('identity').serve(0, browser=False)"),
    (
        "datasets",
        "hub",
        "from glassformer.data import sentiment; sentiment.from_hub('stanfordnlp/sst2')",
    ),
    (
        "tensorboard",
        "tensorboard",
        "from glassformer.training import metrics; metrics.TensorBoard('/dev/null', 0)",
    ),
    (
        "sklearn",
        "labs",
        "sys.exit(main(['lab', 'sentiment', '--quick', '--out', '/dev/null/lab']))",
    ),
    ("nbclient", "hand-in", HAND_IN),
    ("typst", "hand-in", HAND_IN),
    ("matplotlib", "labs", "import glassformer.labs.lookup"),
    ("matplotlib", "course", "import glassformer.course.exercises.lookup"),
    (
        "matplotlib",
        "labs",
        "sys.exit(main(['lab', 'hand-designed', '--quick', '--out', '/dev/null/lab']))",
    ),
)
# Each in a copy of a process that has imported torch, which takes a second and brings none of these
# packages along.
IN_COPIES = """
import contextlib, io, json, os, sys
import torch
import glassformer
from glassformer.cli.main import main
for package, _, code in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    sys.modules[package] = None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            exec(code)
        said.write("no error")
    except (ValueError, SystemExit) as error:
        said.write(f"; {error}")
    print(json.dumps(said.getvalue()), flush=True)
    os._exit(0)
"""


def test_a_missing_extra_is_named() -> None:
    found = printed(IN_COPIES, arguments=[json.dumps(MISSING)]).splitlines()
    for (package, extra, code), said in zip(MISSING, map(json.loads, found), strict=True):
        wanted = f"got no module {package}; expected the packages of the extra {extra}. "
        wanted += f"Run: pip install 'glassformer[{extra}]'."
        assert wanted in said, code
