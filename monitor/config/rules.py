"""Builds alert rules and channels from their shapes, and checks them against what they refer to."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import monitor.config.alert_shape as shape
from monitor.conditions.evidence import condition_names
from monitor.conditions.rules import COVERAGE, WEEK, Baseline, Drop, Floor, Rule, is_beyond
from monitor.config.channels import AlertmanagerConfig, ChannelConfig, WebhookConfig
from monitor.config.fields import Amount, http_address
from monitor.config.report import Report, Where, nearest
from monitor.config.scope import Scope
from monitor.config.urls import secret
from monitor.measures.measure import SPECS, Empty, Measure, parse
from monitor.types import Judgments, Monitor, format_duration

LOG = "log"
LEAST_HOLD = 300
"""Seconds that Alertmanager has to believe an alert at least: several reminders may be late or lost."""

Steps = tuple[str | int, ...]


def build_rules(scope: Scope, monitor: Monitor) -> tuple[Rule, ...]:
    """The alert rules of a monitor; what is wrong with one is reported, and it is left out."""
    found: dict[str, Rule] = {}
    for index, alert in enumerate(scope.shape.alerts):
        if alert.name in condition_names():
            scope.refuse(f"{alert.name!r} is the name of a verdict; take another", "alerts", index, "name")
        elif alert.name in found:
            scope.refuse(f"{alert.name!r} is the name of a rule above already; take another", "alerts", index, "name")
        elif (rule := _rule(scope, monitor, alert, index)) is not None:
            found[alert.name] = rule
    return tuple(found.values())


def _rule(scope: Scope, monitor: Monitor, alert: shape.Alert, index: int) -> Rule | None:
    problems = list(_problems(monitor, alert))
    for steps, text in problems:
        scope.refuse(text, "alerts", index, *steps)
    if problems:
        return None
    return Rule(
        name=alert.name,
        measure=_measure(monitor, alert.measure),
        window=alert.window or monitor.windows[0],
        limit=_limit(alert),
        lasting=alert.lasting,
        resolve_lasting=alert.lasting if alert.resolve.lasting is None else alert.resolve.lasting,
        min_requests=alert.min_requests,
        severity=alert.severity,
        retrain=alert.retrain,
        overall=alert.overall,
        slices=tuple(_slice(text) for text in alert.slices),
    )


def _measure(monitor: Monitor, text: str) -> Measure | None:
    """The measure of that text; None for the label coverage. Raises ValueError if there is no such measure.

    Where labels tell what people did, empty requests count as 0 unless the text says otherwise: a better list brings
    clicks where there were none, mostly further down, by which the mean of the clicked lists alone falls.
    """
    empty: Empty | None = None if isinstance(monitor.recipe, Judgments) else "zero"
    return None if text == COVERAGE else parse(text, monitor.recipe.bound, empty)


def _limit(alert: shape.Alert) -> Floor | Drop:
    (fixed, change), (fixed_back, change_back) = _limits_of(alert)
    if fixed is not None:
        return Floor(fixed, fixed if fixed_back is None else fixed_back)
    assert change is not None  # the shape holds one of them
    assert alert.baseline is not None
    drop, back_at = change, change_back or change
    baseline = alert.baseline
    pinned = None if baseline.pinned is None else (baseline.pinned.since, baseline.pinned.until)
    compared = Baseline(baseline.trailing or 0, baseline.weeks or 0, pinned)
    return Drop(drop.number, back_at.number, drop.relative, compared)


def _limits_of(alert: shape.Alert) -> list[tuple[float | None, Amount | None]]:
    """The fixed limit and the change against a baseline, where it fires and where it is well again."""
    return [tuple(getattr(one, key) for key in alert.keys) for one in (alert, alert.resolve)]


def _slice(text: str) -> tuple[str, str | None]:
    dimension, equals, value = text.partition("=")
    return dimension, value if equals else None


# ---- checks ------------------------------------------------------------------------------------------------------


def _problems(monitor: Monitor, alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    yield from _about_measure(monitor, alert)
    yield from _about_times(monitor, alert)
    yield from _about_limit(alert)
    yield from _about_baseline(monitor, alert)
    yield from _about_slices(monitor, alert)


def _about_measure(monitor: Monitor, alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    try:
        measure = _measure(monitor, alert.measure)
    except ValueError as error:
        yield ("measure",), str(error)
        return
    if measure is None:
        yield from _about_fall(alert, COVERAGE)
        return
    if measure.kernel not in {m.kernel for m in monitor.measures}:
        known = ", ".join([*map(str, monitor.measures), COVERAGE])
        yield (
            ("measure",),
            f"{alert.measure!r} is not computed; add it to `measures`, or judge one of {known}",
        )
    unit, rises = SPECS[measure.name].unit, alert.keys == ("ceiling", "rise")
    if measure.is_better_lower != rises:
        better, keys = ("higher", "`floor:` or `drop:`") if rises else ("lower", "`ceiling:` or `rise:`")
        yield ("measure",), f"{alert.measure!r} is better when it is {better}; give the rule a {keys}"
    if unit == "ratio":
        yield from _about_fall(alert, measure.name)
    fixed = getattr(alert, alert.keys[0])
    if unit == "ratio" and fixed is not None and (fixed >= 1 if rises else fixed > 1):
        when = "would never" if rises else "would always"
        yield (alert.keys[0],), f"{fixed:g} is above 1, the most that {measure.name} can be; it {when} fire"


def _about_fall(alert: shape.Alert, judged: str) -> Iterator[tuple[Steps, str]]:
    """What lies between 0 and 1 falls by less than 1, if that is given as a difference, and rises to no more."""
    if alert.resolve.floor is not None and alert.resolve.floor > 1:
        text = f"{alert.resolve.floor:g} is above 1, the most that {judged} can be; it would never resolve"
        yield ("resolve", "floor"), text
    (_, change), (_, back) = _limits_of(alert)
    key = alert.keys[1]
    for steps, fall in (((key,), change), (("resolve", key), back)):
        if fall is not None and not fall.relative and fall.number >= 1:
            meant = f"did you mean {fall.number:g}%?" if fall.number < 100 else "give a share such as 7%, or 0.05"
            way = "rise" if key == "rise" else "fall"
            yield (
                steps,
                f"{fall.number:g} as a difference is more than {judged} can {way}, it would never fire; {meant}",
            )


def _about_times(monitor: Monitor, alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    if alert.window is not None and alert.window not in monitor.windows:
        known = ", ".join(map(format_duration, monitor.windows))
        yield ("window",), f"{format_duration(alert.window)} is none of this monitor's windows ({known}); add it there"
    for steps, lasting in ((("for",), alert.lasting), (("resolve", "for"), alert.resolve.lasting)):
        if lasting is not None and lasting % monitor.bucket:
            bucket = format_duration(monitor.bucket)
            yield steps, f"{format_duration(lasting)} is no whole number of buckets ({bucket}); each is one evaluation"


def _about_limit(alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    (fixed, change), (fixed_back, change_back) = _limits_of(alert)
    fixed_key, change_key = alert.keys
    under, worse, way = ("over", "above", "lower") if change_key == "rise" else ("under", "below", "raise")
    key, where = (fixed_key, "where it is") if fixed is not None else (change_key, f"how far {under} the baseline is")
    for other in alert.resolve.given(*(k for k in shape.LIMITS if k != key)):
        yield ("resolve", other), f"the rule has a {key}; say with `{key}:` {where} well again"
    if alert.floor is not None and alert.floor <= 0:
        yield ("floor",), f"nothing is below {alert.floor:g}, so it would never fire; give more than 0"
    if alert.measure == COVERAGE and alert.floor is not None and alert.floor > 1:
        yield ("floor",), f"{alert.floor:g} is above 1, the most that a share can be; it would always fire"
    if fixed is not None and fixed_back is not None and is_beyond(fixed_back, fixed, change_key == "rise"):
        said = f"{fixed_back:g} is {worse} the {fixed_key} ({fixed:g}), where it fires; {way} it"
        yield ("resolve", fixed_key), said
    if change is not None and change_back is not None:
        if change.relative != change_back.relative:
            said = f"the rule's {change_key} is of the other kind; give both as a share (%) or as a difference"
            yield ("resolve", change_key), said
        elif change_back.number > change.number:
            yield ("resolve", change_key), f"is larger than the {change_key} at which the rule fires; lower it"


def _about_baseline(monitor: Monitor, alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    baseline, window = alert.baseline, alert.window or monitor.windows[0]
    if baseline is None:
        return
    steps = ("baseline",)
    if baseline.trailing is not None and baseline.trailing < window:
        text = f"{format_duration(baseline.trailing)} is shorter than the window ({format_duration(window)})"
        yield (*steps, "trailing"), f"{text}, too little history to compare with; raise it to e.g. 21d"
    if baseline.weeks is not None and window > WEEK:
        yield (*steps, "weeks"), "the window is longer than a week, so the weeks would overlap; use `trailing:`"
    if baseline.pinned is not None:
        length = baseline.pinned.until - baseline.pinned.since
        if length <= 0:
            yield (*steps, "pinned"), "ends before it begins; swap `from` and `to`"
        elif length < window:
            text = f"is shorter than the window ({format_duration(window)}), too little history to compare with"
            yield (*steps, "pinned"), f"{text}; widen it"


def _about_slices(monitor: Monitor, alert: shape.Alert) -> Iterator[tuple[Steps, str]]:
    dimensions = [s.dimension for s in monitor.slices]
    for place, text in enumerate(alert.slices):
        dimension, value = _slice(text)
        if any(s.dimension == dimension and s.column == monitor.rankings.query for s in monitor.slices):
            yield (
                ("slices", place),
                "is the query's column, whose text would stand in notifications; judge other slices",
            )
        if dimension not in dimensions:
            remedy = nearest(dimension, dimensions) if dimensions else "this monitor has no `slices:`; add them"
            yield ("slices", place), f"there is no dimension {dimension!r}; {remedy}"
        elif text in alert.slices[:place]:
            yield ("slices", place), f"{text!r} is there twice; keep one"
        elif value == "":
            yield ("slices", place), f"names no value after the =; write e.g. {dimension}=mobile, or just {dimension}"
    if not alert.overall and not alert.slices:
        yield ("overall",), "nothing would be judged; name `slices:`, or take `overall: false` away"


def check_telling(scope: Scope, channels: Collection[str]) -> None:
    """A monitor's channels exist, and it pages by one path only."""
    notify, retrain = scope.setting("notify"), scope.setting("retrain")
    for index, text in channel_faults(notify or (), channels):
        scope.refuse_setting("notify", text, index)
    for index, text in channel_faults(retrain.notify if retrain is not None else (), channels):
        scope.refuse_setting("retrain", text, "notify", index)
    if scope.setting("paging") == "prometheus" and any(name != LOG for name in notify or ()):
        text = (
            "Prometheus is to page, so rankmon must not: one of the two would be doubled; keep [log], or `paging: push`"
        )
        scope.refuse_setting("notify", text)


