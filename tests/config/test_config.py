"""The configuration: what is read, what is refused with which message, and that no secret shows."""

import dataclasses
import doctest
import json
import re
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from monitor import fields
from monitor.cli.common import store_config
from monitor.conditions.rules import Drop
from monitor.config import Config, json_schema, load
from monitor.config.listening import parse_listen
from monitor.errors import ConfigError, InputError
from monitor.notify import channel_kinds
from monitor.series.partials import admit
from monitor.types import ITEM, OTHER, PLACE, Column, EventRule, Events, Judgments, Monitor, Position, Slice, TimeColumn

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "config" / "rankmon.schema.json"
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))
INVALID = sorted((ROOT / "tests" / "invalid_config").glob("*.yaml"))
SECRET_WORDS = ("hunter", "31337")

MINIMAL = """\
store: {url: sqlite:///rankmon.db}
sources:
  shop: {url: sqlite:///shop.db}
monitors:
  - name: search
    source: shop
    rankings:
      table: search_log
      request: request_id
      item: item_id
      position: position
      time: served_at
    relevance:
      column: {grade: label}
    measures: [ndcg@10]
"""
COLUMN = "      column: {grade: label}\n"
EVENTS = """\
      events:
        table: clicks
        request: request_id
        item: item_id
        time: clicked_at
        type: kind
        value: amount
        rules: [{type: click, grade: 1}, {type: rating, minimum: 2, grade: value}]
        attribution: 7d
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration: the minimal one with texts replaced, or a complete text."""

    def _write(*changes: tuple[str, str], text: str = MINIMAL, name: str = "rankmon.yaml") -> Path:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture
def read(write: Write) -> Callable[..., Config]:
    """Loads what `write` writes."""

    def _read(*changes: tuple[str, str], text: str = MINIMAL, **environ: str) -> Config:
        return load(write(*changes, text=text), environ)

    return _read


@pytest.fixture
def one(read: Callable[..., Config]) -> Callable[..., Monitor]:
    """Loads a configuration and returns its only monitor."""

    def _one(*changes: tuple[str, str], **environ: str) -> Monitor:
        (monitor,) = read(*changes, **environ).monitors
        return monitor

    return _one


def also(lines: str) -> tuple[str, str]:
    """The change that adds keys to the monitor."""
    last = "    measures: [ndcg@10]\n"
    return last, last + "".join(f"    {line}\n" for line in lines.splitlines())


def problems(path: Path, **environ: str) -> list[str]:
    """The mistakes in a file, each without the folder's path."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [p.replace(f"{path.parent}/", "") for p in caught.value.problems]


# Mistakes


@cache
def refusal(path: Path) -> ConfigError:
    """The error of an invalid file, loaded once for all tests."""
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return caught.value


def expected(path: Path) -> str:
    """The message in a file's first line; its placeholders for channel kinds are filled in, so new kinds fit."""
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# expect: ")
    *others, last = (f"`{kind}:`" for kind in sorted(channel_kinds()))
    message = first.removeprefix("# expect: ").replace("{channel kinds}", ", ".join(sorted(channel_kinds())))
    return message.replace("{one of the channel kinds}", f"{', '.join(others)} or {last}")


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_each_invalid_file_gives_its_expected_message(path: Path) -> None:
    found = refusal(path)
    assert str(found) == "\n".join(found.problems)
    assert [p.replace(f"{path.parent}/", "") for p in found.problems] == [expected(path)]


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_no_error_or_traceback_shows_a_secret(path: Path) -> None:
    shown = "".join(traceback.format_exception(refusal(path)))
    assert not [word for word in SECRET_WORDS if word in shown]


def test_at_least_100_invalid_files_are_tested() -> None:
    assert len(INVALID) >= 100


ALL_AT_ONCE = """\
store: {url: mysql://h/x}
web: {listen: 9184, port: 80}
sources:
  shop: {url: "${NOT_SET}", statement_timeout: 5}
  shop2: {url: sqlite:///b.db, password_file: missing}
defaults: {windows: [24h]}
monitors:
  - name: search
    source: shpo
    colour: red
    rankings: {table: t, request: r, item: i, position: p, time: {column: t, timezone: Nowhere}}
    relevance: {column: {grade: label}}
    measures: [ndcg@10]
  - name: search
    source: nothing
    bucket: 7h
    rankings: {table: t, request: r, item: i, position: p, time: t}
    relevance: {judgments: {table: j, query: q, item: i, grade: g}}
    measures: [ndcg@10, ndgc@10]
    unknown: 1
"""


