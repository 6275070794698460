"""`make same`: does rankmon still behave as recorded? Facts, not wording, so that its code can be rebuilt underneath.

    python -m tests.same compare [NAME...]     what differs from the record; exits with 1 if anything does
    python -m tests.same record  [NAME...]     writes a new record, for a change that is meant
    python -m tests.same list

Each case is run through the product: backfilled, then lived through cycle by cycle while the rest of its log arrives,
then replayed. Its record in `tests/golden/same` holds, a JSON array a line:

- `buckets`: what is stored of each series and slice, as sums and as sums weighted by place in time;
- `verdicts`: how many hours of each kind in a row; `events`: what opened, closed and when; `incidents`;
- `notifications`: kind, matter, severity, instants, and each condition's figures;
- `replay`: what would have paged, by each way of judging; `metrics`: the gauges at the end.

The `scorer` cases hold every verdict on simulated hours. Numbers may differ by 1e-9, relative, or 1e-15; nothing else
may. Most cases need the folder `shared` beside the checkout and are left out without it.
"""

from __future__ import annotations

import difflib
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from math import isclose
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tests" / "golden" / "same"
SHARED = ROOT.parent / "shared"
HOUR, DAY = 3_600, 86_400
TOLERANCE = 1e-9
ROUNDING = 1e-15
"""Of what is 0 but for the order of a sum, which differs between processors."""

Fact = list[Any]
"""Begins with what it is of (`buckets`, `events`, ...)."""


# ---- cases -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """A log to live through: made whole in `full.db`, from where it arrives in the database that the monitor reads.

    Attributes:
        make: writes `full.db` and `rankmon.yaml` into a folder.
        times: time column of each table, seconds since 1970 or ISO text.
        since: where the backfill begins, `live`: where it ends and cycles begin, `until`: the end; seconds since 1970.
        step: seconds between two cycles.
        has_metrics: whether its gauges are recorded: those of a few are enough.
    """

    make: Callable[[Path], None]
    times: Mapping[str, str]
    since: int
    live: int
    until: int
    step: int = 4 * HOUR
    has_metrics: bool = False


def case_log(name: str, seed: int, rate: int, folder: Path) -> None:
    """A log of `verdict_cases`."""
    made = [sys.executable, str(SHARED / "verdict_cases" / "cases.py"), name, str(seed), str(folder)]
    subprocess.run([*made, "--rate", str(rate)], check=True, stdout=subprocess.DEVNULL)
    (folder / "shop.db").rename(folder / "full.db")
    config = folder / "rankmon.yaml"
    # A rule as people write it, so that rules are lived through too.
    rule = "{name: drop, measure: ndcg@10, window: 24h, drop: 7%, baseline: {trailing: 14d}, for: 6h, retrain: true,"
    rule += " slices: [country]}"
    config.write_text(config.read_text(encoding="utf-8") + f"    alerts: [{rule}]\n", encoding="utf-8")


HACKER_NEWS = """\
store: {url: "sqlite:///store.db"}
sources: {hn: {url: "sqlite:///shop.db"}}
monitors:
  - name: hn
    source: hn
    rankings:
      {table: rankings, request: snapshot_id, item: item_id, position: position,
       time: {column: served_at, format: "%Y-%m-%dT%H:%M:%SZ"}}
    relevance:
      events:
        table: upvotes
        request: snapshot_id
        item: item_id
        type: type
        time: {column: occurred_at, format: "%Y-%m-%dT%H:%M:%SZ"}
        value: gained
        rules: [{type: upvotes, grade: value}]
        attribution: 2h
    measures: [ndcg@10, mrr@10, "ndcg(aggregate=pooled)@5"]
    windows: [24h, 7d]
    drift: {}
    alerts:
      - {name: drop, measure: ndcg@10, window: 24h, drop: 7%, baseline: {trailing: 14d}, for: 12h,
         resolve: {drop: 4%, for: 24h}, severity: critical, retrain: true}
"""


def hacker_news(folder: Path) -> None:
    """The front page of `shared/data`."""
    from tests.support import hackernews

    hackernews.fill(f"sqlite:///{folder}/full.db", SHARED / hackernews.FILE)
    (folder / "rankmon.yaml").write_text(HACKER_NEWS, encoding="utf-8")


STORY = 1_767_571_200
"""A Monday, on which the shop's story and those of `verdict_cases` begin."""


