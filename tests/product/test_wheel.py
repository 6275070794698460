"""The built wheel works outside the checkout, including migrations and templates."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.service.test_kill import CONFIG

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, to be put first on the import path."""
    folder = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    wheel = next((folder / "dist").glob("rankmon-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def rankmon(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from monitor.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_wheel_holds_migrations_templates_and_types_but_no_tests(installed: Path) -> None:
    names = {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()}
    assert {"monitor/_migrations/env.py", "monitor/page/templates/index.html", "monitor/py.typed"} <= names
    assert any(n.startswith("monitor/_migrations/versions/0100") for n in names)
    assert not any(n.startswith(("tests", "migrations")) for n in names)


def test_the_wheel_runs_outside_the_checkout_with_its_own_migrations(installed: Path, tmp_path: Path) -> None:
    code = "import monitor; print(monitor.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert where.stdout.startswith(str(installed))
    (tmp_path / "rankmon.yaml").write_text(CONFIG.format(folder=tmp_path, store=f"sqlite:///{tmp_path}/store.db"))
    assert rankmon(installed, tmp_path, "version").stdout.startswith("rankmon 0.")
    migrated = rankmon(installed, tmp_path, "migrate")
    assert (migrated.returncode, migrated.stdout[:14]) == (0, "schema none ->"), migrated.stderr
    once = rankmon(installed, tmp_path, "once")
    assert once.returncode == 3, once.stdout
    assert "there is no file" in once.stderr


def test_the_wheel_declares_the_rankmon_command() -> None:
    entry = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'rankmon = "monitor.cli:main"' in entry
