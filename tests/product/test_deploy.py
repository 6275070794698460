"""The files of `deploy/`: the tools that read them accept them, and they contain what they must."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.conditions.evidence import condition_names, kinds
from monitor.config import load
from monitor.measures.measure import SPECS
from tests.support.processes import ROOT
from tests.support.prometheus import DEPLOY, RULES, hurried
from tests.support.requirements import missing

README = (DEPLOY / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "rankmon.json").read_text(encoding="utf-8"))
ALERTS = {r["alert"]: r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"] if "alert" in r}
RULE_TESTS = DEPLOY / "prometheus" / "tests" / "rankmon.yml"
FOUND = f" {sum(len(g['rules']) for g in yaml.safe_load(RULES.read_text())['groups'])} rules found"


def run(program: str, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """Runs a program that must succeed and returns its output; a failure shows the output as message."""
    if shutil.which(program) is None:
        missing(f"{program} is not installed (Debian: prometheus, prometheus-alertmanager)")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(word: str) -> str:
    """The first YAML example of the README that contains this word."""
    blocks: list[str] = re.findall(r"^ *```yaml\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)
    return next(b for b in blocks if word in b)


# ---- Prometheus and Alertmanager ----------------------------------------------------------------------------------


def test_promtool_accepts_the_rules_at_normal_and_at_test_speed(tmp_path: Path) -> None:
    run("promtool", "check", "rules", RULES)
    (tmp_path / "rules.yml").write_text(hurried(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    run("promtool", "check", "rules", tmp_path / "rules.yml")


def test_the_rules_pass_their_tests() -> None:
    run("promtool", "test", "rules", RULE_TESTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_test_annotations_and_a_readme_section(name: str) -> None:
    alert = ALERTS[name]
    assert re.search(rf"alertname: {name}\n", RULE_TESTS.read_text(encoding="utf-8"))
    assert {"summary", "description"} <= alert["annotations"].keys()
    assert "runbook" not in alert["annotations"], (
        "Alertmanager expects an address there; the runbook is the monitor's runbook_url"
    )
    assert f"### {name}\n" in README
    of_rules = (
        "RankmonQualityLow",
        "RankmonDataSuspect",
        "RankmonLayoutChanged",
    )  # these take the severity from the monitor's rules
    assert ("severity" in alert.get("labels", {})) is (name not in of_rules)


def test_the_data_suspect_alert_describes_every_data_verdict() -> None:
    suspect = RULES.read_text(encoding="utf-8").partition("- alert: RankmonDataSuspect")[2].partition("- alert:")[0]
    # A stale source has its own alert, which also works for monitors without verdicts.
    on_data = {name for name in condition_names() if kinds()[name].audience == "data"}
    assert set(re.findall(r'\beq\s+\$labels\.rule\s+"(\w+)"', suspect)) == on_data - {"source_stale"}
    assert 'rule!="source_stale"' in suspect


def test_promtool_accepts_the_configuration_and_finds_the_rules() -> None:
    found = run("promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert FOUND in found, "promtool accepts a pattern that matches no file"


def test_promtool_accepts_the_readmes_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    shutil.copy(RULES, tmp_path / "rules")
    (tmp_path / "prometheus.yml").write_text(example("scrape_configs"), encoding="utf-8")
    assert FOUND in run("promtool", "check", "config", tmp_path / "prometheus.yml")


def test_amtool_accepts_the_configuration_and_the_readmes_routes(tmp_path: Path) -> None:
    run("amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")
    (tmp_path / "alertmanager.yml").write_text(example("receivers"), encoding="utf-8")
    run("amtool", "check-config", tmp_path / "alertmanager.yml")


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("alertname=RankmonWatchdog", "severity=none"), "dead-mans-switch"),
        (("alertname=RankmonQualityLow", "severity=critical", "monitor=search"), "pager"),
        (("alertname=RankmonQualityLow", "severity=warning", "monitor=search"), "chat"),
        (("alertname=SomethingElse", "severity=critical"), "default"),
    ],
)
def test_the_readmes_routes_send_each_alert_to_its_receiver(
    tmp_path: Path, labels: tuple[str, ...], receiver: str
) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(example("receivers"), encoding="utf-8")
    run("amtool", "config", "routes", "test", f"--config.file={path}", f"--verify.receivers={receiver}", *labels)


# ---- dashboard ----------------------------------------------------------------------------------------------------


def test_the_dashboard_has_a_fixed_uid_and_a_data_source_variable() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["id"]) == ("rankmon", None)
    assert "__inputs" not in DASHBOARD
    asked = [*_panels(), *(t for p in _panels() for t in p["targets"])]
    asked += [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert {a["datasource"]["uid"] for a in asked} == {"${datasource}"}
    assert (
        DASHBOARD["templating"]["list"][0] | {"name": "datasource", "type": "datasource", "query": "prometheus"}
        == (DASHBOARD["templating"]["list"][0])
    )


def _panels() -> Iterator[dict[str, Any]]:
    return (p for p in DASHBOARD["panels"] if p["type"] != "row")


def test_panels_have_unique_ids_and_descriptions_and_do_not_overlap() -> None:
    ids = [p["id"] for p in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(p["description"].endswith(".") for p in _panels())
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_dashboard_queries_use_exactly_the_defined_variables() -> None:
    text = json.dumps(DASHBOARD)
    known = {v["name"] for v in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__all"} == known


def test_rules_and_dashboard_list_every_measure() -> None:
    lists = re.findall(r"\((cg\|[a-z_|]+)\)", RULES.read_text(encoding="utf-8") + json.dumps(DASHBOARD))
    assert len(lists) > 4
    assert {tuple(found.split("|")) for found in lists} == {tuple(sorted(SPECS))}


# ---- container ----------------------------------------------------------------------------------------------------


def test_the_image_is_pinned_and_runs_as_a_numbered_user_without_curl() -> None:
    assert (pinned := re.search(r"^ARG (PYTHON=python:3\.\d+\.\d+-slim-\w+)$", DOCKERFILE, re.MULTILINE))
    assert f"--build-arg {pinned[1]}@sha256:..." in README
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${PYTHON}", "${PYTHON}"]
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER \d+:\d+$", final, re.MULTILINE)
    assert "VOLUME /var/lib/rankmon\n" in final
    assert "HEALTHCHECK" in final
    assert not re.search(r"curl|wget|apt-get", final)
    assert "PYTHONDONTWRITEBYTECODE=1" in final


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    copied = [w for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE) for w in line.split()[:-1]]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {line[1:] for line in ignored if line.startswith("!")}
    assert [c for c in copied if not (ROOT / c).exists()] == []
    packaged = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(part in copied for part in re.findall(r'^packages = \["(\w+)"\]', packaged, re.MULTILINE))


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_compose_service_is_hardened_pinned_checked_and_local(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    assert "healthcheck" in service or "HEALTHCHECK" in DOCKERFILE
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_files_mounted_by_compose_exist() -> None:
    mounts = [m.split(":") for s in COMPOSE["services"].values() for m in s["volumes"]]
    assert {m[0] for m in mounts if m[0].startswith("./") and not (DEPLOY / m[0]).exists()} == set()
    assert all(m[2] == "ro" for m in mounts if m[0].startswith("./"))
    assert {m[0] for m in mounts if not m[0].startswith("./")} == set(COMPOSE["volumes"])


def test_services_reach_each_other_by_their_compose_names() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = [*prometheus["scrape_configs"], *prometheus["alerting"]["alertmanagers"]]
    targets = {t.partition(":")[0] for j in jobs for c in j["static_configs"] for t in c["targets"]}
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    address = re.fullmatch(r"http://(\w+):9090", source["datasources"][0]["url"])
    assert address is not None
    assert targets - {"localhost"} | {address[1]} <= set(COMPOSE["services"])


def test_deploy_files_hold_no_password() -> None:
    files = [*DEPLOY.glob("*.yaml"), *DEPLOY.rglob("*.yml")]
    assert len(files) > 6
    secret = re.compile("password|token|api_key|routing_key", re.IGNORECASE)
    found = [(k, v) for f in files for k, v in _scalars(yaml.safe_load(f.read_text("utf-8"))) if secret.search(k)]
    assert [(k, v) for k, v in found if not k.endswith(("_file", "file"))] == []


def _scalars(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every scalar of a YAML document with its key."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _scalars(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _scalars(value, key)
    else:
        yield key, node


# ---- service and configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [{}, {"RANKMON_LISTEN": "127.0.0.1:9184"}])
def test_the_configuration_is_valid_in_the_container_and_as_a_service(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "shop_password").write_text("s3cret\n", encoding="utf-8")
    config = load(DEPLOY / "rankmon.yaml", {"CREDENTIALS_DIRECTORY": str(tmp_path), **environment})
    assert config.web.host == ("127.0.0.1" if environment else "0.0.0.0")
    assert str(config.store.url).endswith("/var/lib/rankmon/rankmon.db")
    assert config.monitor("search").paging == "prometheus"


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(DEPLOY / "systemd" / "rankmon.service", encoding="utf-8")
    return parsed


def test_the_systemd_unit_is_confined_reloads_and_restarts() -> None:
    service = unit()["Service"]
    wanted = {
        "DynamicUser": "yes",
        "StateDirectory": "rankmon",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "Type": "notify",
        "WatchdogSec": "2min",
        "MemoryMax": "2G",
        "TasksMax": "256",
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "Restart": "on-failure",
    }
    assert {k: service[k] for k in wanted} == wanted
    assert service["LoadCredential"].startswith("shop_password:")


def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    text = (DEPLOY / "systemd" / "rankmon.service").read_text(encoding="utf-8")
    (tmp_path / "rankmon.service").write_text(text.replace("/opt/rankmon/bin/rankmon", "/bin/true"), encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "rankmon.service"], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_rates_the_unit_well_confined() -> None:
    """What remains open: the network, which the daemon uses, the file system, and executable memory for NumPy."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=15",
        DEPLOY / "systemd" / "rankmon.service",
    ]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


