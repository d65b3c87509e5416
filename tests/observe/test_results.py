"""What all results share: the largest places, a table, a figure, and a print that fits a screen."""

import copy
import importlib
import math
import pickle
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from glassformer.observe.capture import capture
from glassformer.observe.circuits import composition_scores, ov_circuit
from glassformer.observe.detectors import attention_faithfulness, head_scores, repeated_tokens
from glassformer.observe.lens import DirectLogits, direct_logits, logit_lens
from glassformer.observe.paths import Receiver, path_sweep
from glassformer.observe.results import Places, Result
from glassformer.observe.scrambling import scrambling_test
from glassformer.observe.sweep import Sweep, ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused
from small_models import decoder

CLEAN = torch.tensor([[3, 1, 4, 1, 5]])
CORRUPTED = torch.tensor([[3, 1, 6, 1, 5]])
VALUES = torch.tensor([[0.5, -4.0, math.nan], [1.0, 2.0, 3.5]])


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, -1, 7] - logits[:, -1, 8]


def sweep() -> Sweep:
    return Sweep(VALUES + 1, ("layer", "head"), (3, 5), clean=1.0, site="heads", passes=4)


RESULTS: dict[str, Any] = {
    "ablation": lambda model: ablation_sweep(model, CLEAN, metric),
    "patch": lambda model: patch_sweep(model, CLEAN, CORRUPTED, metric),
    "places": lambda model: patch_sweep(
        model, CLEAN, CORRUPTED, metric, site="heads", by=("layer", "head", "position")
    ),
    "estimate": lambda model: attribution_sweep(model, CLEAN, CORRUPTED, metric, site="residual"),
    "paths": lambda model: path_sweep(model, CLEAN, CORRUPTED, metric, Receiver(2, 1)),
    "paths of ffn": lambda model: path_sweep(
        model, CLEAN, CORRUPTED, metric, "logits", senders="ffn"
    ),
    "lens": lambda model: logit_lens(model, CLEAN, targets=7),
    "direct logits": lambda model: direct_logits(model, CLEAN, 7, 8),
    "scores": lambda model: head_scores(model, repeated_tokens(40, 8, 4)),
    "composition": lambda model: composition_scores(model, samples=3),
    "keys": lambda model: attention_faithfulness(model, CLEAN, metric),
    "keys by head": lambda model: attention_faithfulness(model, CLEAN, metric, by_head=True),
}


@pytest.fixture(scope="module", params=list(RESULTS))
def result(request: pytest.FixtureRequest) -> Result:
    torch.manual_seed(0)
    found: Result = RESULTS[request.param](decoder().eval())
    return found


def test_a_difference_of_logits_is_called_one() -> None:
    model = decoder()
    assert "\nlogit difference " in repr(direct_logits(model, CLEAN, 7, 8))
    assert "\nlogit " in repr(direct_logits(model, CLEAN, 7))
    assert "difference" not in repr(direct_logits(model, CLEAN, 7))


def test_a_result_fits_one_screen(result: Result) -> None:
    lines = repr(result).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 120
    assert type(result).__name__ in lines[0]
    assert "tensor(" not in repr(result)
    page = result._repr_html_()
    assert page.count("<table>") == len(result.table().ranked)


def test_its_table_has_a_row_for_each_place(result: Result) -> None:
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    table = result.table()
    assert [*frame.columns] == [*table.axes, *table.columns]
    column = table.ranked[0]
    assert len(frame) == table.values(column).numel()
    finite = frame[frame[column].notna()]
    largest = finite.loc[finite[column].abs().idxmax()]
    best = table.top(column, 1)[0]
    assert list(largest[list(table.axes)]) == list(best[:-1])
    assert largest[column] == best.value


def test_it_is_drawn(result: Result) -> None:
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert figure.axes


