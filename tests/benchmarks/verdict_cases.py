"""`python -m tests.benchmarks.verdict_cases --seeds 71 72`: are reports right on logs of messy days?

Each shared case is a raw log with the incidents that it should open. It is backfilled into a store and replayed by the
product's own path, and its incidents are compared with these. `--keep FOLDER` keeps the stores, so that judging can be
tried again without the logs; `--write` writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from monitor.causes.newcomers import newcomers
from monitor.cli.common import store_config, stored
from monitor.conditions.evidence import Evidence, is_grave_on_data
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.verdict_hours import judged as reading
from monitor.drift.verdicts import Verdict
from monitor.evaluation.run import Hindsight, judge_past
from monitor.messages.words import utc

SHARED = Path(__file__).parents[3] / "shared" / "verdict_cases" / "cases.py"
RESULTS = Path(__file__).with_name("VERDICT_CASES.md")
HOUR, DAY = 3_600, 86_400
FIRST = 1_767_571_200
CHANGE = FIRST + 42 * DAY + 10 * HOUR
"""When what most cases are about begins."""
LOOKS = (CHANGE + 2 * DAY, CHANGE + 5 * DAY)
"""When somebody looks at the page: a new slice has been there for two days, a canary with 5 % for five."""
THIN = 5
"""Requests an hour at which it is enough that no page is wrong."""


# ---- what was reported -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """An incident; instants in seconds.

    Attributes:
        matter: `quality` pages on-call, `data` tells the owners of the data.
        within: between what instants it says that the fall began; None if it does not say.
        on_call: when on-call heard of broken data too; None if never.
        names: slices and versions that it names.
        by: its conditions.
    """

    matter: str
    opened: int
    closed: int | None
    within: tuple[int, int] | None
    on_call: int | None
    names: frozenset[str]
    by: tuple[str, ...]

    def __str__(self) -> str:
        end = "open" if self.closed is None else utc(self.closed)
        return f"{self.matter} {utc(self.opened)} to {end} ({', '.join(self.by)})"


@dataclass(frozen=True)
class Run:
    """All that was reported of one log; `new`: instant -> slices and versions that `status` and the page name."""

    told: tuple[Told, ...]
    verdicts: tuple[Verdict, ...]
    until: int
    new: dict[int, set[str]]

    def of(self, matter: str, since: int = 0, until: int = 1 << 40) -> list[Told]:
        """The incidents that opened in (since, until]."""
        return [one for one in self.told if one.matter == matter and since < one.opened <= until]

    def at(self, instant: int) -> Verdict:
        """The verdict on the hour that ended at an instant."""
        return next(v for v in self.verdicts if v.end >= instant)


def judged(folder: Path) -> Run:
    """What would have been reported of a store's past."""
    config = store_config(folder / "rankmon.yaml")
    with stored(config) as store:
        monitor = config.monitors[0]
        found = judge_past(monitor, store, 1 << 62)
        assert found is not None
        assert monitor.drift is not None
        history = store.history(monitor.definition(reading(monitor.drift.measure)), 0, 1 << 62)
    new = {at: {one.slice for one in newcomers(history, monitor.drift.mix_by or "", at)} for at in LOOKS}
    return Run(tuple(_told(found)), tuple(found.verdicts), found.until, new)


def _told(found: Hindsight) -> Iterator[Told]:
    for one in found.incidents:
        fired = [p.change for p in found.placed if p.incident == one.incident.id and p.change.became == "firing"]
        evidence = [found.evidence[change] for change in fired if change in found.evidence]
        within = [e.began_within for e in evidence if isinstance(e, Degraded) and e.began_within is not None]
        on_call = next((change.at for change in fired if is_grave_on_data(change.name[0])), None)
        names = frozenset(name for e in (*evidence, *one.findings) for name in _names(e))
        by = tuple(dict.fromkeys("/".join(filter(None, (c.name[0], c.name[2]))) for c in fired))
        incident = one.incident
        began = within[0] if within else None
        yield Told(incident.matter, incident.opened_at, incident.closed_at, began, on_call, names, by)


