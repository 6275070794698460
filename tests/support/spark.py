"""A real Spark for tests: its Thrift server over two executors in processes of their own, ended with us.

    with spark_server() as server:
        url = server.create_database()

Spark is of an environment of its own, which `make spark` makes beside the other one, for it wants an older pandas. It
listens on loopback only and keeps all it writes in a temporary folder. It dies with the thread that started it (so
start it from the main thread), and its executors with it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyhive import hive
from thrift.transport.TTransport import TTransportException

from tests.support.postgres import confined, free_port, give_to_nobody

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = STOP_SECONDS = 120.0
MASTER = "local-cluster[2,1,1024]"
"""Two workers, each with one core and a gigabyte, for an executor each."""

_JAVA = "-XX:-UsePerfData"  # it leaves files behind
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # what runs for minutes is not worth the best of machine code
_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"


def find_spark() -> Path | None:
    """Spark's home in the environment that `make spark` makes."""
    homes = sorted((ROOT / ".venv-spark").glob("lib/python3.*/site-packages/pyspark"))
    return next((home for home in homes if (home / "jars").is_dir()), None)


def lacks() -> str:
    """What is missing to run Spark; empty if nothing is."""
    if shutil.which("java", path=os.defpath) is None:
        return "no Java: install Debian's default-jre-headless"
    return "" if find_spark() is not None else "no Spark: run `make spark`"


class SparkServer:
    """One server; it can be killed and started again in place, on its port and with its tables."""

    def __init__(self, home: Path, directory: Path, is_brief: bool = True) -> None:
        """`directory` must be empty and open to the user `nobody`; see `spark_server`."""
        self.directory = directory
        self._java = f"{_JAVA} {_BRIEF}" if is_brief else _JAVA
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        # The workers write below Spark's home, so it gets a home that holds links to what is only read.
        self._home = directory / "home"
        for folder in (self._home, directory / "local"):
            folder.mkdir()
            give_to_nobody(folder)
        for part in ("bin", "jars"):
            (self._home / part).symlink_to(home / part)

    @property
    def pid(self) -> int | None:
        """The process id of the server, None while it is down. It leads the group that its executors are in too."""
        return self._process.pid if self._process else None

    def url(self, database: str = "default") -> str:
        """The SQLAlchemy URL of a database on this server."""
        return f"hive://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens where it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        options = confined(self.directory, signal.SIGKILL)
        options["env"] |= {"SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.directory / "server.log").open("ab") as log:
            command = [self._home / "bin" / "spark-submit", *self._arguments()]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **options)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                text = (self.directory / "server.log").read_text(errors="replace")
                raise RuntimeError(f"Spark did not start:\n{text[-4000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End the server and its executors at once."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)

    def processes(self) -> list[int]:
        """The processes of the server's session: its own and its executors'."""
        return [] if self.pid is None else of_session(self.pid)

    def create_database(self) -> str:
        """Create an empty database under a name of its own and return its URL."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, *statements: str, database: str = "default") -> list[Any]:
        """Run statements one after the other in one session; the rows of the last one."""
        found: list[Any] = []
        with closing(hive.connect("127.0.0.1", self.port, database=database)) as connection:
            for statement in statements:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(statement)
                    found = cursor.fetchall() if cursor.description else []
        return found

    def _arguments(self) -> Sequence[str]:
        where = self.directory
        java = f"{self._java} -Djava.io.tmpdir={where / 'local'}"
        spark = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"{java} -Dderby.system.home={where}",
            "spark.executor.extraJavaOptions": java,
            "spark.local.dir": str(where / "local"),
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(where / "warehouse"),
            "spark.ui.enabled": "false",
        }
        options = {
            "hive.server2.thrift.port": str(self.port),
            "hive.server2.thrift.bind.host": "127.0.0.1",
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={where / 'metastore'};create=true",
        }
        given = [part for name, value in spark.items() for part in ("--conf", f"{name}={value}")]
        more = [part for name, value in options.items() for part in ("--hiveconf", f"{name}={value}")]
        return ["--class", _SERVER, "--master", MASTER, *given, "spark-internal", *more]

    def _answers(self) -> bool:
        with socket.socket() as probe:  # the driver logs each refusal as an error
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        with suppress(TTransportException, hive.Error):
            self.execute("SELECT 1")
            return True
        return False


def of_session(leader: int) -> list[int]:
    """The processes of the session that a process leads or led, without those that only wait to be buried."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


@contextmanager
def spark_server(is_brief: bool = True) -> Iterator[SparkServer]:
    """A started server, removed with its data at the end; FileNotFoundError where there is none.

    Args:
        is_brief: tuned for many small statements rather than for a large one.
    """
    home = find_spark()
    if home is None:
        raise FileNotFoundError(lacks())
    with tempfile.TemporaryDirectory(prefix="rankmon-spark-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        give_to_nobody(directory)
        server = SparkServer(home, directory, is_brief)
        try:
            server.start()
            yield server
        finally:
            server.kill()