def channel_faults(names: Sequence[str], channels: Collection[str]) -> Iterator[tuple[int, str]]:
    """(index, what is wrong) of the names of channels that there are not, or that are there twice."""
    for index, name in enumerate(names):
        if name not in channels:
            yield index, f"there is no channel {name!r}; {nearest(name, channels)}"
        elif name in names[:index]:
            yield index, f"{name!r} is there twice; keep one"


# ---- channels ----------------------------------------------------------------------------------------------------


def build_channels(shapes: Mapping[str, shape.Channel], report: Report) -> tuple[ChannelConfig, ...]:
    """The channels with their secrets; what is wrong with one is reported, and it is left out."""
    found = []
    for name, channel in shapes.items():
        where: Where = ("channels", name)
        if name == LOG:
            report.add(where, "is the name of the log, which is always there; take another")
            continue
        built: ChannelConfig | None
        if channel.webhook is not None:
            built = _webhook(name, channel.webhook, (*where, "webhook"), report)
        else:
            assert channel.alertmanager is not None  # the shape holds one of the two
            built = _alertmanager(name, channel.alertmanager, (*where, "alertmanager"), report)
        if built is not None:
            found.append(built)
    return tuple(found)


def _webhook(name: str, webhook: shape.Webhook, where: Where, report: Report) -> WebhookConfig | None:
    url = webhook.url if webhook.url_file is None else _address(webhook.url_file, (*where, "url_file"), report)
    key = _given_or_read(webhook.secret, webhook.secret_file, (*where, "secret_file"), report)
    ca_file = _certificates(webhook.ca_file, where, report)
    if url is None:
        return None
    return WebhookConfig(name, url, key, ca_file, webhook.timeout, webhook.give_up_after)


