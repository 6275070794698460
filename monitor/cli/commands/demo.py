"""Simulate a shop with 35 days of searches, watch its ranking fall, and keep running live."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa

from monitor.cli.commands.backfill import fill
from monitor.cli.commands.incidents import judged_until, line, text
from monitor.cli.commands.run import serve
from monitor.cli.commands.series import series_table, stored_span, write
from monitor.cli.common import called, command, progress
from monitor.clock import ManualClock, ReplayClock
from monitor.config import Config, load
from monitor.config.listening import parse_listen
from monitor.demo.pager import Pager
from monitor.demo.shop import Shop, Story, create_schema
from monitor.errors import InputError
from monitor.logs import set_up
from monitor.messages import words
from monitor.series.partials import read_as
from monitor.service.app import App
from monitor.types import OVERALL
from monitor.units import DAY, HOUR
from monitor.web.server import bound

FILES = ("rankmon.yaml", "rankmon.db", "shop.db")
"""Files that a demo writes into its folder."""

STEP = timedelta(minutes=5)
"""Simulated time between deliveries of live traffic."""

LEAP = timedelta(hours=6)
"""Simulated time between deliveries while the whole story is in the past."""

PAGE = "Page: "
COPIED = ("More: ", "To count the labels ", PAGE)
"""First words of lines that hold a command or an address."""

CONFIG = (Path(__file__).parents[2] / "demo" / "rankmon.yaml").read_text(encoding="utf-8")
"""Template with `{folder}`, `{listen}`, `{level}` and `{pager}` for `str.format`."""


@command
@click.option("--once", is_flag=True, help="Run the whole story at once, and exit.")
@click.option(
    "--speed", type=click.FloatRange(1, 100_000), default=600.0, show_default=True, help="Speed of the live shop."
)
@click.option("--listen", default="127.0.0.1:9184", show_default=True, help="Address for the page and /metrics.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="New folder that keeps both databases."
)
def demo(once: bool, speed: float, listen: str, folder: Path | None) -> None:
    try:
        parse_listen(listen)
    except ValueError as error:
        raise click.UsageError(f"--listen: {error}") from error
    if not once:
        bound(*parse_listen(listen), 'use a free one, e.g. make demo ARGS="--listen 127.0.0.1:0"').close()
    if folder is not None:
        _make(folder)
        _demo(folder.absolute(), once, speed, listen, called(folder / "rankmon.yaml"))
        click.echo(f"\nAll of it is kept: {words.command(called(folder / 'rankmon.yaml'), 'incidents list')}")
        return
    with tempfile.TemporaryDirectory(prefix="rankmon-demo-") as made:
        # A story in the past is read once it is complete.
        _demo(Path(made), once, speed, listen, "" if once else called(Path(made) / "rankmon.yaml"))
    click.echo("\nNothing is kept. To look closer, e.g. with explain-incident, keep it: rankmon demo --folder PATH,")
    click.echo('or make demo ARGS="--once --folder PATH".')


def _make(folder: Path) -> None:
    """Raises InputError if the folder cannot be made, or holds what would be overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = [name for name in FILES if (folder / name).exists()]
    except OSError as error:
        raise InputError(f"{folder} cannot be used: {error.strerror}; give another --folder") from error
    if known:
        raise InputError(f"{folder} already holds {known[0]}, which the demo would write; give --folder a new folder")


def _demo(folder: Path, once: bool, speed: float, listen: str, call: str) -> None:
    click.echo("This is a SIMULATED shop: people with taste, a position-based click model, purchases. Nothing is real.")
    story = _story(datetime.now(UTC))
    shop, engine, pager = Shop(story=story), _shop_database(folder), Pager(partial(_show_page, is_served=not once))
    _fill(shop, engine)
    path, level = folder / "rankmon.yaml", "warning" if once else "info"
    path.write_text(CONFIG.format(folder=folder, listen=listen, level=level, pager=pager.url), encoding="utf-8")
    set_up("warning", "text")
    config, clock = load(path, os.environ), ManualClock(story.history_end.timestamp())
    app = App(config, clock, call)
    app.prepare()
    _backfill(app, story.start, story.history_end)
    _print_series(app, story.rolled_out)
    _print_incidents(app, is_served=not once)
    if once:
        _tell_the_rest(app, shop, engine, clock)
    app.close()
    if not once:
        _go_live(config, shop, engine, speed, call)
    pager.close()


