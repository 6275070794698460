"""A channel takes one declaration: configuration, errors, schema, reference, sending and `test-alert` follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import jsonschema
import pytest
import yaml

from monitor import cli, notify
from monitor.config import json_schema, load
from monitor.config.schema import reference
from monitor.errors import ConfigError
from monitor.fields import Count, Text
from monitor.messages.notification import Notification
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.section import FromFile, key
from monitor.service.app import receivers
from tests.config.test_config import MINIMAL

SENT: list[tuple[str, str]] = []


class Pager:
    """Records what it is sent."""

    repeat = None
    give_up_after = 60.0

    def __init__(self, name: str) -> None:
        self.channel = self.target = name

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        SENT.append((self.target, notification.kind))


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """Declares the toy channel for the duration of a test."""

    @dataclass(frozen=True, slots=True)
    class PagerConfig(notify.ChannelConfig):
        """A pager."""

        kind: ClassVar[str] = "pager"

        number: Annotated[Count, key("Number to call.", ge=1)]
        pin: Annotated[Text, FromFile, key("Pin of the pager.")] = field(default="none", repr=False)

        def receivers(self) -> list[notify.Receiver]:
            return [Pager(self.name)]

    globals()["PagerConfig"] = PagerConfig
    SENT.clear()
    yield
    del notify._KINDS["pager"]


def written(folder: Path, channel: str) -> Path:
    path = folder / "rankmon.yaml"
    path.write_text(f"channels: {{night: {channel}}}\n{MINIMAL}    notify: [night]\n", encoding="utf-8")
    return path


def test_a_new_channel_reads_its_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "pin").write_text("1234\n", encoding="utf-8")
    path = written(tmp_path, "{pager: {number: 7, pin_file: pin}}")
    (made,) = load(path, {}).channels
    assert (made.name, made.number, made.pin) == ("night", 7, "1234")  # type: ignore[attr-defined]
    assert "1234" not in repr(made)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), json_schema())


def test_mistakes_in_a_new_channel_name_line_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "{pager: {number: 0, pinn: 3}}"), {})
    assert [p.partition(":1: ")[2] for p in caught.value.problems] == [
        "channels.night.pager.number: must be at least 1, not 0",
        "channels.night.pager.pinn: there is no such key; did you mean 'pin'?",
    ]


def test_schema_and_reference_contain_a_new_channels_keys() -> None:
    assert set(json_schema()["$defs"]["PagerConfig"]["properties"]) == {"number", "pin", "pin_file"}
    assert "## `channels.NAME.pager`" in reference()
    assert "| `number` (required) | Number to call. |" in reference()


def test_test_alert_reaches_a_new_channel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "{pager: {number: 7}}")
    assert [r.target for r in receivers(load(path, {}).channels)] == ["log", "night"]
    assert cli.run(["test-alert", "--channel", "night", "-c", str(path)]) == 0
    assert "night: delivered" in capsys.readouterr().out
    assert SENT == [("night", "test")]
