"""Counts, moments and lengths of time in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from monitor.units import DAY, HOUR

if TYPE_CHECKING:
    from monitor.measures.measure import Measure


_OF_SLICE = r"examination\[[^\]]*\]=\{[^}]*\}"
_TABLE = re.compile(rf"examination=\{{[^}}]*\}}|{_OF_SLICE}")
_PLURALS = {"grade above max": "grades above max", "mixed query": "mixed queries", "judged query": "judged queries"}


def counted(number: int, noun: str) -> str:
    """A number with its noun; a reason of refusal is a noun too.

    >>> counted(1, "monitor"), counted(2000, "late_event"), counted(2, "mixed_query")
    ('1 monitor', '2,000 late events', '2 mixed queries')
    """
    one = noun.replace("_", " ")
    return f"{number:,} {one if number == 1 else _PLURALS.get(one, one + 's')}"


SEE_CHECKS = "rankmon check-config --connect looks for the cause"


def rank_one_missing(lists: int, requests: int) -> str:
    """How many of the requests have nothing at rank 1, and where to look; empty if they are few.

    >>> rank_one_missing(500, 1000), rank_one_missing(100, 1000)
    ('500 of 1,000 requests have no item at rank 1: rankmon check-config --connect looks for the cause', '')
    """
    from monitor.drift.constants import REFUSED_SHARE

    if lists <= REFUSED_SHARE * requests:
        return ""
    return f"{lists:,} of {requests:,} requests have no item at rank 1: {SEE_CHECKS}"


CALLED = "rankmon {}"
"""The rankmon command line, with {} for command and arguments."""


def command(called: str, arguments: str) -> str:
    """A rankmon command as the reader can run it.

    >>> command("/opt/rankmon {} -c /etc/rankmon.yaml", "incidents list")
    '/opt/rankmon incidents list -c /etc/rankmon.yaml'
    """
    return called.replace("{}", arguments, 1)


def lasting(seconds: int) -> str:
    """A length of time for people.

    >>> lasting(30), lasting(5400), lasting(190_000)
    ('1 min', '1 h 30 min', '2 d 4 h')
    """
    minutes = max(1, round(seconds / 60))
    days, hours = divmod(minutes // 60, 24)
    parts = [(days, "d"), (hours, "h"), (0 if days else minutes % 60, "min")]
    return " ".join(f"{n} {unit}" for n, unit in parts if n)


def ago(seconds: float | None) -> str:
    """How long ago, in words; uses a unit from two of it on.

    >>> ago(7300), ago(None)
    ('2 h ago', 'never')
    """
    if seconds is None:
        return "never"
    size, unit = next(((s, u) for s, u in ((DAY, "d"), (HOUR, "h"), (60, "min")) if abs(seconds) >= 2 * s), (1, "s"))
    amount = f"{abs(seconds) / size:.0f} {unit}"
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


def over_the_last(seconds: int) -> str:
    """How far back a figure of the last day reaches; `seconds` is 0 if unknown.

    >>> over_the_last(86_400), over_the_last(3600)
    ('over the last day', 'over the last 1 h')
    """
    return f"over the last {lasting(seconds) if 0 < seconds < DAY else 'day'}"


_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)
"""Control and direction characters and invisible or unencodable ones; not line breaks and tabs."""


def plain(text: str, one_line: bool = False) -> str:
    r"""Text from outside, safe to show: control and invisible characters are escaped as in JSON.

    Used for all that people read: terminal, log, page and notifications. Not for labels of metrics: two values would
    become one, and Prometheus refuses a scrape with a series twice.

    >>> print(plain("a\x1b[2J b\u202ec"))
    a\u001b[2J b\u202ec
    >>> print(plain("tag \U000e0041"))
    tag \udb40\udc41

    Args:
        one_line: line breaks and tabs too.
    """
    found = _UNSEEN.sub(_written_out, text)
    return re.sub(r"[\n\t]", _written_out, found) if one_line else found


def _written_out(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def on_one_line(text: str) -> str:
    r"""A multi-line message on one line; lines that begin with a tab, like PostgreSQL's hints, in parentheses.

    >>> on_one_line("connection failed: Connection refused\n\tIs the server running?\n")
    'connection failed: Connection refused (Is the server running?)'
    """
    return " ".join(re.sub(r"\n\t+(\S.*)", r" (\1)", text).split())


def storable(text: str) -> str:
    r"""Text that any store and page accepts: what UTF-8 cannot hold, as in file names, is escaped, and NUL is dropped.

    >>> storable("caf\udce9\0")
    'caf\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "")


LONGEST_SHOWN = 60


def named(dimension: str, value: str) -> str:
    """A slice on one line, however long or odd its value is.

    >>> named("device", "mobile ")
    "device='mobile '"
    """
    return f"{dimension}={shown(value)}"


def shown(value: object, longest: int = LONGEST_SHOWN) -> str:
    """Text of a database, such as a slice value, on one line: cut if long, quoted if it has blanks at its ends."""
    printed = plain(str(value), one_line=True)
    printed = printed if printed == printed.strip() else f"'{printed}'"
    return printed if len(printed) <= longest else printed[:longest] + "..."


def share_of(value: float) -> str:
    """A share in percent, a small one to a tenth.

    >>> share_of(0.25), share_of(0.004)
    ('25 %', '0.4 %')
    """
    return f"{100 * value:.{0 if value >= 0.01 else 1}f} %"


AS_LABELS = 0.5
"""Share of a fall from which a fall of the labelled requests may explain it."""


def decayed(change: float, of_labels: float | None = None) -> str:
    """Says that the level has fallen below its reference, too slowly for an alarm.

    Args:
        of_labels: relative change of the share of requests with a label, if known.

    >>> decayed(-0.0712)
    'the level has fallen by 7.1 % since the reference, too slowly for an alarm: retrain'
    >>> decayed(-0.0712, -0.065).partition("alarm")[2]
    ', and the share of requests with a label by 6.5 %: check whether labels are being lost, otherwise retrain'
    """
    fell = f"the level has fallen by {-100 * change:.1f} % since the reference, too slowly for an alarm"
    if of_labels is None or of_labels > AS_LABELS * change:
        return f"{fell}: retrain"
    labels = f"the share of requests with a label by {-100 * of_labels:.1f} %"
    return f"{fell}, and {labels}: check whether labels are being lost, otherwise retrain"


LEAST_UNJUDGED = 0.05
"""Least share of unjudged requests to mention."""


def not_judged(share: float) -> list[str]:
    """Says how many requests are of slices without a baseline.

    >>> not_judged(0.4956)
    ['50 % of the requests are not judged: their slices are too new to have a baseline']
    """
    if share < LEAST_UNJUDGED:
        return []
    return [f"{share_of(share)} of the requests are not judged: their slices are too new to have a baseline"]


def utc(instant: int | None) -> str:
    """`2022-02-24 05:00 UTC`.

    >>> utc(0)
    '1970-01-01 00:00 UTC'
    """
    return "unknown" if instant is None else datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M UTC")


def between(since: int, until: int) -> str:
    """A time from one instant to another.

    >>> between(0, 7200), between(0, 86_400)
    ('between 1970-01-01 00:00 and 02:00 UTC', 'between 1970-01-01 00:00 and 1970-01-02 00:00 UTC')
    """
    first, last = utc(since).removesuffix(" UTC"), utc(until)
    return f"between {first} and {last.removeprefix(first[:11])}"


ITS_TABLE = " and matches its table"
NO_OTHER_LISTS = ", that lists are personalised at most by the slices"


def assumes(more: str, dimension: str = "") -> str:
    """What a figure corrected for where people look assumes; `more` adds to what it assumes.

    >>> assumes(ITS_TABLE, "device").partition(", and ")[0]
    'assumes that examination depends on the rank and device alone and matches its table'
    """
    by = f" and {dimension}" if dimension else ""
    return (
        f"assumes that examination depends on the rank{by} alone{more}, and that people trust no rank more than another"
    )


def brief(measure: object) -> str:
    """A measure with its tables of examination as `#` and the first digits of their hash.

    >>> brief("dcg(examination={1:1,2:0.5},empty=skip,examination[device=tv]={1:1,2:0.4})@2")
    'dcg(examination=#9452,empty=skip)@2'
    """
    text = str(measure)
    digest = sha256("".join(_TABLE.findall(text)).encode()).hexdigest()[:4]
    return re.sub(f",{_OF_SLICE}", "", re.sub(r"examination=\{[^}]*\}", f"examination=#{digest}", text))


def assumed(measures: Iterable[Measure]) -> str:
    """What the measures with a table of examination assume; empty if none has one."""
    dimensions = {one.dimension for one in measures if one.examination}
    return assumes(ITS_TABLE, dimensions.pop() if len(dimensions) == 1 else "") if dimensions else ""