def _names(evidence: Evidence) -> Iterator[str]:
    yield evidence.slice
    yield from (fall.slice for fall in evidence.slices)
    if isinstance(evidence, Degraded):
        yield from (v.version for v in (evidence.new_version, evidence.weak_version) if v is not None)


# ---- what is right ---------------------------------------------------------------------------------------------------

Wrong = Iterator[str]


def _quiet(run: Run) -> Wrong:
    yield from (f"reported: {one}" for one in run.told)


def _only(run: Run, pages: tuple[int, int] | None = None, data: tuple[int, int] | None = None) -> Wrong:
    """Nothing but pages and incidents on data that open within these times."""
    for matter, span in (("quality", pages), ("data", data)):
        for one in run.of(matter):
            if span is None or not span[0] < one.opened <= span[1]:
                yield f"wrong: {one}"


def _one(run: Run, matter: str, since: int, until: int, most: int = 1) -> Wrong:
    """At least one incident in time, and at most so many in all from then on."""
    if not run.of(matter, since, until):
        yield f"no {matter} incident from {utc(since)} to {utc(until)}"
    if len(run.of(matter, since)) > most:
        yield f"{len(run.of(matter, since))} {matter} incidents"


def _over_by(run: Run, instant: int) -> Wrong:
    yield from (f"still open at {utc(instant)}: {one}" for one in run.told if (one.closed or run.until) > instant)


def two_slices(run: Run) -> Wrong:
    yield from _only(run, pages=(CHANGE, run.until))
    yield from _one(run, "quality", CHANGE, CHANGE + 3 * DAY)
    named = frozenset[str]().union(*(one.names for one in run.of("quality")))
    yield from (f"{name} is not named" for name in ("US", "FR") if name not in named)


def canary(run: Run) -> Wrong:
    half = CHANGE + 5 * DAY
    if "v2" not in run.new[half]:
        yield "status and the page do not name v2"
    yield from _only(run, pages=(CHANGE, run.until))
    yield from _one(run, "quality", CHANGE, half + 5 * DAY)
    if "v2" not in frozenset[str]().union(*(one.names for one in run.of("quality"))):
        yield "v2 is not named"


def recovery(run: Run) -> Wrong:
    end = CHANGE + 5 * DAY
    yield from _only(run, pages=(CHANGE, end))
    yield from _one(run, "quality", CHANGE, end)
    yield from _over_by(run, end + DAY)


def early_drop(run: Run) -> Wrong:
    second = FIRST + 19 * DAY
    yield from _only(run, pages=(second, run.until))
    yield from _one(run, "quality", second, second + 3 * DAY)
    if any(v.decayed for v in run.verdicts):
        yield "reported as a decay"


def slow_decay(run: Run) -> Wrong:
    soonest = FIRST + 42 * DAY
    yield from _only(run, pages=(soonest, run.until))
    if any(v.decayed for v in run.verdicts if v.end <= soonest):
        yield "decay reported too soon"
    if not run.of("quality") and not any(v.decayed for v in run.verdicts):
        yield "neither page nor decay"


def holiday(run: Run) -> Wrong:
    end = CHANGE + 7 * DAY
    yield from _only(run, data=(CHANGE, end))
    if len(run.told) > 1:
        yield f"{len(run.told)} incidents"
    if any(v.kind == "traffic_low" for v in run.verdicts if v.end > end):
        yield "traffic low afterwards"


def weekend(run: Run) -> Wrong:
    yield from _only(run, (CHANGE, run.until), (CHANGE, run.until))
    if len(run.told) > 1:
        yield f"{len(run.told)} incidents"
    for one in run.told:
        tuesday = one.opened - (one.opened - FIRST) % (7 * DAY) + 8 * DAY
        if (one.closed or run.until) > tuesday + DAY:
            yield f"not over by Tuesday: {one}"


