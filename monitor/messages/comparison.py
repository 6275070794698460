"""Two model versions compared in words, for `explain-incident`, `versions` and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monitor.causes.versions import ALL_THE_TIME, FEWEST_OF_PLACE
from monitor.messages.tables import Columns, count, interval, number, percent, signed
from monitor.messages.words import shown, utc
from monitor.types import format_duration
from monitor.units import HOUR

Document = Mapping[str, Any]

NO_VERSION = "monitor {} has no model version column; name it under `rankings: model_version`"


OF_VERSIONS: Columns = {
    "version": lambda v: shown(v["version"]),
    "requests": lambda v: count(v["requests"]),
    "value": lambda v: number(v["value"]),
    "95 % interval": lambda v: interval(v["lower"], v["upper"]),
}
"""The first columns of a table of versions."""


def compared(found: Document | None, began: int | None = None) -> Iterator[str]:
    """Two versions compared; `began` is the end of the first fallen window, seconds."""
    if found is None:
        return
    one, other = found["first"], found["second"]
    yield from _strangers(found) if found["difference"] is None else _versus(found, began)
    if empty := [f"{shown(v['version'])} {v['empty']:,} of {v['read']:,}" for v in (one, other) if v.get("read")]:
        yield f"  requests with nothing relevant: {', '.join(empty)}"


def _strangers(found: Document) -> Iterator[str]:
    first, second = (f"{shown(v['version'])} at {number(v['value'])}" for v in (found["first"], found["second"]))
    yield (
        f"\n{first} and {second} share no {shown(found['dimension'])} slice with {FEWEST_OF_PLACE} "
        "requests from each: the difference may come from their slices. Neither can be called better."
    )


def _versus(found: Document, began: int | None) -> Iterator[str]:
    first, second = shown(found["first"]["version"]), shown(found["second"]["version"])
    surely = "" if found["lower"] is None else f" (95 %: {signed(found['lower'])} to {signed(found['upper'])})"
    is_paired, is_one_time = found["by"] == "query", found.get("at_one_time", True)
    within = f" within one {shown(found['dimension'])}" if found.get("dimension") else ""
    on = f"{found['shared']:,} queries that both served{within}" if is_paired else f"all requests{within}, not paired"
    where = _shares(found, "common", "where both served")
    where += _shares(found, "together", "while both served") if is_one_time else ""
    if is_one_time:
        yield ""
    elif within and not _are_apart(found):
        yield f"\nNever at the same time{within}: the difference may be due to time."
    else:
        yield f"\nAt different times: {_times(found, began)}the difference may be due to time."
    yield f"{second} against {first}, {'on ' * is_paired}{on}{where}: {signed(found['difference'])}{surely}"
    if is_paired:
        yield f"  queries: {_signs(found)}"
    elif found.get("queries"):
        yield f"  the {found['shared']:,} queries that both served{within}: {_signs(found['queries'])}"


def _shares(found: Document, key: str, what: str) -> str:
    shares = found.get(key, (1.0, 1.0))
    if min(shares) >= ALL_THE_TIME:
        return ""
    names = (shown(found[which]["version"]) for which in ("first", "second"))
    told = ", ".join(f"{percent(share)} of {name}" for name, share in zip(names, shares, strict=True))
    return f", {what} ({told})"


def _signs(found: Document) -> str:
    return "{better:,} better, {worse:,} worse, {unchanged:,} unchanged".format(**found)


def _are_apart(found: Document) -> bool:
    """Whether one version ended before the other began, or that is unknown."""
    spans = [(one.get("since"), one.get("until")) for one in (found["first"], found["second"])]
    if any(None in span for span in spans):
        return True
    (_, ended), (began, _) = sorted(spans)
    width = found.get("resolution") or 1
    return bool(ended - (width if width > 1 else 0) <= began)


def _times(found: Document, began: int | None) -> str:
    """When two versions served, if apart. Older diagnoses know only the edges examined, and no resolution."""
    one, other, width = found["first"], found["second"], found.get("resolution")
    if width is None or one.get("since") is None or other.get("since") is None:
        return ""
    before, after = sorted((one, other), key=lambda version: int(version["since"]))
    names = shown(before["version"]), shown(after["version"])
    by = "" if width == 1 else f" (by stored buckets of {format_duration(width)})"
    if _are_apart(found):
        is_then = width > 1 and began is not None and after["since"] < began <= after["since"] + width
        then = f", in the {'hour' if width == HOUR else format_duration(width)} when this began" * is_then
        return f"{names[0]} until {utc(before['until'])}, {names[1]} from {utc(after['since'])}{then}{by}; "
    spans = [f"{shown(v['version'])} from {utc(v['since'])} to {utc(v['until'])}" for v in (before, after)]
    return f"{', '.join(spans)}{by}; "
