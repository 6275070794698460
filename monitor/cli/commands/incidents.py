"""List, show, acknowledge and label incidents, and silence a monitor for a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import group, load_config, rendered, store_config, stored
from monitor.cli.options import DurationParam, by_option, config_option, note_option
from monitor.cli.render import Shown
from monitor.conditions.evidence import Matter
from monitor.conditions.incident import LABELS, Incident, Label, matter_of
from monitor.conditions.rules import COVERAGE
from monitor.errors import InputError
from monitor.messages.explanation import sentence
from monitor.messages.notification import About, notification
from monitor.messages.templates import OwnTemplates, topic
from monitor.messages.words import CALLED, brief, named, utc
from monitor.types import format_duration
from monitor.units import DAY

if TYPE_CHECKING:
    from monitor.config import Config
    from monitor.store import Store
    from monitor.store.alerts import Silence, StoredIncident, Transition

LONGEST_SILENCE = 3650 * DAY
"""Seconds; a permanent silence should name no channel instead, and calendars end."""


incidents = group(__name__)


@incidents.command("list")
@config_option
@click.option("-m", "--monitor", help="Only this monitor (default: all).")
@click.option("--open", "only_open", is_flag=True, help="Only open incidents.")
@click.option("--most", type=click.IntRange(1), default=50, show_default=True, help="How many to show.")
@rendered("text", "json")
def list_(config_path: Path, monitor: str | None, only_open: bool, most: int) -> Shown:
    """List incidents, newest first."""
    config = store_config(config_path)
    with stored(config) as store:
        if monitor is not None and not store.alerts.incidents(monitor, most=1):
            config.monitor(monitor)  # incidents of a removed monitor may remain
        found = store.alerts.incidents(monitor, "firing" if only_open else None, most + 1)
        older, found = found[most:], found[:most]
        ends = judged_until(found, store)
        held = [s for s in store.alerts.silences(time.time()) if monitor in (None, s.monitor)]
    told = [line(one, ends.get(one.incident.monitor)) for one in found] or ["no incidents"]
    told += [f"the newest {most}; --most shows more"] * bool(older)
    told += [f"silenced: {s.monitor} until {utc(int(s.until))}{_by(s)}" for s in held]
    return Shown(map(plain, found), lambda: told)


@incidents.command()
@config_option
@click.argument("incident")
@rendered("text", "json")
def show(config_path: Path, incident: str) -> Shown:
    """Show one incident with its reason, its slices and every transition."""
    config = load_config(config_path, unread=("sources",))
    with stored(config) as store:
        found = find(store, incident)
        steps = steps_of(found, store)
        end = judged_until([found], store).get(found.incident.monitor)
    history = [{**vars(s), "evidence": None if s.evidence is None else s.evidence.plain()} for s in steps]
    return Shown({**plain(found), "transitions": history}, lambda: _lines(found, config, steps, end))


def _lines(found: StoredIncident, config: Config, steps: Sequence[Transition], end: int | None) -> Iterator[str]:
    yield line(found, end)
    why = next((s.reason for s in reversed(steps) if s.incident == found.incident.id and s.became != "firing"), "")
    yield text(found, config, why)
    for step in steps:
        where = f" for {named(step.dimension, step.value)}" if step.dimension else ""
        yield f"  {utc(step.at)}  {step.rule}{where}: {step.was} -> {step.became}, {step.reason}"
        if step.became == "firing" and step.evidence is not None:
            yield f"{'':22}{sentence(step.evidence)}"


@incidents.command()
@config_option
@click.argument("incident")
@note_option("What is being done.")
@click.option(
    "--new-baseline", is_flag=True, help="Accept the new level or page: start a new baseline where the incident began."
)
@by_option()
def ack(config_path: Path, incident: str, note: str, new_baseline: bool, by: str) -> None:
    """Acknowledge an incident, in PagerDuty too if it was notified. Stops repeats and escalations."""
    from monitor.cli.commands.baseline import reset_baseline
    from monitor.notify import acknowledging

    config = load_config(config_path, unread=("sources",))
    with stored(config) as store:
        found = find(store, incident).incident
        can_accept = found.matter in ("quality", "layout")
        if new_baseline and not (can_accept and found.is_open):
            what = "is over" if can_accept else "is about the data, not the model"
            raise InputError(
                f"{found.id} {what}, so there is no new level to accept; to accept one anyway: "
                f"rankmon baseline begin {found.monitor} --from …"
            )
        monitor = config.monitor(found.monitor) if new_baseline else None
        said = (
            ""
            if monitor is None
            else reset_baseline(monitor, store, _accepted_from(found), note or f"incident {found.id}", by)
        )
        store.alerts.acknowledge(found.id, by, note, time.time(), acknowledging(config.channels))
    click.echo(f"{incident}: acknowledged by {by}")
    if said:
        click.echo(said)


def _accepted_from(incident: Incident) -> int:
    """Start of the new baseline, seconds: when it fired; of a new page, when the days began in which it was found."""
    return incident.opened_at if incident.matter == "quality" else incident.began_at


@incidents.command("label")
@config_option
@click.argument("incident")
@click.argument("label", type=click.Choice(LABELS))
@note_option("Why.")
@by_option()
def label_(config_path: Path, incident: str, label: Label, note: str, by: str) -> None:
    """Say whether an incident was right, wrong, or already known. A new label replaces the old one."""
    config = store_config(config_path)
    with stored(config) as store:
        store.alerts.label(find(store, incident).incident.id, label, by, note)
        counts = store.alerts.labels(find(store, incident).incident.monitor)
    told = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    click.echo(f"{incident}: labelled {label} by {by}; of this monitor's incidents {told}")


@incidents.command()
@config_option
@click.argument("monitor")
@click.option("--for", "length", type=DurationParam(), required=True, help="How long, e.g. 2h.")
@note_option("Why.")
@by_option()
def silence(config_path: Path, monitor: str, length: int, note: str, by: str) -> None:
    """Silence a monitor's new incidents for a time. Incidents still open when it ends are notified then."""
    config, now = store_config(config_path), time.time()
    found = config.monitor(monitor)
    if not length:
        raise click.UsageError("--for must be longer than 0s; rankmon incidents unsilence ends a silence")
    if length > LONGEST_SILENCE:
        most = format_duration(LONGEST_SILENCE)
        raise click.UsageError(f"--for must be {most} at most; to never hear of it, set `notify: [log]`")
    with stored(config) as store:
        longer = [s for s in store.alerts.silences(now) if s.monitor == monitor and s.until > now + length]
        if not longer:
            store.alerts.silence(monitor, now, now + length, by, note)
    if longer:
        held = max(longer, key=lambda s: s.until)
        raise InputError(
            f"{monitor} is already silenced for longer, until {utc(int(held.until))}{_by(held)}; "
            f"to end that first: rankmon incidents unsilence {monitor}"
        )
    by_prometheus = _BY_PROMETHEUS * (found.paging == "prometheus")
    click.echo(f"{monitor}: new incidents silenced until {utc(int(now + length))}; open ones go on{by_prometheus}")


