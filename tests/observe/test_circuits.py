"""Circuits against what the model computes, and composition against the formula with whole
matrices.
"""

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.layers.options import Yarn
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.circuits import (
    Circuit,
    composition_scores,
    ov_circuit,
    qk_circuit,
    token_vectors,
)
from glassformer.observe.linear_maps import added_by_heads, require_linear
from refusals import refused
from small_models import decoder, encoder
from transformers_models import FAMILIES, NARROW, THEIRS

MODELS: dict[str, Any] = {
    "dense": decoder,
    "grouped": lambda: decoder(num_kv_heads=2, key_weights=True),
    "attention only": lambda: decoder(ff_dim=0, rope_layout="interleaved"),
    "experts": lambda: decoder(num_experts=4, sinks=True, rope_scaling=Yarn(8.0)),
    **{name: THEIRS[name] for name in ("gpt2", "llama", "mistral", "mixtral", "gpt-oss")},
}
each_model = pytest.mark.parametrize("kind", MODELS)


def made(kind: str) -> nn.Module:
    model: nn.Module = MODELS[kind]().eval()
    if kind not in NARROW:
        model.double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("key_weights"):
                # as if trained; biases of norms stay 0
                weight.mul_(1 + 0.3 * torch.randn_like(weight))
            elif name.endswith("bias"):
                weight.zero_()
    return model


def normalised(stream: Tensor, kind: str) -> Tensor:
    """The stream as the norm of a block leaves it, but for the norm's weight."""
    if kind == "gpt2":
        return nn.functional.layer_norm(stream, stream.shape[-1:])
    eps = 1e-6 if kind in ("llama", "mistral") else 1e-5
    return stream * (stream.square().mean(-1, keepdim=True) + eps).rsqrt()


@each_model
@torch.no_grad()
def test_circuits_give_the_scores_and_what_heads_add(kind: str) -> None:
    model = made(kind)
    tokens = torch.randint(2, 20, (2, 4))
    with capture(model, what=("residual_before", "scores", "weights", "heads"), layers=1) as seen:
        model(tokens)
    (stream,), (scores,), (weights,), (heads,) = (
        list(seen.last(what).values()) for what in ("residual_before", "scores", "weights", "heads")
    )
    point = next(
        each for each in find_hook_points(model) if each.role == "attention" and each.layer == 1
    )
    x = normalised(stream, kind)
    projection = require_linear(point.out_proj, "it", heads.shape[1] * heads.shape[3])
    added = torch.stack([added_by_heads(projection, heads[:, :, at]) for at in range(4)], 2)
    if kind == "gpt2":  # what is along the mean is read by no one
        added = added - added.mean(-1, keepdim=True)
    rotary = kind != "gpt2"
    atol = 1e-10 if kind == "gpt2" else 1e-5  # norms or angles of the others are in float32
    for head in (0, 3):
        ov = ov_circuit(model, 1, head).matrix
        torch.testing.assert_close(weights[:, head] @ x @ ov, added[:, head], atol=atol, rtol=0)
        for query in range(4):
            for key in range(query + 1):
                qk = qk_circuit(model, 1, head, distance=query - key if rotary else 0).matrix
                found = torch.einsum("bi,ij,bj->b", x[:, query], qk, x[:, key])
                torch.testing.assert_close(found, scores[:, head, query, key], atol=atol, rtol=0)


@each_model
@torch.no_grad()
def test_composition_is_the_ratio_of_frobenius_norms(kind: str) -> None:
    model = made(kind)
    found = composition_scores(model, distance=0, samples=3)
    layers = found.q.shape[0]
    norm = torch.linalg.matrix_norm
    for receiver, (first, second) in product((1, layers - 1), ((0, 1), (3, 2))):
        writes = ov_circuit(model, 0, first).matrix
        scores, values = (
            circuit(model, receiver, second).matrix for circuit in (qk_circuit, ov_circuit)
        )
        for kind_of, composed, other in (
            (found.q, writes @ scores, scores),
            (found.k, scores @ writes.T, scores),
            (found.v, writes @ values, values),
        ):
            expected = float(norm(composed) / norm(writes) / norm(other))
            assert float(kind_of[0, first, receiver, second]) == pytest.approx(expected, rel=1e-5)
    assert bool(found.k[1, :, 0].isnan().all() & found.k[0, :, 0].isnan().all())


