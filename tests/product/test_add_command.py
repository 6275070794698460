"""A command costs one file: in help, reference, table and JSON it is found without another line."""

from pathlib import Path

import pytest

from monitor.cli import commands, run
from tests.support import references

TOY = '''"""Count the toys of a shop. It is a test's.

The second paragraph is in its own help.
"""

import click

from monitor.cli.common import command


@command
def count_toys() -> None:
    click.echo("3 toys")
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "count_toys.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])


@pytest.mark.usefixtures("toy")
def test_a_command_is_found_in_help_and_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "\n  count-toys        Count the toys of a shop.\n" in capsys.readouterr().out
    assert run(["count-toys", "--help"]) == 0
    assert "The second paragraph is in its own help." in capsys.readouterr().out
    assert "## rankmon count-toys\n\nCount the toys of a shop. It is a test's.\n" in references.commands()
    assert run(["count-toys"]) == 0
    assert capsys.readouterr().out == "3 toys\n"


def test_what_is_no_file_is_no_command() -> None:
    assert run(["count-toys"]) == 2
