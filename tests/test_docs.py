"""What the documents say is so: every key, gauge, command and measure stands in them, and their examples work."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from monitor.cli import _COMMANDS
from monitor.config import load
from monitor.config.reference import reference
from monitor.core.drift.verdicts import Alarm, Verdict
from monitor.core.measures import SPECS, parse
from monitor.core.relevance import REASONS
from monitor.core.types import Drift, format_duration
from monitor.exposition import registry
from monitor.snapshot import Board
from monitor.store.retention import Holding
from monitor.telemetry import Telemetry
from tests import test_exposition

ROOT = Path(__file__).parent.parent
WIDEST = 130
"""Characters of a line that is no row of a table."""

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_reference_of_the_configuration_is_current() -> None:
    assert reference() == (ROOT / "config" / "README.md").read_text(encoding="utf-8"), (
        "run: python -m monitor.config --reference > config/README.md"
    )


def test_every_key_of_the_schema_has_its_line_in_the_reference() -> None:
    from monitor.config import json_schema

    schema = json_schema()
    keys = {k for part in (schema, *schema["$defs"].values()) for k in part.get("properties", {})}
    assert len(keys) > 40
    missing = {k for k in keys if f"| `{k}`" not in reference()}
    assert missing == set()


def test_every_command_is_in_the_readme() -> None:
    assert [c for c in _COMMANDS if f"`{c}`" not in README] == []


def test_every_measure_and_option_is_in_the_readme() -> None:
    assert [m for m in SPECS if f"`{m}" not in README] == []
    options = {o for spec in SPECS.values() for o in spec.options}
    assert {o for o in options if f"`{o}`" not in README} == set()


def test_every_measure_written_in_the_readme_parses() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `") or line.startswith("| ranx")]
    written = {t for row in rows for t in re.findall(r"`([a-z_]+(?:\([^`]*\))?@\d+|rbp\([^`]*\))`", row)}
    foreign = {t for t in written if t.startswith(("ndcg_", "ndcg_cut"))}
    assert len(written - foreign) > 12
    for text in written - foreign:
        assert parse(text)


def test_every_gauge_is_in_the_readme() -> None:
    families = {f.name for f in registry(_board(), Telemetry()).collect() if f.name.startswith("rankmon_")}
    assert len(families) > 25
    assert {"rankmon_verdict", "rankmon_drift_effect_ratio", "rankmon_stored_rows"} <= families
    named = README.replace("`", " ")
    missing = {f for f in families if not _is_named(f, named)}
    assert missing == set()


def _board() -> Board:
    """A monitor with everything that has a family: rules, verdicts with an alarm, and a look at the store."""
    made, found = Board(), test_exposition.snapshot(test_exposition.series("ndcg@10", test_exposition.point()))
    alarm = Alarm("", 0, 0, -0.1, 2.0, 0.02, 0.5, 0.6, 100)
    verdict = Verdict(0, "degraded", (alarm,), observed=0.5, expected=0.6)
    monitor = replace(found.monitor, drift=Drift(parse("ndcg@10")))
    made.publish(replace(found, monitor=monitor, verdict=verdict, holding=Holding(2, 1, 0)))
    return made


def _is_named(family: str, text: str) -> bool:
    """By its own name, or as one of the families that every measure and slice has."""
    name = family.removeprefix("rankmon_slice_")
    plain = f"rankmon_{name.removeprefix('rankmon_')}"
    return any(candidate in text for candidate in (family, f"{family}_total", plain))


def test_the_readmes_configuration_is_valid(tmp_path: Path) -> None:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "monitors:" in b)
    path = tmp_path / "rankmon.yaml"
    path.write_text("\n".join(line[3:] for line in block.splitlines()), encoding="utf-8")
    config = load(path, {"SHOP_PASSWORD": "secret"})
    assert [str(m) for m in config.monitor("search").measures] == ["ndcg@10", "mrr@10"]
    assert [format_duration(w) for w in config.monitor("search").windows] == ["24h", "7d"]


def test_the_readmes_scrape_configuration_is_yaml() -> None:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "scrape_configs" in b)
    assert yaml.safe_load("\n".join(line[3:] for line in block.splitlines()))["scrape_configs"]


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).exists()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md"])
def test_no_line_of_a_document_is_left_unwrapped(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDEST and not line.startswith("|")] == []


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_refusal_is_in_the_readme(reason: str) -> None:
    assert f"`{reason}`" in README
