from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import glassformer

PACKAGES = [
    "glassformer",
    *(found.name for found in pkgutil.walk_packages(glassformer.__path__, "glassformer.") if found.ispkg),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_of_a_package_hides_one_of_its_modules(name: str) -> None:
    package = importlib.import_module(name)
    for found in pkgutil.iter_modules(package.__path__, f"{name}."):
        if found.name != "glassformer.__main__":
            module = importlib.import_module(found.name)
            attribute = getattr(package, found.name.rpartition(".")[2])
            assert isinstance(attribute, ModuleType), f"{found.name} is hidden by {attribute!r}"
            assert attribute is module
