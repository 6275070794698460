"""Own templates: what they can say, which mistakes check-config finds, and that a failing one loses no message."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.cli import run
from monitor.conditions.rules import Floor, Rule
from monitor.config import load
from monitor.errors import ConfigError
from monitor.evaluation.notices import Recipients
from monitor.messages.notification import About, notification
from monitor.messages.own import OwnTemplate, TemplateFault
from monitor.messages.samples import INCIDENT, samples
from monitor.messages.templates import OwnTemplates
from monitor.service.app import App
from tests.config.test_config import MINIMAL
from tests.evaluation.test_judging import Bench
from tests.support.metrics import registry
from tests.support.monitors import new_store
from tests.support.notices import ABOUT, DROP, HOUR
from tests.support.tallies import watched

LABELLED = "templates: own\n" + MINIMAL.replace("  - name: search\n", "  - name: search\n    labels: {team: ranking}\n")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration and templates with these texts."""

    def _write(**texts: str) -> Path:
        (tmp_path / "own").mkdir(exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "own" / f"{name}.txt").write_text(text, encoding="utf-8")
        path = tmp_path / "rankmon.yaml"
        path.write_text(LABELLED, encoding="utf-8")
        return path

    return _write


def problems(path: Path) -> list[str]:
    """The problems found, without the folder's path."""
    with pytest.raises(ConfigError) as raised:
        load(path, {})
    return [text.replace(f"{path.parent}/", "") for text in raised.value.problems]


def told(templates: OwnTemplates, kind: str = "firing") -> tuple[str, str, str]:
    about = About(ABOUT.name, ABOUT.labels, ABOUT.runbook_url, ABOUT.page, templates=templates)
    made = notification(kind, about, INCIDENT, () if kind == "test" else [DROP], 0)  # type: ignore[arg-type]
    return made.title, made.text, made.details


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in samples()}))
def test_the_built_in_templates_render_every_sample(kind: str) -> None:
    for _, incident, findings in (one for one in samples() if one[0] == kind):
        made = notification(kind, ABOUT, incident, findings, 0, reason="a sample")  # type: ignore[arg-type]
        assert made.title
        assert made.text


@pytest.mark.parametrize("number", [0, 1])
def test_the_template_examples_in_the_docs_render_every_sample(write: Write, number: int) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "channels.md").read_text(encoding="utf-8")
    text = re.findall(r"```jinja\n(.*?)```", page, re.DOTALL)[number]
    assert told(OwnTemplates(load(write(**{["title", "page"][number]: text}), {}).templates)) != told(OwnTemplates())


def test_a_template_that_includes_the_built_in_one_adds_to_it(write: Write) -> None:
    own = load(write(title='{{ labels.team }}: {% include "rankmon/title.txt" %}\n'), {}).templates
    plain, changed = told(OwnTemplates()), told(OwnTemplates(own))
    assert changed[0] == "search: ranking: " + plain[0].removeprefix("search: ")
    assert changed[1:] == plain[1:]


MISTAKES = [
    ("a syntax error", {"page": "\n{% if %}"}, "own/page.txt:2: Expected an expression, got 'end of statement block'"),
    (
        "a filter that is not there",
        {"page": "\n\n{{ n.kind|nofilter }}"},
        "own/page.txt:3: No filter named 'nofilter'.",
    ),
    (
        "a variable in a part that no sample reaches",
        {"page": "ok\n{% if n.kind == 'never' %}{{ lables }}{% endif %}"},
        "own/page.txt:2: 'lables' is undefined; known are n, labels, incident, findings, it, a, x",
    ),
    (
        "a label that the monitor lacks",
        {"title": "{{ labels.tem }}"},
        "own/title.txt:1: 'dict object' has no attribute 'tem' (in a message of test)",
    ),
    (
        "what is not there in a test",
        {"details": "\n{{ it.rule }}"},
        "own/details.txt:2: 'None' has no attribute 'rule' (in a message of test)",
    ),
    (
        "what only some kinds have",
        {"details": "{% if it %}\n{{ it.threshold|written(it) }}{% endif %}"},
        "own/details.txt:2: TypeError: bad operand type for abs(): something that does not exist (in a message of "
        "firing on examination_changed)",
    ),
    (
        "nothing to say",
        {"page": "{% if n.kind == 'firing' %}{{ n.url }}{% endif %}"},
        "own/page.txt: gives an empty text; write at least one line (in a message of test)",
    ),
    (
        "too much",
        {"details": "{{ 'x' * 10001 }}"},
        "own/details.txt: gives 10,001 characters; receivers take 10,000 at most (in a message of test)",
    ),
    (
        "itself",
        {"page": '{% include "page.txt" %}'},
        "own/page.txt: includes itself; the built-in template is rankmon/page.txt (in a message of test)",
    ),
    (
        "a template that is not there",
        {"page": 'ok\n{% include "pag.txt" %}'},
        "own/page.txt:2: there is no template 'pag.txt'; the built-in ones begin with rankmon/ (in a message of test)",
    ),
    (
        "a name that replaces nothing",
        {"advice": "ok"},
        "own/advice.txt: replaces no template; rename it to one of title.txt, page.txt, details.txt, or remove it",
    ),
]


