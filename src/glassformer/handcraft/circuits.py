r"""The QK and OV circuits of a head: the two maps that its weights determine uniquely.

Km and Qm only occur as a product. For input vectors x, with their positions, the score of a query
and a key is

    score = x_query C x_keyᵀ        C = Qm Kmᵀ / sqrt(qk_dim)

so for every invertible M, ``Km M`` and ``Qm M⁻ᵀ`` are the same head: ``Qm M⁻ᵀ Mᵀ Kmᵀ = Qm Kmᵀ``.
Single entries of Km and Qm mean nothing; the QK circuit C does. The same holds for the coordinates
of the position vectors: ``pos M`` with ``M⁻¹`` times the rows of Km, Qm and Vm that belong to them.
Scores between *places* (a token at a position) are free of both choices.

What the softmax ignores: a query i of a sequence with places S gives place j the weight
``exp(s_ij) / sum_{k in S} exp(s_ik)``, so a number c_i added to the whole row cancels. Nothing else
does: every sequence with query i has i itself among its keys, and
``log(w_ij / w_ii) = s_ij - s_ii`` for every j in it. So the attention over all sequences determines
exactly the differences within a row, for all keys j that can occur in a sequence with i. (Another
token at the query's own position cannot.) :func:`centred_scores` therefore subtracts one constant
per query place, the mean over the possible keys.

Values have no such freedom: weights add up to 1, so a constant added to all values moves every
output by it. Values are compared as they are, including those of places to which no query attends.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", QK and OV circuits.
Here the output matrix is the identity, so Vm is the OV circuit.
"""

import numpy as np
from jaxtyping import Bool, Float

from glassformer.errors import InputError, require_positive
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights

_WORST_CONDITION = 1e6
_ROUNDING = 1e-12


def qk_circuit(weights: HeadWeights) -> Float[np.ndarray, "inputs inputs"]:
    """Return ``Qm Kmᵀ / sqrt(qk_dim)``: the score of each input entry (row) with each (column).

    Rows are entries of a query's input, columns are entries of a key's input. The first
    ``input_dim`` rows and columns are the tokens, the others the coordinates of the position
    vectors.
    """
    return weights.Qm @ weights.Km.T / np.sqrt(weights.qk_dim)


def qk_parts(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "parts parts"]:
    """Return the QK circuit between tokens and positions: a score is the sum of four entries of it.

    ``score((t, p), (u, q)) = part[t, u] + part[t, q] + part[p, u] + part[p, q]``. There is a row
    and a column for each token and, where the head has positions, for each position. The sums are
    well defined. Their division among the four blocks is one of many: a constant along a block's
    rows or columns can move to its neighbour.
    """
    inputs = _part_inputs(weights, space)
    return inputs @ qk_circuit(weights) @ inputs.T


def qk_between_places(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "query key"]:
    """Return the score of every query place with every key place, ordered as ``space.places``."""
    inputs = place_inputs(weights, space)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = inputs @ qk_circuit(weights) @ inputs.T
    if not bool(np.isfinite(scores).all()):
        raise InputError(
            got="scores beyond float64",
            expected="scores below 1.8e308",
            fix="Scale Km or Qm down.",
        )
    return scores


def possible_pairs(space: SequenceSpace) -> Bool[np.ndarray, "query key"]:
    """Return the pairs of places that can occur in one sequence.

    They are at different positions, or are the same place.
    """
    tokens, positions = space.places
    return np.asarray((positions[:, None] != positions) | (tokens[:, None] == tokens))


def centred_scores(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "query key"]:
    """Return the scores between places, each row minus its mean over the possible keys.

    The softmax ignores these means, so heads with equal attention everywhere have equal tables.
    Entries of two places that cannot occur in one sequence are NaN.
    """
    scores = qk_between_places(weights, space)
    possible = possible_pairs(space)
    centred = scores - scores.mean(axis=1, keepdims=True, where=possible)
    # Rounding errors would otherwise be all that is left of a head with uniform attention.
    centred[np.abs(centred) <= _ROUNDING * np.abs(scores).max(axis=1, keepdims=True)] = 0.0
    return np.where(possible, centred, np.nan)


def value_circuit(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "parts v_dim"]:
    """Return the value of every token and, if the head has positions, of every position.

    The value of a place is the sum of both.
    """
    return _part_inputs(weights, space) @ weights.Vm


def values_at_places(
    weights: HeadWeights, space: SequenceSpace
) -> Float[np.ndarray, "place v_dim"]:
    """Return the value of every place, ordered as ``space.places``."""
    return place_inputs(weights, space) @ weights.Vm


def part_names(weights: HeadWeights, space: SequenceSpace) -> list[str]:
    """Return the names of the rows of :func:`qk_parts` and :func:`value_circuit`.

    The tokens come first, then the positions, as ``@0``.
    """
    names = list(space.token_names)
    if weights.pos is not None:
        names += [f"@{CLS}"] * space.has_cls
        names += [f"@{index}" for index in range(space.max_len)]
    return names


def place_names(space: SequenceSpace) -> list[str]:
    """Return the names of the places: ``A0`` is A as the first letter, ``CLS`` is CLS."""
    letters = [f"{letter}{index}" for index in range(space.max_len) for letter in space.letters]
    return [CLS] * space.has_cls + letters


