"""The examples in docstrings of the first functions that one meets do what they say."""

import doctest
import importlib

import pytest

EXAMPLES = (
    "glassformer.layers.attention.attend",
    "glassformer.models.decoder.Decoder",
    "glassformer.generation.decoding.generate",
    "glassformer.observe.capture.capture",
    "glassformer.observe.collect.collect",
    "glassformer.observe.intervene.intervene",
    "glassformer.programs.compiler.compile_program",
    "glassformer.handcraft.verification.verify",
    "glassformer.training.loop.train",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings(name: str) -> None:
    path, _, function = name.rpartition(".")
    module = importlib.import_module(path)
    found = doctest.DocTestFinder(recurse=False).find(
        getattr(module, function), name, globs=dict(vars(module))
    )
    assert sum(len(each.examples) for each in found) > 1
    for each in found:
        assert doctest.DocTestRunner().run(each).failed == 0
