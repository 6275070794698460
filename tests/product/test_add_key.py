"""A configuration key takes one declaration: value, limits, errors, schema and reference follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from monitor.config import json_schema, load, loader, schema, values
from monitor.config.schema import reference
from monitor.errors import ConfigError
from monitor.fields import PositiveDuration
from monitor.section import key
from tests.config.test_config import MINIMAL


@dataclass(frozen=True, slots=True)
class PacedScheduler(values.SchedulerConfig):
    """How the monitors are run, with one extra key."""

    pace: Annotated[PositiveDuration, key("Time between two starts.")] = 90


@dataclass(frozen=True)
class PacedFile(values.File):
    """A configuration whose scheduler has the extra key."""

    scheduler: Annotated[PacedScheduler, key("How monitors are run. Default: as below.")] = PacedScheduler()


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loader, schema):
        monkeypatch.setattr(module, "File", PacedFile)


def paced(folder: Path, scheduler: str) -> Path:
    path = folder / "rankmon.yaml"
    path.write_text(f"scheduler: {scheduler}\n{MINIMAL}", encoding="utf-8")
    return path


def test_a_new_key_has_its_value_and_default(tmp_path: Path) -> None:
    assert load(paced(tmp_path, "{pace: 2m}"), {}).scheduler.pace == 120  # type: ignore[attr-defined]
    assert load(paced(tmp_path, "{workers: 2}"), {}).scheduler.pace == 90  # type: ignore[attr-defined]


def test_mistakes_in_a_new_key_name_line_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":1: scheduler\.pace: is a bare number; write the unit, e\.g\. 90s"):
        load(paced(tmp_path, "{pace: 2}"), {})
    with pytest.raises(
        ConfigError, match=r":2: pace: there is no such key; it belongs under `scheduler`; move it there"
    ):
        load(paced(tmp_path, "{workers: 2}\npace: 2m"), {})


def test_schema_and_reference_contain_a_new_key() -> None:
    found = json_schema()["$defs"]["PacedScheduler"]["properties"]["pace"]
    assert (found["default"], found["description"]) == ("90s", "Time between two starts. Default: 90s.")
    assert "| `pace` | Time between two starts. Default: 90s. |" in reference()
