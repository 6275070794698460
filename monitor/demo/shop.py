"""A simulated web shop that writes search rankings and shoppers' events to SQLite.

Each hour of traffic is a pure function of the shop's parameters and the hour's number: any interval can be written
at any time, in any pieces and repeatedly, with the same rows. No clock is read.

Clicks follow the position-based model (Craswell et al. 2008, "An experimental comparison of click position-bias
models"): P(click) = P(examined | position) * P(attractive | relevance).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import Column, Connection, Engine, Index, Integer, MetaData, Table, Text

from monitor.arrays import Bools, Floats, Ints

Row: TypeAlias = tuple[Any, ...]

DEVICES = ("desktop", "mobile", "tablet")
DEVICE_SHARES = (0.32, 0.62, 0.06)
CAMPAIGN_SHARES = (0.20, 0.30, 0.50)  # a campaign that runs on tablets
COUNTRIES = ("de", "us", "gb", "fr", "nl", "es")
COUNTRY_SHARES = (0.34, 0.22, 0.16, 0.14, 0.09, 0.05)
VERSIONS = ("v1", "v2")
EVENT_TYPES = ("click", "purchase")

SHOWN = 20  # items a request
CANDIDATES = 40  # items that match a query
PRODUCTS_PER_KIND = 100
POPULARITY_EXPONENT = 0.9  # of the queries, as in Zipf's law

# Standard deviation of the ranker's error, in units of the relevance's, by version and device.
# Tablets were never ranked well. v2 reads a feature that is broken in the mobile app.
RANKER_NOISE = np.array([[0.45, 0.45, 1.40], [0.50, 3.20, 1.50]])

EXAMINATION = np.arange(1, SHOWN + 1) ** -0.8  # P(a shopper looks at the position)
ATTRACTION_SLOPE, ATTRACTION_MIDPOINT = 2.2, 2.1
PURCHASE_RATE = 0.12  # of clicks
DIRT_RATE = 0.003  # of events
CLICK_MEAN_S, CLICK_MAX_S = 15.0, 90.0
PURCHASE_MEDIAN_S, PURCHASE_SIGMA = 12 * 60.0, 0.9
EVENT_MAX_S = 3 * 3600.0  # no event comes later than this after its request was served

HOUR_S = 3600
# Relative traffic by hour (UTC) and weekday (from Monday).
DAILY = (
    *(0.28, 0.18, 0.12, 0.10, 0.10, 0.14, 0.25, 0.42, 0.56, 0.66, 0.71, 0.73),
    *(0.75, 0.73, 0.70, 0.70, 0.73, 0.79, 0.88, 0.97, 1.00, 0.95, 0.75, 0.48),
)
WEEKLY = (0.96, 0.93, 0.92, 0.93, 0.92, 0.95, 1.00)
EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday

QUERY_STYLES = ("", "cheap", "black", "white", "kids", "women", "men", "vintage", "waterproof", "xl")
QUERY_KINDS = (
    *("backpack", "belt", "blanket", "boots", "coat", "dress", "gloves", "hat", "hoodie", "jeans"),
    *("lamp", "pillow", "raincoat", "sandals", "scarf", "shirt", "skirt", "sneakers", "socks", "watch"),
)

_METADATA = MetaData()
RANKINGS = Table(
    "rankings",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    Column("served_at", Text, nullable=False),
    Column("query", Text, nullable=False),
    Column("position", Integer, primary_key=True),
    Column("item_id", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("country", Text, nullable=False),
    Column("model_version", Text, nullable=False),
    Index("rankings_served_at", "served_at"),
    sqlite_with_rowid=False,  # the key is half the row: keep it once
)
EVENTS = Table(
    "events",
    _METADATA,
    Column("event_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("occurred_at", Text, nullable=False),
    Index("events_occurred_at", "occurred_at"),
    Index("events_request_item", "request_id", "item_id"),
    sqlite_with_rowid=False,
)


def create_schema(bind: Engine | Connection) -> None:
    """Create the missing ones of the tables `rankings` and `events` and their indexes."""
    _METADATA.create_all(bind)


@dataclass(frozen=True)
class Story:
    """What happens to the shop's ranking model, and when.

    v1 ranks from `start` (aware). v2 replaces it `degraded_days` before the history's end, until `rollback_after` into
    live traffic. Later all events of `outage_lasts` are lost, and then a campaign changes the mix of devices: neither
    is the model's fault.
    """

    start: datetime
    history_days: int = 35
    degraded_days: int = 7
    rollback_after: timedelta = timedelta(hours=48)
    outage_after: timedelta = timedelta(days=6, hours=10)
    outage_lasts: timedelta = timedelta(hours=10)
    campaign_after: timedelta = timedelta(days=8)
    campaign_lasts: timedelta = timedelta(hours=36)

    @property
    def history_end(self) -> datetime:
        """End of the history and start of live traffic."""
        return self.start + timedelta(days=self.history_days)

    @property
    def rolled_out(self) -> datetime:
        """When v2 takes over."""
        return self.history_end - timedelta(days=self.degraded_days)

    @property
    def rolled_back(self) -> datetime:
        """When v1 comes back."""
        return self.history_end + self.rollback_after

    @property
    def outage(self) -> "Interval":
        """When all events are lost."""
        begins = self.history_end + self.outage_after
        return _between(begins, begins + self.outage_lasts)

    @property
    def campaign(self) -> "Interval":
        """When the mix of devices changes."""
        begins = self.history_end + self.campaign_after
        return _between(begins, begins + self.campaign_lasts)

    def device_shares(self, hour: int) -> tuple[float, ...]:
        """Share of requests by device in an hour, numbered since the epoch."""
        in_campaign = self.campaign.since <= hour * HOUR_S < self.campaign.until
        return CAMPAIGN_SHARES if in_campaign else DEVICE_SHARES

    def versions(self, served: Ints) -> Ints:
        """Index into VERSIONS of the model at each time (epoch seconds)."""
        return _between(self.rolled_out, self.rolled_back).holds(served).astype(np.int64)


class Interval(NamedTuple):
    """Half-open [since, until) in epoch seconds."""

    since: float
    until: float

    def holds(self, times: Ints) -> Bools:
        """Which of the times lie in the interval."""
        return (times >= self.since) & (times < self.until)

    def hours(self) -> range:
        """Numbers since the epoch of the hours that it touches."""
        return range(math.floor(self.since / HOUR_S), math.ceil(self.until / HOUR_S))


class Selection(NamedTuple):
    """Rows to write: requests by time of serving; events by their request's and their own time."""

    requests: Interval
    requests_of_events: Interval
    events: Interval