_BY_PROMETHEUS = (
    "; Prometheus pages for it, so this needs a running daemon and rules that check "
    "rankmon_silenced_until_timestamp_seconds, as those in deploy/ do"
)


def _by(silence: Silence) -> str:
    return f" by {silence.author}" * bool(silence.author) + f": {silence.note}" * bool(silence.note)


@incidents.command()
@config_option
@click.argument("monitor")
def unsilence(config_path: Path, monitor: str) -> None:
    """End a monitor's silence now."""
    config = store_config(config_path)
    with stored(config) as store:
        ended = store.alerts.unsilence(monitor, time.time())
    if not ended:
        config.monitor(monitor)
    click.echo(f"{monitor}: {'no longer silenced' if ended else 'was not silenced'}")


def find(store: Store, incident: str) -> StoredIncident:
    found = store.alerts.incident(incident)
    if found is None:
        raise InputError(f"there is no incident {incident!r}; rankmon incidents list shows them")
    return found


def steps_of(found: StoredIncident, store: Store) -> list[Transition]:
    """Every change of an incident, and earlier suspicions on its matter. Raises StoreError."""
    about = found.incident
    every = store.alerts.transitions(about.monitor, about.began_at, about.closed_at)
    return [s for s in every if s.incident == about.id or (s.incident is None and _matter(s) == about.matter)]


