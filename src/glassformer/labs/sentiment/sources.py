"""Loads the lab's labelled texts: bundled reviews, files, or a data set of the hub."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from glassformer.data.examples import Example, SentimentData, normalized, split_by_text
from glassformer.data.sentiment import from_files, from_hub, reviews
from glassformer.errors import InputError
from glassformer.files import local_path

REVIEWS = "plain reviews"
_PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test",),
}
_SUFFIXES = (".tsv", ".csv", ".jsonl")


def find_data(source: str | None) -> tuple[str, SentimentData]:
    """Load a data set; return its name and its texts with class 0 negative and class 1 positive.

    Args:
        source: One of:

            - None: the 240 plain ones among the bundled reviews, with 70, 10 and 20 % in the
              parts. A small model learns them, and none of the other kinds.
            - A file (TSV, CSV or JSONL): a tenth each is split off for validation and test.
            - A directory with files whose names end in train, in dev or validation, and in test,
              such as ``sst2_train.tsv``. A part without a file is split off.
            - The name of a data set on the Hugging Face hub. If its classes are named pos... and
              neg..., in this order, classes and labels are swapped.
    """
    if source is None:
        plain = [example for example in reviews() if example.kind == "plain"]
        first, second, third = split_by_text(plain, (0.7, 0.1, 0.2))
        return REVIEWS, SentimentData(first, second, third)
    path = local_path(source)
    if path.is_file():
        return path.stem, from_files(path)
    if path.is_dir():
        files = {part: _file_of(path, part) for part in _PARTS}
        train = files["train"]
        if train is None:
            raise InputError(
                got=f"the directory {path} without a training file",
                expected=f"a file whose name ends in train, with the suffix {', '.join(_SUFFIXES)}",
                fix="Rename the training file, or pass the file itself.",
            )
        stem = train.stem.lower().removesuffix("training").removesuffix("train")
        name = stem.strip("_-. ") or path.name
        return name, from_files(train, files["validation"], files["test"])
    if path.suffix.lower() in _SUFFIXES or path.is_absolute() or source.startswith("."):
        raise InputError(
            got=f"{source}, which is not there",
            expected="a file, a directory or a hub name",
            fix="Check the path.",
        )
    return source, _negative_first(source, from_hub(source))


def kind_examples(data: SentimentData) -> tuple[Example, ...]:
    """Return the bundled reviews that are not among the training texts of ``data``.

    If none is left, the test texts are returned instead.
    """
    training_texts = {normalized(example.text) for example in data.train}
    unseen = tuple(
        example for example in reviews() if normalized(example.text) not in training_texts
    )
    return unseen or data.test


def _negative_first(name: str, data: SentimentData) -> SentimentData:
    """Return the data with the negative class first."""
    prefixes = tuple(class_name.strip().lower()[:3] for class_name in data.classes)
    if prefixes in (("neg", "pos"), ("0", "1")):
        return data
    if prefixes != ("pos", "neg"):
        raise InputError(
            got=f"the data set {name} with the classes {', '.join(data.classes)}",
            expected="two classes, negative and positive",
            fix="Write texts and labels (0 negative, 1 positive) into a file, and pass that.",
        )

    def swapped(examples: Iterable[Example]) -> tuple[Example, ...]:
        return tuple(replace(example, label=1 - example.label) for example in examples)

    return SentimentData(
        swapped(data.train), swapped(data.validation), swapped(data.test), data.classes[::-1]
    )


def _file_of(directory: Path, part: str) -> Path | None:
    """Return the file of a part, or None; raise InputError if there are several."""
    paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in _SUFFIXES)
    files = [path for path in paths if _last_word(path) in _PARTS[part]]
    if len(files) > 1:
        raise InputError(
            got=f"{len(files)} {part} files: {', '.join(path.name for path in files)}",
            expected="at most one",
            fix="Move the other files away, or pass one file.",
        )
    return files[0] if files else None


def _last_word(path: Path) -> str:
    return path.stem.lower().replace("-", "_").split("_")[-1]