@dataclass(frozen=True)
class Catalogue:
    """The shop's items. Relevances are standard normal before shifts by country and device."""

    queries: npt.NDArray[np.object_]  # (Q,) text
    popularity: Floats  # (Q,) sums to 1
    items: npt.NDArray[np.object_]  # (Q, CANDIDATES) ids
    relevance: Floats  # (Q, CANDIDATES)
    country_taste: Floats  # (countries, Q, CANDIDATES)
    device_taste: Floats  # (devices, Q, CANDIDATES)

    def latent(self, visits: "Visits") -> Floats:
        """(n, CANDIDATES) relevance of each candidate to each shopper."""
        query = visits.query
        taste = self.country_taste[visits.country, query] + self.device_taste[visits.device, query]
        return self.relevance[query] + taste


@dataclass(frozen=True)
class Visits:
    """Searches of one hour in time order; all arrays are (n,)."""

    hour: int  # since the epoch
    served: Ints  # epoch seconds
    query: Ints
    device: Ints
    country: Ints
    version: Ints

    def ids(self) -> npt.NDArray[np.object_]:
        """(n,) request ids; they sort by time."""
        return _ids("r", self.hour, len(self.served))


@dataclass(frozen=True)
class ShopEvents:
    """Events of one hour; all arrays are (m,). `place` is 0-based, and past SHOWN in dirt."""

    visit: Ints
    place: Ints
    kind: Ints  # index into EVENT_TYPES
    occurred: Ints  # epoch seconds
    unlogged: Bools  # the event's request id is in no ranking


@dataclass(frozen=True)
class Hour:
    """One hour of traffic: visits, candidates best first (n, CANDIDATES), and the logged events."""

    visits: Visits
    order: Ints
    events: ShopEvents
    logged: Bools


