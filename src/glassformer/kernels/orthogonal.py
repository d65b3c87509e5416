"""The update of Muon: roughly the orthogonal matrix nearest to another one.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", whose
coefficients these are.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels.dispatch import slow_bfloat16

COEFFICIENTS = 3.4445, -4.7750, 2.0315
STEPS = 5
EPS = 1e-7
_SMALL = 2**14  # numbers in a matrix up to which bfloat16 saves no time


def orthogonalised(
    matrices: Float[Tensor, "matrix row column"],
) -> Float[Tensor, "matrix row column"]:
    """Return matrices whose singular values are moved near 1, into 0.7 to 1.2.

    Five steps of Newton and Schulz from ``x = matrix / norm``::

        x = a x + b (x x^T) x + c (x x^T)^2 x

    They are computed in bfloat16, as published, where the processor multiplies it fast and the
    matrices are not small; else in float32.
    """
    narrow = matrices[0].numel() > _SMALL and not (
        matrices.device.type == "cpu" and slow_bfloat16()
    )
    x = matrices.to(torch.bfloat16 if narrow else torch.float32)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    a, b, c = COEFFICIENTS
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
