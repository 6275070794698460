"""Monitors over the test databases, and a daemon made of them."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url

from monitor.config.values import Config, SchedulerConfig, SourceConfig, StoreConfig, WebConfig
from monitor.database_url import parse_url
from monitor.demo.shop import Shop, create_schema
from monitor.measures.measure import Measure, parse
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import EventRule, Events, Monitor, Position, Rankings, Relation, TimeColumn

ISO = "%Y-%m-%dT%H:%M:%SZ"
DAY = 86_400


def time_column(name: str, url: str) -> TimeColumn:
    """Text on SQLite, timestamptz on PostgreSQL, as the loaders write them."""
    return TimeColumn(name, ISO) if url.startswith("sqlite") else TimeColumn(name)


def hacker_news(url: str, measures: Sequence[str] = ("ndcg@10",), windows: Sequence[int] = (DAY,)) -> Monitor:
    """The front page: upvotes gained as events with a value, attributed for two hours."""
    return Monitor(
        name="hn",
        source="hn",
        rankings=Rankings(
            Relation(("rankings",)), "snapshot_id", "item_id", Position("position"), time_column("served_at", url)
        ),
        recipe=Events(
            Relation(("upvotes",)),
            "snapshot_id",
            "item_id",
            time_column("occurred_at", url),
            (EventRule(None, "upvotes"),),
            attribution=7200,
            type="type",
            value="gained",
        ),
        measures=tuple(parse(m) for m in measures),
        windows=tuple(windows),
        lookback=42 * DAY,
        refresh=1,
    )


def shop_database(path: Path, logged: Shop, since: datetime, until: datetime) -> None:
    """Write what a simulated shop logs to a new file of SQLite."""
    engine = create_engine(f"sqlite:///{path}")
    create_schema(engine)
    logged.fill(engine, since, until)
    engine.dispose()


def shop(measures: Sequence[Measure | str] = ("ndcg@10",), **changes: object) -> Monitor:
    """The simulated shop in SQLite."""
    from monitor.types import Slice

    settings: dict[str, object] = {
        "name": "shop",
        "source": "shop",
        "rankings": Rankings(
            Relation(("rankings",)), "request_id", "item_id", Position("position"), TimeColumn("served_at", ISO)
        ),
        "recipe": Events(
            Relation(("events",)),
            "request_id",
            "item_id",
            TimeColumn("occurred_at", ISO),
            (EventRule(1, "click"), EventRule(3, "purchase")),
            attribution=10_800,
            type="type",
        ),
        "measures": tuple(parse(m) if isinstance(m, str) else m for m in measures),
        "slices": (Slice("device", "device"), Slice("country", "country")),
        "refresh": 1,
    }
    return Monitor(**(settings | changes))  # type: ignore[arg-type]


def pull(monitor: Monitor, url: str) -> Pull:
    """A reader of the monitor's source."""
    return Pull(monitor, Database(monitor.source, parse_url(url), 60))


def new_store(url: str | URL, lease_seconds: float = 20) -> Store:
    """A store with its tables; in a new file of SQLite they are copied, for the scripts would take a fifth of a second.

    That the scripts lead there is what tests/store/test_migrations.py is about. However short the lease is, they have
    the usual time.
    """
    url = make_url(url)
    if url.drivername == "sqlite" and url.database and not (path := Path(url.database)).exists():
        shutil.copyfile(_with_tables(), path)
        return Store(url, lease_seconds)
    made = Store(url)
    made.schema.migrate()
    made.close()
    return Store(url, lease_seconds)


@cache
def _with_tables() -> Path:
    """A file with the tables and nothing in them, made once by this process."""
    folder = Path(tempfile.mkdtemp(prefix="rankmon-tables-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = Store(make_url(f"sqlite:///{folder}/store.db"))
    store.schema.migrate()
    store.close()
    (path,) = folder.iterdir()  # for nothing of it is left in a log beside it
    return path


def config(tmp_path: Path, sources: dict[str, str], monitors: Sequence[Monitor], **changes: object) -> Config:
    """A configuration made by hand; the web on any free port."""
    settings: dict[str, object] = {
        "path": tmp_path / "rankmon.yaml",
        "store": StoreConfig(url=make_url(f"sqlite:///{tmp_path / 'store.db'}")),
        "web": WebConfig(("127.0.0.1", 0)),
        "sources": tuple(SourceConfig(name=n, url=parse_url(u)) for n, u in sources.items()),
        "monitors": tuple(monitors),
        "scheduler": SchedulerConfig(lease=5),
    }
    return Config(**(settings | changes))  # type: ignore[arg-type]