STAND_IN = """\
#!/bin/sh
set -eu
export CREDENTIALS_DIRECTORY={folder}/credentials
while :; do
    case "$1" in
        --*) shift ;;
        -E) export "$2"; shift 2 ;;
        -p) case "$2" in
                LoadCredential=*)
                    given="${{2#LoadCredential=}}"
                    cp "${{given#*:}}" "$CREDENTIALS_DIRECTORY/${{given%%:*}}" ;;
                EnvironmentFile=-*) set -a; . "${{2#EnvironmentFile=-}}"; set +a ;;
                *) echo "$2" >>{folder}/properties ;;
            esac
            shift 2 ;;
        *) exec "$@" ;;
    esac
done
"""
"""The parts of systemd-run that matter here: credentials, environment and command."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's steps install, including the `rankmon` script."""
    for name in ("etc/secrets", "lib", "credentials", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/secrets/shop_password").write_text("s3cret\n", encoding="utf-8")
    url = "RANKMON_SOURCE_URL=postgresql://rankmon@127.0.0.1:1/shop\n"
    (tmp_path / "etc/environment").write_text(url, encoding="utf-8")
    text = (DEPLOY / "rankmon.yaml").read_text(encoding="utf-8").replace("/var/lib/rankmon", f"{tmp_path}/lib")
    (tmp_path / "etc/rankmon.yaml").write_text(text, encoding="utf-8")
    script = (DEPLOY / "systemd" / "rankmon.sh").read_text(encoding="utf-8").replace("/etc/rankmon", f"{tmp_path}/etc")
    runs = f"{sys.executable} -c 'import monitor.cli as cli; cli.main()'"
    programs = {
        "rankmon": script.replace("/opt/rankmon/bin/rankmon", f"{tmp_path}/bin/python-rankmon"),
        "python-rankmon": f'#!/bin/sh\nexec {runs} "$@"\n',
        "systemd-run": STAND_IN.format(folder=tmp_path),
    }
    for name, content in programs.items():
        (tmp_path / "bin" / name).write_text(content, encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    monkeypatch.delenv("RANKMON_CONFIG", raising=False)
    return tmp_path


def called(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_the_rankmon_script_shares_the_services_passwords_settings_and_user(machine: Path) -> None:
    assert called("rankmon", "check-config").stdout.endswith("configuration is valid\n")
    asked = called("rankmon", "check-config", "--connect")
    assert asked.returncode == 3, asked.stderr
    assert "127.0.0.1" in asked.stderr, "the URL from the environment file"
    given = dict(line.split("=", 1) for line in (machine / "properties").read_text(encoding="utf-8").splitlines())
    service = unit()["Service"]
    alike = ("DynamicUser", "User", "StateDirectory", "StateDirectoryMode", "UMask")
    assert {k: given[k] for k in alike} == {k: service[k] for k in alike}
    script = (DEPLOY / "systemd" / "rankmon.sh").read_text(encoding="utf-8")
    assert set(re.findall(r"-E (\S+)", script)) == set(service["Environment"].split())
    assert f"EnvironmentFile={service['EnvironmentFile']}" in script
    assert service["LoadCredential"] == "shop_password:/etc/rankmon/secrets/shop_password"


def test_a_plain_shell_reads_the_store_without_the_services_passwords(machine: Path) -> None:
    config = ("-c", machine / "etc/rankmon.yaml")
    assert called("python-rankmon", "migrate", *config).returncode == 0
    for command in (["status"], ["incidents", "list"], ["series"], ["slices", "show", "search"]):
        done = called("python-rankmon", *command, *config)
        assert (done.returncode, "password" in done.stderr) == (0, False), done.stderr
    checked = called("python-rankmon", "check-config", *config)
    written = "${CREDENTIALS_DIRECTORY:-/run/secrets}/shop_password"
    assert checked.returncode == 2
    assert checked.stderr.endswith(
        f"sources.shop.password_file: there is no file /run/secrets/shop_password ({written})\n"
    )


def test_compose_sets_every_variable_the_configuration_reads() -> None:
    text = (DEPLOY / "rankmon.yaml").read_text(encoding="utf-8")
    read = set(re.findall(r"\$\{(RANKMON_\w+)", text))
    given = COMPOSE["services"]["rankmon"]["environment"]
    assert read - set(given) == {"RANKMON_LISTEN"}, "its default suits the container"
    assert given["RANKMON_EXTERNAL_URL"] in text


def test_the_image_installs_the_requested_drivers(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    (default,) = re.findall(r'^ARG EXTRAS="(.+)"$', DOCKERFILE, re.MULTILINE)
    assert COMPOSE["services"]["rankmon"]["build"]["args"]["EXTRAS"] == f"${{RANKMON_EXTRAS:-{default}}}"
    (step,) = re.findall(r"^RUN (uv export .*?) +\\\n", DOCKERFILE, re.MULTILINE)
    for extras, drivers in ((default, {"psycopg", "pyarrow"}), ("postgresql duckdb", {"psycopg", "duckdb-engine"})):
        command = step.replace("uv export", f"{uv} export --offline", 1)
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "EXTRAS": extras}
        )
        assert done.returncode == 0, done.stderr
        locked = set(re.findall(r"^([\w-]+)(?:\[\w+\])?==", done.stdout, re.MULTILINE))
        assert locked & {"psycopg", "pyarrow", "duckdb-engine"} == drivers


# ---- README -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_every_readme_link_has_a_target(link: str) -> None:
    path, _, heading = link.partition("#")
    assert (DEPLOY / path).exists()
    text = (DEPLOY / path).read_text(encoding="utf-8") if heading and path else README
    headings = {h.lower().replace(",", "").replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert not heading or heading in headings


def test_the_readme_says_what_was_never_tried() -> None:
    for part in ("**Never in a cluster**", "**Never started**", "**Never opened in Grafana**"):
        assert part in README
