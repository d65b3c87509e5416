"""Operations that have a fast form, one module each.

Every module gives the definition of its operation first (a few lines of torch: the formula), then
the function to call, which chooses, and its fast forms. A fast form gives what the definition
gives: value, gradient, second derivative. What it does not support, it leaves to the definition:
transforms of ``torch.func`` and forward-mode differentiation. Modules of this package are the only
ones with a ``torch.autograd.Function`` or with branches on device and dtype.

``GLASSFORMER_PLAIN=1`` in the environment, or :func:`plain`, runs definitions only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PLAIN = ContextVar("plain", default=os.environ.get("GLASSFORMER_PLAIN", "0") not in ("", "0"))
"""Run definitions only, without any fast form."""


@contextmanager
def plain() -> Iterator[None]:
    """Run definitions only, without any fast form, within the ``with`` block and its thread."""
    token = PLAIN.set(True)
    try:
        yield
    finally:
        PLAIN.reset(token)
