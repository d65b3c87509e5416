from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from glassformer.handcraft.single_head import SingleHead
from glassformer.observe.capture import capture
from glassformer.observe.hook_points import choose_points, own_points, select
from refusals import refused
from small_models import EXPERTS, decoder, encoder, encoder_decoder


def names(
    model: nn.Module,
    what: Any = "weights",
    modules: Any = None,
    layers: Any = None,
    heads: Any = None,
) -> Any:
    chosen = choose_points(tuple(own_points(model)), what, modules, layers, heads)
    return {(point.role, point.name): found for point, found in chosen.items()}


def test_every_place_of_every_family_is_found() -> None:
    two = list(own_points(encoder_decoder()))  # 2 blocks and 3, with 2 and 3 * 2 attentions
    blocks = [
        f"{stack}_layers.{layer}"
        for stack, count in (("encoder", 2), ("decoder", 3))
        for layer in range(count)
    ]
    assert [point.name for point in two if point.role == "block"] == blocks
    assert [point.layer for point in two if point.role == "attention"] == [0, 1, 0, 0, 1, 1, 2, 2]
    assert [point.name for point in two if point.cross] == [
        f"decoder_layers.{i}.cross_attention" for i in range(3)
    ]
    assert {point.name.split(".")[0] for point in two if point.source} == {"encoder_layers"}
    assert not any(point.source for point in own_points(encoder()))
    experts = decoder(**EXPERTS)
    points = list(own_points(experts))
    assert [point.role for point in points[:5]] == [
        "embedding",
        "block",
        "ffn",
        "experts",
        "attention",
    ]
    assert (points[4].heads, points[4].group, points[4].sinks, points[3].experts) == (4, 2, True, 4)
    assert [(point.role, point.name) for point in points[-1:]] == [("logits", "output")]
    assert [point.name for point in own_points(SingleHead(3, 2, 2))] == [""]
    for model in (experts, encoder(), encoder_decoder()):
        assert all(model.get_submodule(point.name) is point.module for point in own_points(model))


def test_layers_heads_and_modules_are_chosen() -> None:
    model = encoder_decoder()
    first = ("attention", "encoder_layers.0.attention")
    last = [("attention", f"decoder_layers.2.{kind}_attention") for kind in ("self", "cross")]
    assert list(names(model, layers=2)) == last
    last_of_both = {name for _, name in names(model, "residual", layers=-1)}
    assert last_of_both == {"encoder_layers.1", "decoder_layers.2"}
    assert names(model, heads=[-1])[first] == (1,)
    assert names(model, heads=slice(0, 1))[first] == (0,)
    by_layer = names(model, heads={0: 1, 1: [0]})
    assert {name.split(".")[1]: found for (_, name), found in by_layer.items()} == {
        "0": (1,),
        "1": (0,),
    }
    assert names(model, heads={"encoder_layers.0.attention": 1}) == {first: (1,)}
    assert len(names(model, modules=["decoder_layers.1"])) == 2
    several = names(model, ("weights", "residual", "ffn"), modules=["decoder_layers.1"])
    assert [role for role, _ in several] == ["block", "ffn", "attention", "attention"]
    assert len(names(model, modules=lambda name, module: name.endswith("cross_attention"))) == 3
    experts = names(decoder(**EXPERTS), ("router", "experts"), layers=[1, -1])
    assert list(experts) == [("experts", "layers.1.ffn"), ("experts", "layers.3.ffn")]


@given(st.data())
def test_a_selection_is_what_a_list_gives(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    everything = list(range(count))
    cut = data.draw(st.slices(count))
    assert list(select("heads", cut, count)) == everything[cut]
    numbers = data.draw(st.lists(st.integers(-count, count - 1)))
    found = select("heads", numbers, count)
    assert list(found) == list(dict.fromkeys(everything[number] for number in numbers))
    assert select("heads", None, count) == tuple(everything)
    assert select("heads", everything[-1], count) == (count - 1,)


def test_impossible_choices_are_refused() -> None:
    model = encoder_decoder()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"what": "wights"}, "what = 'wights'"),
        ({"what": ()}, r"what = \(\)"),
        ({"what": "router"}, "what = 'router' and a model without any hook point for it"),
        ({"what": "sinks"}, "what = 'sinks' and a model without any hook point for it"),
        ({"layers": 3}, r"layers \[3\]"),
        ({"layers": "1"}, "layers = '1'"),
        ({"layers": slice(7, 9)}, "a selection of no module"),
        ({"heads": 2}, r"heads \[2\]"),
        (
            {"heads": {0: 1, 1: 0}, "layers": [1]},
            r"heads of \[0\], which layers or modules leave out",
        ),
        ({"heads": slice(7, 9)}, r"heads = slice\(7, 9, None\), of which"),
        ({"heads": [0.5]}, r"heads = \[0.5\]"),
        ({"heads": True}, "heads = True"),
        ({"heads": {9: 0}}, r"heads of \[9\]"),
        ({"heads": {}}, "a selection of no module"),
        ({"modules": ["decoder_layers.7"]}, r"modules \['decoder_layers.7'\]"),
        ({"modules": []}, "a selection of no module"),
        ({"modules": lambda name, module: False}, "a selection of no module"),
        ({"modules": "decoder_layers.1"}, "modules = 'decoder_layers.1'"),
        (
            {"modules": ["encoder_layers.0.attention"], "what": ("weights", "ffn")},
            "what = 'ffn' and a selection of no",
        ),
    ]
    for choice, message in cases:
        with refused(message):
            names(model, **choice)
    with (
        refused("Linear, none of whose modules calls an attention that can be captured"),
        capture(nn.Linear(2, 2)),
    ):
        pass
