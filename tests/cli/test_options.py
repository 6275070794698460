"""Options that commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

import monitor.cli as cli
from tests.service.test_app import Setting, of_shop


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, {"shop": f"sqlite:///{tmp_path / 'log.db'}"})


def test_a_command_on_one_monitor_takes_the_only_one(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    setting.write(of_shop("shop"))
    shown = []
    for named in ([], ["shop"], ["-m", "shop"]):
        assert cli.run(["route", "show", *named, "-c", str(setting.path)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2] != ""


def test_a_command_on_one_of_several_monitors_needs_its_name(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    setting.write(of_shop("shop"), of_shop("other"))
    assert cli.run(["route", "show", "-c", str(setting.path)]) == 2
    assert capsys.readouterr().err == "rankmon: name a monitor: shop, other\n"
    assert cli.run(["route", "show", "shop", "-m", "other", "-c", str(setting.path)]) == 2
    assert "the monitor is given twice" in capsys.readouterr().err
