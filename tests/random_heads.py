"""Single heads of random weights."""

import numpy as np

from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights


def random_head(
    space: SequenceSpace,
    seed: int,
    *,
    qk_dim: int | None = None,
    pos_dim: int | None = None,
    v_dim: int = 2,
    scale: float = 1.0,
) -> HeadWeights:
    """A head that fits the space, of normally distributed weights. Sizes that are None are drawn
    from 1 to 3.
    """
    rng = np.random.default_rng(seed)
    qk_dim, pos_dim = (
        int(rng.integers(1, 4)) if size is None else size for size in (qk_dim, pos_dim)
    )
    rows = space.num_tokens + pos_dim
    km, qm, vm = (rng.normal(size=(rows, columns)) for columns in (qk_dim, qk_dim, v_dim))
    return HeadWeights(
        scale * km, qm, vm, rng.normal(size=(space.num_positions, pos_dim)) if pos_dim else None
    )
