"""What a configuration allows but probably does not mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from itertools import product
from math import inf

from monitor.conditions.evidence import MATTERS, Matter
from monitor.conditions.rules import SEVERITIES, Drop, Severity
from monitor.config.checks import LOG
from monitor.config.listening import EVERYWHERE
from monitor.config.values import Config
from monitor.measures.measure import LEAST_EXAMINATION, Measure
from monitor.routing import Routing, instants, reached
from monitor.types import Judgments, Monitor


def remarks(config: Config, now: float) -> Iterator[str]:
    """Each with its place in the file; `now` in seconds since 1970."""
    if _tells_others(config) and not config.web.external_url and _is_for_few(config.web.host):
        text = (
            f"is missing, so links in notifications point to {config.web.page_url()}; give the address that people use"
        )
        yield f"{config.place('web', 'external_url')}: {text}"
    yield from _of_routes(config)
    for index, monitor in enumerate(config.monitors):
        for number, text in _not_yet(monitor, now):
            yield f"{config.place('monitors', index, 'alerts', number, 'baseline', 'pinned')}: {text}"
        for number, measure in enumerate(monitor.measures):
            for text in _of_rarely_examined_ranks(measure):
                yield f"{config.place('monitors', index, 'measures', number)}: {text}"
        for number, rule in enumerate(monitor.alerts):
            if rule.measure is not None and rule.measure.leaves_out_empty and not isinstance(monitor.recipe, Judgments):
                place = config.place("monitors", index, "alerts", number, "measure")
                yield f"{place}: {_of_clicked_lists(rule.measure)}"


def _of_rarely_examined_ranks(measure: Measure) -> Iterator[str]:
    for part in measure.parts if measure.is_corrected else ():
        (_, first), *_ = part.examination
        ranks = (int(rank) for rank, chance in part.examination[: part.k] if chance < LEAST_EXAMINATION * first)
        if rare := next(ranks, None):
            counts = first / part.examination[rare - 1][1]
            text = f"counts a click at rank {rare} as much as {counts:,.0f} at rank 1, so a few clicks move it; "
            yield text + f"cut it off where more people look, e.g. @{rare - 1}"


def _of_clicked_lists(measure: Measure) -> str:
    text = f"judges only the requests with something relevant ({measure}): it falls when better lists bring clicks "
    text += "further down, and does not notice lost clicks; "
    if measure.aggregate == "pooled":
        return text + "take the mean over requests"
    return text + f"leave `empty=skip` out, which judges {replace(measure, empty='zero')}"


def _of_routes(config: Config) -> Iterator[str]:
    """Routes that never match or reach nobody, and monitors that the routes leave to the log.

    Warnings may be for the log alone; critical incidents, or all that a monitor can open, are hardly meant to be.
    """
    used, to_log, moments = set[int](), dict[int, list[str]](), instants(config.routes)
    for index, monitor in enumerate(config.monitors if config.routes else ()):
        routing, muted = Routing(monitor, config.routes), dict[tuple[Severity, Matter], int]()
        for severity, matter in product(SEVERITIES, MATTERS):
            found = [routing.decide(severity, (matter,), at) for at in moments]
            used.update(id(route) for routes in found for route in routes)
            if monitor.paging != "push" or (severity, matter) not in routing.cases:
                continue
            if any(all(r not in config.routes and r.channels == (LOG,) for r in routes) for routes in found):
                text = f"no route takes {matter} incidents of severity {severity}"
                text = f"notifies only the log, and at some times {text}; name a channel, or add a route"
                yield f"{config.place('monitors', index, 'notify')}: {text}"
            elif all(reached(routes, inf) == (LOG,) for routes in found):
                muted[severity, matter] = config.routes.index(found[0][0])
        for (severity, matter), number in sorted(muted.items()):
            if severity == "critical" or len(muted) == len(routing.cases):
                to_log.setdefault(number, []).append(f"{severity} {matter} incidents of {monitor.name}")
    for number, (first, *more) in to_log.items():
        text = f"takes {first}{f', and {len(more)} more,' * bool(more)} to the log alone, so nobody is notified"
        yield f"{config.place('routes', number)}: {text}; name another channel"
    for number in (n for n, route in enumerate(config.routes) if id(route) not in used):
        text = (
            "never matches: routes above take everything first, or no monitor has its labels; move it up, or remove it"
        )
        yield f"{config.place('routes', number)}: {text}"


def _tells_others(config: Config) -> bool:
    """Whether anybody gets a notification, and with it a link, elsewhere than in the log."""
    channels = {c.name for c in config.channels}
    routed = {c for route in config.routes for c in route.reach(inf)}
    return bool(channels & routed) or any(
        channels.intersection((*m.notify, *m.retrain.notify, *(m.drift.data_channels if m.drift else ())))
        for m in config.monitors
    )


def _is_for_few(host: str) -> bool:
    """Whether a link to that address leads nowhere from other machines, or by a name that they may not know."""
    if host in EVERYWHERE or host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _not_yet(monitor: Monitor, now: float) -> Iterator[tuple[int, str]]:
    for number, rule in enumerate(monitor.alerts):
        pinned = rule.limit.baseline.pinned if isinstance(rule.limit, Drop) else None
        if pinned is not None and pinned[1] > now:
            yield number, f"is not over yet, so rule {rule.name} cannot fire until it is; did you mean a past period?"