def drop_and_loss(run: Run) -> Wrong:
    yield from _only(run, (CHANGE, run.until), (CHANGE, CHANGE + 2 * DAY))
    yield from _one(run, "data", CHANGE, CHANGE + DAY)
    yield from _one(run, "quality", CHANGE, CHANGE + 4 * DAY)
    first = {matter: min((one.opened for one in run.of(matter)), default=0) for matter in ("data", "quality")}
    if first["quality"] < first["data"]:
        yield "the page came before the data"


def data_alone(run: Run, by: int, until: int | None = None, on_call: int | None = None) -> Wrong:
    """One incident on data within `by` seconds, over a day after `until`; on-call at the earliest after `on_call`."""
    yield from _only(run, data=(CHANGE, run.until))
    yield from _one(run, "data", CHANGE, CHANGE + by)
    if until is not None:
        yield from _over_by(run, CHANGE + until + DAY)
    for one in run.of("data"):
        if one.on_call is not None and (on_call is None or one.on_call < CHANGE + on_call):
            yield f"on-call notified at {utc(one.on_call)}"


def short(run: Run) -> Wrong:
    yield from data_alone(run, 2 * DAY)
    if run.verdicts[-1].kind != "healthy":
        yield f"{run.verdicts[-1].kind} at the end"


def new_slice(run: Run) -> Wrong:
    yield from _only(run)
    if not run.new[CHANGE + 2 * DAY] or not run.at(CHANGE + 2 * DAY).unjudged:
        yield "not said to be new"


