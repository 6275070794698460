"""A real MariaDB server for tests, from Debian's package: on loopback, as an unprivileged user, ended with us."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql

from tests.support.postgres import confined, free_port, give_to_nobody

AS_MYSQL = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO"
"""How strict MySQL is where nobody says otherwise."""

START_SECONDS = STOP_SECONDS = 60.0


def find_server() -> str | None:
    """Path of the server's program."""
    return shutil.which("mariadbd", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class MariaServer:
    """One server over one data folder; it can be stopped and started again in place."""

    def __init__(self, program: str, directory: Path) -> None:
        """Create the data folder below `directory`, which must be empty and open to the user `nobody`."""
        self.port = free_port()
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        # Its own: a server that starts deletes every `#sql*` there, those of other servers too.
        self._temporary = f"--tmpdir={directory}"
        install = shutil.which("mariadb-install-db") or "mariadb-install-db"
        options = ["--no-defaults", f"--datadir={directory / 'data'}", "--auth-root-authentication-method=normal"]
        more = [self._temporary, "--skip-test-db", "--skip-name-resolve"]
        done = subprocess.run([install, *options, *more], capture_output=True, text=True, **confined(directory))
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")

    def url(self, database: str, user: str = "root") -> str:
        """The SQLAlchemy URL of a database on this server."""
        return f"mysql+pymysql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        data, socket = self._directory / "data", self._directory / "socket"
        options = ["--no-defaults", f"--datadir={data}", f"--socket={socket}", f"--port={self.port}"]
        options += ["--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0"]
        options += [self._temporary, f"--sql-mode={AS_MYSQL}"]
        with (self._directory / "server.log").open("ab") as log:
            command = [self._program, *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **confined(self._directory))
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                text = (self._directory / "server.log").read_text(errors="replace")
                raise RuntimeError(f"MariaDB did not start:\n{text[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down at once."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(STOP_SECONDS)

    def create_database(self) -> str:
        """Create an empty database under a name of its own and return its URL."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url(name)

    def execute(self, *statements: str) -> None:
        """Run statements as the server's root."""
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def _answers(self) -> bool:
        with suppress(pymysql.Error):
            self.execute("SELECT 1")
            return True
        return False


@contextmanager
def mariadb_server() -> Iterator[MariaServer]:
    """A started server, removed with its data at the end; FileNotFoundError where there is no program."""
    program = find_server()
    if program is None:
        raise FileNotFoundError("no mariadbd")
    with tempfile.TemporaryDirectory(prefix="rankmon-mariadb-") as name:
        directory = Path(name)
        give_to_nobody(directory)
        server = MariaServer(program, directory)
        try:
            server.start()
            yield server
        finally:
            server.stop()