def _story(now: datetime) -> Story:
    """A story wholly in the past: no command accepts a future time."""
    spans = Story(start=now)
    told = _acts(spans)[-1].ends + timedelta(days=1) + LEAP - spans.history_end
    day = (now - told).replace(hour=0, minute=0, second=0, microsecond=0)
    return Story(start=day - timedelta(days=day.weekday() + spans.history_days))  # on a Monday


def _shop_database(folder: Path) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{folder}/shop.db", connect_args={"timeout": 30})
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    create_schema(engine)
    return engine


def _fill(shop: Shop, engine: sa.Engine) -> None:
    story = shop.story
    with progress() as bar:
        task = bar.add_task("filling the shop: days", total=story.history_days)

        def tell(until: datetime) -> None:
            bar.update(task, completed=(until - story.start) / timedelta(days=1))

        requests = shop.fill(engine, story.start, story.history_end, tell, events_until=story.history_end)
    click.echo(f"{requests:,} searches of 20 items since {story.start:%Y-%m-%d}, in {engine.url.database}")


def _backfill(app: App, since: datetime, until: datetime) -> None:
    for runner in app.runners.values():
        fill(app, runner.monitor, (int(since.timestamp()), int(until.timestamp())))


def _print_series(app: App, rolled_out: datetime) -> None:
    monitor = next(iter(app.runners.values())).monitor
    span = stored_span(app.store, monitor)
    if span is None:
        raise RuntimeError("the backfill of the demo stored nothing")
    table = series_table(app.store, monitor, monitor.measures[:1], (DAY,), span, DAY)
    write(table, "table", None)
    click.echo()
    for bar in _bars(table["end"].dt.strftime("%m-%d").tolist(), table["value"].tolist(), rolled_out):
        click.echo(bar)
    _print_fall(app, rolled_out, span[1])


def _bars(days: list[str], values: list[float], rolled_out: datetime) -> list[str]:
    lines = []
    for day, value in zip(days, values, strict=True):
        bar = "█" * round((value - 0.6) / 0.3 * 60)
        mark = "  <- model v2 goes live" if day == (rolled_out + timedelta(days=1)).strftime("%m-%d") else ""
        lines.append(f"{day}  {value:.3f} {bar}{mark}")
    return lines


def _print_fall(app: App, rolled_out: datetime, end: int) -> None:
    monitor = next(iter(app.runners.values())).monitor
    measure, change = monitor.measures[0], int(rolled_out.timestamp())
    history = app.store.history(monitor.definition(measure), 0, end)
    before, after = history.between(0, change), history.between(change, end)
    click.echo(f"\n{measure} before and after v2 went live:")
    for key in history.slices:
        if key == OVERALL or key[0] == "device":
            was, now = (float(read_as(measure, h.slice(key).sum(axis=0))) for h in (before, after))
            name = "overall" if key == OVERALL else f"{key[0]} = {key[1]}"
            click.echo(f"  {name:18} {was:.3f} -> {now:.3f}  ({100 * (now / was - 1):+.1f} %)")


def _print_incidents(app: App, is_served: bool) -> None:
    some = app.store.alerts.incidents()
    ends = judged_until(some, app.store)
    for found in some:
        click.echo(f"\nIncident {line(found, ends.get(found.incident.monitor))}")
        click.echo("\n".join(_lines(text(found, app.config, called=app.called), is_served)))


