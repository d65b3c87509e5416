import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import Request, urlopen

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import glassformer
from glassformer import explore
from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import UnknownName
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.model_page import ModelPage
from glassformer.models.decoder import Decoder
from readable import check_readable
from refusals import refused
from small_models import decoder
from transformers_models import gpt2

WIDGET = "application/vnd.jupyter.widget-view+json"


def small_decoder() -> Decoder:
    return decoder(vocab_size=7, num_layers=1, num_experts=2, max_seq_len=32)


def test_a_state_is_written_read_and_changed(small_backend: Backend) -> None:
    seen = ModelPage(small_backend, {"model": "decoder", "head": 1})
    assert seen.state == {"model": "decoder", "view": "attention", "text": "1 2 3", "head": 1}
    seen.set(layer=1, top_k=2)
    about = {"model": "decoder", "view": "attention", "text": "1 2 3"}
    assert seen.words == about | {"head": "1", "layer": "1", "topK": "2"}
    with refused("colour = 'red'"):
        seen.set(colour="red")
    with refused("the model 'nobody'", error=UnknownName):
        seen.set(model="nobody")
    assert seen.state["model"] == "decoder"


def test_a_text_that_was_set_was_not_generated_and_another_model_has_its_own(
    small_backend: Backend,
) -> None:
    seen = ModelPage(small_backend, {"model": "decoder", "text": "1 2 3", "written": [3]})
    seen.set(head=1)
    assert seen.state["written"] == [3]
    seen.set(text="4 5 6")
    assert seen.state == {"model": "decoder", "view": "attention", "text": "4 5 6", "head": 1}
    seen.set(model="unique")
    assert seen.state == {"model": "unique", "view": "design", "text": "CAB"}


def test_the_widget_and_python_share_the_state(small_backend: Backend) -> None:
    pytest.importorskip("anywidget")
    seen = ModelPage(small_backend, {"model": "decoder"})
    widget = seen.widget()
    assert seen.widget() is widget
    seen.set(head=1)
    assert widget.state["head"] == "1"
    widget.set_state({"state": {**widget.state, "layer": "1"}})  # as the page does
    assert seen.state["layer"] == 1


def test_a_notebook_is_given_the_widget_and_a_picture(small_backend: Backend) -> None:
    pytest.importorskip("anywidget")
    seen = ModelPage(small_backend, {"model": "decoder"})
    data, about = seen._repr_mimebundle_()
    assert data[WIDGET]["model_id"] == seen.widget().model_id
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert set(about["image/png"]) == {"width", "height"}
    assert "decoder" in data["text/plain"]


def test_a_text_that_is_refused_has_no_picture(small_backend: Backend) -> None:
    pytest.importorskip("anywidget")
    page = ModelPage(small_backend, {"model": "decoder", "text": "words"})
    data, _ = page._repr_mimebundle_()
    assert WIDGET in data
    assert "image/png" not in data
    with refused(expected="between spaces"):
        page.figure()


def test_without_anywidget_there_is_the_picture(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "glassformer.explorer.widget", raising=False)
    monkeypatch.delattr("glassformer.explorer.widget", raising=False)
    with pytest.warns(UserWarning, match=r"pip install 'glassformer\[explore\]'"):
        data, _ = ModelPage(small_backend, {"model": "decoder"})._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png"}