def test_all_mistakes_are_reported_together_in_file_order(write: Write) -> None:
    places = [p.split(": ")[:2] for p in problems(write(text=ALL_AT_ONCE))]
    assert places == [
        ["rankmon.yaml:1", "store.url"],
        ["rankmon.yaml:2", "web.listen"],
        ["rankmon.yaml:2", "web.port"],
        ["rankmon.yaml:4", "sources.shop.url"],
        ["rankmon.yaml:4", "sources.shop.statement_timeout"],
        ["rankmon.yaml:5", "sources.shop2.password_file"],
        ["rankmon.yaml:9", "monitors[0].source"],
        ["rankmon.yaml:10", "monitors[0].colour"],
        ["rankmon.yaml:11", "monitors[0].rankings.time"],
        ["rankmon.yaml:14", "monitors[1].name"],
        ["rankmon.yaml:15", "monitors[1].source"],
        ["rankmon.yaml:16", "monitors[1].bucket"],
        ["rankmon.yaml:17", "monitors[1].rankings.query"],
        ["rankmon.yaml:19", "monitors[1].measures[1]"],
        ["rankmon.yaml:20", "monitors[1].unknown"],
    ]


def bare_of_rules(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(configuration without rules, alert rules) of a file with one monitor."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config, config["monitors"][0].pop("alerts", [])


RULED = ROOT / "tests" / "invalid_config" / "alert_window_unknown.yaml"
WRONG_RULES = [
    path
    for path in INVALID
    if path.stem.startswith("alert_") and "alerts[0]" in path.read_text(encoding="utf-8")
    if bare_of_rules(path)[0] == bare_of_rules(RULED)[0]
]
WRONG_VALUES = {
    "name": "two words", "source": 5, "rankings": {"table": "t", "request": ""}, "relevance": {"column": {"grad": "g"}},
    "measures": [], "windows": ["24"], "bucket": "1", "slices": [{"column": 1}], "labels": {"team": 1},
    "drift": {"mix_by": 5}, "lookback": "x", "refresh": "0s", "notify": "log", "engine": "fast", "paging": "mail",
    "retrain": {"notify": 1}, "retention": {"retain": 1}, "min_completeness": 2,
    "measures[]": ["ndcg@10", "ndgc@10", "dcg@5"],
}  # fmt: skip


def with_rules(write: Write, *rules: Path, **changes: Any) -> set[str]:
    """The mistakes in a monitor with the rules of these files and these values, without line numbers."""
    config = bare_of_rules(RULED)[0]
    monitor = config["monitors"][0] | {name.removesuffix("[]"): value for name, value in changes.items()}
    numbered = enumerate(bare_of_rules(path)[1][0] for path in rules)
    monitor["alerts"] = [{**rule, "name": f"rule-{number}"} for number, rule in numbered]
    found = problems(write(text=yaml.safe_dump({**config, "monitors": [monitor]})))
    return {re.sub(r"^rankmon.yaml:\d+: ", "", text) for text in found}


def test_mistakes_in_several_rules_are_reported_together(write: Write) -> None:
    assert len(WRONG_RULES) > 20
    each = [with_rules(write, path) for path in WRONG_RULES]
    wanted = {
        text.replace("alerts[0]", f"alerts[{number}]").replace("rule-0", f"rule-{number}")
        for number, texts in enumerate(each)
        for text in texts
    }
    assert with_rules(write, *WRONG_RULES) == wanted


def test_all_mistakes_in_one_rule_are_reported(write: Write) -> None:
    rule = {"name": "r", "measure": "mrr@10", "window": "2h", "drop": "5%", "slices": ["countri"]}
    config = bare_of_rules(RULED)[0]
    monitor = config["monitors"][0] | {"alerts": [rule]}
    found = problems(write(text=yaml.safe_dump({**config, "monitors": [monitor]})))
    places = {text.split(": ")[1].removeprefix("monitors[0].") for text in found}
    assert places == {"alerts[0].measure", "alerts[0].window", "alerts[0]", "alerts[0].slices[0]"}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_an_unreadable_value_neither_hides_nor_invents_mistakes_in_rules(write: Write, name: str) -> None:
    by_itself, of_rules = with_rules(write, **{name: WRONG_VALUES[name]}), with_rules(write, *WRONG_RULES)
    together = with_rules(write, *WRONG_RULES, **{name: WRONG_VALUES[name]})
    assert together - of_rules == by_itself
    hidden = of_rules - together
    needed = {"measures[]", "measures", "windows", "bucket", "slices", "rankings", "relevance"}
    assert name in needed or not hidden
    assert len(hidden) <= 5


def test_references_to_a_monitor_or_channel_with_a_mistake_stay_valid(write: Write) -> None:
    path = write(also("bucket: 1"))
    report, channel = "{channels: [mail], monitors: [search], at: '08:00', zone: UTC}", "{mail: {email: {host: 5}}}"
    path.write_text(f"{path.read_text()}reports: [{report}]\nchannels: {channel}\n", encoding="utf-8")
    found = [text.split(": ")[1] for text in problems(path)]
    assert {text.partition(".")[0] for text in found} == {"channels", "monitors[0]"}


def test_an_unknown_key_does_not_hide_a_duplicate_name(write: Write) -> None:
    twice = MINIMAL + MINIMAL[MINIMAL.index("  - name") :].replace("source:", "sauce: 1\n    source:")
    assert [p.split(": ")[1] for p in problems(write(text=twice))] == ["monitors[1].name", "monitors[1].sauce"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    remedy = "no such file; name rankmon's configuration with --config or RANKMON_CONFIG"
    assert problems(tmp_path / "none.yaml") == [f"none.yaml: {remedy}"]


def test_a_folder_is_refused_as_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    assert "cannot be read (Is a directory)" in problems(tmp_path / "conf")[0]


def test_a_file_that_is_not_utf8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"# a\n# b\n# caf\xe9\n")
    assert problems(path) == ["latin.yaml:3: is not written in UTF-8; save the file as UTF-8"]


def test_a_control_character_is_refused_with_the_line(write: Write) -> None:
    path = write(("request_id", "request\x01id"))
    assert problems(path) == ["rankmon.yaml:9: contains a control character; remove it"]


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: " + "[" * 5000, "a: &a {<<: *a}"])
def test_a_recursive_or_too_deep_file_is_refused(write: Write, text: str) -> None:
    assert problems(write(text=text))


def test_an_alias_bomb_is_refused(write: Write) -> None:
    bomb = "a: &a0 [x]\n" + "".join(f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(12))
    assert "is too large" in problems(write(text=bomb))[-1]


def test_a_merge_that_is_not_a_mapping_is_refused(write: Write) -> None:
    assert "<< takes a mapping" in problems(write(also("<<: [a, b]")))[0]


def test_a_boolean_is_refused_as_a_number(write: Write) -> None:
    path = write(("position: position", "position: {column: position, base: true}"), also("min_completeness: true"))
    assert [p.split(": ")[1] for p in problems(path)] == [
        "monitors[0].rankings.position.base",
        "monitors[0].min_completeness",
    ]


def test_the_model_version_slice_counts_towards_the_slice_limit(one: Callable[..., Monitor]) -> None:
    nine = also("slices: [a, b, c, d, e, f, g, h, i]")
    assert len(one(nine, ("time: served_at", "time: served_at\n      model_version: model")).slices) == 10


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99999) | st.floats() | st.text(max_size=9) | st.just("${X}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
FULL = (
    MINIMAL.replace(COLUMN, EVENTS) + "    slices: [{column: device, as: d}]\n    labels: {a: b}\n    windows: [24h]\n"
)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(p for key, value in inner for p in _paths(value, (*path, key)))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(_paths(yaml.safe_load(FULL))[1:]), junk=JUNK)
@example(where=("sources", "shop", "url"), junk="sqlite:///other.db")
def test_any_junk_value_is_accepted_or_refused_with_a_message(where: Any, junk: Any, tmp_path: Path) -> None:
    data = yaml.safe_load(FULL)
    holder = data
    for step in where[:-1]:
        holder = holder[step]
    holder[where[-1]] = junk
    path = tmp_path / "rankmon.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    refused = _mistakes(path)
    assert all(p.startswith(f"{path}:") and "is not valid (" not in p for p in refused)


def _mistakes(path: Path) -> list[str]:
    try:
        load(path, {})
    except ConfigError as error:
        return error.problems
    return []


# Examples and schema


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_loads_and_matches_the_schema(path: Path) -> None:
    config = load(path, {"SHOP_PASSWORD": "x", "RETRAIN_SECRET": "y"})
    assert config.monitors
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), json_schema())


