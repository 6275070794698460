"""Print one request from the source: its rows, events, grades, and how each value is computed.

REQUEST is its id, as in the request column; in hexadecimal if the column is binary (dashes and a leading 0x do not
matter). Refused rows are shown with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import click

from monitor.causes.derivation import Derivation, Term, derive
from monitor.causes.inspection import EVENT_REASONS, Event, Inspection, Row
from monitor.cli.common import command, load_config, measures_of, pick_monitors, rendered, source_of
from monitor.cli.common import stored as open_store
from monitor.cli.options import InstantParam, config_option
from monitor.cli.render import Shown, table, table_of
from monitor.config import Config
from monitor.errors import InputError, SourceError, StoreError
from monitor.measures.measure import Measure
from monitor.measures.relevance import REASONS
from monitor.messages.tables import DASH, Columns
from monitor.messages.words import counted, plain
from monitor.series.finality import BucketState
from monitor.series.partials import text_of
from monitor.series.readings import MICROS
from monitor.source.inspect import inspect as look
from monitor.types import NONE, EventRule, Events, Judgments, Monitor, format_duration

Stored = dict[str, BucketState | None] | str
"""Stored state of the request's bucket by measure; or why it is unknown."""

MAX_JUDGMENTS = 50
"""Judgments in the table; JSON has all."""


@command
@click.argument("request")
@config_option
@click.option("-m", "--monitor", "name", help="Monitor of the request; required if several match.")
@click.option("--measure", "measures", multiple=True, help="Only this measure (default: all).")
@click.option(
    "--at",
    type=InstantParam(),
    help="When it was served (any time in its bucket); speeds up the search.",
)
@click.option("--show-query", is_flag=True, help="Print the query text, which may contain personal data.")
@rendered("table", "json")
def inspect(
    request: str,
    config_path: Path,
    name: str | None,
    measures: tuple[str, ...],
    at: int | None,
    show_query: bool,
) -> Shown:
    config = load_config(config_path)
    monitor = _monitor(config, name)
    wanted = measures_of(monitor, measures)
    with source_of(config, monitor) as database:
        seen = look(monitor, database, request, at)
    page = Page(seen, [_work_out(m, seen) for m in wanted], _stored(config, seen, wanted), show_query)
    return Shown(document(page), lambda: lines(page))


def _monitor(config: Config, name: str | None) -> Monitor:
    found = pick_monitors(config, () if name is None else (name,))
    if len(found) != 1:
        raise InputError(f"several monitors match; choose one with --monitor: {', '.join(m.name for m in found)}")
    return found[0]


def _work_out(measure: Measure, seen: Inspection) -> Derivation:
    try:
        return derive(measure, seen)
    except ValueError as error:
        raise SourceError(f"{measure}: {error}", "data") from error


def _stored(config: Config, seen: Inspection, measures: Iterable[Measure]) -> Stored:
    try:
        with open_store(config) as store:
            definitions = {str(m): seen.monitor.definition(m) for m in measures}
            return {text: store.states(d, seen.bucket).get(seen.bucket) for text, d in definitions.items()}
    except StoreError as error:
        return str(error)


@dataclass(frozen=True)
class Page:
    seen: Inspection
    workings: list[Derivation]
    stored: Stored
    show_query: bool

    @property
    def monitor(self) -> Monitor:
        return self.seen.monitor

    @property
    def slices(self) -> dict[str, Any]:
        """Without the query, unless asked for."""
        hidden = None if self.show_query else self.monitor.rankings.query
        return {s.dimension: _named(self.seen.slices[s.dimension]) for s in self.monitor.slices if s.column != hidden}


def document(page: Page) -> dict[str, Any]:
    """The page as JSON data; instants are UTC text."""
    seen = page.seen
    query = {"query": _named(seen.query)} if page.show_query else {}
    return {
        "monitor": page.monitor.name,
        "source": page.monitor.source,
        "request": seen.request,
        "served": _instant(seen.served),
        "bucket": {"start": _instant(seen.bucket * MICROS), "seconds": page.monitor.bucket, "stored": page.stored},
        "no_sample": seen.no_sample,
        "slices": page.slices,
        "mixed": seen.mixed,
        "elsewhere": seen.elsewhere,
        "again": [_instant(at) for at in seen.again],
        "rows": [
            _timed(row) | {"events": [_timed(event) for event in row.events], "is_used": i in seen.used}
            for i, row in enumerate(seen.rows)
        ],
        "strays": [_timed(event) for event in seen.strays],
        "judgments": seen.judgments,
        "measures": page.workings,
        **query,
    }


