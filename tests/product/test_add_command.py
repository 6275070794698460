"""A command takes one file: help, reference, table and JSON need no further line."""

import json
from pathlib import Path

import pytest

from monitor.cli import commands, run
from tests.support import references

TOY = '''"""Count the toys of a shop. It is a test's.

The second paragraph is in its own help.
"""

from monitor.cli.common import command, rendered
from monitor.cli.render import column, record
from monitor.messages.tables import count


@record
class Toy:
    kind: str = column("toy", left=True)
    number: int = column("in stock", count)
    shelf: int


@command
@rendered("table", "json", "csv")
def count_toys() -> list[Toy]:
    return [Toy("bear", 1200, 1), Toy("kite", 7, 2)]
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "count_toys.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])


@pytest.mark.usefixtures("toy")
def test_a_new_command_appears_in_help_and_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "\n  count-toys        Count the toys of a shop.\n" in capsys.readouterr().out
    assert run(["count-toys", "--help"]) == 0
    assert "The second paragraph is in its own help." in capsys.readouterr().out
    assert "## rankmon count-toys\n\nCount the toys of a shop. It is a test's.\n" in references.commands()


@pytest.mark.usefixtures("toy")
def test_a_new_commands_result_renders_as_table_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["count-toys"]) == 0
    assert capsys.readouterr().out == "toy   in stock\nbear     1,200\nkite         7\n"
    assert run(["count-toys", "--format", "json"]) == 0
    toys = json.loads(capsys.readouterr().out)
    assert toys == [{"kind": "bear", "number": 1200, "shelf": 1}, {"kind": "kite", "number": 7, "shelf": 2}]
    assert run(["count-toys", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "kind,number,shelf\nbear,1200,1\nkite,7,2\n"


def test_a_command_without_a_file_is_unknown() -> None:
    assert run(["count-toys"]) == 2