def test_the_examples_cover_every_label_recipe() -> None:
    kinds = {
        type(m.recipe) for path in EXAMPLES for m in load(path, {"SHOP_PASSWORD": "x", "RETRAIN_SECRET": "y"}).monitors
    }
    assert kinds == {Events, Judgments, Column}


def test_items_replace_item_and_position_and_belong_to_the_definition(tmp_path: Path) -> None:
    (example,) = [path for path in EXAMPLES if path.stem == "search-events"]
    given = yaml.safe_load(example.read_text(encoding="utf-8"))
    rankings, path = given["monitors"][0]["rankings"], tmp_path / "rankmon.yaml"
    rankings["items"] = "hits"
    del rankings["item"], rankings["position"]
    jsonschema.validate(given, json_schema())
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    secrets = {"SHOP_PASSWORD": "x", "RETRAIN_SECRET": "y"}
    before, made = (load(one, secrets).monitors[0] for one in (example, path))
    assert (made.rankings.items, made.rankings.item, made.rankings.position.column) == ("hits", ITEM, PLACE)
    assert "items" not in json.loads(before.traffic.text)["rankings"]
    assert json.loads(made.traffic.text)["rankings"]["items"] == "hits"
    without = {k: v for k, v in rankings.items() if k != "items"}
    item, position = {"item": "item_id"}, {"position": "position"}
    for mixed in (without | item, without | position, rankings | item, rankings | position, rankings | item | position):
        given["monitors"][0]["rankings"] = mixed
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(given, json_schema())


