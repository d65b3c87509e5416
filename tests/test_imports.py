"""What imports load, in a process of their own."""

import os
from pathlib import Path

import pytest

import glassformer
from glassformer import observe
from processes import printed

MODULES = sorted(
    f"glassformer.observe.{path.stem}" for path in Path(observe.__path__[0]).glob("[!_]*.py")
)
WITHOUT_TORCH = """
import glassformer
glassformer.explore
"""
WITHOUT_COMPILER = """
import glassformer.classifier
from glassformer.models import decoder, encoder, encoder_decoder
from glassformer.checkpoints.assembly import empty_decoder
from glassformer.models import DecoderConfig
empty_decoder(DecoderConfig(9, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=1, head_dim=8, num_experts=4))
"""
FIRST_PAGE = """
from starlette.testclient import TestClient
from glassformer.explorer.backend import Backend
from glassformer.explorer.guards import Guard, hosts_of
from glassformer.explorer.loading.discovery import list_models
from glassformer.explorer.server import create_api
app = Guard(create_api(Backend(list_models())), hosts_of(8017))
client = TestClient(app, base_url="http://127.0.0.1:8017")
answers = client.get("/"), client.get("/explorer.js"), client.post("/api/models", json={})
assert {answer.status_code for answer in answers} == {200}
"""
PARTS = {f"glassformer.{part}" for part in ("figures", "labs", "training", "observe")}


def test_what_is_used_most_is_an_attribute_of_the_package() -> None:
    for name in glassformer.__all__:
        assert getattr(glassformer, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="has no attribute 'sweeps'"):
        glassformer.sweeps


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        (WITHOUT_TORCH, {"torch", "fastapi", "pydantic", "matplotlib", "numpy", "anywidget"}),
        (WITHOUT_COMPILER, {"torch._dynamo", "sympy", "matplotlib", "accelerate", *PARTS}),
        (FIRST_PAGE, {"matplotlib.pyplot", "accelerate", "glassformer.labs"}),
    ],
)
def test_nothing_is_imported_before_it_is_asked_for(
    code: str, left_out: set[str], tmp_path: Path
) -> None:
    loaded = {*printed(f"{code}\nimport sys; print(*sys.modules)", cwd=tmp_path).split()}
    assert "glassformer" in loaded
    assert loaded & left_out == set()


@pytest.mark.slow
def test_only_figures_load_matplotlib_and_no_import_sets_up_the_profiler() -> None:
    code = f"import os, sys, {', '.join(MODULES)}\nprint('matplotlib' in sys.modules, 'KINETO_LOG_LEVEL' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    assert printed(code, env=environment) == "False False\n"
