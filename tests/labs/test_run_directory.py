from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.labs.run import claim
from refusals import refused

ASKED = {"seed": 3, "sizes": (1, 2)}


def test_a_new_directory_is_made_and_its_run_continued(tmp_path: Path) -> None:
    claim(tmp_path / "new", ASKED, resume=False)
    assert json.loads((tmp_path / "new" / "lab.json").read_text()) == {"seed": 3, "sizes": [1, 2]}
    claim(tmp_path / "new", ASKED, resume=True)


def test_a_run_is_not_begun_twice(tmp_path: Path) -> None:
    claim(tmp_path, ASKED, resume=True)
    with refused(fix="--resume"):
        claim(tmp_path, ASKED, resume=False)


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    claim(tmp_path, ASKED, resume=False)
    with refused("another seed, sizes"):
        claim(tmp_path, {"seed": 4, "sizes": (1, 3)}, resume=True)


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with refused(r"file.*, in which nothing can be written"):
            claim(out, ASKED, resume=False)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("content", ["{", "[]", "{}", "3"])
def test_a_damaged_plan_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "lab.json").write_text(content)
    with refused(r"lab\.json, which cannot be read"):
        claim(tmp_path, ASKED, resume=True)