def test_the_schema_file_is_current() -> None:
    stored = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert stored == json_schema(), "run: python -m monitor.config > config/rankmon.schema.json"


def test_every_default_in_the_schema_is_a_valid_value() -> None:
    schema = json_schema()
    told = [p for part in (schema, *schema["$defs"].values()) for p in part.get("properties", {}).values()]
    told = [p for p in told if "default" in p]
    assert len(told) > 20
    for key in told:
        jsonschema.validate(key["default"], {**key, "$defs": schema["$defs"]})
    hours = schema["$defs"]["WeeklyHours"]["properties"]
    assert (hours["from"]["default"], hours["to"]["default"]) == ("00:00", "24:00")


def test_the_schema_is_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("store: {url: sqlite:///rankmon.db}", "store: {}"),
        ("store: {url: sqlite:///rankmon.db}", "store: {url: a, url_file: b}"),
        ("      table: search_log\n", ""),
        ("    measures: [ndcg@10]", "    measures: [ndcg@10]\n    window: [24h]"),
        ("    measures: [ndcg@10]", "    measures: [ndcg@10]\n    refresh: 300"),
        ("      item: item_id\n", "      item:\n"),
        ("{grade: label}", "{grade: label}\n      judgments: {table: j, query: q, item: i, grade: g}"),
    ],
)
def test_the_schema_alone_catches_common_mistakes(old: str, new: str) -> None:
    jsonschema.validate(yaml.safe_load(MINIMAL), json_schema())
    assert old in MINIMAL
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(MINIMAL.replace(old, new)), json_schema())


def _properties() -> list[tuple[str, str, dict[str, Any]]]:
    schema = json_schema()
    models = {"": schema, **schema["$defs"]}
    return [(model, name, part) for model, found in models.items() for name, part in found["properties"].items()]


def test_every_key_is_described() -> None:
    assert [(model, name) for model, name, part in _properties() if not part.get("description")] == []


def test_every_description_states_its_default() -> None:
    for model, name, part in _properties():
        default = part.get("default")
        if isinstance(default, str | int | float):
            shown = str(default).lower()
            assert shown in part["description"].lower(), (model, name)
            assert "default" in part["description"].lower(), (model, name)


@pytest.mark.parametrize(
    ("old", "new", "where", "change"),
    [
        ("max_quiet", "stale_after", "monitors[0]", also("max_quiet: 1h")),
        ("history", "lookback", "monitors[0]", also("history: 28d")),
        ("history", "lookback", "defaults", ("monitors:", "defaults: {history: 28d}\nmonitors:")),
        ("notify_data", "data_channels", "monitors[0].drift", also("drift: {notify_data: [log]}")),
        ("false_alarms", "false_alarm_budget", "monitors[0].drift", also("drift: {false_alarms: 2}")),
        ("keep", "retain", "monitors[0].retention", also("retention: {keep: 400d}")),
        ("keep", "retain", "store", ("rankmon.db}", "rankmon.db, keep: 730d}")),
    ],
)
def test_a_renamed_key_is_refused_with_its_new_name(
    write: Write, old: str, new: str, where: str, change: tuple[str, str]
) -> None:
    (problem,) = problems(write(change))
    assert re.sub(r":\d+:", "", problem) == f"rankmon.yaml {where}.{old}: is now called `{new}`; rename it"


# Defaults


def test_omitted_keys_take_the_defaults_of_the_monitor_class(one: Callable[..., Monitor]) -> None:
    monitor = one()
    bare = Monitor(monitor.name, monitor.source, monitor.rankings, monitor.recipe, monitor.measures)
    assert dataclasses.replace(monitor, lookback=bare.lookback) == bare


def test_the_rest_of_the_configuration_has_defaults(read: Callable[..., Config]) -> None:
    config = read()
    assert (config.web.host, config.web.port) == ("127.0.0.1", 9184)
    assert (config.scheduler.workers, config.scheduler.lease) == (4, 30)
    assert (config.log.level, config.log.format) == ("info", "text")
    assert config.source("shop").statement_timeout == 60


def test_a_monitor_overrides_defaults_and_merges_their_labels(one: Callable[..., Monitor]) -> None:
    defaults = "defaults: {refresh: 1m, bucket: 30m, source: shop, labels: {team: a, env: prod}}\nmonitors:"
    monitor = one(("monitors:", defaults), ("    source: shop\n", ""), also("bucket: 2h\nlabels: {team: b}"))
    assert (monitor.refresh, monitor.bucket, monitor.source) == (60, 7200, "shop")
    assert monitor.labels == (("env", "prod"), ("team", "b"))