def _alertmanager(name: str, one: shape.Alertmanager, where: Where, report: Report) -> AlertmanagerConfig:
    for index, url in enumerate(one.urls):
        if url in one.urls[:index]:
            report.add((*where, "urls", index), "is there twice; keep one")
        if urlsplit(url).query or urlsplit(url).fragment:
            text = "goes on with a ? or #, behind which there is no API; give the address without that"
            report.add((*where, "urls", index), text)
    if one.hold < LEAST_HOLD:
        text = f"{format_duration(one.hold)} is so short that alerts would end between two reminders, a minute apart"
        report.add((*where, "hold"), f"{text}; give {format_duration(LEAST_HOLD)} or more, best days")
    return AlertmanagerConfig(
        name,
        tuple(one.urls),
        one.username,
        _given_or_read(one.password, one.password_file, (*where, "password_file"), report),
        _given_or_read(one.bearer_token, one.bearer_token_file, (*where, "bearer_token_file"), report),
        _certificates(one.ca_file, where, report),
        one.timeout,
        one.give_up_after,
        one.hold,
    )


def _given_or_read(given: str | None, file: str | None, where: Where, report: Report) -> str | None:
    return given if file is None else secret(file, where, report)


def _address(file: str, where: Where, report: Report) -> str | None:
    text = secret(file, where, report)
    try:
        return None if text is None else http_address(text.strip())
    except ValueError:
        report.add(where, "the file holds no web address; write e.g. https://hooks.example.com/rankmon into it")
        return None


def _certificates(file: str | None, where: Where, report: Report) -> str | None:
    """Path of a file with certificates to trust, which are looked at."""
    if file is None:
        return None
    path, place = report.file.parent / file, (*where, "ca_file")
    try:
        ssl.create_default_context(cafile=str(path))
    except FileNotFoundError:
        report.add_no_file(place, file)
    except ssl.SSLError:
        report.add(place, f"the file {path} holds no certificate; give one in PEM form (-----BEGIN CERTIFICATE-----)")
    except OSError as error:
        report.add(place, f"the file {path} cannot be read ({error.strerror}); let this user read it")
    return str(path)


def reach(rules: Sequence[Rule]) -> int:
    """Seconds that the rules look back on."""
    return max((rule.reach for rule in rules), default=0)
