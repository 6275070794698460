"""The image of the repository's Dockerfile: built by buildah on a base of Debian packages, then run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor import __version__
from tests.support.processes import ROOT
from tests.support.requirements import missing

pytestmark = pytest.mark.engines

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
HOOK = 'ln -s python3 "$1/usr/bin/python"'
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
CONFIG = """\
store: {url: sqlite:////var/lib/rankmon/rankmon.db}
web: {listen: 127.0.0.1:9184}
sources: {shop: {url: sqlite:////var/lib/rankmon/shop.db}}
monitors:
  - name: search
    source: shop
    rankings: {table: log, request: r, item: i, position: p, time: {column: t, format: epoch_s}}
    relevance: {column: {grade: g, max_grade: 1}}
    measures: [ndcg@10]
"""

Run = Callable[[str], str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a command in the image, as its user, on a read-only root; returns its output."""
    if os.geteuid() != 0:
        missing("building an image without a container engine needs root")
    for program in ("buildah", "mmdebstrap", "unshare", "ip"):
        if shutil.which(program) is None:
            missing(f"{program} is not installed (Debian: buildah, mmdebstrap, util-linux, iproute2)")
    folder = tmp_path_factory.mktemp("image")
    # Separate storage leaves other images on the machine untouched.
    stores = ["--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def buildah(*arguments: str | Path) -> str:
        done = subprocess.run(["buildah", *stores, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    base = folder / "base.tar"
    made = [
        "mmdebstrap",
        "--variant=minbase",
        f"--include={PACKAGES}",
        f"--customize-hook={HOOK}",
        "bookworm",
        str(base),
    ]
    done = subprocess.run(made, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    empty = buildah("from", "scratch")
    buildah("add", empty, base, "/")
    # On a network that inspects TLS, its certificate is in the machine's store.
    buildah("copy", empty, CERTIFICATES, str(CERTIFICATES))
    trusted = [f"{name}={CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
    buildah("config", *(f"--env={value}" for value in ("PIP_BREAK_SYSTEM_PACKAGES=1", *trusted)), empty)
    buildah("commit", empty, "localhost/base")
    given = [
        "--isolation",
        "chroot",
        "--build-arg",
        "PYTHON=localhost/base",
        "-f",
        str(DOCKERFILE),
        "-t",
        "localhost/rankmon",
    ]
    buildah("build", *given, str(ROOT))
    root = buildah("mount", buildah("from", "localhost/rankmon"))

    def in_image(command: str) -> str:
        script = str(ROOT / "tests" / "support" / "image.sh")
        started = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", script, root, command]
        done = subprocess.run(started, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield in_image
    subprocess.run(["buildah", *stores, "umount", "--all"], capture_output=True)


def test_the_image_runs_rankmon_as_an_unprivileged_user(run: Run) -> None:
    assert __version__ in run("rankmon version")
    assert run("id -u").strip() == "10001"
    assert run("touch /opt/rankmon/x 2>/dev/null || echo refused").strip() == "refused"


def test_the_demo_finds_its_incident_in_the_image(run: Run) -> None:
    said = run("rankmon demo --once")
    assert "No page for the campaign" in said
    assert re.search(r"ndcg@10 .* fired 20\d\d-", said)


def test_the_images_health_check_sees_the_daemon(run: Run) -> None:
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert check == '["rankmon", "healthcheck"]'
    write = f"cat > /tmp/rankmon.yaml <<'END'\n{CONFIG}END\nexport RANKMON_CONFIG=/tmp/rankmon.yaml"
    table = "CREATE TABLE log (r, i, p, t, g)"
    log = f"python -c \"import sqlite3; sqlite3.connect('/var/lib/rankmon/shop.db').execute('{table}')\""
    wait = "for i in $(seq 60); do rankmon healthcheck && break; sleep 1; done; rankmon healthcheck && echo healthy"
    served = f"rankmon run & daemon=$!; {wait}; kill $daemon; wait $daemon"
    said = run(f"{write}; {log}; rankmon healthcheck || echo not yet; {served}")
    assert "not yet" in said
    assert said.rstrip().endswith("healthy")