def test_a_missing_module_of_ours_is_not_to_be_installed(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("server", "widget"):
        monkeypatch.delattr(f"glassformer.explorer.{name}", raising=False)
        monkeypatch.setitem(sys.modules, f"glassformer.explorer.{name}", None)
    with pytest.raises(ModuleNotFoundError, match=r"glassformer\.explorer\.server"):
        ModelPage(small_backend).serve()
    with pytest.raises(ModuleNotFoundError, match=r"glassformer\.explorer\.widget"):
        ModelPage(small_backend).widget()


def test_it_serves_what_is_shown(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    server = pytest.importorskip("glassformer.explorer.server")
    served: list[Any] = []

    def serve(backend: Backend, listener: Any, address: str, *, browser: bool) -> None:
        served.extend([backend, address, browser])
        listener.close()

    monkeypatch.setattr(server, "serve", serve)
    ModelPage(small_backend, {"model": "decoder", "text": "1 2"}).serve(0, browser=False)
    assert served[0] is small_backend
    assert served[2] is False
    assert served[1].endswith("/#model=decoder&view=attention&text=1+2")
    assert capsys.readouterr().out.strip() == served[1]


def test_a_model_that_is_handed_over() -> None:
    seen = explore(small_decoder(), "1 2 3 4", head=1)
    assert (seen.state["text"], seen.state["head"]) == ("1 2 3 4", 1)
    assert [card.origin for card in seen.backend.catalogue().models] == ["given"]


def test_a_designed_head_that_is_handed_over(by_name: dict[str, LoadedModel]) -> None:
    head = by_name["unique"]
    seen = explore(head, "AB")
    assert (seen.state["model"], seen.state["text"], seen.state["view"]) == (
        "unique",
        "AB",
        "design",
    )


def test_an_exhibit_begins_with_its_own_text_and_has_its_own_tokenizer(
    by_name: dict[str, LoadedModel],
) -> None:
    for name, text in (("unique", "AB"), ("decoder", "4 5"), ("lookup", "2")):
        assert explore(by_name[name]).state["text"] == by_name[name].card.text
        assert explore(by_name[name], text).state["text"] == text
        with refused(f"a tokenizer for {name}"):
            explore(by_name[name], tokenizer=object())
    assert explore(by_name["decoder"], [4, 5]).state["text"] == "4 5"
    assert explore(by_name["lookup"], source=["7", "8"]).state["source"] == ["7", "8"]


def test_models_that_come_along() -> None:
    assert explore().state["model"] == explore().backend.catalogue().models[0].name
    assert explore("sentiment", "a fine film").state["text"] == "a fine film"


def test_a_model_of_transformers() -> None:
    seen = explore(gpt2(), [1, 2, 3])
    assert seen.state["text"] == "1 2 3"
    assert seen.figure().axes


def test_numbers_of_numpy_and_tokens_are_taken() -> None:
    seen = explore(
        "recurrence", np.array([1, 2, 3]), layer=np.int64(1), temperature=np.float32(0.5)
    )
    assert (seen.state["text"], seen.state["layer"], seen.state["temperature"]) == ("1 2 3", 1, 0.5)
    seen.set(versus=(np.int64(0), np.int64(1)))
    assert seen.words["versus"] == '{"layer":0,"head":1}'
    assert explore(small_decoder(), torch.tensor([[1, 2]])).state["text"] == "1 2"
    assert explore(small_decoder()).figure().axes


@pytest.mark.parametrize("path", ["file/page.html", "a\0b.html", "."])
def test_a_place_that_cannot_be_written_to_is_told(
    small_backend: Backend, tmp_path: Path, path: str
) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(InputError):
        ModelPage(small_backend, {"model": "decoder"}).save(tmp_path / path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "nowhere"}, "nowhere"),
        ({"model": ""}, "a model without a name"),
        ({"model": "sentiment", "text": "a\ud800"}, "text = "),
        ({"model": "sentiment", "text": "x" * 70_000}, "text = "),
        ({"model": "sentiment", "text": [3, 4]}, "tokens of .sentiment."),
        ({"model": "sentiment", "source": ["x"]}, "a source for"),
        ({"model": "lookup-facts", "source": "emma=4"}, "source of type str"),
        ({"source": ["x"]}, "a source without a model"),
        ({"text": "a text alone"}, "a text without a model"),
        ({"model": "sentiment", "tokenizer": object()}, "a tokenizer for"),
        ({"model": "sentiment", "colour": "red"}, "^colour = 'red'"),
    ],
)
def test_what_cannot_be_explored(
    arguments: dict[str, Any], message: str, without_type_checks: None
) -> None:
    with refused(anywhere=message):
        glassformer.explore(**arguments)