@pytest.mark.parametrize(
    ("settings", "lookback"),
    [
        ("windows: [1h]", 86400),
        ("windows: [1h, 7d]", 7 * 86400),
        ("windows: [1h]\nlateness: 2d", 2 * 86400 + 3600 + 300),
        ("windows: [1h]\ningest_delay: 2d\nrefresh: 10m", 2 * 86400 + 3600 + 600),
        ("windows: [1h]\nlookback: 30d", 30 * 86400),
    ],
)
def test_lookback_covers_the_longest_window_a_day_and_late_data(
    one: Callable[..., Monitor], settings: str, lookback: int
) -> None:
    assert one(also(settings)).lookback == lookback


@pytest.mark.parametrize(("bucket", "window"), [("15m", 86400), ("24h", 86400), ("7d", 7 * 86400)])
def test_the_default_window_is_a_day_or_a_longer_bucket(one: Callable[..., Monitor], bucket: str, window: int) -> None:
    assert one(also(f"bucket: {bucket}")).windows == (window,)


# Monitors


def test_an_events_recipe_is_read_in_full(one: Callable[..., Monitor]) -> None:
    recipe = one((COLUMN, EVENTS)).recipe
    assert isinstance(recipe, Events)
    assert recipe.rules == (EventRule(1.0, "click"), EventRule(None, "rating", 2.0))
    assert (recipe.type, recipe.value, recipe.attribution) == ("kind", "amount", 7 * 86400)
    assert (recipe.combine, recipe.max_grade, recipe.count_unmatched) == ("max", None, True)


def test_a_measure_takes_its_max_grade_from_the_label_rules(one: Callable[..., Monitor]) -> None:
    rules = ("{type: rating, minimum: 2, grade: value}", "{type: purchase, grade: 3}")
    measures = ("[ndcg@10]", "[err@20, 'ndcg(ideal=max,max_grade=5)@10', ndcg(ideal=max)@10]")
    assert [m.max_grade for m in one((COLUMN, EVENTS), rules, measures).measures] == [3, 5, 3]


def test_two_readings_of_one_kernel_are_both_kept(one: Callable[..., Monitor]) -> None:
    monitor = one(("[ndcg@10]", "[ndcg@10, ndcg(aggregate=pooled)@10]"))
    assert len(monitor.measures) == 2
    assert len(monitor.definitions) == 2  # the traffic, and one kernel


def test_the_model_version_becomes_a_slice(one: Callable[..., Monitor]) -> None:
    version = ("time: served_at", "time: served_at\n      model_version: model")
    first = Slice("model_version", "model", 200)
    assert one(version, also("slices: [device]")).slices == (first, Slice("device", "device"))
    listed = also("slices: [device, {column: model, as: model_version, max_values: 3}]")
    assert one(version, listed).slices == (Slice("device", "device"), Slice("model_version", "model", 3))


def test_weekly_model_versions_all_keep_a_series_for_years(
    one: Callable[..., Monitor],
) -> None:
    (dimension,) = one(("time: served_at", "time: served_at\n      model_version: model")).slices
    versions, weeks = [f"v{n}" for n in range(150)], np.arange(150)
    names, _, admitted = admit(versions, weeks, dimension, set())
    assert (admitted, set(names)) == (versions, {*versions, OTHER})


def test_positions_may_count_from_zero(one: Callable[..., Monitor]) -> None:
    rankings = one(("position: position", "position: {column: rank, base: 0}")).rankings
    assert rankings.position == Position("rank", 0)


@pytest.mark.parametrize(
    ("written", "column"),
    [
        ("served_at", TimeColumn("served_at")),
        ("{column: t, format: epoch_us}", TimeColumn("t", "epoch_us")),
        ("{column: t, timezone: UTC}", TimeColumn("t", "native", "UTC")),
        (
            "{column: t, format: '%Y-%m-%d %H:%M:%S', timezone: Europe/Berlin}",
            TimeColumn("t", "%Y-%m-%d %H:%M:%S", "Europe/Berlin"),
        ),
        ("{column: t, format: '%Y-%m-%dT%H:%M:%SZ'}", TimeColumn("t", "%Y-%m-%dT%H:%M:%SZ")),
        ("{column: t, format: '%Y-%m-%dT%H:%M:%S.%f+00:00'}", TimeColumn("t", "%Y-%m-%dT%H:%M:%S.%f+00:00")),
        ("{column: t, format: '%Y%m%d%H%M%S', timezone: UTC}", TimeColumn("t", "%Y%m%d%H%M%S", "UTC")),
    ],
)
def test_sortable_time_formats_are_accepted(one: Callable[..., Monitor], written: str, column: TimeColumn) -> None:
    assert one(("time: served_at", f"time: {written}")).rankings.time == column


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("public.t", ("public", "t")),
        ('"My Schema"."a.b"', ("My Schema", "a.b")),
        ('"say ""hi"""', ('say "hi"',)),
        ("a.b.c", ("a", "b", "c")),
        ("a..b", ()),
        (".a", ()),
        ("a b", ()),
        ("t; DROP TABLE t", ()),
    ],
)
def test_a_table_name_is_split_into_its_parts(text: str, parts: tuple[str, ...]) -> None:
    assert fields.table_parts(text) == parts


