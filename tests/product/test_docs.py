"""The documents are right: references match the code, commands parse, configurations load, links work."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from sqlalchemy.engine import make_url

from monitor.cli import cli
from monitor.conditions.evidence import condition_names
from monitor.config import json_schema, load
from monitor.measures.measure import SPECS, parse
from monitor.messages.explanation import TITLES
from monitor.store import Store
from monitor.types import format_duration
from tests.benchmarks import examination_em, label_truth
from tests.support import house, references

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WIDEST = 130
"""Characters in a line outside tables."""
COMMANDS = cli.list_commands(click.Context(cli))
LONGEST_README = 250
"""Lines; anything longer belongs in docs/."""

README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURES = (DOCS / "reference" / "measures.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "README.md",
    *sorted(p for p in DOCS.rglob("*.md") if p.stem not in references.PAGES),
]
"""Documents written by hand."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- references ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", references.PAGES)
def test_a_reference_page_matches_the_code(name: str) -> None:
    written = (references.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert references.PAGES[name]() == written, "run: make docs"


def test_the_references_are_complete() -> None:
    schema = json_schema()
    keys = {k for part in (schema, *schema["$defs"].values()) for k in part.get("properties", {})}
    assert len(keys) > 40
    configuration, commands = references.PAGES["configuration"](), references.PAGES["commands"]()
    assert {k for k in keys if f"| `{k}`" not in configuration} == set()
    assert [c for c in COMMANDS if f"## rankmon {c}\n" not in commands] == []
    assert references.PAGES["metrics"]().count("| `rankmon_") > 40


def test_every_verdict_has_a_row_in_the_docs() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|", (DOCS / "explanation" / "verdicts.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(rows) == sorted({*condition_names(), *TITLES})


def test_every_measure_and_option_has_a_row_in_the_docs() -> None:
    assert [m for m in SPECS if f"`{m}" not in MEASURES] == []
    assert {o for spec in SPECS.values() for o in spec.options if f"`{o}`" not in MEASURES} == set()
    pooled = re.search(r"Default: `pooled` for ([\w, ]+), `mean`", MEASURES)
    assert pooled is not None
    assert set(re.split(", | and ", pooled[1])) == {m for m, spec in SPECS.items() if spec.aggregate == "pooled"}


def test_every_measure_written_in_the_docs_parses() -> None:
    rows = [line for line in MEASURES.splitlines() if line.startswith("| ")]
    written = {t for row in rows for t in re.findall(r"`([a-z_]+(?:\([^`]*\))?@\d+|rbp\([^`]*\))`", row)}
    foreign = {t for t in written if t.startswith(("ndcg_", "ndcg_cut"))}
    assert len(written - foreign) > 12
    for text in written - foreign:
        assert parse(text)


def test_the_position_bias_page_shows_the_measured_figures() -> None:
    (said,) = re.findall(r"```text\n(.*?)```", label_truth.RESULTS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(said.splitlines()) == len(label_truth.WHAT)
    assert label_truth.documented(said) == label_truth.PAGE.read_text(encoding="utf-8")


def cells(text: str) -> list[list[str]]:
    """The cells of all table rows."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_the_position_bias_page_shows_the_measured_em_figures() -> None:
    head, *measured = cells(examination_em.RESULTS.read_text(encoding="utf-8"))
    part = label_truth.PAGE.read_text(encoding="utf-8").partition("## Why rankmon does not fall back on EM")[2]
    shown, *rows = cells(part.partition("## ")[0])
    columns = [head.index(name) for name in shown]
    assert len(rows) == 6
    for row in rows:
        assert row in [[one[column] for column in columns] for one in measured]


# ---- commands ------------------------------------------------------------------------------------------------------


def calls() -> Iterator[Any]:
    """Each call of rankmon in a code block, with its document."""
    for page in PAGES:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            for part in re.sub(r"\s+#.*", "", line).removeprefix("$ ").split(" && "):
                call = re.search(r"(?:^|\s)(?:\.venv/bin/)?rankmon (.+)", part.strip())
                if call is not None and call[1].split()[0] in COMMANDS:
                    yield pytest.param(call[1], id=f"{named(page)}: {call[1]}")


@pytest.mark.parametrize("call", list(calls()))
def test_every_command_written_in_the_docs_parses(call: str) -> None:
    words = shlex.split(call)
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no command {words[0]}"
        command, words = found, words[1:]
    command.make_context("rankmon", words)  # raises on an unknown option or a wrong value


# ---- configurations ------------------------------------------------------------------------------------------------


def readme_configuration() -> dict[str, Any]:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "rankings:" in b)
    found: dict[str, Any] = yaml.safe_load("\n".join(line[3:] for line in block.splitlines()))
    return found


def test_the_readmes_configuration_is_valid(tmp_path: Path) -> None:
    config = load(written(tmp_path, readme_configuration()), SECRETS)
    assert [str(m) for m in config.monitor("search").measures] == ["ndcg@10", "mrr@10"]
    assert [format_duration(w) for w in config.monitor("search").windows] == ["24h", "7d"]


SECRETS = dict.fromkeys(
    re.findall(r"\$\{(\w+)\}", "\n".join(page.read_text(encoding="utf-8") for page in PAGES)), "https://secret.test"
)


def written(folder: Path, config: object) -> Path:
    path = folder / "rankmon.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "templates").mkdir()
    (folder / "templates" / "title.txt").write_text("{{ n.kind }}", encoding="utf-8")
    return path


def fragments() -> Iterator[Any]:
    """Each YAML block in docs/."""
    for page in PAGES:
        if DOCS in page.parents:
            for number, block in enumerate(
                re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
            ):
                yield pytest.param(block, id=f"{named(page)} {number}")


@pytest.mark.parametrize("block", list(fragments()))
def test_every_yaml_fragment_fits_a_valid_configuration(block: str, tmp_path: Path) -> None:
    piece, whole = yaml.safe_load(block), readme_configuration()
    if piece.keys() & {"scrape_configs", "tls_server_config"}:
        return  # Prometheus' own configuration, or the web file, which test_web_access.py covers
    monitor = whole["monitors"][0]
    places = {"rankings": monitor["rankings"], "monitors": monitor, "channels": whole}
    for key, value in piece.items():
        if key == "monitors":
            merge(monitor, value[0])
        elif key in whole or key in {
            "channels",
            "routes",
            "reports",
            "templates",
            "defaults",
            "web",
            "log",
            "scheduler",
        }:
            merge(whole, {key: value})
        elif key in places["rankings"]:
            merge(monitor["rankings"], {key: value})
        else:
            merge(monitor, {key: value})
    for relation in (monitor["rankings"], monitor["relevance"].get("events", {})):
        for name in ("item", "position") if "items" in relation else ():
            relation.pop(name)
        if "select" in relation:
            relation.pop("table", None)
    told = {name for key in ("notify", "data_channels") for name in drift_of(monitor).get(key, [])}
    whole.setdefault("channels", {}).update({n: {"webhook": {"url": "http://localhost/"}} for n in told})
    load(written(tmp_path, whole), SECRETS)


def drift_of(monitor: dict[str, Any]) -> dict[str, Any]:
    return monitor.get("drift") or {}


def merge(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict) and key != "time":
            merge(into[key], value)
        else:
            into[key] = value


def test_the_readmes_scrape_configuration_is_valid_yaml() -> None:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "scrape_configs" in b)
    assert yaml.safe_load("\n".join(line[3:] for line in block.splitlines()))["scrape_configs"]


# ---- form ----------------------------------------------------------------------------------------------------------


def test_the_site_builds_without_a_dead_link(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    built = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(built, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README))))
def test_every_readme_link_has_a_target(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).exists()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [named(p) for p in DOCS.rglob("*.md") if str(p.relative_to(DOCS)) not in navigation] == []


def test_the_readme_stays_short() -> None:
    assert README.count("\n") <= LONGEST_README


GRAFANA = ROOT / "docs" / "how-to" / "grafana-sql.md"


def test_every_query_for_grafana_runs_on_the_store(postgres_url: str) -> None:
    store = Store(make_url(postgres_url))
    store.schema.migrate()
    queries = re.findall(r"```sql\n(.*?)```", GRAFANA.read_text(encoding="utf-8"), re.DOTALL)
    assert len(queries) >= 5
    with store.reading() as connection:
        for query in queries:
            connection.exec_driver_sql(query)
    store.close()


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=named)
def test_document_lines_are_wrapped(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDEST and not line.startswith("|")] == []


def test_the_architecture_picture_matches_the_code() -> None:
    assert house.mistakes() == []
    assert house.PICTURE.read_text(encoding="utf-8") == house.picture(), "make docs draws it"
