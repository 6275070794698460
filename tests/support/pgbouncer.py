"""A real pgbouncer from Debian before a test's PostgreSQL: each transaction gets whatever connection is free."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

from tests.support.postgres import confined, free_port, give_to_nobody

_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = 3
unix_socket_dir =
"""


def find_pooler() -> str | None:
    """Path of the program: the one in PATH, which may be newer than Debian's, else in the folders of a system."""
    return shutil.which("pgbouncer") or shutil.which(
        "pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
    )


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """The same database by way of pgbouncer, in transaction mode with three connections."""
    program, port = find_pooler(), free_port()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="rankmon-pgbouncer-") as name:
        folder = Path(name)
        give_to_nobody(folder)
        (folder / "pgbouncer.ini").write_text(_CONFIGURATION.format(server=make_url(url).port, port=port))
        (folder / "pgbouncer.ini").chmod(0o644)
        with (folder / "log").open("wb") as log:
            command = [program, folder / "pgbouncer.ini"]
            process = subprocess.Popen(command, stdout=log, stderr=log, **confined(folder, signal.SIGINT))
        try:
            until = time.monotonic() + 20
            while not _answers(port):
                is_well = process.poll() is None and time.monotonic() < until
                assert is_well, (folder / "log").read_text()
                time.sleep(0.05)
            yield make_url(url).set(port=port).render_as_string(hide_password=False)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
