"""Services that people are told by, as their documentation says they behave, over `Receiver`, `aiosmtpd` or a module.

Each keeps the state that people would see: alerts, messages with their threads, mails.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.support.postgres import free_port
from tests.support.receiver import Got, Receiver, Reply

ROUTING_KEY, TOKEN = "R0123456789012345678901234567890", "xoxb-token-of-a-bot"
Trouble = Callable[[Got], Reply | None]


def _no_trouble(_: Got) -> Reply | None:
    return None


class PagerDutyDouble:
    """Events API v2: 202 with the key; 400 for what it cannot read; an alert is open from a trigger to a resolve."""

    def __init__(self, trouble: Trouble = _no_trouble) -> None:
        self.trouble = trouble
        self.alerts: dict[str, list[str]] = {}
        self.changes: list[str] = []
        self.payloads: list[Mapping[str, Any]] = []
        self.receiver = Receiver(self._behave)

    def _behave(self, got: Got) -> Reply:
        if (reply := self.trouble(got)) is not None:
            return reply
        event = got.document
        if event.get("routing_key") != ROUTING_KEY:
            return Reply(400, json.dumps({"status": "invalid event", "errors": [f"bad {event}"]}).encode())
        if got.path.endswith("/change/enqueue"):
            self.changes.append(event["payload"]["summary"])
            return Reply(202, b'{"status":"success"}')
        if event["event_action"] == "trigger":
            payload = event["payload"]
            if payload["severity"] not in ("critical", "error", "warning", "info") or not payload["source"]:
                return Reply(400, b'{"status":"invalid event"}')
            assert len(payload["summary"]) <= 1024
        self.payloads.append(event)
        self.alerts.setdefault(event["dedup_key"], []).append(event["event_action"])
        return Reply(202, json.dumps({"status": "success", "dedup_key": event["dedup_key"]}).encode())


@dataclass
class SlackMessage:
    """A message of a channel: how often it was changed, and its thread."""

    text: str
    edits: int = 0
    shown: list[bytes] = field(default_factory=list)
    thread: list[str] = field(default_factory=list)
    files: list[bytes] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """Of its metadata, and of that of each message in its thread."""


def _message(ts: str, text: str, key: str) -> dict[str, Any]:
    return {"ts": ts, "text": text, "metadata": {"event_type": "rankmon", "event_payload": {"key": key}}}


class SlackDouble:
    """Slack's Web API: status 200 also for errors, which `ok` tells; 429 with Retry-After when asked too often."""

    def __init__(self, trouble: Trouble = _no_trouble) -> None:
        self.trouble = trouble
        self.error = ""
        self.reads_in = 0
        """So many messages with a file that was just uploaded are refused."""
        self.messages: dict[str, SlackMessage] = {}
        self.uploads: dict[str, tuple[int, bytes]] = {}
        self.receiver = Receiver(self._behave)

    def _behave(self, got: Got) -> Reply:
        if (reply := self.trouble(got)) is not None:
            return reply
        if "/upload/" in got.path:
            return self._upload(got)
        return Reply(200, json.dumps(self._answer(got)).encode())

    def _upload(self, got: Got) -> Reply:
        id_ = got.path.rpartition("/")[2]
        assert "Authorization" not in got.headers, "the address is secret enough"
        assert self.uploads[id_] == (len(got.body), b"")
        self.uploads[id_] = len(got.body), got.body
        return Reply(200, f"OK - {len(got.body)}".encode())

    def _file(self, got: Got) -> dict[str, Any]:
        if got.path.endswith("getUploadURLExternal"):
            assert got.headers["Content-Type"] == "application/x-www-form-urlencoded", "it reads no JSON"
            asked = parse_qs(got.body.decode())
            id_ = f"F{len(self.uploads)}"
            self.uploads[id_] = int(asked["length"][0]), b""
            return {"ok": True, "upload_url": f"{self.receiver.url}/upload/v1/{id_}", "file_id": id_}
        body = got.document
        assert body["channel_id"] == "C1", "no name of a channel"
        self.messages[body["thread_ts"]].files += [self.uploads[one["id"]][1] for one in body["files"]]
        return {"ok": True, "files": body["files"]}

    def _read(self, got: Got) -> dict[str, Any]:
        """conversations.history has the messages of a channel, conversations.replies those of a thread."""
        asked = parse_qs(got.body.decode())
        if asked["channel"] != ["C1"]:
            return {"ok": False, "error": "channel_not_found"}
        assert asked["include_all_metadata"] == ["true"]
        if got.path.endswith("replies"):
            known = self.messages[asked["ts"][0]]
            found = [("9.9", "", key) for key in known.keys]
        else:
            found = [(ts, message.text, message.keys[0]) for ts, message in self.messages.items()]
        return {"ok": True, "messages": [_message(*each) for each in found]}

    def _answer(self, got: Got) -> dict[str, Any]:
        if got.headers.get("Authorization") != f"Bearer {TOKEN}":
            return {"ok": False, "error": "invalid_auth"}
        if self.error:
            return {"ok": False, "error": self.error}
        if "/files." in got.path:
            return self._file(got)
        if "/conversations." in got.path:
            return self._read(got)
        body = got.document
        if got.path.endswith("chat.update"):
            if body["channel"] != "C1" or body["ts"] not in self.messages:
                return {"ok": False, "error": "message_not_found"}
            known = self.messages[body["ts"]]
            files = [block["slack_file"]["id"] for block in body["blocks"] if block["type"] == "image"]
            if files and (self.reads_in or self.uploads.get(files[0], (0, b""))[1] not in known.files):
                self.reads_in = max(self.reads_in - 1, 0)
                return {"ok": False, "error": "invalid_blocks"}
            known.text, known.edits = body["text"], known.edits + 1
            known.shown = [self.uploads[id_][1] for id_ in files]
            return {"ok": True, "channel": "C1", "ts": body["ts"]}
        if body["channel"] not in ("#alerts", "C1"):
            return {"ok": False, "error": "channel_not_found"}
        assert len(body["blocks"][0]["text"]["text"]) <= 150
        if "thread_ts" in body:
            self.messages[body["thread_ts"]].thread.append(body["text"])
            self.messages[body["thread_ts"]].keys.append(body["metadata"]["event_payload"]["key"])
            return {"ok": True, "channel": "C1", "ts": "9.9"}
        ts = f"{len(self.messages) + 1}.000100"
        self.messages[ts] = SlackMessage(body["text"], keys=[body["metadata"]["event_payload"]["key"]])
        return {"ok": True, "channel": "C1", "ts": ts}


class MailDouble:
    """A mail server with STARTTLS and login, that keeps what it takes."""

    def __init__(
        self, certificate: tuple[Path, Path] | None, refuses: str = "", pause: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`pause`: seconds between a mail and the answer that it is taken."""
        self.mails: list[tuple[str, bytes]] = []
        self.pause = pause
        self.refuses = refuses
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
        self.port = free_port()
        self._controller = Controller(
            self,
            hostname="127.0.0.1",
            port=self.port,
            tls_context=context,
            auth_required=context is not None,
            authenticator=lambda *args: AuthResult(
                success=args[4] == LoginPassword(b"me", b"open-sesame"), handled=False
            ),
        )

    def __enter__(self) -> MailDouble:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd
        """aiosmtpd calls it for each mail."""
        if self.refuses:
            return self.refuses
        self.mails += [(to, envelope.content) for to in envelope.rcpt_tos]
        await asyncio.sleep(self.pause())
        return "250 OK"
