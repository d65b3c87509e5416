"""Where the lab's labelled texts come from: the reviews that ship, files of one's own, or the hub."""

from __future__ import annotations

from pathlib import Path

from glassformer.data.examples import Example, SentimentData, split_by_text
from glassformer.data.sentiment import from_files, from_hub, reviews
from glassformer.errors import InputError, require

REVIEWS = "400 reviews"
_PARTS = {"train": ("train", "training"), "validation": ("validation", "valid", "dev", "val"), "test": ("test",)}
_SUFFIXES = (".tsv", ".csv", ".jsonl")


def find_data(source: str | None) -> tuple[str, SentimentData]:
    """A data set with its name.

    Args:
        source: None: the 400 reviews of :func:`~glassformer.data.sentiment.reviews`, 60, 10 and 30 % in the parts. A
            file (TSV, CSV or JSONL): a tenth each is split off. A directory: files whose names end in train, in dev or
            validation, and in test, such as ``sst2_train.tsv``; a part without a file is split off. Else the name of a
            data set on the Hugging Face hub.

    Raises:
        InputError: No such thing, or one that :func:`~glassformer.data.sentiment.from_files` or ``from_hub`` refuses.
    """
    if source is None:
        parts = split_by_text(reviews(), (0.6, 0.1, 0.3))
        return REVIEWS, SentimentData(train=parts[0], validation=parts[1], test=parts[2])
    path = Path(source)
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
        name = train.stem.lower().removesuffix("training").removesuffix("train").strip("_-. ") or path.name
        return name, from_files(train, files["validation"], files["test"])
    if path.suffix.lower() in _SUFFIXES or path.is_absolute() or source.startswith("."):
        raise InputError(f"{source}, which is not there", "a file, a directory or a hub name", "Check the path.")
    return source, from_hub(source)


def kind_examples(data: SentimentData) -> tuple[Example, ...]:
    """Reviews of every kind that nothing in ``data`` was trained on: its own test part if it has kinds, or else all."""
    if {example.kind for example in data.test} != {"plain"}:
        return data.test
    known = {example.text for example in data.train}
    return tuple(example for example in reviews() if example.text not in known)


def _file_of(directory: Path, part: str) -> Path | None:
    found = sorted(
        path
        for path in directory.iterdir()
        if path.suffix.lower() in _SUFFIXES and path.stem.lower().replace("-", "_").split("_")[-1] in _PARTS[part]
    )
    require(
        len(found) <= 1,
        f"{len(found)} {part} files: {', '.join(path.name for path in found)}",
        "at most one",
        "Move the others away, or pass one file.",
    )
    return found[0] if found else None