def test_blanks_and_a_semicolon_around_a_select_start_no_new_series(one: Callable[..., Monitor]) -> None:
    table = "table: search_log"
    plain = one((table, "select: SELECT * FROM search_log"))
    block = one((table, "select: |\n        SELECT * FROM search_log;\n"))
    assert plain.definitions == block.definitions


def test_doctests_of_fields_pass() -> None:
    assert doctest.testmod(fields).failed == 0


# The environment, secret files, URLs


@pytest.mark.parametrize(
    ("written", "environ", "name"),
    [
        ("${NAME}", {"NAME": "a"}, "a"),
        ("'x-${NAME}-${OTHER}'", {"NAME": "a", "OTHER": "b"}, "x-a-b"),
        ("${NAME:-b}", {}, "b"),
        ("${NAME:-b}", {"NAME": ""}, "b"),
        ("${NAME:-b}", {"NAME": "a"}, "a"),
    ],
)
def test_variables_are_filled_in(one: Callable[..., Monitor], written: str, environ: dict[str, str], name: str) -> None:
    assert one(("name: search", f"name: {written}"), **environ).name == name


def test_an_escaped_variable_stays_as_text(one: Callable[..., Monitor]) -> None:
    assert one(("item: item_id", "item: 'a$${NAME}$$b$c'")).rankings.item == "a${NAME}$$b$c"


def test_a_variable_in_a_comment_is_ignored(one: Callable[..., Monitor]) -> None:
    assert one(also("# ${NOT_SET}"))


def test_numbers_can_come_from_variables(read: Callable[..., Config]) -> None:
    assert read(("store:", "scheduler: {workers: '${N}'}\nstore:"), N="7").scheduler.workers == 7


@pytest.mark.parametrize("base", [0, 1])
def test_the_base_of_positions_can_come_from_a_variable(one: Callable[..., Monitor], base: int) -> None:
    made = one(("position: position", "position: {column: position, base: '${BASE}'}"), BASE=str(base))
    assert made.rankings.position.base == base


@pytest.mark.parametrize(("text", "amount"), [("0.05", 0.05), ("7%", 0.07)])
def test_a_drop_from_a_variable_can_be_a_difference_or_a_share(
    one: Callable[..., Monitor], text: str, amount: float
) -> None:
    rule = "alerts: [{name: low, measure: ndcg@10, drop: '${DROP}', baseline: {trailing: 7d}}]"
    limit = one(also(rule), DROP=text).alerts[0].limit
    assert isinstance(limit, Drop)
    assert (limit.by, limit.relative) == (amount, "%" in text)


@pytest.mark.parametrize(
    ("written", "judged"),
    [
        ("ndcg@10", "ndcg(empty=zero)@10"),
        ("ndcg(empty=skip)@10", "ndcg@10"),
        ("ndcg(empty=one)@10", "ndcg(empty=one)@10"),
        ("ndcg(aggregate=pooled)@10", "ndcg(aggregate=pooled)@10"),
        ("label_coverage", "label_coverage"),
    ],
)
def test_a_rule_on_clicks_counts_empty_requests_as_0_by_default(
    one: Callable[..., Monitor], written: str, judged: str
) -> None:
    rule = one(also(f'alerts: [{{name: low, measure: "{written}", floor: 0.2}}]')).alerts[0]
    assert rule.judged == judged


def test_the_measure_a_rule_judges_is_shown_in_addition(one: Callable[..., Monitor]) -> None:
    made = one(also("alerts: [{name: low, measure: ndcg@10, floor: 0.2}]"))
    assert [str(measure) for measure, _ in made.shown][-1] == "ndcg(empty=zero)@10"
    assert {d.kernel for d in made.definitions} == {"traffic", *(str(m.kernel) for m in made.measures)}


def test_a_password_repeated_in_the_url_is_accepted(read: Callable[..., Config]) -> None:
    config = read(("{url: sqlite:///shop.db}", "{url: 'postgresql://u:hunter%402@h/d', password: hunter@2}"))
    assert config.source("shop").url.password == "hunter@2"


def test_secret_files_are_relative_to_the_configuration_and_lose_a_final_newline(
    read: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "url").write_text("postgresql://reader@db/shop\n")
    (tmp_path / "password").write_text("hunter2 \r\n")
    config = read(("{url: sqlite:///shop.db}", "{url_file: url, password_file: password}"))
    assert config.source("shop").url.render_as_string(False) == "postgresql+psycopg://reader:hunter2 @db/shop"


