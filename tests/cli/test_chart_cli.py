"""`rankmon chart`: it draws the open incident or a named one into a file, and refuses the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.test_incidents_cli import filled, run
from tests.service.test_fall import extra, size

__all__ = ["extra", "filled"]


def test_the_open_incident_and_its_id_give_the_same_chart(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(filled, "incidents list", "--format", "json")
    (incident,) = json.loads(capsys.readouterr().out)
    assert run(filled, "chart shop", "-o", str(tmp_path / "a.svg")) == 0
    assert run(filled, "chart shop", "--incident", incident["id"], "-o", str(tmp_path / "b.svg")) == 0
    first, second = ((tmp_path / name).read_text(encoding="utf-8") for name in ("a.svg", "b.svg"))
    assert first == second
    assert "opened" in "".join(ElementTree.fromstring(first).itertext())


@pytest.mark.usefixtures("extra")
def test_a_png_file_name_writes_a_png(filled: Path, tmp_path: Path) -> None:
    assert run(filled, "chart shop", "-o", str(tmp_path / "fall.png")) == 0
    assert size((tmp_path / "fall.png").read_bytes()) == (900, 720)


def test_chart_refuses_unusable_files_and_incidents_with_a_remedy(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    for name, arguments, said in (
        ("fall.gif", (), "neither .png nor .svg"),
        ("fall.svg", ("--incident", "nothing"), "there is no incident 'nothing'"),
        ("fall.png", (), "pip install 'rankmon[charts]'"),
        ("no/such/folder/fall.svg", (), "cannot write"),
    ):
        assert run(filled, "chart shop", *arguments, "-o", str(tmp_path / name)) == 2
        assert said in capsys.readouterr().err
    assert run(filled, "chart shop2", "-o", str(tmp_path / "fall.svg")) == 2
    assert list(tmp_path.iterdir()) == []