RULES: dict[str, Callable[[Run], Wrong]] = {
    "nothing": _quiet,
    "two_slices": two_slices,
    "canary": canary,
    "recovery": recovery,
    "early_drop": early_drop,
    "slow_decay": slow_decay,
    "holiday": holiday,
    "weekend": weekend,
    "drop_and_loss": drop_and_loss,
    "thin_loss": partial(data_alone, by=21 * DAY),
    "outage": partial(data_alone, by=DAY, until=DAY // 2),
    "late": partial(data_alone, by=DAY, until=7 * DAY, on_call=DAY),
    "zone": partial(data_alone, by=DAY, on_call=DAY),
    "shifted": partial(data_alone, by=2 * DAY, until=2 * DAY),
    "unranked": partial(data_alone, by=2 * DAY, until=2 * DAY),
    "short": short,
    "bot": lambda run: _only(run, data=(CHANGE, CHANGE + 4 * DAY)),
    "twice": _quiet,
    "split": _quiet,
    "new_slice": new_slice,
    "slice_gone": partial(data_alone, by=DAY),
    "slice_gone_thin": partial(data_alone, by=2 * DAY),
}
PAGES = {"two_slices", "canary", "recovery", "early_drop", "slow_decay", "weekend", "drop_and_loss"}
"""Cases in which a page may be right."""
BEGAN = {"two_slices": CHANGE, "recovery": CHANGE, "drop_and_loss": CHANGE, "early_drop": FIRST + 19 * DAY}
"""When the only fall begins."""


def wrong(case: str, rate: int, run: Run) -> list[str]:
    """What is wrong with what was reported; on thin traffic, wrong pages only."""
    if rate > THIN:
        return list(RULES[case](run))
    since = FIRST + 19 * DAY if case == "early_drop" else FIRST + 28 * DAY if case == "slow_decay" else CHANGE
    return list(_only(run, (since, run.until) if case in PAGES else None, (0, run.until)))


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """One run.

    Attributes:
        wrong: what was wrong.
        quiet, pages: seconds in which all was well, and the pages in them.
        page: of a single fall, the first page after it began; None without one.
    """

    case: str
    rate: int
    seed: int
    wrong: tuple[str, ...]
    quiet: int
    pages: int
    page: Told | None


def scored(folder: Path, key: tuple[str, int, int]) -> Scored:
    """One log: made, backfilled and judged; a store that is kept in the folder is judged again."""
    case, rate, seed = key
    place = folder / f"{rate}-{seed}-{case}"
    if not (place / "done").exists():
        made = [sys.executable, str(SHARED), case, str(seed), str(place), "--rate", str(rate)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        end = datetime.fromtimestamp(json.loads((place / "truth.json").read_text())["end"], UTC).strftime(
            "%Y-%m-%dT%H:%M"
        )
        command = [Path(sys.executable).with_name("rankmon"), "backfill", "-c", place / "rankmon.yaml"]
        with_this = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}  # not what else is installed
        subprocess.run([*command, "--from", "2026-01-05", "--to", end], check=True, capture_output=True, env=with_this)
        (place / "shop.db").unlink()
        (place / "done").touch()
    run = judged(place)
    since = FIRST + (28 if case == "slow_decay" else 19 if case == "early_drop" else 42) * DAY
    before = since if case not in ("nothing", "twice", "split") else run.until
    pages = len(run.of("quality", 0, before))
    page = next(iter(run.of("quality", BEGAN.get(case, run.until))), None)
    return Scored(case, rate, seed, tuple(wrong(case, rate, run)), before - FIRST, pages, page)


def table(found: Sequence[Scored]) -> Iterator[str]:
    """Cases by rates, and what was wrong."""
    rates = sorted({one.rate for one in found})
    yield "| case | " + " | ".join(f"{rate} an hour" for rate in rates) + " |"
    yield "|---|" + "---|" * len(rates)
    cells = defaultdict[tuple[str, int], list[Scored]](list)
    for one in found:
        cells[one.case, one.rate].append(one)
    for case in RULES:
        if any(key[0] == case for key in cells):
            yield f"| {case} | " + " | ".join(_share(cells[case, rate]) for rate in rates) + " |"
    yield "| all | " + " | ".join(_share([one for one in found if one.rate == rate]) for rate in rates) + " |"
    yield ""
    quiet, pages = sum(one.quiet for one in found), sum(one.pages for one in found)
    yield f"Pages while all was well: {pages}, {pages / max(quiet, 1) * 90 * DAY:.2f} in 90 days."
    yield ""
    yield (
        "| hours from a fall to its page, and how many began in the reported range | "
        + " | ".join(map(str, rates))
        + " |"
    )
    yield "|---|" + "---|" * len(rates)
    for case, began in BEGAN.items():
        yield f"| {case} | " + " | ".join(_paged(cells[case, rate], began) for rate in rates) + " |"
    yield ""
    for one in found:
        yield from (f"- {one.case}, {one.rate} an hour, seed {one.seed}: {text}" for text in one.wrong)


def _paged(runs: Sequence[Scored], began: int) -> str:
    pages = [one.page for one in runs if one.page is not None]
    right = sum(1 for one in pages if one.within is not None and one.within[0] <= began <= one.within[1])
    return f"{median(one.opened - began for one in pages) / HOUR:.0f}, {right} of {len(pages)}" if pages else ""


def _share(runs: Sequence[Scored]) -> str:
    return f"{sum(not one.wrong for one in runs)} of {len(runs)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rates", type=int, nargs="+", default=[48])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    keys = [(case, rate, seed) for rate in given.rates for seed in given.seeds for case in given.cases or RULES]
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(given.jobs) as pool:
        found = list(pool.map(partial(scored, given.keep or Path(temporary)), keys))
    lines = list(table(found))
    print("\n".join(lines))
    if given.write:
        seeds = ", ".join(map(str, given.seeds))
        head = ["# Verdicts on messy days", "", *(__doc__ or "").splitlines()[2:], "", f"Seeds {seeds}.", ""]
        RESULTS.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return int(any(one.wrong for one in found))


if __name__ == "__main__":
    sys.exit(main())