def test_the_baseline_of_composition_is_that_of_random_matrices() -> None:
    """|AB|² of random matrices of rank r and width n is about |A|²|B|² / n."""
    mean, spread = composition_scores(decoder(hidden_dim=64, head_dim=8), samples=20).random
    assert mean == pytest.approx(64**-0.5, rel=0.1)
    assert 0 < spread < 0.2 * mean


def test_thin_matrices_count_as_whole_ones() -> None:
    left = torch.randn(9, 3)
    right = torch.randn(9, 3)
    other = torch.randn(9, 2)
    circuit = Circuit(left.double(), right.double())
    matrix = circuit.matrix
    assert circuit.norm == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(circuit.diagonal, matrix.diagonal())
    torch.testing.assert_close((circuit @ circuit.T).matrix, matrix @ matrix.T)
    rows = other.double() @ other.double().T
    torch.testing.assert_close(circuit.between(rows, rows).matrix, rows @ matrix @ rows.T)
    values = torch.linalg.eigvals(matrix)
    expected = float(values.real.sum() / values.abs().sum())
    assert circuit.positivity == pytest.approx(expected)
    assert circuit.diagonal_share == float((matrix.argmax(1) == torch.arange(9)).double().mean())
    assert Circuit(left, left).positivity == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_circuits_of_16_bits_are_those_of_the_same_weights(dtype: torch.dtype) -> None:
    model = decoder().to(dtype)
    models = model, copy.deepcopy(model).double()
    found, wanted = [ov_circuit(each, 1, 2).between(*token_vectors(each)) for each in models]
    assert (found.norm, found.positivity) == pytest.approx(
        (wanted.norm, wanted.positivity), rel=1e-4
    )


def test_a_norm_of_which_most_cancels() -> None:
    part = torch.ones(64, 1)
    rest = torch.full((64, 1), 1 + 2**-12)
    assert Circuit(torch.cat([part, rest], 1), torch.cat([part, -part], 1)).norm == pytest.approx(
        64 * 2**-12
    )


@pytest.mark.parametrize("kind", ["dense", "gpt2", "llama"])
@torch.no_grad()
def test_full_circuits_read_embeddings_and_write_logits(kind: str) -> None:
    model: Any = made(kind)
    embedding, unembedding = token_vectors(model)
    ov = ov_circuit(model, 0, 1)
    full = ov.between(embedding, unembedding)
    ours = kind == "dense"
    table = model.embedding.weight if ours else model.get_input_embeddings().weight
    final = {"dense": "final_norm", "gpt2": "transformer.ln_f", "llama": "model.norm"}[kind]
    output = model.output if ours else model.lm_head
    added = table @ ov.matrix * model.get_submodule(final).weight
    if kind == "gpt2":  # LayerNorm subtracts the mean before its weight
        added = (
            table @ ov.matrix - (table @ ov.matrix).mean(1, keepdim=True)
        ) * model.transformer.ln_f.weight
    torch.testing.assert_close(full.matrix, output(added), atol=1e-10, rtol=0)


def test_what_has_no_circuit_is_refused() -> None:
    model = decoder()
    for got, call in {
        "layer": lambda: qk_circuit(model, 4, 0),
        "head": lambda: ov_circuit(model, 0, 4),
        "Encoder": lambda: ov_circuit(encoder(), 0, 0),
        "samples": lambda: composition_scores(model, samples=0),
        "distance = 1": lambda: qk_circuit(FAMILIES["gpt2"](), 0, 0, distance=1),
        "norm_place = 'both'": lambda: qk_circuit(decoder(norm_place="both"), 0, 0),
        "qk_norm = 'head'": lambda: qk_circuit(decoder(qk_norm="head"), 0, 0),
        r"attention_cap = 30\.0": lambda: qk_circuit(decoder(attention_cap=30.0), 0, 0),
        "embedding_norm = True": lambda: qk_circuit(decoder(embedding_norm=True), 0, 0),
    }.items():
        with refused(got):
            call()
