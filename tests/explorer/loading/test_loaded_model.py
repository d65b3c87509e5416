"""The logits of a loaded model, and what is refused of one of another kind."""

import pytest
import torch

from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel, final_logits, last_logits


def test_the_last_logits_are_those_of_the_whole_text(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    with torch.no_grad():
        whole = loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    for text in ([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [2], [1, 2, 3, 4]):
        expected = loaded.model(torch.tensor([[2]])) if text == [2] else whole[:, : len(text)]
        torch.testing.assert_close(last_logits(loaded, text), expected[0, -1].detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("output", [None, "hidden"])
def test_a_model_without_logits_has_none(by_name: dict[str, LoadedModel], output: str | None) -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor] | None:
            return output and {output: self.table(row)}

    decoder = by_name["decoder"]
    assert final_logits(Bare(), torch.tensor([[1, 2]])) is None
    bare = LoadedDecoder(decoder.card, Bare(), decoder.encode, decoder.word, decoder.join)
    assert last_logits(bare, [1]) is None
