"""What belongs to a block of ``intervene`` or ``capture`` stays in it: copies, tasks, files, other
threads.
"""

import asyncio
import contextlib
import copy
import io
import threading

import pytest
import torch
from torch import Tensor, nn

from glassformer.generation.decoding import Continuation, generate, stream
from glassformer.observe.capture import capture
from glassformer.observe.edits import add, scale, zero
from glassformer.observe.intervene import intervene
from interrupts import interrupted
from refusals import refused
from small_models import decoder
from transformers_models import FAMILIES, logits_of

EDITS = (
    zero("heads", layers=1, heads=0),
    scale("weights", 0.5, layers=0),
    add("residual", 1.0, layers=0, queries=-1),
)


def small(kind: str = "decoder") -> nn.Module:
    return (decoder() if kind == "decoder" else FAMILIES[kind]()).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "gpt2"])
def test_a_copy_made_in_a_block_is_unedited(kind: str) -> None:
    model = small(kind)
    tokens = torch.randint(1, 50, (2, 6))
    plain = logits_of(model, tokens)
    with intervene(model, *EDITS), capture(model, what="residual") as seen:
        twin = copy.deepcopy(model)
        assert not torch.allclose(logits_of(model, tokens), plain)
        file = io.BytesIO()
        torch.save(model, file)
    count = len(seen.records)
    file.seek(0)
    for each in (twin, torch.load(file, weights_only=False)):
        for _ in range(2):
            assert torch.equal(logits_of(each, tokens), plain)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in each.modules())
    assert len(seen.records) == count


@torch.no_grad()
def test_a_copy_made_in_a_block_can_be_edited_as_its_original() -> None:
    model = small()
    tokens = torch.randint(1, 50, (2, 6))
    for made in (scale("heads", 2.0), zero("residual")):
        for edit in (scale("heads", 2.0), zero("residual_before")):
            with intervene(model, edit):
                wanted = logits_of(model, tokens)
            with intervene(model, made):
                twin = copy.deepcopy(model)
                logits_of(model, tokens)
            with intervene(twin, edit):
                assert all(torch.equal(logits_of(twin, tokens), wanted) for _ in range(2))
    with intervene(model, edit):
        copy.copy(model.layers[0])(torch.randn(1, 6, 8).double())
        assert torch.equal(logits_of(model, tokens), wanted)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "gpt2"])
def test_tasks_have_all_edits_of_the_block_that_began_them_or_none(kind: str) -> None:
    model = small(kind)
    tokens = torch.randint(1, 50, (2, 6))
    plain = logits_of(model, tokens)
    with intervene(model, *EDITS):
        edited = logits_of(model, tokens)

    async def run(*gates: asyncio.Event) -> list[Tensor]:
        found = []
        for gate in gates:
            await gate.wait()
            found.append(logits_of(model, tokens))
        return found

    async def main() -> None:
        inside = asyncio.Event()
        after = asyncio.Event()
        other = asyncio.create_task(run(inside))
        with intervene(model, *EDITS), capture(model, what=("q", "residual")) as seen:
            ours = asyncio.create_task(run(inside, after))
            inside.set()
            assert torch.equal((await other)[0], plain)
            await asyncio.sleep(0)
            assert len(seen.of("q")[next(iter(seen.of("q")))]) == 1
        after.set()
        first, second = await ours
        assert torch.equal(first, edited)
        assert torch.equal(second, plain)

    asyncio.run(main())


@torch.no_grad()
def test_a_run_in_another_thread_is_named() -> None:
    model = small()
    tokens = torch.randint(1, 50, (2, 6))
    with refused("another thread"), intervene(model, zero("ffn")):
        thread = threading.Thread(target=lambda: model(tokens))
        thread.start()
        thread.join()
    with refused("vmap"), intervene(model, zero("ffn")):
        torch.vmap(model)(tokens[:, None])


def test_a_continuation_reads_anew_what_was_read_under_other_edits() -> None:
    model = small()
    prompt = [3, 4, 5, 6]

    def fresh(given: list[int]) -> list[int]:
        return list(Continuation(model).reply(given, 6))

    with torch.no_grad(), intervene(model, *EDITS):
        edited = fresh(prompt)
        longer = fresh([*prompt, 7])
    assert edited != fresh(prompt)
    kept = Continuation(model)
    assert list(kept.reply(prompt, 6)) == fresh(prompt)
    with intervene(model, *EDITS):
        assert list(kept.reply(prompt, 6)) == edited
        assert list(kept.reply([*prompt, 7], 6)) == longer
        assert kept.unread([*prompt, 7, 8]) == 6  # edits may name positions of the whole prompt
        begun = kept.reply(prompt, 6)
        next(begun)
    with refused("other interventions"):
        next(begun)
    assert list(kept.reply([*prompt, 7], 6)) == fresh([*prompt, 7])


def test_a_stream_goes_on_under_the_edits_that_it_began_with() -> None:
    model = small()
    with intervene(model, *EDITS):
        begun = stream(model, [[3, 4, 5, 6]], 6)
        next(begun)
    with refused("other interventions"):
        list(begun)
    with intervene(model, *EDITS):
        begun = stream(model, [[3, 4, 5, 6]], 6)
        assert [[token for (token,) in begun]] == generate(model, [[3, 4, 5, 6]], 6)


@torch.no_grad()
def test_ctrl_c_while_a_block_begins_or_ends_leaves_no_edit() -> None:
    model = decoder(num_layers=2).eval()
    tokens = torch.tensor([[3, 1, 4]])
    plain = model(tokens)

    def act() -> None:
        with intervene(model, *EDITS):
            model(tokens)

    for _ in interrupted(act, {contextlib.__file__}):
        assert torch.equal(model(tokens), plain)