@pytest.mark.parametrize(
    ("content", "said"), [(b"\n", "is empty"), (b"\xff", "is not written in UTF-8"), (None, "cannot be read")]
)
def test_an_empty_or_unreadable_secret_file_is_refused(
    write: Write, tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is None:
        (tmp_path / "secret").mkdir()
    else:
        (tmp_path / "secret").write_bytes(content)
    path = write(("{url: sqlite:///shop.db}", "{url: 'postgresql://u@h/d', password_file: secret}"))
    (problem,) = problems(path)
    assert problem.startswith("rankmon.yaml:3: sources.shop.password_file: the file ")
    assert said in problem


@pytest.mark.parametrize(
    ("written", "environ", "told"),
    [
        ("${DIR:-/run/none}/word", {}, "there is no file /run/none/word (${DIR:-/run/none}/word)"),
        ("${DIR:-/run/none}/word", {"DIR": "/etc/none"}, "there is no file /etc/none/word (${DIR:-/run/none}/word)"),
        ("${FILE}", {"FILE": "/etc/none"}, "there is no file /etc/none (${FILE})"),
        ("/etc/none", {}, "there is no file /etc/none"),
        (
            "${DIR}/word",
            {"DIR": "none"},
            "there is no file none/word (${DIR}/word); relative paths start at",
        ),
        ("none", {}, "there is no file none; relative paths start at this configuration's folder"),
        ("${WORD}", {"WORD": "hunter2"}, "there is no file ${WORD}; relative paths start at"),
    ],
)
def test_a_missing_secret_file_is_named_without_showing_a_secret(
    write: Write, written: str, environ: dict[str, str], told: str
) -> None:
    path = write(("{url: sqlite:///shop.db}", f"{{url: 'postgresql://u@h/d', password_file: '{written}'}}"))
    (problem,) = problems(path, **environ)
    said = problem.partition("sources.shop.password_file: ")[2]
    assert said.startswith(told)
    assert ("relative" in said) == ("relative" in told)


@pytest.mark.parametrize(
    "source",
    [
        "{url: 'postgresql://u@h/d', password_file: /etc/none}",
        "{url: 'postgresql://u@h/d', password: '${WORD}'}",
        "{url: '${URL}'}",
        "{url_file: '${DIR}/url'}",
    ],
)
def test_commands_that_read_no_source_need_no_source_secrets(write: Write, source: str) -> None:
    path = write(("{url: sqlite:///shop.db}", source))
    with pytest.raises(ConfigError):
        load(path, {})
    config = load(path, {}, unread=["sources"])
    assert (config.sources, config.monitor("search").source) == ((), "shop")


def test_commands_that_read_no_source_still_report_other_mistakes(write: Write) -> None:
    path = write(
        ("{url: sqlite:///shop.db}", "{url: '${URL}'}"), ("ndcg@10", "nothing@10"), ("source: shop", "source: sho")
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {}, unread=["sources"])
    assert [p.split(": ")[1] for p in caught.value.problems] == ["monitors[0].source", "monitors[0].measures[0]"]


@pytest.mark.parametrize(
    "part",
    [
        "channels: {pager: {slack: {webhook_url: '${NOWHERE}'}}}",
        "web: {config_file: none.yaml}",
        "routes: [{channels: [nobody]}]",
        "reports: [{channel: nobody}]",
        "templates: none",
    ],
)
def test_commands_on_the_store_alone_ignore_mistakes_elsewhere(write: Write, part: str) -> None:
    path = write(text=f"{MINIMAL}{part}\n")
    with pytest.raises(ConfigError):
        load(path, {})
    assert [m.name for m in store_config(path).monitors] == ["search"]


def test_a_separate_password_needs_no_escaping(read: Callable[..., Config]) -> None:
    url = ("{url: sqlite:///shop.db}", "{url: 'postgresql://u@h/d', password: '${P}'}")
    assert read(url, P="p@s:s/#").source("shop").url.password == "p@s:s/#"


def test_an_empty_password_counts_as_no_password(read: Callable[..., Config]) -> None:
    url = ("{url: sqlite:///shop.db}", "{url: 'postgresql://u@h/d', password: '${P:-}'}")
    assert read(url).source("shop").url.password is None


def test_relative_database_files_start_at_the_configurations_folder(
    read: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = read()
    assert config.store.url.database == str(tmp_path / "rankmon.db")
    assert config.source("shop").url.database == str(tmp_path / "shop.db")
    deeper = read(("sqlite:///shop.db", "'duckdb:///data/../log.duckdb?access_mode=read_only'")).source("shop").url
    assert (deeper.database, dict(deeper.query)) == (f"{tmp_path}/data/../log.duckdb", {"access_mode": "read_only"})
    (tmp_path / "url").write_text("sqlite:///of-a-file.db")
    in_file = read(("{url: sqlite:///shop.db}", "{url_file: url}")).source("shop").url
    assert in_file.database == str(tmp_path / "of-a-file.db")


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("sqlite:////var/lib/shop.db", "/var/lib/shop.db"),
        ("duckdb:////var/lib/log.duckdb", "/var/lib/log.duckdb"),
        ("duckdb:///:memory:", ":memory:"),
        ("duckdb:///md:shop", "md:shop"),
        ("duckdb://", None),
        ("postgresql://u@h/shop", "shop"),
    ],
)
def test_urls_without_a_relative_file_stay_unchanged(
    read: Callable[..., Config], url: str, database: str | None
) -> None:
    assert (read(("sqlite:///shop.db", f"'{url}'")).source("shop").url.database or None) == database