@dataclass(frozen=True, kw_only=True)
class Shop:
    """The shop. `peak`: expected requests in the busiest hour of the week. Nothing is served before `story.start`.

    Equal parameters give equal traffic in every process, so a killed demo resumes.
    """

    story: Story
    seed: int = 7
    peak: float = 60.0

    def fill(
        self,
        engine: Engine,
        since: datetime,
        until: datetime,
        progress: Callable[[datetime], None] | None = None,
        events_until: datetime | None = None,
    ) -> int:
        """Write the requests served in [since, until) with their events; how many requests the interval holds.

        One transaction a day, whose end is passed to `progress`. Events from `events_until` on are left to `advance`.
        """
        events = Interval(-math.inf, math.inf if events_until is None else events_until.timestamp())
        written = 0
        for start, end in itertools.pairwise(_cuts(since, until)):
            served = _between(start, end)
            written += self._write(engine, served.hours(), Selection(served, served, events))
            if progress is not None:
                progress(end)
        return written

    def advance(self, engine: Engine, since: datetime, until: datetime) -> int:
        """Write the requests and events of [since, until); how many requests there are."""
        written = 0
        for start, end in itertools.pairwise(_cuts(since, until)):
            now = _between(start, end)
            reach = Interval(max(now.since - EVENT_MAX_S, self.story.start.timestamp()), now.until)
            written += self._write(engine, reach.hours(), Selection(now, reach, now))
        return written

    def _write(self, engine: Engine, hours: Iterable[int], wanted: Selection) -> int:
        rankings: list[Row] = []
        events: list[Row] = []
        for traffic in map(self._hour, hours):
            rankings.extend(_ranking_rows(self._catalogue, traffic, wanted))
            events.extend(_event_rows(self._catalogue, traffic, wanted))
        with engine.begin() as connection:
            _insert(connection, RANKINGS, rankings)
            _insert(connection, EVENTS, events)
        return len(rankings) // SHOWN

    @cached_property
    def _catalogue(self) -> Catalogue:
        return _build_catalogue(np.random.default_rng(self.seed))

    def _hour(self, hour: int) -> Hour:
        rng = np.random.default_rng([self.seed, hour])
        visits = self._visits(rng, hour)
        latent = self._catalogue.latent(visits)
        order = _rank(rng, visits, latent)
        clicked = _clicks(rng, np.take_along_axis(latent, order[:, :SHOWN], axis=1))
        events = _soil(rng, _events(rng, visits, clicked))
        return Hour(visits, order, events, ~self.story.outage.holds(events.occurred))

    def _visits(self, rng: np.random.Generator, hour: int) -> Visits:
        served = np.sort(rng.integers(HOUR_S, size=rng.poisson(self.peak * _traffic(hour)))) + hour * HOUR_S
        served = served[served >= self.story.start.timestamp()]
        n, popularity = len(served), self._catalogue.popularity
        return Visits(
            hour=hour,
            served=served,
            query=rng.choice(len(popularity), n, p=popularity),
            device=rng.choice(len(DEVICES), n, p=self.story.device_shares(hour)),
            country=rng.choice(len(COUNTRIES), n, p=COUNTRY_SHARES),
            version=self.story.versions(served),
        )


def _build_catalogue(rng: np.random.Generator) -> Catalogue:
    queries = [f"{style} {kind}".strip() for style in QUERY_STYLES for kind in QUERY_KINDS]
    shape = (len(queries), CANDIDATES)
    popularity = np.arange(1, len(queries) + 1) ** -POPULARITY_EXPONENT
    return Catalogue(
        queries=np.array(queries, dtype=object),
        popularity=rng.permutation(popularity / popularity.sum()),
        items=np.array([_items(rng, query) for query in queries], dtype=object),
        relevance=rng.standard_normal(shape),
        country_taste=0.35 * rng.standard_normal((len(COUNTRIES), *shape)),
        device_taste=0.25 * rng.standard_normal((len(DEVICES), *shape)),
    )


def _items(rng: np.random.Generator, query: str) -> list[str]:
    kind = query.split()[-1]
    return [f"{kind}-{number:03d}" for number in rng.permutation(PRODUCTS_PER_KIND)[:CANDIDATES]]