def _named(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def _timed(found: Row | Event) -> dict[str, Any]:
    return {**vars(found), "at": None if found.at is None else _instant(found.at)}


def _instant(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


# ---- for people ------------------------------------------------------------------------------------------------


def lines(page: Page) -> Iterator[str]:
    """The request, its rows, then each measure."""
    yield _head(page)
    yield from _rows(page)
    yield from _notes(page.seen)
    yield from _judgments(page)
    if page.seen.is_unlabelled:
        yield "it has no label, so no measure counts it"
        return
    for derivation in page.workings:
        yield f"---- {derivation.measure} ----\n"
        yield from _steps(derivation, not page.seen.no_sample)


def _head(page: Page) -> str:
    seen, monitor = page.seen, page.monitor
    end = seen.bucket + monitor.bucket
    slices = [f"{d}={_text(NONE if v is None else v)}" for d, v in page.slices.items()]
    query = _text(seen.query) if page.show_query else "hidden; --show-query prints it"
    lines = {
        "request": f"{_text(seen.request)} of monitor {monitor.name}, source {monitor.source}",
        "served": f"{_moment(seen.served)} UTC",
        "bucket": f"{_moment(seen.bucket * MICROS)} to {_moment(end * MICROS)} UTC",
        "stored": _state(page.stored),
        "slices": ", ".join(slices),
        "query": "" if monitor.rankings.query is None else query,
        "labels": _recipe(monitor, seen.served),
        "counts": f"no, for no measure: {seen.no_sample}" if seen.no_sample else "yes",
    }
    return "".join(f"{name:<9}{text}\n" for name, text in lines.items() if text)


def _state(stored: Stored) -> str:
    if isinstance(stored, str):
        return f"not known: {stored}"
    words = {m: _state_of(s) for m, s in stored.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{m} {word}" for m, word in words.items())


def _state_of(state: BucketState | None) -> str:
    if state is None:
        return "no"
    return f"{'final' if state.final else 'provisional'}, read {_moment(int(state.read_at) * MICROS)} UTC"


def _recipe(monitor: Monitor, served: int) -> str:
    recipe = monitor.recipe
    if isinstance(recipe, Judgments):
        return "judgments by query and item; the highest grade if there are several"
    if not isinstance(recipe, Events):
        return f"column {recipe.grade} of the rankings"
    until = _moment(served + recipe.attribution * MICROS)
    rules = ", ".join(_rule(rule) for rule in recipe.rules)
    how = "the highest" if recipe.combine == "max" else "the sum"
    return f"{rules}; {how} of an item's events until {until} UTC ({format_duration(recipe.attribution)})"


def _rule(rule: EventRule) -> str:
    least = "" if rule.minimum is None else f" from {rule.minimum:g} on"
    return f"{rule.type or 'event'}{least} = {'its value' if rule.grade is None else f'{rule.grade:g}'}"


def _rows(page: Page) -> list[str]:
    """Rows in order, each above its events; then events on nothing shown."""
    seen, monitor = page.seen, page.monitor
    lines = [line for row in seen.rows for line in _above(_row(row), row.events, seen.served)]
    for event in seen.strays:
        lines += _above({"position": DASH, "item": _text(event.item)}, [event], seen.served)
    titles = [*_OF_ROWS, *(_OF_EVENTS if isinstance(monitor.recipe, Events) else ())]
    # Empty columns are left out; so is a rank that equals the position.
    empty = {t for t in titles if not any(line.get(t) for line in lines) and t not in ("grade", "event")}
    empty |= {"rank"} if monitor.rankings.position.base == 1 else set()
    shown = [t for t in titles if t not in empty]
    return table(
        shown, [[line.get(t, "") for t in shown] for line in lines], [shown.index(t) for t in _TEXTS if t in shown]
    )


_OF_ROWS = ("position", "rank", "item", "grade", "refused")
_OF_EVENTS = ("event", "time (UTC)", "after serving", "value", "worth", "counts")
_TEXTS = ("item", "refused", "event", "time (UTC)", "counts")


def _row(row: Row) -> dict[str, str]:
    place = {"position": _text(row.position), "rank": _number(row.rank), "item": _text(row.item)}
    return place | {"grade": _number(row.grade), "refused": ", ".join(row.reasons) or "same row again" * row.is_copy}


def _above(place: dict[str, str], events: Sequence[Event], served: int) -> list[dict[str, str]]:
    lines = [_event(event, served) for event in events] or [{}]
    return [place | lines[0], *lines[1:]]


def _event(event: Event, served: int) -> dict[str, str]:
    return {
        "event": _text(event.kind) if event.kind is not None else "event",
        "time (UTC)": "" if event.at is None else _moment(event.at).removeprefix(_moment(served)[:11]),
        "after serving": "" if event.at is None else _delay(event.at - served),
        "value": _number(event.value),
        "worth": _number(event.worth),
        "counts": f"no: {event.reason}" if event.reason else "yes",
    }


def _notes(seen: Inspection) -> Iterator[str]:
    events = [e for row in seen.rows for e in row.events] + list(seen.strays)
    used = [*(r for row in seen.rows for r in row.reasons), *(e.reason for e in events if e.reason), *seen.mixed]
    meanings = REASONS | EVENT_REASONS
    yield "".join(f"\n{reason}: {meanings[reason]}" for reason in dict.fromkeys(used)) + "\n" * bool(used)
    if seen.elsewhere:
        yield f"{seen.elsewhere} more rows of this id are not read with this bucket; --at shows those of another time\n"
    if seen.again:
        yield _again(seen)


def _again(seen: Inspection) -> str:
    nearest = min(seen.again, key=lambda at: abs(at - seen.served))
    times = f"{counted(len(seen.again), 'time')} more within the attribution, nearest at {_moment(nearest)} UTC"
    does = "an event counts for every serving of its request id within the attribution window"
    return (
        f"this id was served {times} ({_delay(nearest - seen.served)}): {does}; is it a session's or a person's id?\n"
    )


def _judgments(page: Page) -> Iterator[str]:
    judged = page.seen.judgments
    if not isinstance(page.monitor.recipe, Judgments) or not judged:
        return
    yield f"judgments of the query: {counted(len(judged), 'item')}"
    yield from table_of(_JUDGMENTS, judged[:MAX_JUDGMENTS], left=(0, 3))
    yield "" if len(judged) <= MAX_JUDGMENTS else f"and {len(judged) - MAX_JUDGMENTS} more; --format json has all\n"


_JUDGMENTS: Columns = {
    "item": lambda j: _text(j.item),
    "grade": lambda j: _number(j.grade),
    "position": lambda j: ", ".join(map(_text, j.positions)) or "not shown",
    "used": lambda j: "yes" if j.is_usable else "no",
}


# Titles of the gain, the weight (empty where it is 1 for all), their sum, and its divisor.
_IDEALS = {
    "local": "the items shown within the cut-off, best first",
    "recall": "all logged items, best first",
    "global": "all judged items of the query, shown or not, best first",
    "max": "items of the highest grade at every place",
}


def _steps(w: Derivation, counts: bool) -> Iterator[str]:
    _, _, total, below = w.measure.spec.words
    yield from _terms(w.terms, w.measure) if w.terms else ["no item adds anything"]
    if w.below:
        yield f"{w.below} more with a gain, below the cut-off"
    if "max" in w.measure.spec.ideals:
        yield f"\nideal: {_IDEALS[w.measure.ideal]}" + ("" if w.measure.k is None else f", cut at {w.measure.k}")
        yield from _terms(w.ideal, w.measure) if w.ideal else ["no item has a gain"]
    parts = f"{total} = {_number(w.numerator)}" + (f", {below} = {_number(w.denominator or 0.0)}" if below else "")
    how = f"{total} / {below}" if below else total
    value = _value(w) if counts or w.value is not None else "none"
    yield f"\n{parts}\n{w.measure} = {how} = {value}" + ("" if counts else " (the request does not count)") + "\n"


def _value(w: Derivation) -> str:
    if w.value is not None:
        return repr(w.value)
    counted = {"skip": "left out of the mean", "zero": "counted as 0", "one": "counted as 1"}
    return f"none: there is nothing relevant; {counted[w.measure.empty]} (empty={w.measure.empty})"


def _terms(terms: Sequence[Term], measure: Measure) -> list[str]:
    gain, weight, *_ = measure.spec.words
    columns: dict[str, Callable[[Any], str]] = {
        "rank": lambda t: str(t.rank),
        "item": lambda t: "any" if measure.ideal == "max" and t.item is None else _text(t.item),
        "position": lambda t: "not shown" if t.position is None else _text(t.position),
        "grade": lambda t: _number(t.grade),
        gain: lambda t: _number(t.gain),
    }
    if not weight and any(t.weight != 1 for t in terms):
        weight = "weight"
    if weight:
        product = f"{gain} × {weight}" if weight == "discount" else "adds"
        columns |= {weight: lambda t: _number(t.weight), product: lambda t: _number(t.product)}
    return table_of(columns, terms, left=(1,))


def _number(value: float | None) -> str:
    return "" if value is None or isnan(value) else "no number" if not isfinite(value) else f"{value:.10g}"


def _moment(micros: int) -> str:
    second, _, part = _instant(micros)[:-1].replace("T", " ").partition(".")
    return f"{second}.{part.rstrip('0')}" if part else second


def _delay(micros: int) -> str:
    """`+12.5 s`, `+3 h 20 min`, `-4 s`."""
    sign, seconds = "-" if micros < 0 else "+", abs(micros) / MICROS
    if seconds < 120:
        return f"{sign}{seconds:g} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{sign}{hours} h {minutes} min" if hours else f"{sign}{minutes} min {int(seconds % 60)} s"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    return DASH if value is None else plain(text_of(value), one_line=True)