def _show_page(page: dict[str, Any], is_served: bool) -> None:
    kind = "RETRAIN" if page["kind"] == "retrain" else f"PAGE ({page['severity']}, {page['kind']})"
    lines = [page["title"], "", *_lines(page["text"], is_served)]
    wrapped = ([text] if text.startswith(COPIED) else textwrap.wrap(text, 96) or [""] for text in lines)
    framed = [f"  ┃ {part}" for parts in wrapped for part in parts]
    click.echo("\n".join(["", f"  ┏━ {kind} ━━", *framed, "  ┗━━"]))


def _lines(message: str, is_served: bool) -> list[str]:
    found = [part if is_served else re.sub(rf"{PAGE}\S+ *", "", part) for part in message.splitlines()]
    return [part for part, was in zip(found, message.splitlines(), strict=True) if part or not was]


def _tell_the_rest(app: App, shop: Shop, engine: sa.Engine, clock: ManualClock) -> None:
    """Notify what is open, roll v2 back, then two troubles that are not the model's: days in seconds."""
    story, at = shop.story, shop.story.history_end
    (runner,) = app.runners.values()
    app.sender.start()
    click.echo("\nThe daemon takes over. Open now:")
    runner.run()
    acts = _acts(story)
    while at < acts[-1].ends + timedelta(days=1):
        app.sender.settle(10)
        for act in acts:
            if at <= act.begins < at + LEAP:
                click.echo(f"\n{act.begins:%Y-%m-%d %H:%M}: {act.text}")
        shop.advance(engine, at, at + LEAP)
        at += LEAP
        clock.time = at.timestamp()
        runner.run()
    app.sender.settle(10)
    app.sender.stop()
    click.echo("")
    _print_incidents(app, is_served=False)
    _print_mix(app, acts[-1])


@dataclass(frozen=True)
class _Act:
    begins: datetime
    ends: datetime
    text: str


def _acts(story: Story) -> list[_Act]:
    outage, campaign = story.history_end + story.outage_after, story.history_end + story.campaign_after
    lasts = int(story.outage_lasts.total_seconds() // HOUR)
    return [
        _Act(story.rolled_back, story.rolled_back, "v2 is rolled back, v1 ranks again."),
        _Act(outage, outage + story.outage_lasts, f"the event pipeline breaks, and {lasts} h of clicks are lost."),
        _Act(campaign, campaign + story.campaign_lasts, "a campaign brings tablets, which were never ranked well."),
    ]


def _print_mix(app: App, campaign: _Act) -> None:
    (name,) = app.runners
    since, until = int(campaign.begins.timestamp()), int((campaign.ends + timedelta(days=1)).timestamp())
    found = [v for v in app.store.verdicts.between(name, since, until) if v.mix_shifted]
    if found:
        worst = min(found, key=lambda verdict: verdict.mix_effect)
        moved = f"the mix of devices moved the mean by {100 * worst.mix_effect:+.1f} %"
        begins = words.utc(found[0].end)
        click.echo(f"\nNo page for the campaign: from {begins} on {moved}, but each device ranks as before.")


def _go_live(config: Config, shop: Shop, engine: sa.Engine, speed: float, call: str) -> None:
    set_up(config.log.level, config.log.format)
    clock = ReplayClock(shop.story.history_end.timestamp(), speed)
    app = App(config, clock, call, "Demo: all data are simulated")
    feeder = threading.Thread(target=_feed, args=(app, shop, engine, clock), name="shop", daemon=True)
    feeder.start()
    click.echo(f"\nLive at {speed:g} times real speed. Coming up, in simulated time:")
    for act in _acts(shop.story):
        click.echo(f"  {act.begins:%Y-%m-%d %H:%M}  {act.text}")
    serve(app, announce=True)
    feeder.join()


def _feed(app: App, shop: Shop, engine: sa.Engine, clock: ReplayClock) -> None:
    at = shop.story.history_end
    while not app.stopping.is_set():
        now = datetime.fromtimestamp(clock.now(), UTC)
        while at + STEP <= now and not app.stopping.is_set():
            shop.advance(engine, at, at + STEP)
            at += STEP
        app.stopping.wait(max(0.05, STEP.total_seconds() / clock.speed / 4))
