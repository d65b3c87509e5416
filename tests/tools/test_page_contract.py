"""What the page's TypeScript takes from Python is what Python has."""

import json
from pathlib import Path

import pytest
from page_contract import contract, main, types

WEB = Path(__file__).resolve().parents[2] / "web"


def test_the_page_has_the_current_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads((WEB / "src" / "contract.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(contract())
    )
    (tmp_path / "src").mkdir()
    assert main([str(tmp_path)]) == main([str(tmp_path), "--check"]) == 0
    written = tmp_path / "src" / "contract.json"
    written.write_text(
        written.read_text(encoding="utf-8").replace("4096", "4097"), encoding="utf-8"
    )
    assert main([str(tmp_path), "--check"]) == 1
    assert "make page" in capsys.readouterr().out


def test_every_message_has_its_type() -> None:
    schemas = types()["components"]["schemas"]
    assert {"State", "Ask", "AskTile", "Run", "Refusal", "HeadWeightsMessage"} <= set(schemas)
    assert all(name.isidentifier() for name in schemas)
    assert schemas["State"]["properties"]["expertLayer"]["default"] == 0