def _matter(step: Transition) -> Matter:
    is_of_labels = step.evidence is not None and not step.evidence.verdict and step.evidence.judged == COVERAGE
    return "data" if is_of_labels else matter_of((step.rule, step.dimension, step.value))


def judged_until(found: Iterable[StoredIncident], store: Store) -> dict[str, int]:
    """Monitor -> end of its last judged window, seconds, for monitors with an open incident among `found`."""
    ends = {name: store.alerts.state(name).until for name in {s.incident.monitor for s in found if s.incident.is_open}}
    return {name: end for name, end in ends.items() if end is not None}


def line(stored_: StoredIncident, until: int | None = None) -> str:
    """An incident in one line.

    `until`: end of its monitor's last judged window, seconds: an open incident lasts until there.
    """
    from monitor.service.snapshot import lasted

    incident, length = stored_.incident, lasted(stored_, until)
    length = f", {'open for' if incident.is_open else 'lasted'} {length}" if length else ""
    first = next(iter(stored_.findings), None)
    of_verdict = first is not None and first.verdict and incident.matter != "quality"
    fell = "" if first is None else topic(first) if of_verdict else brief(first.judged)
    fell = fell if first is None or first.verdict else f"rule {first.rule}: {fell}"
    ack_ = "" if stored_.acknowledged_at is None else f", acknowledged by {stored_.acknowledged_by}"
    ack_ += f": {stored_.note}" if stored_.note else ""
    if stored_.label:
        ack_ += f", labelled {stored_.label} by {stored_.labelled_by}"
        ack_ += f": {stored_.label_note}" if stored_.label_note else ""
    return (
        f"{incident.id}  {incident.state:9} {incident.severity:8} {incident.monitor}  {fell}  "
        f"bad since {utc(incident.began_at)}, fired {utc(incident.opened_at)}{length}{ack_}"
    )


def text(stored_: StoredIncident, config: Config, why: str = "", called: str = CALLED) -> str:
    """The message on-call gets about an incident, as of now.

    `why`: reason of a withdrawal; `called`: how to invoke rankmon, see `words.command`.
    """
    incident = stored_.incident
    monitor = next((m for m in config.monitors if m.name == incident.monitor), None)
    page = config.web.page_url() if monitor is not None else ""
    runbook = monitor.runbook_url if monitor is not None else ""
    labels = monitor.labels if monitor is not None else ()
    about = About(incident.monitor, labels, runbook, page, called, OwnTemplates(config.templates))
    why = why or "what it judged no longer exists"
    return notification(incident.state, about, incident, stored_.findings, 0, reason=why).full_text


_OF_INCIDENT = ("id", "monitor", "state", "severity", "retrain", "began_at", "opened_at", "closed_at")
_OF_STORED = ("told", "acknowledged_at", "acknowledged_by", "note", "label", "labelled_by", "label_note")


def plain(stored_: StoredIncident) -> dict[str, Any]:
    """An incident as JSON data; instants in seconds since 1970."""
    found = {name: getattr(stored_.incident, name) for name in _OF_INCIDENT}
    found |= {name: getattr(stored_, name) for name in _OF_STORED}
    return found | {"findings": [f.plain() for f in stored_.findings]}