def _traffic(hour: int) -> float:
    return DAILY[hour % 24] * WEEKLY[(hour // 24 + EPOCH_WEEKDAY) % 7]


def _rank(rng: np.random.Generator, visits: Visits, latent: Floats) -> Ints:
    noise = RANKER_NOISE[visits.version, visits.device]
    score = latent + noise[:, None] * rng.standard_normal(latent.shape)
    return np.argsort(-score, axis=1)


def _clicks(rng: np.random.Generator, latent: Floats) -> Bools:
    attraction = 1 / (1 + np.exp(-ATTRACTION_SLOPE * (latent - ATTRACTION_MIDPOINT)))
    return rng.random(latent.shape) < EXAMINATION * attraction


def _events(rng: np.random.Generator, visits: Visits, clicked: Bools) -> ShopEvents:
    visit, place = np.nonzero(clicked)
    click_delay = np.minimum(2 + rng.exponential(CLICK_MEAN_S, len(visit)), CLICK_MAX_S)
    bought = rng.random(len(visit)) < PURCHASE_RATE
    to_purchase = rng.lognormal(math.log(PURCHASE_MEDIAN_S), PURCHASE_SIGMA, len(visit))
    purchase_delay = np.minimum(click_delay + to_purchase, EVENT_MAX_S)
    delay = np.concatenate([click_delay, purchase_delay[bought]]).astype(np.int64)
    visit = np.concatenate([visit, visit[bought]])
    return ShopEvents(
        visit=visit,
        place=np.concatenate([place, place[bought]]),
        kind=np.repeat([0, 1], [len(bought), int(bought.sum())]),
        occurred=visits.served[visit] + delay,
        unlogged=np.zeros(len(visit), dtype=np.bool_),
    )


def _soil(rng: np.random.Generator, events: ShopEvents) -> ShopEvents:
    """The events as logged: a few go astray, half naming an unlogged search, half an item that was not shown."""
    chance = rng.random(len(events.visit))
    unlogged = chance < DIRT_RATE / 2
    unshown = ~unlogged & (chance < DIRT_RATE)
    elsewhere = rng.integers(SHOWN, CANDIDATES, len(chance))
    place = np.where(unshown, elsewhere, events.place)
    return ShopEvents(events.visit, place, events.kind, events.occurred, unlogged)


def _ranking_rows(catalogue: Catalogue, traffic: Hour, wanted: Selection) -> Iterator[Row]:
    visits = traffic.visits
    kept = np.flatnonzero(wanted.requests.holds(visits.served))
    query = visits.query[kept]
    items = catalogue.items[query[:, None], traffic.order[kept, :SHOWN]]
    rows = np.repeat(np.arange(len(kept)), SHOWN)
    return zip(
        visits.ids()[kept][rows].tolist(),
        _texts(visits.served[kept])[rows].tolist(),
        catalogue.queries[query][rows].tolist(),
        np.tile(np.arange(1, SHOWN + 1), len(kept)).tolist(),
        items.ravel().tolist(),
        np.array(DEVICES, dtype=object)[visits.device[kept]][rows].tolist(),
        np.array(COUNTRIES, dtype=object)[visits.country[kept]][rows].tolist(),
        np.array(VERSIONS, dtype=object)[visits.version[kept]][rows].tolist(),
        strict=True,
    )


def _event_rows(catalogue: Catalogue, traffic: Hour, wanted: Selection) -> Iterator[Row]:
    visits, events = traffic.visits, traffic.events
    served = visits.served[events.visit]
    wanted_ones = wanted.requests_of_events.holds(served) & wanted.events.holds(events.occurred)
    kept = np.flatnonzero(wanted_ones & traffic.logged)
    visit = events.visit[kept]
    # Searches on the staging site are not logged, but clicks there are.
    prefix = np.where(events.unlogged[kept], "staging-", "").astype(object)
    return zip(
        _ids("e", visits.hour, len(events.visit))[kept].tolist(),
        (prefix + visits.ids()[visit]).tolist(),
        catalogue.items[visits.query[visit], traffic.order[visit, events.place[kept]]].tolist(),
        np.array(EVENT_TYPES, dtype=object)[events.kind[kept]].tolist(),
        _texts(events.occurred[kept]).tolist(),
        strict=True,
    )


def _insert(connection: Connection, table: Table, rows: list[Row]) -> None:
    """Inserts missing rows. Plain tuples: dictionaries take three times as long."""
    if rows:
        marks = ", ".join("?" * len(table.columns))
        connection.exec_driver_sql(f"INSERT INTO {table.name} VALUES ({marks}) ON CONFLICT DO NOTHING", rows)


def _ids(prefix: str, hour: int, count: int) -> npt.NDArray[np.object_]:
    stamp = datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("%Y%m%d%H")
    return np.array([f"{prefix}{stamp}-{number:05d}" for number in range(count)], dtype=object)


def _texts(seconds: Ints) -> npt.NDArray[np.object_]:
    return np.datetime_as_string(seconds.astype("datetime64[s]"), timezone="UTC").astype(object)


def _cuts(since: datetime, until: datetime) -> list[datetime]:
    """`since`, the UTC midnights after it, and `until`; fewer than two if the interval is empty."""
    cuts, end = [since.astimezone(UTC)], until.astimezone(UTC)
    while cuts[-1] < end:
        midnight = cuts[-1].replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        cuts.append(min(midnight, end))
    return cuts


def _between(since: datetime, until: datetime) -> Interval:
    return Interval(since.timestamp(), until.timestamp())