def shop(folder: Path) -> None:
    """The simulated shop of the demo: a version that ranks worse on mobile, lost clicks, a campaign."""
    from monitor.cli.commands.demo import CONFIG
    from monitor.demo.shop import Shop, Story
    from tests.support.monitors import shop_database

    start = datetime.fromtimestamp(STORY, UTC)
    shop_database(folder / "full.db", Shop(story=Story(start=start)), start, start + timedelta(days=40))
    text = CONFIG.format(folder=folder, listen="127.0.0.1:0", level="error", pager="http://127.0.0.1:9")
    (folder / "rankmon.yaml").write_text(text, encoding="utf-8")


SERVED = {"served": "at", "events": "at"}
TIMES = {"rankings": "served_at", "events": "occurred_at"}
UPVOTES = {"rankings": "served_at", "upvotes": "occurred_at"}
VERDICT_CASES = (
    "nothing",
    "two_slices",
    "canary",
    "recovery",
    "early_drop",
    "holiday",
    "weekend",
    "drop_and_loss",
    "thin_loss",
    "outage",
    "late",
    "zone",
    "shifted",
    "unranked",
    "short",
    "bot",
    "twice",
    "split",
    "new_slice",
    "slice_gone",
    "slice_gone_thin",
)
THIN = ("nothing", "recovery", "thin_loss", "slice_gone_thin")
SCENARIOS = (
    "none",
    "lownone",
    "drop3",
    "drop5",
    "drop10",
    "drop35",
    "ramp10",
    "segdrop",
    "lowdrop10",
    "mixshift",
    "outage6h",
    "partial6h",
    "volume12h",
    "blip2h",
    "levelup",
)


def _case(name: str, seed: int = 7, rate: int = 48, days: int = 63) -> Log:
    live, until = STORY + 40 * DAY, STORY + min(days, 63) * DAY
    return Log(partial(case_log, name, seed, rate), SERVED, STORY, live, until, 6 * HOUR)


def _at(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp())


LOGS: dict[str, Log] = {
    "shop": Log(shop, TIMES, STORY, STORY + 33 * DAY, STORY + 40 * DAY, HOUR, True),
    "hacker-news": Log(hacker_news, UPVOTES, _at("2022-01-31"), _at("2022-02-21"), _at("2022-03-14"), has_metrics=True),
    **{f"case-{name}": _case(name) for name in VERDICT_CASES},
    "case-slow_decay": Log(partial(case_log, "slow_decay", 7, 48), SERVED, STORY, STORY + 70 * DAY, STORY + 112 * DAY),
    **{f"thin-{name}": _case(name, seed=8, rate=5) for name in THIN},
}
SEEDS = (1, 2, 3, 4)
SCORED = {f"scorer-{seed}": seed for seed in SEEDS}


# ---- what the product does with a log ------------------------------------------------------------------------------


@dataclass
class _Arriving:
    """The database that the monitor reads, to which the rest of the log comes as time goes by."""

    folder: Path
    times: Mapping[str, str]
    until: int = field(default=-(10**10))

    def __post_init__(self) -> None:
        with sqlite3.connect(self.folder / "shop.db") as made:
            made.execute("ATTACH ? AS whole", [str(self.folder / "full.db")])
            for table, time in self.times.items():
                (sql,) = made.execute("SELECT sql FROM whole.sqlite_master WHERE name = ?", [table]).fetchone()
                made.execute(sql)
                made.execute(f"CREATE INDEX arriving_{table} ON {table} ({time})")
                made.execute(f"CREATE INDEX arriving_id_{table} ON {table} ({self._request(made, table)})")

    @staticmethod
    def _request(made: sqlite3.Connection, table: str) -> str:
        columns = [row[1] for row in made.execute(f"PRAGMA table_info({table})")]
        return next(c for c in columns if c in ("request", "request_id", "snapshot_id"))

    def bring(self, until: int) -> None:
        """All that comes before a moment."""
        made = sqlite3.connect(self.folder / "shop.db")
        made.execute("ATTACH ? AS whole", [str(self.folder / "full.db")])
        with made:
            for table, time in self.times.items():
                (kind,) = made.execute(f"SELECT typeof({time}) FROM whole.{table} LIMIT 1").fetchone()
                bounds = [self._written(at, kind) for at in (self.until, until)]
                made.execute(
                    f"INSERT INTO {table} SELECT * FROM whole.{table} WHERE {time} >= ? AND {time} < ?", bounds
                )
        made.close()
        self.until = until

    @staticmethod
    def _written(at: int, kind: str) -> int | str:
        if kind != "text":
            return at
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at >= 0 else ""


