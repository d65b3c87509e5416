"""Programs as decoders: the right token everywhere, margins above the bound, and decoders like any other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_programs import RandomPrograms
from transformers import GptOssForCausalLM

from glassformer.errors import InputError
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.generation import generate
from glassformer.models import Decoder
from glassformer.programs import compile_program, elementwise, indices, tokens
from glassformer.programs import library as lib
from glassformer.programs.decoder import (
    ROPE_BASE,
    TURN,
    DecoderProgram,
    compile_decoder,
    verify_decoder,
    wrong_bound,
)

QUICK = ("detect", "parity", "induction", "sort", "length")
SLOW = ("dyck-1", "dyck-2", "trigram", "lookup", "copy", "addition", "dyck-3", "recurrence")


def decoder_of(name: str, dtype: torch.dtype = torch.float64) -> DecoderProgram:
    example = lib.PROGRAMS[name]
    return compile_decoder(example.program, example.vocabulary, example.max_len, dtype=dtype)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_library_programs_hold_on_every_sequence(name: str) -> None:
    program = decoder_of(name)
    exact = verify_decoder(program)
    assert (exact.verdict, exact.rests_on, exact.dtype) == ("holds", "every sequence", "float64")
    assert exact.largest_error <= exact.bound < 1e-20
    program.decoder.float()
    single = verify_decoder(program)
    assert (single.verdict, single.rests_on, single.dtype) == ("holds", "every sequence", "float32")
    assert single.largest_error < 1e-20


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), depth=st.integers(1, 4))
def test_random_programs_compute_what_they_say(seed: int, depth: int) -> None:
    some = RandomPrograms(seed)
    variable = some.variable(depth, letters=some.flip())
    try:
        program = compile_decoder(variable, some.vocabulary, some.draw.randrange(2, 5))
    except InputError as error:
        if "too many" in error.got or "possible values" in error.got:
            return
        raise
    for dtype in (torch.float64, torch.float32):
        program.decoder.to(dtype)
        certificate = verify_decoder(program)
        assert (certificate.verdict, certificate.rests_on) == ("holds", "every sequence"), certificate
        assert certificate.largest_error <= certificate.bound


def test_the_most_likely_tokens_are_the_programs_values() -> None:
    program = decoder_of("induction")
    assert program.run("abcab") == [None, None, None, "b", "c"]
    assert program.values == ("a", "b", "c", None)
    with pytest.raises(InputError):
        program.run("abx")


def test_a_program_of_tokens_alone_needs_no_network() -> None:
    program = compile_decoder(tokens == "a", "ab", 3)
    assert program.decoder.config.ff_dim == 0
    assert verify_decoder(program).verdict == "holds"


def test_indices_are_counted() -> None:
    program = compile_decoder(elementwise(lambda i, t: (i, t), indices, tokens), "ab", 12)
    assert program.run("abab")[2:] == [(2, "a"), (3, "b")]
    assert verify_decoder(program).verdict == "holds"


@pytest.mark.parametrize(("prompt", "continued"), [("cab|", "cab"), ("a|", "a")], ids=["three letters", "a letter"])
def test_generation_continues_a_text(prompt: str, continued: str) -> None:
    program = decoder_of("copy", torch.float32)
    ids = program.compiled.encode(prompt).tolist()
    for use_cache in (True, False):
        (new,) = generate(program.decoder, ids, len(continued), use_cache=use_cache)
        assert [program.values[token] for token in new] == list(continued)


@pytest.mark.slow
def test_sums_are_generated_digit_by_digit() -> None:
    program = compile_decoder(elementwise(str, lib.addition(2)), "01+=", 9, dtype=torch.float32)
    for a, b in ((3, 3), (1, 2), (3, 1), (0, 0)):
        prompt = f"{a % 2}{a // 2}+{b % 2}{b // 2}="
        (new,) = generate(program.decoder, program.compiled.encode(prompt).tolist(), 3)
        assert sum(int(program.values[token]) << place for place, token in enumerate(new)) == a + b


def test_it_is_saved_as_a_gpt_oss_that_transformers_runs(tmp_path: Path) -> None:
    program = decoder_of("lookup", torch.float32)
    with pytest.warns(UserWarning, match="SwiGLU of another form"):
        program.decoder.save_pretrained(tmp_path / "model")
    ids = torch.randint(6, (50, 6), generator=torch.Generator().manual_seed(0))
    # Its grouped products need widths that are multiples of 4.
    peer = GptOssForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, experts_implementation="eager")
    again = Decoder.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        wanted = program.decoder(ids)
        # Logits reach 1,620; float32.
        torch.testing.assert_close(peer.eval()(ids).logits, wanted, atol=1e-3, rtol=0)
        torch.testing.assert_close(again.eval()(ids), wanted, atol=1e-3, rtol=0)
    assert dataclasses.replace(program, decoder=again).run("axbya") == program.run("axbya")


def test_the_explorer_opens_it() -> None:
    loaded = wrap_model(decoder_of("lookup").decoder, "0 3 1 4 0")
    assert loaded.card.kind == "decoder"
    assert {"attention", "sampling", "whatif"} <= set(loaded.card.views)


def test_it_can_be_trained() -> None:
    program = decoder_of("parity", torch.float32)
    program.decoder.train()
    optimizer = torch.optim.AdamW(program.decoder.parameters(), lr=1e-4)
    loss = program.decoder(torch.zeros(1, 4, dtype=torch.long)).logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in program.decoder.parameters())
    # The step is small: the weights as they are now are proved to be right.
    assert wrong_bound(program).error < 1e-20


def test_a_changed_weight_is_found() -> None:
    program = decoder_of("detect")
    with torch.no_grad():
        program.decoder.output.weight[:, -1] = program.decoder.output.weight[:, -1].flip(0)
    certificate = verify_decoder(program)
    assert certificate.verdict == "fails"
    assert certificate.bound > 0.5
    assert certificate.counterexample is not None
    sequence, position, wanted, probability = certificate.counterexample
    assert program.run(sequence)[position] != wanted == lib.PROGRAMS["detect"].program(sequence, causal=True)[position]
    assert probability < 0.5


def test_beyond_the_limit_the_bound_decides() -> None:
    certificate = verify_decoder(decoder_of("parity"), limit=20)
    assert (certificate.verdict, certificate.rests_on, certificate.num_run) == ("holds", "the bound", 20)


def test_pairs_that_are_used_turn_slowly() -> None:
    for name in ("parity", "sort"):
        decoder = decoder_of(name).decoder
        half = decoder.config.head_dim // 2
        used = [pair for block in decoder.layers for pair in _pairs(block.attention.query.weight, half)]
        assert used
        frequencies = decoder.rotary._frequencies.double()
        assert max(frequencies[used]) <= TURN * (1 + 1e-5)  # computed in float32
        assert min(frequencies) > 1 / ROPE_BASE


def _pairs(weight: torch.Tensor, half: int) -> list[int]:
    rows = weight.unflatten(0, (-1, 2, half)).abs().amax((0, 1, 3))
    return rows.nonzero()[:, 0].tolist()


def test_refusals() -> None:
    with pytest.raises(InputError) as refused:
        compile_program(tokens, "ab", 3, positions=False)
    assert refused.value.got == "positions=False with causal=False"
    with pytest.raises(InputError) as refused:
        compile_decoder(indices, "ab", 80)
    assert "a count of too many keys" in refused.value.got
    numbers = tuple(n * n / 7 for n in range(30))
    with pytest.raises(InputError) as refused:
        compile_decoder(lib.share_so_far(tokens), numbers, 12)
    assert "too many possible values" in refused.value.got
