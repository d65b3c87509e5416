from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glassformer.explorer.messages import HeadWeightsMessage
from glassformer.explorer.saving.edited_cells import edited, parse

WEB = Path(__file__).resolve().parents[3] / "web"
DESIGN = HeadWeightsMessage(
    Km=[[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]],
    Qm=[[0.0, 2.0], [1.0, 4.0], [0.0, 0.5]],
    Vm=[[1.0], [2.0], [0.0]],
    pos=[[0.0], [1.0]],
)
WITHOUT_PLACES = HeadWeightsMessage(Km=[[1.0]], Qm=[[2.0]], Vm=[[1.0]])
NUMBERS = [
    "2",
    "-0.5",
    "1e3",
    " 7 ",
    "",
    "x",
    "1,5",
    "\u22122",
    "1e\u22123",
    "+.5",
    "5.",
    "1e999",
    "1e300",
    "-0",
    "0x1F",
]


def test_edits_are_laid_over_the_design() -> None:
    changed = edited(DESIGN, {"Km.0.1": "9", "pos.1.0": "-1.5", "Vm.9.9": "1", "nothing": "1", "Qm.0.0": "?"})
    assert changed.Km == [[1.0, 9.0], [3.0, 4.0], [0.0, 0.5]]
    assert changed.pos == [[0.0], [-1.5]]
    assert (changed.Qm, changed.Vm) == (DESIGN.Qm, DESIGN.Vm)


def test_other_sizes() -> None:
    changed = edited(DESIGN, {"size.qk": "3", "size.pos": "2", "size.len": "1", "Km.3.2": "4"})
    assert changed.Km == [[1, 2, 0], [3, 4, 0], [0, 0.5, 0], [0, 0, 4]]
    assert changed.pos == [[0.0, 0.0]]
    assert edited(DESIGN, {"size.pos": "0"}).pos is None


@pytest.mark.parametrize(("text", "number"), [("\u22122e\u22121", -0.2), (" .5", 0.5), ("1_0", None), ("inf", None)])
def test_numbers_as_they_are_typed(text: str, number: float | None) -> None:
    assert parse(text) == number


def test_the_page_makes_the_same_of_the_same_edits(tmp_path: Path) -> None:
    node = shutil.which("node")
    esbuild = WEB / "node_modules" / ".bin" / "esbuild"
    if node is None or not esbuild.exists():
        pytest.skip("no node, or no web/node_modules: npm ci in web/")
    draw = random.Random(0)
    addresses = [
        f"{name}.{row}.{column}" for name in ("Km", "Qm", "Vm", "pos", "Xm") for row in range(5) for column in range(3)
    ]
    cases: list[tuple[HeadWeightsMessage, dict[str, str]]] = []
    for _ in range(400):
        cells = {draw.choice(addresses): draw.choice(NUMBERS) for _ in range(draw.randrange(6))}
        for size in ("qk", "pos", "len"):
            if draw.random() < 0.2:
                cells[f"size.{size}"] = draw.choice(["0", "1", "2", "3", "x", ""])
        cases.append((draw.choice([DESIGN, WITHOUT_PLACES]), cells))
    given = [{"design": design.model_dump(), "cells": cells} for design, cells in cases]
    (tmp_path / "cases.json").write_text(json.dumps(given), encoding="utf-8")
    script = (
        'import { readFileSync } from "node:fs"; import { edited } from "./views/design/weights";'
        'const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));'
        "console.log(JSON.stringify(cases.map(({ design, cells }) => edited(design, cells).weights)));"
    )
    build = [str(esbuild), "--bundle", "--platform=node", "--format=cjs", f"--outfile={tmp_path / 'run.cjs'}"]
    subprocess.run(build, input=script, cwd=WEB / "src", capture_output=True, text=True, check=True)
    command = [node, str(tmp_path / "run.cjs"), str(tmp_path / "cases.json")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    theirs: list[dict[str, Any]] = json.loads(ran.stdout)
    assert [edited(design, cells).model_dump() for design, cells in cases] == theirs
