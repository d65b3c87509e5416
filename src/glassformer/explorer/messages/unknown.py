"""The one error that the explorer adds: a name that nothing has."""

from __future__ import annotations

from glassformer.errors import InputError


class UnknownName(InputError):
    """A call, model, run or part that there is not; a server answers with 404."""