@pytest.mark.parametrize("secret", ["hunter 2", "h 2", "h!2a"])
@pytest.mark.parametrize("change", [("name: search", "name: ${SECRET}"), ("[ndcg@10]", "['${SECRET}']")])
def test_a_misplaced_environment_value_is_not_shown(write: Write, change: tuple[str, str], secret: str) -> None:
    (problem,) = problems(write(change), SECRET=secret)
    assert secret not in problem
    assert "'${SECRET}'" in problem


def _secretive(read: Callable[..., Config], password: str = "hunter2") -> Config:
    source = ("{url: sqlite:///shop.db}", "{url: 'postgresql://u@h/d', password: '${P}'}")
    store = ("sqlite:///rankmon.db", "'postgresql://u:hunter3@h/d'")
    return read(source, store, P=password)


def test_secrets_are_absent_from_every_repr_of_a_configuration(read: Callable[..., Config]) -> None:
    config = _secretive(read)
    assert config.source("shop").url.password == "hunter2"
    parts = (config, config.store, config.sources, config.source("shop").url, config.store.url)
    assert "hunter" not in " ".join(f"{part} {part!r}" for part in parts)


def test_a_secret_in_driver_options_is_not_shown(read: Callable[..., Config]) -> None:
    config = read(("sqlite:///shop.db", "'mssql+pyodbc://?odbc_connect=DSN%3Dshop%3BPWD%3Dhunter2'"))
    assert "hunter2" in config.source("shop").url.query["odbc_connect"]
    assert "hunter" not in f"{config} {config!r}"


# Reloading, looking up


def test_configurations_are_equal_exactly_when_nothing_changed(
    read: Callable[..., Config],
) -> None:
    assert _secretive(read) == _secretive(read)
    assert _secretive(read) != _secretive(read, password="hunter4")
    assert read() != read(also("refresh: 6m"))


def test_a_configuration_is_frozen(read: Callable[..., Config]) -> None:
    config = read()
    for value, name in [
        (config, "monitors"),
        (config.store, "url"),
        (config.web, "listen"),
        (config.sources[0], "url"),
    ]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
    assert hash(config)


def test_monitors_and_sources_are_found_by_name(read: Callable[..., Config]) -> None:
    config = read()
    assert config.monitor("search").name == "search"
    assert config.source("shop").name == "shop"
    with pytest.raises(InputError, match="there is no monitor 'serach'; known are search"):
        config.monitor("serach")
    with pytest.raises(InputError, match="there is no source 'x'; known are shop"):
        config.source("x")


# YAML


def test_words_that_yaml_1_1_converts_stay_text(one: Callable[..., Monitor]) -> None:
    labels = "labels: {a: no, b: on, c: 12:30, d: 2024-01-01, e: 'true', f: y}"
    assert dict(one(also(labels)).labels) == {
        "a": "no",
        "b": "on",
        "c": "12:30",
        "d": "2024-01-01",
        "e": "true",
        "f": "y",
    }


def test_anchors_and_merges_work_and_explicit_keys_win(read: Callable[..., Config]) -> None:
    first, rest = MINIMAL.index("  - name"), MINIMAL[MINIMAL.index("    source") :]
    second = "  - <<: *first\n    name: other\n    measures: [mrr]\n  - {<<: *first, name: third}\n"
    config = read(text=MINIMAL[:first] + "  - &first\n    name: search\n" + rest + second)
    assert [(m.name, str(m.measures[0])) for m in config.monitors] == [
        ("search", "ndcg@10"),
        ("other", "mrr"),
        ("third", "ndcg@10"),
    ]


def test_a_mapping_with_a_merge_can_be_used_twice(read: Callable[..., Config]) -> None:
    base, measures = MINIMAL.replace("rankings:\n", "rankings: &base\n"), "measures: [mrr]"
    relevance = "relevance: {column: {grade: label}}"
    two = f"  - {{name: b, source: shop, rankings: &own {{<<: *base, item: own_id}}, {relevance}, {measures}}}\n"
    three = f"  - {{name: c, source: shop, rankings: *own , {relevance}, {measures}}}\n"
    config = read(text=base + two + three)
    assert [m.rankings.item for m in config.monitors] == ["item_id", "own_id", "own_id"]


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text(MINIMAL, encoding="utf-8-sig")
    assert load(path, {}).monitors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9184", ("127.0.0.1", 9184)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("localhost", None),
        (":9184", None),
        ("::1:9184", None),
        ("localhost:65536", None),
        ("http://localhost:80", None),
        ("[::1]", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int] | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=re.escape(f"{text!r} is not a host:port")):
            parse_listen(text)
    else:
        assert parse_listen(text) == expected