def live_through(log: Log, folder: Path) -> list[Fact]:
    """Make a log, let the product live through it, and tell the facts."""
    log.make(folder)
    arriving = _Arriving(folder, log.times)
    arriving.bring(log.live)
    config = str(folder / "rankmon.yaml")
    _command("backfill", "-c", config, "--from", _iso(log.since), "--to", _iso(log.live))
    metrics = _cycles(log, folder, arriving)
    replayed = _command(
        "replay", "-c", config, "--from", _iso(log.since + DAY), "--to", _iso(log.until), "--format", "json"
    )
    return [*stored(folder), *replay_facts(json.loads(replayed)), *(metrics if log.has_metrics else [])]


def _iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M}"


def _command(*arguments: str) -> str:
    done = subprocess.run([Path(sys.executable).with_name("rankmon"), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"rankmon {' '.join(arguments)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def _cycles(log: Log, folder: Path, arriving: _Arriving) -> list[Fact]:
    """Run a cycle of each monitor at each step, and tell the metrics at the end."""
    from monitor.clock import ManualClock
    from monitor.config import load
    from monitor.service.app import App

    clock = ManualClock(log.live)
    app = App(load(folder / "rankmon.yaml", {}), clock)
    try:
        app.prepare()
        for at in range(log.live, log.until + 1, log.step):
            clock.time = at
            arriving.bring(at)
            for name, runner in app.runners.items():
                if (error := runner.run().error) is not None:
                    raise SystemExit(f"{name} at {_iso(at)}: {error!r}")
        return list(metric_facts(app.exposition.text("")[0].decode()))
    finally:
        app.sender.stop()
        app.close()


# ---- facts ---------------------------------------------------------------------------------------------------------


def stored(folder: Path) -> Iterator[Fact]:
    """Facts of a store: the only place that knows its tables."""
    file = next(f for f in (folder / "store.db", folder / "rankmon.db") if f.exists())
    store = sqlite3.connect(file)
    yield from _buckets(store)
    yield from _verdicts(store)
    sql = "SELECT at, rule, dimension, value, was, became FROM transitions ORDER BY at, rule, dimension, value, id"
    for row in store.execute(sql):
        yield ["events", *row]
    sql = "SELECT opened_at, matter, severity, state, retrain, began_at, closed_at FROM incidents ORDER BY 1, 2, 3"
    for row in store.execute(sql):
        yield ["incidents", *row]
    told = dict(store.execute("SELECT key, document FROM outbox ORDER BY id").fetchall())
    for document in told.values():  # once, to however many receivers
        yield from notification_facts(json.loads(document))
    store.close()


def _buckets(store: sqlite3.Connection) -> Iterator[Fact]:
    sums = ("requests", "empty", "total", "squares", "numerator", "denominator")
    weighted = ", ".join(f"sum({s}), sum({s} * (bucket_start % 1000003))" for s in sums)
    sql = f"SELECT measure, dimension, value, count(*), sum(final), {weighted} FROM rankmon_buckets"
    for row in store.execute(f"{sql} GROUP BY measure, dimension, value ORDER BY 1, 2, 3"):
        yield ["buckets", *row]


def _verdicts(store: sqlite3.Connection) -> Iterator[Fact]:
    rows = store.execute("SELECT at, kind, requests, observed, expected FROM verdicts ORDER BY at").fetchall()
    for kind, group in groupby(rows, key=lambda row: row[1]):
        hours = list(group)
        means = [[h[i] for h in hours if h[i] is not None] for i in (3, 4)]
        yield ["verdicts", hours[0][0], kind, len(hours), sum(h[2] for h in hours), *(sum(m) for m in means)]


CONDITION = (
    "rule",
    "verdict",
    "dimension",
    "slice",
    "window",
    "end",
    "since",
    "value",
    "lower",
    "upper",
    "before",
    "threshold",
    "back_from",
    "requests",
    "coverage",
)
"""What is told of a condition, whatever words are made of it."""


def notification_facts(document: Mapping[str, Any]) -> Iterator[Fact]:
    """A notification's facts: the form that the webhook documents, without its texts."""
    yield [
        "notifications",
        *(document[n] for n in ("kind", "matter", "severity", "began_at", "opened_at", "closed_at")),
    ]
    for condition in document["findings"]:
        yield ["notifications", "-", *(condition.get(name) for name in CONDITION)]


INCIDENT = (
    "matter",
    "severity",
    "state",
    "retrain",
    "asks_to_retrain_at",
    "on_call_told_at",
    "began_at",
    "opened_at",
    "closed_at",
)


def replay_facts(document: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    """What a replay would have told, without its texts."""
    for replayed in document:
        yield ["replay", replayed["pages"], replayed["data_incidents"], replayed["told_on_call_of_data"]]
        yield ["replay", "hours", *sorted(replayed["verdict_hours"].items())]
        for incident in replayed["incidents"]:
            yield ["replay", "incident", *(incident[name] for name in INCIDENT)]
        for method in replayed["methods"]:
            times = [(i["since"], i["until"]) for i in method["incidents"]]
            yield ["replay", "by", method["name"], method["pages"], method["open_seconds"], *times]


PASSING = (
    "duration",
    "_created",
    "build_info",
    "last_attempt",
    "last_success",
    "python_",
    "process_",
    "oldest_timestamp",
    "audits",
)
"""Parts of the names of metrics that tell how a run went, not what it found. How many audits there are depends on how
busy the machine is."""


def metric_facts(text: str) -> Iterator[Fact]:
    """The samples of an exposition, sorted, but for those of the run itself and the definition's hash."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        if any(part in family.name for part in PASSING):
            continue
        for sample in sorted(family.samples, key=lambda s: (s.name, sorted(s.labels.items()))):
            labels = {k: v for k, v in sorted(sample.labels.items()) if k != "definition"}
            yield ["metrics", sample.name, labels, sample.value]


def scored(seed: int) -> list[Fact]:
    """Every verdict on six models of each scenario of the scorer: how many hours of each kind in a row."""
    from tests.support.alert_quality import scorer, verdicts

    found: list[Fact] = []
    with scorer(SHARED) as run:
        for scenario in SCENARIOS:
            for replica, history in run.histories(run.simulate(scenario, R=6, seed=seed, hard=False)):
                kinds = (f"{v.kind}{'+mix' if v.mix_shifted else ''}" for v in verdicts(history))
                found.append(["scorer", scenario, replica, *([k, len(list(g))] for k, g in groupby(kinds))])
    return found


# ---- record and compare --------------------------------------------------------------------------------------------


def facts(name: str) -> list[Fact]:
    """The facts of a case as they are now."""
    if name in SCORED:
        return scored(SCORED[name])
    with tempfile.TemporaryDirectory(prefix="rankmon-same-") as folder:
        return live_through(LOGS[name], Path(folder))


def differences(recorded: Sequence[Fact], found: Sequence[Fact]) -> list[str]:
    """What differs, as the lines of a diff; numbers within TOLERANCE are the same."""
    if len(recorded) == len(found):
        found = [old if _alike(old, new) else new for old, new in zip(recorded, found, strict=True)]
    lines = ([_written(fact) for fact in side] for side in (recorded, found))
    return [line for line in difflib.unified_diff(*lines, n=0, lineterm="") if line[:1] in "+-"][2:]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return isclose(one, other, rel_tol=TOLERANCE, abs_tol=ROUNDING)
    return bool(one == other)


def _written(fact: Any) -> str:
    """A fact as one line, its numbers to eight digits: enough to see, and to line two records up."""
    if isinstance(fact, list | tuple):
        return f"[{', '.join(map(_written, fact))}]"
    return f"{fact:.8g}" if isinstance(fact, float) else json.dumps(fact)


def read(name: str) -> list[Fact]:
    """A case's record."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def write(name: str, found: Sequence[Fact]) -> None:
    """Make that a case's record."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(fact, separators=(",", ":")) for fact in found)
    (RECORDS / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def names(wanted: Sequence[str]) -> list[str]:
    """The cases whose names begin so, all without any; without the folder `shared` only those that need none of it."""
    known = [*LOGS, *SCORED] if SHARED.is_dir() else ["shop"]
    return [n for n in known if not wanted or any(n.startswith(w) for w in wanted)]


def main(arguments: Sequence[str]) -> int:
    """What the module's text says."""
    action, *wanted = arguments or ["compare"]
    if action not in ("compare", "record", "list") or not (chosen := names(wanted)):
        print(__doc__)
        return 2
    if action == "list":
        print("\n".join(chosen))
        return 0
    differing = 0
    with ProcessPoolExecutor(2) as pool:
        for name, found in zip(chosen, pool.map(facts, chosen), strict=True):
            if action == "record":
                write(name, found)
                print(f"{name}: {len(found)} facts recorded", flush=True)
                continue
            changed = differences(read(name), [json.loads(json.dumps(fact)) for fact in found])
            differing += bool(changed)
            print(f"{name}: {f'{len(changed)} lines differ' if changed else 'same'}", *changed, sep="\n  ", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
