"""Replay the stored past: how often it would have paged, when, why and for how long, next to plain thresholds.

The daemon's own code judges each window with what was known then. Nothing is stored and nobody is notified. Another
--config tries its alert rules and `drift`; its series must have the same definition, or be backfilled first. A monitor
without stored data is skipped, and the exit code says so.

If people labelled pages right or wrong, it says how many of each would page again, and which
`drift: {false_alarm_budget}` agrees with them best.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from monitor.cli import exit_code
from monitor.cli.common import command, pick_monitors, rendered, store_config, stored, writing
from monitor.cli.options import InstantParam, config_option, monitors_option
from monitor.cli.render import Shown, table
from monitor.conditions.rules import Floor
from monitor.config import Config
from monitor.errors import InputError
from monitor.evaluation import replay as past
from monitor.evaluation.labelled import Agreement, LabelAgreement, compare_with_labels
from monitor.evaluation.replay import Period, Replay, ReplayedIncident, RuleTrial, try_rules
from monitor.evaluation.run import baseline_status
from monitor.messages.explanation import title_of
from monitor.messages.words import brief, counted, lasting, named, utc
from monitor.page.chart import Lane, Line, Shade, draw
from monitor.service.retention import what_lacks
from monitor.store import Store
from monitor.types import Monitor
from monitor.units import HOUR

MOST_SERIES = 3
"""Series named per rule."""


@command
@config_option
@monitors_option
@click.option("--from", "since", type=InstantParam(), help="Start (default: the first stored bucket).")
@click.option("--to", "until", type=InstantParam(), help="End (default: the newest final bucket).")
@click.option(
    "--store-of",
    "store_path",
    type=click.Path(path_type=Path),
    help="Configuration whose store holds the past (default: --config).",
)
@click.option("--chart", type=click.Path(path_type=Path, dir_okay=False), help="Draw one monitor into this SVG file.")
@rendered("table", "json")
def replay(
    config_path: Path,
    names: tuple[str, ...],
    since: int | None,
    until: int | None,
    store_path: Path | None,
    chart: Path | None,
) -> Shown:
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--from must be before --to")
    config = store_config(config_path)
    wanted = _judged(config, pick_monitors(config, names))
    if chart is not None and len(wanted) != 1:
        raise InputError(f"a chart shows one monitor: name it with --monitor, one of {_named(wanted)}")
    if chart is not None and chart.suffix.lower() != ".svg":
        raise InputError(f"a chart is drawn as SVG: use a file name that ends in .svg, not {chart}")
    replays, errors = list[tuple[past.Replay, LabelAgreement | None]](), list[InputError]()
    with stored(config if store_path is None else store_config(store_path)) as store:
        for monitor in wanted:
            try:
                made = past.replay(monitor, store, since, until)
                replays.append((made, compare_with_labels(monitor, store, made)))
                for lacking in filter(None, (what_lacks(monitor, store, since), _not_split(monitor, store))):
                    click.echo(f"rankmon: {lacking}", err=True)
            except InputError as error:
                click.echo(f"rankmon: {error}", err=True)
                errors.append(error)
    if chart is not None and replays:
        _draw(replays[0][0], chart)
    plain = [past.plain(one) | {"people_said": said} for one, said in replays]
    return Shown(plain, lambda: _apart(replays), exit_code(errors[0]) if errors else 0)


def _judged(config: Config, wanted: list[Monitor]) -> list[Monitor]:
    found = [monitor for monitor in wanted if monitor.drift is not None or monitor.alerts]
    if not found:
        text = "neither `drift:` nor `alerts:`, so nothing is judged; add `drift: {}` to it"
        raise InputError(f"{config.path}: {_named(wanted)} has {text}")
    return found


def _not_split(monitor: Monitor, store: Store) -> str:
    known = store.known_slices(monitor.name)
    mixed = set() if monitor.drift is None else {monitor.drift.mix_by} - {None}
    ruled = {dimension for rule in monitor.alerts for dimension, _ in rule.slices}
    lacking = [s.dimension for s in monitor.slices if s.dimension in (mixed | ruled) - known.keys()]
    told = ["verdicts judge only all traffic"] * bool(mixed & set(lacking))
    told += ["no rule judges its slices"] * bool(ruled & set(lacking))
    if not told:
        return ""
    return (
        f"{monitor.name}: nothing is stored by {', '.join(lacking)}, so {' and '.join(told)}; run rankmon backfill "
        f"--monitor {monitor.name} --from DATE --again with this configuration, or use stored slices"
    )


def _named(monitors: list[Monitor]) -> str:
    return ", ".join(monitor.name for monitor in monitors)


def _draw(found: Replay, path: Path) -> None:
    try:
        drawn = picture(found)
    except ValueError as error:
        raise InputError(f"{found.monitor}: {error}") from error
    with writing(path):
        path.write_text(drawn, encoding="utf-8")


# ---- for people ------------------------------------------------------------------------------------------------------


def _apart(replays: list[tuple[Replay, LabelAgreement | None]]) -> Iterator[str]:
    for number, (one, said) in enumerate(replays):
        yield from [""] * bool(number)
        yield from lines(one)
        if said is not None:
            yield from _people(said)


def _people(said: LabelAgreement) -> Iterator[str]:
    def of(one: Agreement) -> tuple[str, str]:
        return f"{one.right} of {said.right}", f"{one.wrong} of {said.wrong}"

    called = f"people called {counted(said.right, 'page')} right and {said.wrong} wrong"
    yield f"\n{called}; of these would page again, or be open before:"
    yield from table(("judged by", "right ones", "wrong ones"), [(one.name, *of(one)) for one in said.methods])
    if said.budget is None or said.proposed is None:
        return
    yield ""
    rows = [(f"{budget:g}" + " (now)" * (budget == said.budget), *of(one)) for budget, one in said.budgets]
    yield from table(("false_alarm_budget", "right ones", "wrong ones"), rows)
    is_best = said.proposed == said.budget
    yield f"false_alarm_budget: {said.proposed:g} agrees best with people" + ", as it is" * is_best


def lines(found: Replay) -> Iterator[str]:
    """A replay in words."""
    span = f"{utc(found.since)} to {utc(found.until)}"
    yield f"{found.monitor}: {span}, judged by what is stored since {utc(found.first)}"
    pages, broken = found.of("quality"), found.of("data")
    too = (
        f"{', and' if pages else ', but would have'} notified on-call of broken data {_times(len(found.told_on_call))}"
    )
    yield f"would {_have('paged', len(pages))}" + too * bool(found.told_on_call)
    yield from (line for one in pages for line in _incident(one, found.until))
    if found.verdicts:
        yield f"would {_have('notified the data owners', len(broken))}"
        yield from (line for one in broken for line in _incident(one, found.until))
        yield from _mixes(found)
        yield "hours by verdict: " + ", ".join(f"{title_of(kind)} {hours:,.0f}" for kind, hours in found.hours.items())
    for one in found.incidents:
        if one.is_before:
            told = _told_on_call(one) if one in found.told_on_call else ""
            yield f"already open at the start, so not counted as a page: {', '.join(one.by)}{told}"
    yield ""
    yield from _methods(found)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _have(done: str, number: int) -> str:
    """Such as "have paged twice"."""
    return f"have {done} {_times(number)}" if number else f"never have {done}"


def _incident(one: ReplayedIncident, until: int) -> Iterator[str]:
    incident = one.incident
    length = lasting((incident.closed_at or until) - incident.began_at)
    end = f"bad since {utc(incident.began_at)}, {'open for' if incident.is_open else 'lasted'} {length}"
    asks = "" if one.asks_at is None else f", would ask to retrain {utc(one.asks_at)}"
    told = _told_on_call(one)
    yield f"  {utc(incident.opened_at)}  {incident.severity}, {end}{asks}{told}; by {', '.join(one.by)}"
    if one.why:
        yield f"{'':22}{one.why}"


def _told_on_call(one: ReplayedIncident) -> str:
    return "" if one.on_call_at is None else f", notified on-call {utc(one.on_call_at)}"


def _mixes(found: Replay) -> Iterator[str]:
    hours = sum(shift.within(found.since, found.until) for shift in found.mix) / HOUR
    yield f"mix shifts, for information: {len(found.mix)} in {hours:,.0f} h" if found.mix else "no mix shifts"
    for shift in found.mix:
        length = lasting(shift.within(found.since, found.until))
        yield f"  {utc(shift.since)}  for {length}: the mix alone moved the mean by {100 * shift.effect:+.1f} %"


def _methods(found: Replay) -> list[str]:
    rows = []
    for method in found.methods:
        new = [s.since for s in method.incidents if s.since > found.since]
        first = utc(new[0]) if new else "–"
        share = method.open_seconds / (found.until - found.since)
        hours = f"{method.open_seconds / 3600:,.0f} h ({100 * share:.0f} %)"
        pages = str(method.pages) if method.could_judge else "could not judge"
        rows.append((method.name, method.what, pages, hours if method.could_judge else "–", first))
    return table(("judged by", "which is", "pages", "in alarm", "first"), rows, (0, 1, 4))


# ---- rules by themselves ---------------------------------------------------------------------------------------------


def rule_lines(monitor: Monitor, store: Store) -> Iterator[tuple[int, str, bool]]:
    """(index of an alert rule, what the stored past says of it, whether as a warning). Raises StoreError."""
    for number, tried in enumerate(try_rules(monitor, store) if monitor.alerts else ()):
        yield number, _tried(tried), tried.is_too_thin
        if told := _noise(monitor, tried, store):
            yield number, told, True


def _tried(tried: RuleTrial) -> str:
    pages, length = tried.method.pages, lasting(tried.until - tried.since)
    if not tried.method.could_judge:
        least = f": no window has min_requests: {tried.rule.min_requests}" if tried.is_too_thin else ""
        why = f"{tried.unknown or 'too little is stored'}{least}"
        return f"rule {tried.rule.name} could not be judged in the {length} until {utc(tried.until)}: {why}"
    text = f"rule {tried.rule.name} would {_have('paged', pages)} in the {length} until {utc(tried.until)}"
    if not tried.fired:
        return text
    share = 100 * tried.method.open_seconds / (tried.until - tried.since)
    most = ", ".join(f"{_series(key)} {_times(number)}" for key, number in tried.fired.most_common(MOST_SERIES))
    more = f" and {len(tried.fired) - MOST_SERIES} more" if len(tried.fired) > MOST_SERIES else ""
    return f"{text}, and fired for {lasting(tried.method.open_seconds)} ({share:.0f} %): on {most}{more}"


def _noise(monitor: Monitor, tried: RuleTrial, store: Store) -> str:
    """A note that chance alone moves some series enough to fire; empty if it does not."""
    if not (unsure := tried.unsure):
        return ""
    worst = min(unsure, key=lambda key: abs(tried.margins[key][0]) / tried.margins[key][1])
    drop, half = tried.margins[worst]
    side = "above" if tried.rule.rises == (drop >= 0) else "below"
    if isinstance(tried.rule.limit, Floor):
        change = "higher ceiling" if tried.rule.rises else "lower floor"
    else:
        change = "larger rise" if tried.rule.rises else "larger drop"
    return (
        f"rule {tried.rule.name} can fire by chance on {len(unsure)} of its {len(tried.margins)} series: for "
        f"{_series(worst)} the newest window is known to ± {half:.3g}, and the rule fires at {abs(drop):.3g} {side}"
        f"{_by_verdicts(monitor, store)}; use a {change}, a longer window, more min_requests or fewer slices"
    )


def _by_verdicts(monitor: Monitor, store: Store) -> str:
    if monitor.drift is None:
        return ""
    found = {unit.slice: unit.smallest for unit in baseline_status(monitor, store).units if unit.smallest is not None}
    if (overall := found.pop("", None)) is None:
        return ""
    slices = (
        f", and {100 * min(found.values()):.0f} to {100 * max(found.values()):.0f} % of its slices" if found else ""
    )
    return f" (verdicts see drops of {100 * overall:.0f} % of all traffic in 24 h{slices}, says rankmon power)"


def _series(key: tuple[str, str]) -> str:
    return named(*key) if key[0] else "all traffic"


# ---- as a picture ---------------------------------------------------------------------------------------------------

ALARM, MASKED, MIX = "#dc2626", "#6b7280", "#b8860b"


def picture(found: Replay) -> str:
    """The replay as an SVG document, with a lane per way of judging."""

    if not found.verdicts:
        raise ValueError("without `drift:` there are no expected values to draw; rankmon series draws the values")
    at = [v.end for v in found.verdicts]
    drawn = [v if v.end >= found.whole_since else None for v in found.verdicts]
    lines = [
        Line("observed", at, [None if v is None else v.observed for v in drawn]),
        Line("expected", at, [None if v is None else v.expected for v in drawn]),
    ]
    title = f"{found.monitor} · {brief(found.measure)} of the last 24 h: pages red, bad data grey"
    return draw(title, lines, shades=list(_shades(found)), lanes=list(_lanes(found)))


def _shades(found: Replay) -> Iterator[Shade]:
    yield from (Shade(*_ends(found, s), MASKED) for s in found.masked)
    for one in found.incidents:
        since = one.incident.opened_at if one.incident.matter == "quality" else one.on_call_at
        if since is not None:
            yield Shade(*_ends(found, Period(since, one.incident.closed_at)), ALARM)


def _lanes(found: Replay) -> Iterator[Lane]:
    for method in found.methods:
        yield Lane(method.name, tuple(Shade(*_ends(found, s), ALARM) for s in method.incidents))
    yield Lane("bad data", tuple(Shade(*_ends(found, s), MASKED) for s in found.masked))
    yield Lane("mix shift", tuple(Shade(*_ends(found, s), MIX) for s in found.mix))


def _ends(found: Replay, period: Period) -> tuple[int, int]:
    return max(period.since, found.since), found.until if period.until is None else period.until
