"""What `rankmon explain-incident` and `rankmon versions` print of versions of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monitor.causes.versions import ALL_THE_TIME, FEWEST_OF_PLACE
from monitor.cli.render import count, number, percent, table
from monitor.messages.words import plain, utc
from monitor.types import NONE, format_duration

Document = Mapping[str, Any]

HOUR = 3600
LONGEST = 60


def versions(document: Document, against: str) -> Iterator[str]:
    """The versions of a diagnosis side by side: of all traffic as stored, of a slice by the requests that were read."""
    found, of = document["versions"], "of all traffic"
    read = (document.get("captured") or {}).get("versions", [])
    lost = document.get("unlabelled", ())
    if (document["dimension"] or lost) and any(v["version"] != NONE for v in read):
        whose = (
            f"without {', '.join(map(shown, lost))}"
            if lost
            else "of " + shown(document["dimension"] + "=" + document["slice"])
        )
        found, of = read, f"{whose}, by the requests that were read"
    if found:
        yield f"\nModel versions in the window, {of}, {against}:"
        yield from table(
            ("version", "requests", "value", "95 % interval", "requests before", "before"),
            [
                (
                    shown(v["version"]),
                    count(v["requests"]),
                    number(v["value"]),
                    interval(v),
                    count(v["requests_before"]),
                    number(v["before"]),
                )
                for v in found
            ],
        )


def interval(found: Document) -> str:
    """`0.7000 – 0.7500`; a dash where there is none."""
    return "–" if found["lower"] is None else f"{number(found['lower'])} – {number(found['upper'])}"


def compared(found: Document | None, began: int | None = None) -> Iterator[str]:
    """Two versions against each other; `began` is the end of the first window that had fallen, seconds."""
    if found is None:
        return
    one, other = found["first"], found["second"]
    if found["difference"] is None:
        yield from _strangers(found)
    else:
        yield from _versus(found, began)
    empty = [f"{shown(v['version'])} {v['empty']:,} of {v['read']:,}" for v in (one, other) if v.get("read")]
    if empty:
        yield f"  requests with nothing relevant: {', '.join(empty)}"


def _strangers(found: Document) -> Iterator[str]:
    """Two versions of which nobody can tell which is better."""
    first, second = (f"{shown(v['version'])} at {number(v['value'])}" for v in (found["first"], found["second"]))
    yield (
        f"\n{first} and {second} have no slice of {shown(found['dimension'])} in common with {FEWEST_OF_PLACE} "
        "requests of each: the difference may be that of their slices. Neither is told to be the better one."
    )


def _versus(found: Document, began: int | None) -> Iterator[str]:
    """How much better or worse the second of two versions is."""
    first, second = shown(found["first"]["version"]), shown(found["second"]["version"])
    surely = "" if found["lower"] is None else f" (95 %: {found['lower']:+.4f} to {found['upper']:+.4f})"
    is_paired, slices = found["by"] == "query", found.get("dimension")
    within = f" within one {shown(slices)}" if slices else ""
    on = f"on {found['shared']:,} queries that both got{within}" if is_paired else _all_of(slices)
    is_one_time = found.get("at_one_time", True)
    yield "" if is_one_time else f"\nAt different times: {_times(found, began)}the difference may be of the time."
    yield f"{second} against {first}, {on}{_common(found)}{_together(found)}: {found['difference']:+.4f}{surely}"
    if is_paired:
        yield f"  queries: {_signs(found)}"
    elif found.get("queries"):
        yield f"  the {found['shared']:,} queries that both got{within}: {_signs(found['queries'])}"


def _all_of(slices: str | None) -> str:
    return f"all requests within one {shown(slices)}, not paired" if slices else "all requests, not paired"


def _common(found: Document) -> str:
    """Of how much of each version's requests it is, where they served different slices too."""
    shares = found.get("common", (1.0, 1.0))
    if min(shares) >= ALL_THE_TIME:
        return ""
    names = (shown(found[which]["version"]) for which in ("first", "second"))
    told = ", ".join(f"{percent(share)} of {name}" for name, share in zip(names, shares, strict=True))
    return f", where both served ({told})"


def _signs(found: Document) -> str:
    return "{better:,} better, {worse:,} worse, {unchanged:,} unchanged".format(**found)


def _times(found: Document, began: int | None) -> str:
    """When two versions served that did not do so together, with a semicolon at its end.

    Older diagnoses know only the edges of what was looked at, and no resolution.
    """
    one, other, width = found["first"], found["second"], found.get("resolution")
    if width is None or one.get("since") is None or other.get("since") is None:
        return ""
    before, after = sorted((one, other), key=lambda version: int(version["since"]))
    names = shown(before["version"]), shown(after["version"])
    by = "" if width == 1 else f" (by stored buckets of {format_duration(width)})"
    if before["until"] - (width if width > 1 else 0) <= after["since"]:
        is_then = width > 1 and began is not None and after["since"] < began <= after["since"] + width
        then = f", in the {'hour' if width == HOUR else format_duration(width)} in which this began" * is_then
        return f"{names[0]} until {utc(before['until'])}, {names[1]} from {utc(after['since'])}{then}{by}; "
    return "{} from {} to {}, {} from {} to {}{}; ".format(
        names[0], utc(before["since"]), utc(before["until"]), names[1], utc(after["since"]), utc(after["until"]), by
    )


def _together(found: Document) -> str:
    """Of how much of each version's requests it is, where that is not all."""
    shares = found.get("together", (1.0, 1.0))
    if not found.get("at_one_time", True) or min(shares) >= ALL_THE_TIME:
        return ""
    names = (shown(found[which]["version"]) for which in ("first", "second"))
    told = ", ".join(f"{percent(share)} of {name}" for name, share in zip(names, shares, strict=True))
    return f", while both served ({told})"


def shown(text: object, longest: int = LONGEST) -> str:
    """Text that comes out of a database, on one line."""
    found = plain(str(text), one_line=True)
    return found if len(found) <= longest else found[:longest] + "..."