@pytest.mark.parametrize(("texts", "wanted"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_a_mistake_is_named_with_file_and_line(write: Write, texts: dict[str, str], wanted: str) -> None:
    assert problems(write(**texts)) == [wanted]


def test_all_template_mistakes_are_reported_together_once_each(write: Write) -> None:
    path = write(title="{{ foo }} {{ foo }} {{ it.rule }}", page="{{ bar", extra="", details="{{ x.advise(findings) }}")
    path.write_text(LABELLED.replace("item: item_id", "itme: item_id"), encoding="utf-8")
    found = "\n".join(problems(path))
    for text in ("title.txt:1: 'foo'", "page.txt:1: unexpected end", "extra.txt: replaces", "itme"):
        assert found.count(text) == 1, text
    path.write_text(LABELLED, encoding="utf-8")
    assert "details.txt:1: 'module object' has no attribute 'advise'" in "\n".join(problems(path))


@pytest.mark.parametrize(
    ("prepare", "wanted"),
    [
        (lambda path: path.unlink(), "rankmon.yaml:1: templates: there is no folder own"),
        (lambda path: path.unlink() or path.mkdir(), "rankmon.yaml:1: templates: the folder own has no template"),
        (lambda path: None, "rankmon.yaml:1: templates: the folder own cannot be read (Not a directory)"),
    ],
)
def test_an_unusable_template_folder_is_reported(
    write: Write, tmp_path: Path, prepare: Callable[[Path], object], wanted: str
) -> None:
    path = write()
    (tmp_path / "own").rmdir()
    (tmp_path / "own").write_text("a file", encoding="utf-8")
    prepare(tmp_path / "own")
    assert [text.partition(";")[0] for text in problems(path)] == [wanted]


ESCAPES = [
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ x.shlex.os.popen('touch PATH').read() }}",
    "{{ x.fill.__globals__ }}",
    "{{ x.fill('{{ x.shlex.os.popen(\"touch PATH\").read() }}', x=x) }}",
    "{{ n|fill('{{ it.__class__.__mro__ }}') }}",
    "{{ n.about.templates.failed.__self__.telemetry }}",
    "{{ cycler.__init__.__globals__.os.popen('touch PATH').read() }}",
    "{{ '{0.__class__}'.format(n) }}{{ n.kind.__len__ }}",
    "{{ labels.update(team='other') }}",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, text: str) -> None:
    made, found = tmp_path / "made", list[TemplateFault]()
    templates = OwnTemplates((OwnTemplate("page", "page.txt", text.replace("PATH", str(made))),), found.append)
    assert told(templates) == told(OwnTemplates())
    assert re.search("unsafe|undefined|no attribute", str(found[0]))
    assert not made.exists()


@pytest.mark.parametrize("name", ["title", "page", "details"])
@pytest.mark.parametrize("text", ["{{ 1 / 0 }}", "{{ it.nothing }}", "{% if", "{{ findings[9].rule }}"])
def test_a_failing_template_loses_no_message_and_is_logged_and_counted(
    write: Write, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(load(write(title="a {{ n.kind }}"), {}))
    assert app.recipients().templates.files == app.config.templates
    templates = OwnTemplates((OwnTemplate(name, "own.txt", text),), app.recipients().templates.failed)
    with caplog.at_level(logging.WARNING):
        assert told(templates) == told(OwnTemplates())
    assert "template failed: own.txt" in caplog.text
    counted = registry(app.board, app.telemetry).get_sample_value
    assert counted("rankmon_template_failures_total", {"template": name}) == 1
    assert counted("rankmon_template_failures_total", {"template": "title"}) == (name == "title")
    app.close()


class Worded(Bench):
    """A bench whose daemon has these templates."""

    templates: OwnTemplates

    def recipients(self, current: bool = True) -> Recipients:
        return replace(super().recipients(current), templates=self.templates)


def test_own_templates_word_an_incident_with_built_in_fallback(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    watching = watched()
    rule = Rule("floor", watching.measures[0], HOUR, Floor(0.5, 0.5))
    monitor = replace(watching, labels=(("team", "ranking"),), windows=(HOUR,), alerts=(rule,), notify=("team",))
    found = list[TemplateFault]()
    bench, own = Worded(store, monitor), OwnTemplate("title", "title.txt", "{{ labels.team }}, {{ n.kind }}")
    bench.templates = OwnTemplates((own, OwnTemplate("page", "page.txt", "{{ it.nothing }}")), found.append)
    bench.live(0.8, 0.1, 0.8)
    told = [message for _, message in bench.messages]
    assert [one.title for one in told] == ["search: ranking, firing", "search: ranking, resolved"]
    assert all("What to do: " in one.text for one in told)
    assert [str(fault).partition(":")[0] for fault in found] == ["page.txt"] * 2
    store.close()


def test_a_test_alert_uses_own_templates(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(title="{{ labels.team }} rings")
    assert run(["test-alert", "-c", str(path)]) == 0
    assert "search: ranking rings" in capfd.readouterr().err


def test_a_changed_template_changes_the_configuration(write: Write) -> None:
    before = load(write(title="a"), {})
    assert load(write(title="b"), {}) != before
    assert load(write(title="a"), {}) == before