def drawn(figure: Figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_it_shows_the_chosen_head(small_backend: Backend) -> None:
    text = "1 2 3 4 5 6"
    figure = ModelPage(
        small_backend, {"model": "decoder", "text": text, "layer": 1, "head": 1}
    ).figure()
    run = small_backend.answer("run", m.Ask(model="decoder", text=text))
    tile = small_backend.answer("weights", m.AskTile(run=run.run, part="self", layer=1, head=1))
    np.testing.assert_array_equal(drawn(figure), np.frombuffer(tile, "<f4").reshape(6, 6))
    assert "layer 1, head 1" in figure.get_suptitle() + figure.axes[0].get_title()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == run.tokens
    check_readable(figure)


def test_cross_attention_has_the_source_across(small_backend: Backend) -> None:
    figure = ModelPage(small_backend, {"model": "lookup", "text": "4", "part": "cross"}).figure()
    assert drawn(figure).shape[1] == 5
    check_readable(figure)


def test_a_long_text_is_drawn_in_overview(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.explorer.model_page._MOST_CELLS", 20)
    figure = ModelPage(
        small_backend, {"model": "decoder", "text": " ".join(["1 2 3"] * 15)}
    ).figure()
    assert drawn(figure).shape == (12, 12)
    check_readable(figure)


def test_absent_layers_and_heads_are_the_last(small_backend: Backend) -> None:
    pages = (
        ModelPage(small_backend, {"model": "decoder", "layer": place, "head": place})
        for place in (1, 9)
    )
    last, beyond = (drawn(page.figure()) for page in pages)
    np.testing.assert_array_equal(beyond, last)


@pytest.mark.slow
def test_in_a_notebook_that_runs_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    client = pytest.importorskip("nbclient")
    cells = [
        "import glassformer as gf\nseen = gf.explore('unique', 'ABA')\nseen",
        "seen.set(head=0)\nprint(seen.state['text'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    nbformat.validate(notebook)
    (shown,) = notebook.cells[0].outputs
    assert {WIDGET, "image/png", "text/plain"} <= set(shown["data"])
    assert notebook.cells[1].outputs[0]["text"] == "ABA\n"
    states = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    kept = states[shown["data"][WIDGET]["model_id"]]["state"]
    assert json.loads(json.dumps(kept["state"]))["text"] == "ABA"


def test_a_cell_in_which_an_event_loop_runs(
    small_backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pytest.importorskip("glassformer.explorer.server")
    page = ModelPage(small_backend, {"model": "decoder", "text": "1 2"})

    def address() -> str:
        return capsys.readouterr().out.split("#")[0].strip()

    def models(at: str) -> list[str]:
        request = Request(f"{at}api/models", b"{}", {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return [model["name"] for model in json.load(answer)["models"]]

    async def cell() -> str:
        page.serve(0, browser=False)
        return address()

    first = asyncio.run(cell())
    assert "decoder" in models(first)
    second = asyncio.run(cell())  # the cell is run again
    assert "decoder" in models(second)
    if first != second:
        with pytest.raises(OSError, match="refused"):
            models(first)
    page.stop()
    with pytest.raises(OSError, match="refused"):
        models(second)
    page.stop()
    listener = server.listen(int(second.rstrip("/").rpartition(":")[2]))  # its port is free
    listener.close()


def test_a_command_in_which_an_event_loop_runs_waits_until_it_is_interrupted(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("glassformer.explorer.server")
    monkeypatch.setattr(server.ServerThread, "wait", Mock(side_effect=KeyboardInterrupt))
    listener = server.listen(0)

    async def cell() -> None:
        server.serve(small_backend, listener, "", browser=False)

    asyncio.run(cell())
    assert listener.fileno() == -1  # closed
