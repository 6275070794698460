"""The HTTP side over a real socket."""

import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.config.values import WebConfig
from monitor.errors import Unserved
from monitor.service.app import App
from monitor.web import WebServer
from tests.support.monitors import config, shop


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(config(tmp_path, {"shop": f"sqlite:///{tmp_path / 'none.db'}"}, [shop(labels=(("team", "<b>x</b>"),))]))
    made.prepare()
    made.web.start()
    yield made
    made.stop()


def get(app: App, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{app.web.port}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode("latin-1"), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_it_listens_on_localhost_alone_by_default() -> None:
    assert WebConfig().host == "127.0.0.1"


def test_metrics_come_in_the_requested_format(app: App) -> None:
    assert get(app, "/metrics")[2]["Content-Type"].startswith("text/plain; version=")
    openmetrics = get(app, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics[2]["Content-Type"].startswith("application/openmetrics-text")
    assert openmetrics[1].endswith("# EOF\n")


@pytest.mark.parametrize("accepted", ["gzip", "gzip;q=0.5", "br;q=0, gzip", "deflate, gzip; q=1.0, *;q=0"])
def test_metrics_are_compressed_when_asked_for(accepted: str, app: App) -> None:
    status, body, headers = get(app, "/metrics", **{"Accept-Encoding": accepted})
    assert status == 200
    assert headers["Content-Encoding"] == "gzip"
    assert b"rankmon_build_info" in gzip.decompress(body.encode("latin-1"))


@pytest.mark.parametrize("accepted", ["", "gzip;q=0", "GZIP ; Q=0.000", "identity, gzip;q=0.0, br"])
def test_metrics_stay_plain_for_clients_that_refuse_gzip(accepted: str, app: App) -> None:
    status, body, headers = get(app, "/metrics", **{"Accept-Encoding": accepted})
    assert (status, headers["Content-Encoding"]) == (200, None)
    assert "rankmon_build_info" in body


def test_health_needs_a_living_scheduler(app: App) -> None:
    assert get(app, "/-/healthy")[:2] == (503, "the scheduler has stopped; restart rankmon\n")
    app.scheduler.start()
    assert get(app, "/-/healthy")[:2] == (200, "ok\n")


def test_readiness_needs_a_snapshot_of_every_monitor(app: App) -> None:
    assert get(app, "/-/ready")[:2] == (503, "nothing to show yet for shop\n")
    app.runners["shop"].run()
    assert get(app, "/-/ready")[:2] == (200, "ok\n")
    app.board.keep_only([])
    assert get(app, "/-/ready")[:2] == (503, "nothing to show yet for shop\n")


def test_reload_accepts_only_post_and_reports_mistakes(app: App) -> None:
    assert get(app, "/-/reload")[0] == 405
    status, body, _ = get(app, "/-/reload", "POST")
    assert status == 400
    assert "rankmon.yaml" in body


def test_the_page_escapes_outside_text_and_loads_nothing(app: App) -> None:
    app.show()
    status, body, headers = get(app, "/")
    assert status == 200
    assert "shop" in body
    assert "&lt;b&gt;x&lt;/b&gt;" in body
    assert "<b>x</b>" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http://" not in body
    assert "https://" not in body


def test_an_unknown_path_is_not_found(app: App) -> None:
    assert get(app, "/nothing")[0] == 404


def test_concurrent_scrapes_all_get_the_whole_text(app: App) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(get(app, "/metrics")[1])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert all("rankmon_build_info" in a for a in answers)


def test_a_port_in_use_is_a_clear_error(app: App) -> None:
    with pytest.raises(Unserved, match=f"cannot listen on 127.0.0.1:{app.web.port}: .*change web.listen"):
        WebServer("127.0.0.1", app.web.port, app.web._server.config.app, app.access).start()  # type: ignore[arg-type]


def test_no_served_page_mentions_a_password(app: App) -> None:
    assert "password" not in json.dumps([get(app, p)[1] for p in ("/", "/metrics", "/-/ready")])
