"""Where the lab's labelled texts come from: the bundled reviews, files, or the hub."""

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
    """The data set of this name or path, with its name: class 0 is negative, 1 is positive.

    Args:
        source: None: the 240 plain ones among the bundled reviews, 70, 10 and 20 % in the parts; a
            small model learns them, and none of the other kinds. A file (TSV, CSV or JSONL): a
            tenth each is split off. A directory: files whose names end in train, in dev or
            validation, and in test, such as ``sst2_train.tsv``; a part without a file is split off.
            Otherwise the name of a data set on the Hugging Face hub; if its classes are named
            pos... and neg..., in this order, they and the labels are swapped.
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
                f"the directory {path} without a training file",
                f"a file whose name ends in train, with the suffix {', '.join(_SUFFIXES)}",
                "Name it so, or pass the file itself.",
            )
        name = (
            train.stem.lower().removesuffix("training").removesuffix("train").strip("_-. ")
            or path.name
        )
        return name, from_files(train, files["validation"], files["test"])
    if path.suffix.lower() in _SUFFIXES or path.is_absolute() or source.startswith("."):
        raise InputError(
            f"{source}, which is not there", "a file, a directory or a hub name", "Check the path."
        )
    return source, _negative_first(source, from_hub(source))


def kind_examples(data: SentimentData) -> tuple[Example, ...]:
    """The bundled reviews whose text is not in the training texts of ``data``; or, if none is left,
    its test part.
    """
    known = {normalized(example.text) for example in data.train}
    return (
        tuple(example for example in reviews() if normalized(example.text) not in known)
        or data.test
    )


def _negative_first(name: str, data: SentimentData) -> SentimentData:
    meant = tuple(each.strip().lower()[:3] for each in data.classes)
    if meant in (("neg", "pos"), ("0", "1")):
        return data
    if meant != ("pos", "neg"):
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
    found = sorted(
        path
        for path in directory.iterdir()
        if path.suffix.lower() in _SUFFIXES
        and path.stem.lower().replace("-", "_").split("_")[-1] in _PARTS[part]
    )
    if len(found) > 1:
        raise InputError(
            got=f"{len(found)} {part} files: {', '.join(path.name for path in found)}",
            expected="at most one",
            fix="Move the others away, or pass one file.",
        )
    return found[0] if found else None
