"""Day-two pages: each is followed step by step on a store with an incident, and has the promised result."""

from __future__ import annotations

import hashlib
import hmac
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from sqlalchemy.engine import make_url

from monitor import cli
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from tests.cli.test_incidents_cli import filled, write
from tests.product.test_docs import DOCS, merge
from tests.support.receiver import Receiver

__all__ = ["filled"]


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backfilled shop with an incident that Ada acknowledged."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    write(tmp_path, "http://127.0.0.1:9/")
    shutil.move(tmp_path / "store.db", tmp_path / "rankmon.db")
    config = (tmp_path / "rankmon.yaml").read_text(encoding="utf-8").replace("/store.db", "/rankmon.db")
    (tmp_path / "rankmon.yaml").write_text(config, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["incidents", "ack", incident(tmp_path).incident.id, "--by", "ada"]) == 0
    return tmp_path


def incident(folder: Path) -> StoredIncident:
    with closing(Store(make_url(f"sqlite:///{folder}/rankmon.db"))) as store:
        (found,) = store.alerts.incidents()
    return found


def known(folder: Path) -> tuple[str, str | None, str]:
    """The incident's id, who acknowledged it, its state."""
    found = incident(folder)
    return found.incident.id, found.acknowledged_by, found.incident.state


def follow(page: str, folder: Path, said: Callable[[str], str] = lambda text: text) -> list[str]:
    """Follows a page: merges its YAML into the configuration, runs its commands, returns those of rankmon."""
    done: list[str] = []
    text = said((DOCS / "how-to" / f"{page}.md").read_text(encoding="utf-8"))
    for kind, block in re.findall(r"```(yaml|sh)\n(.*?)```", text, re.DOTALL):
        if kind == "yaml":
            edit(folder, yaml.safe_load(block))
            continue
        for line in re.sub(r"\s+#.*", "", block, flags=re.MULTILINE).strip().splitlines():
            done += perform(line.strip(), folder)
    return done


def edit(folder: Path, piece: dict[str, object]) -> None:
    path = folder / "rankmon.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "monitors" in piece:
        merge(config["monitors"][0], piece["monitors"][0])  # type: ignore[index]
    else:
        merge(config["monitors"][0], piece)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


def perform(line: str, folder: Path) -> Iterator[str]:
    """Runs one command; `rankmon once` replaces starting or reloading the daemon."""
    if line.startswith("systemctl"):
        assert line.split()[1] == "stop" or cli.run(["once"]) == 0
    elif line.startswith("rankmon "):
        assert cli.run(shlex.split(line)[1:]) == 0, line
        yield line
    else:
        subprocess.run(line, shell=True, check=True, cwd=folder)


def test_following_the_page_renames_and_removes_a_monitor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    was = incident(folder)
    page = (DOCS / "how-to" / "rename-or-remove.md").read_text(encoding="utf-8")
    renaming, removing = page.replace("rom: search", "rom: shop").split("## Remove")
    follow("rename-or-remove", folder, lambda _: renaming)
    now = incident(folder)
    assert (now.incident.id, now.acknowledged_by) == (was.incident.id, "ada")
    assert now.incident.monitor == "site-search"
    assert was.incident.id in capsys.readouterr().out
    path = folder / "rankmon.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("name: site-search", "name: other"), encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace("renamed_from: shop", ""), encoding="utf-8")
    follow("rename-or-remove", folder, lambda _: removing)
    assert "removed site-search: 624 buckets" in capsys.readouterr().out
    assert cli.run(["remove", "site-search"]) == 2
    assert "nothing is stored for site-search; known are: other" in capsys.readouterr().err
    assert cli.run(["remove", "other"]) == 2
    assert "other is still configured; remove it" in capsys.readouterr().err


def test_following_the_page_adds_a_slice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(
        "add-a-slice",
        folder,
        lambda text: text.replace("2026-10-01", "2026-02-02 --to 2026-02-10").replace("show search", "show shop"),
    )
    told = capsys.readouterr().out
    assert "country" in told
    with closing(Store(make_url(f"sqlite:///{folder}/rankmon.db"))) as store:
        assert {"device", "country"} <= store.known_slices("shop").keys()
        assert len(store.known_slices("shop")["country"]) >= 2


def test_following_the_page_rotates_a_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, tokens = folder / "rankmon.yaml", ("old", "new")
    with Receiver() as receiver:
        write(folder, receiver.url)
        named = path.read_text(encoding="utf-8").replace("secret: hunter2", "secret_file: token")
        path.write_text(named, encoding="utf-8")
        for token in tokens:
            (folder / "token").write_text(token, encoding="utf-8")
            assert follow("rotate-a-password", folder)
    assert [got.document["kind"] for got in receiver.taken] == ["test", "test"]
    for got, token in zip(receiver.taken, tokens, strict=True):
        signed = f"{got.headers['X-Rankmon-Timestamp']}.".encode() + got.body
        expected = hmac.new(token.encode(), signed, hashlib.sha256).hexdigest()
        assert got.headers["X-Rankmon-Signature"] == f"sha256={expected}"


def test_following_the_page_changes_k(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(folder / "rankmon.db")) as database:
        before = database.execute("SELECT kernel, definition FROM series").fetchall()
        edit(folder, {"measures": ["ndcg@5"], "alerts": []})
        follow("change-a-measure", folder, lambda text: text.replace("2026-10-01", "2026-02-02 --to 2026-02-10"))
        after = database.execute("SELECT kernel, definition FROM series").fetchall()
    assert set(before) < set(after)
    assert any("@5" in kernel for kernel, _ in after)


def test_following_the_pages_restores_a_backup_and_moves_the_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was = known(folder)
    subprocess.run(["sqlite3", "rankmon.db", ".backup rankmon-backup.db"], check=True, cwd=folder)
    with closing(sqlite3.connect(folder / "rankmon.db")) as database, database:
        database.execute("DELETE FROM incidents")
    follow("restore-a-backup", folder)
    assert known(folder) == was
    path = folder / "rankmon.yaml"

    def moved(text: str) -> str:
        return text.replace("$EDITOR rankmon.yaml", "sed -i 's#/rankmon.db#/moved.db#' rankmon.yaml")

    follow("move-the-store", folder, moved)
    shutil.copy(folder / "moved.db", folder / "rankmon.db")
    assert "moved.db" in path.read_text(encoding="utf-8")
    assert known(folder) == was