def test_the_largest_places_come_first_and_nan_is_left_out() -> None:
    top = sweep().top(2)
    assert top == [(3, 1, -4.0), (5, 2, 3.5)]
    assert (top[0].layer, top[0].head, top[0].value) == (3, 1, -4.0)
    assert [place.value for place in sweep().top(9)] == [-4.0, 3.5, 2.0, 1.0, 0.5]
    assert sweep().top(1, "value") == [(5, 2, 4.5)]
    for wrong in (0, -1, 1.5):
        with refused(f"count = {wrong}"):
            sweep().top(wrong)  # type: ignore[arg-type]
    with refused("kind = 'effects'", expected="effect, value"):
        sweep().top(1, "effects")


def test_equal_values_stay_in_the_order_of_places() -> None:
    found = Sweep(torch.ones(2, 2), ("layer", "head"), (0, 1), clean=0.0)
    assert [place[:2] for place in found.top(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_places_print_as_a_table() -> None:
    assert repr(sweep().top(2)) == "layer head  value\n3     1        -4\n5     2      +3.5"
    assert repr(Places()) == "no places"
    assert "<td>-4</td>" in sweep().top(1)._repr_html_()


def test_a_sweep_prints_what_it_is() -> None:
    assert repr(sweep()).splitlines() == [
        "Sweep of heads: 2 layers x 3 heads, 4 forward passes of several places, 1 place without "
        "a value",
        "metric 1 clean; effects on it:",
        "  layer 3 head 1    -4",
        "  layer 5 head 2  +3.5",
        "  layer 5 head 1    +2",
        "  layer 5 head 0    +1",
        "  layer 3 head 0  +0.5",
    ]
    nothing = Sweep(torch.full((1, 1), math.nan), ("layer", "head"), (0,), clean=1.0)
    assert repr(nothing).endswith("no values")


def test_places_can_be_copied_and_stored() -> None:
    top = sweep().top(2)
    for other in (pickle.loads(pickle.dumps(top)), copy.deepcopy(top)):
        assert other == top
        assert other[0].head == 1


def test_labels_are_escaped() -> None:
    found = DirectLogits(("<script>",), torch.ones(1, 1), torch.ones(1))
    page = found._repr_html_() + found.top()._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_values_of_few_bits_are_ranked_too() -> None:
    found = DirectLogits(
        ("a", "b"), torch.tensor([[1.0], [-2.0]], dtype=torch.bfloat16), torch.ones(1)
    )
    assert found.top(1) == [("b", -2.0)]


def test_pandas_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with refused("no module pandas", fix="pip install pandas"):
        sweep().to_pandas()


def test_passes_are_counted() -> None:
    model = decoder().eval()
    runs = []
    model.embedding.register_forward_hook(lambda *_: runs.append(1))
    for call in (
        lambda: ablation_sweep(model, CLEAN, metric),
        lambda: patch_sweep(model, CLEAN, CORRUPTED, metric, batch_size=3),
        lambda: attribution_sweep(model, CLEAN, CORRUPTED, metric, steps=3),
    ):
        runs.clear()
        assert call().passes == len(runs)


def test_other_results_are_short() -> None:
    assert repr(ov_circuit(decoder().eval(), 0, 1)).startswith("Circuit: 8 x 8 of rank 6, norm ")
    found = scrambling_test(lambda source: torch.zeros(len(source), 3), torch.tensor([[1, 2, 3]]))
    assert repr(found) == str(found)
    assert repr(found).startswith("holds: 1 contexts, all orders, 6 in all")


def test_a_capture_prints_what_was_recorded() -> None:
    model = decoder().eval()
    with capture(model, what=("weights", "residual"), layers=[1, 3]) as seen:
        model(CLEAN)
    assert repr(seen).splitlines() == [
        "Captured: 4 records, 0 inputs",
        "  weights: 2 layers, 1 to 3, [1, 4, 5, 5] [batch, head, query, key], 2 records",
        "  residual: 2 layers, 1 to 3, [1, 5, 8] [batch, query, dim], 2 records",
    ]