def circuit_tables(
    weights: HeadWeights, space: SequenceSpace
) -> tuple[Float[np.ndarray, "query key"], Float[np.ndarray, "query v_dim"], list[str]]:
    """Return the tables that a figure of a head shows: centred scores, values, and row names.

    The rows are the places, or the tokens for a head without positions.
    """
    if weights.pos is not None:
        return centred_scores(weights, space), values_at_places(weights, space), place_names(space)
    scores = qk_parts(weights, space)
    scores -= scores.mean(axis=1, keepdims=True)
    return scores, value_circuit(weights, space), part_names(weights, space)


def change_basis(weights: HeadWeights, matrix: Float[np.ndarray, "rows columns"]) -> HeadWeights:
    """Return an equal head with keys and queries in another basis, ``Km M`` and ``Qm M⁻ᵀ``.

    Its outputs are equal up to rounding.
    """
    _require_basis(matrix, weights.qk_dim, "qk_dim")
    Km = weights.Km @ matrix
    Qm = np.linalg.solve(matrix, weights.Qm.T).T
    return HeadWeights(Km, Qm, weights.Vm, weights.pos)


def change_position_basis(
    weights: HeadWeights, matrix: Float[np.ndarray, "rows columns"]
) -> HeadWeights:
    """Return an equal head with ``pos M`` for its position vectors.

    Their rows of Km, Qm and Vm are multiplied by M⁻¹.
    """
    if weights.pos is None:
        raise InputError(
            got="a head without pos",
            expected="a head with positions",
            fix="Use change_basis instead.",
        )
    _require_basis(matrix, weights.pos_dim, "pos_dim")
    changed = weights.matrices
    pos = changed.pop("pos")
    first = weights.input_dim
    for name, rows in changed.items():
        changed[name] = np.concatenate([rows[:first], np.linalg.solve(matrix, rows[first:])])
    return HeadWeights(**changed, pos=pos @ matrix)


def random_basis(size: int, seed: int) -> Float[np.ndarray, "size size"]:
    """Return a random, well conditioned change of basis.

    It is an orthogonal matrix with its columns scaled by 1/2 to 2.
    """
    require_positive(size=size)
    rng = np.random.default_rng(seed)
    orthogonal, triangular = np.linalg.qr(rng.standard_normal((size, size)))
    # With these signs the orthogonal matrix is uniformly distributed (Mezzadri 2007).
    return orthogonal * np.sign(np.diagonal(triangular)) * 2.0 ** rng.uniform(-1, 1, size)


def in_random_bases(weights: HeadWeights, seed: int) -> HeadWeights:
    """Return an equal head in random bases of keys and of position vectors, if there are any."""
    moved = change_basis(weights, random_basis(weights.qk_dim, seed))
    if moved.pos is None:
        return moved
    return change_position_basis(moved, random_basis(weights.pos_dim, seed + 1))


def _part_inputs(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "parts inputs"]:
    """Return the contribution of each token and of each position to an input vector."""
    require_fits(weights, space)
    tokens = space.num_tokens
    if weights.pos is None:
        return np.eye(tokens)
    pos = weights.pos[: space.num_positions]
    parts = np.eye(tokens + len(pos), tokens + weights.pos_dim)
    parts[tokens:, tokens:] = pos
    return parts


def place_inputs(weights: HeadWeights, space: SequenceSpace) -> Float[np.ndarray, "place inputs"]:
    """Return the input for each place: the token's one-hot vector, and the position's, if any."""
    parts = _part_inputs(weights, space)
    tokens, positions = space.places
    if weights.pos is None:
        return parts[tokens]
    return parts[tokens] + parts[space.num_tokens + positions]


def require_fits(weights: HeadWeights, space: SequenceSpace) -> None:
    """Refuse matrices that have not a row for each token and each position of ``space``."""
    if weights.input_dim != space.num_tokens:
        parts = f"{len(space.letters)} letters"
        if space.has_cls:
            parts += " and CLS"
        if weights.pos is not None:
            parts += " and the position"
        shape = f"Km of shape {list(weights.Km.shape)} with pos of {weights.pos_dim} columns"
        rows = f"{space.num_tokens} + {weights.pos_dim} = {space.num_tokens + weights.pos_dim}"
        raise InputError(
            got=f"{shape}, so inputs of length {weights.input_dim}",
            expected=f"{rows} rows, for {parts}",
            fix=(
                "Give Km, Qm and Vm one row for each token and below them one for each column of "
                "pos."
            ),
        )
    num_positions = weights.max_seq_len
    if num_positions is not None and num_positions < space.num_positions:
        included = ", CLS included" if space.has_cls else ""
        raise InputError(
            got=f"pos of shape {[num_positions, weights.pos_dim]}",
            expected=f"at least {space.num_positions} rows",
            fix=f"Give pos a row for each position of the longest sequence{included}.",
        )


def _require_basis(matrix: Float[np.ndarray, "rows columns"], size: int, name: str) -> None:
    """Refuse a matrix that is no well conditioned change of basis."""
    if matrix.shape != (size, size):
        raise InputError(
            got=f"a change of basis of shape {list(matrix.shape)}",
            expected=f"[{size}, {size}], {name} x {name}",
            fix="Use random_basis() for one.",
        )
    if np.isfinite(matrix).all():
        condition = float(np.linalg.cond(matrix))
    else:
        condition = np.nan
    if not (condition <= _WORST_CONDITION):
        raise InputError(
            got=f"a change of basis of condition {condition:.2g}",
            expected=f"a finite, invertible matrix of condition at most {_WORST_CONDITION:.0e}",
            fix="Use a better conditioned one, such as random_basis().",
        )
