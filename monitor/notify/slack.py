"""Slack, with a bot token: one message per incident, kept up to date, with updates in its thread.

https://api.slack.com/methods/chat.postMessage. The message's channel and `ts` are the receipt, so a restart continues
with it. A chart of the fall is uploaded to its thread, where all members of the channel may see it, and then shown in
the message: its file id becomes part of the receipt. Slack knows no key against copies, so each message holds its own
as metadata, and what may have been posted before is looked for first. With the URL of an incoming webhook instead,
which can change nothing, each notification is a message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from urllib.parse import urlencode

from pydantic import model_validator

from monitor.errors import Undelivered
from monitor.fields import HttpAddress, Maybe, Text
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import OnlyReceiver, Receiver
from monitor.notify.http import HttpChannel, Poster
from monitor.section import FromFile, key

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

LONGEST_TITLE, LONGEST_TEXT = 150, 3000
"""Characters that Slack takes in a header, and in a section."""

UPLOAD_WITHIN = 5.0
"""Seconds for a chart, which later messages wait for."""

AGAIN_AFTER = 1.0
"""Seconds between two attempts to show a chart that Slack is still reading in."""

LOOKED_BACK = 86_400.0
MOST_MESSAGES, MOST_BYTES = 999, 16 * 2**20
"""Seconds for which a message that may be there is looked for; what one answer holds at most."""

SETTLED = 2.0
"""Seconds after which a message that a killed process posted is there or will not be."""

GONE = ("message_not_found", "cant_update_message", "edit_window_closed")
"""Errors after which an incident gets a new message."""

NO_SUCH_FILE = "invalid_blocks"
"""Error of a message that shows a file which Slack has not read in yet, or has no longer."""

SIGNS = {"critical": ":red_circle:", "warning": ":large_orange_circle:", "info": ":large_blue_circle:"}
OVER = ":large_green_circle:"


@dataclass(frozen=True, slots=True)
class SlackConfig(HttpChannel):
    """A channel of Slack, by a bot's token or an incoming webhook."""

    kind: ClassVar[str] = "slack"

    token: Annotated[
        Maybe[Text],
        FromFile,
        key(
            "Bot token with the scopes chat:write, files:write for charts, and channels:history or groups:history to "
            "avoid duplicate posts after a crash; best set as ${NAME}. Default: none."
        ),
    ] = field(default=None, repr=False)
    channel: Annotated[
        Maybe[Text],
        key("Channel id (or #name, but then duplicates cannot be detected), for the token. Default: none."),
    ] = None
    webhook_url: Annotated[
        Maybe[HttpAddress], FromFile, key("Incoming webhook, instead of token and channel. Default: none.")
    ] = field(default=None, repr=False)
    url: Annotated[HttpAddress, key("Address of the Web API.")] = "https://slack.com/api"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.token is None) == (self.webhook_url is None):
            raise ValueError("needs either a `token:` or a `webhook_url:`; give one of them")
        if self.token is not None and self.channel is None:
            raise ValueError("has a token but no `channel:`; name the channel to post to")
        return self

    def receivers(self) -> list[Receiver]:
        return [SlackWebhook(self) if self.token is None else Slack(self)]


class Slack(OnlyReceiver):
    """Keeps one message per incident in one channel."""

    def __init__(self, config: SlackConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._to = config.channel
        self._headers = {"Authorization": f"Bearer {config.token}", "Content-Type": "application/json; charset=utf-8"}
        self._base, self._ca_file, self._timeout = config.url.rstrip("/"), config.ca_file, config.timeout
        self._post_message, self._update = (
            self._poster(f"{self._base}/{method}", config.timeout) for method in ("chat.postMessage", "chat.update")
        )

    def _poster(self, url: str, timeout: float) -> Poster:
        return Poster(url, timeout, self._ca_file)

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> str | None:
        """Post the incident's message, or bring it up to date and say in its thread what changed.

        Returns:
            Its channel and `ts`.

        Raises:
            Undelivered: Slack did not take it, which it may say with status 200.
        """
        place, ts, _ = _parts(prior.receipt)
        if ts and self._edit(notification, prior.receipt):
            said = {"text": _plainly(notification.title), "blocks": blocks(notification)[:2]}
            self._say(notification, now, prior, {"channel": place, "thread_ts": ts, **said})
            return None
        return self._say(notification, now, prior, {"channel": self._to, **message(notification)})

    def _edit(self, notification: Notification, receipt: str) -> bool:
        """Bring a message up to date, with its chart if Slack still has it; False if the message is gone."""
        place, ts, file = _parts(receipt)
        at = {"channel": place, "ts": ts}
        if file and self._call(self._update, {**at, **message(notification, file)}, (*GONE, NO_SUCH_FILE)) is not None:
            return True
        return self._call(self._update, {**at, **message(notification)}, GONE) is not None

    def _say(self, notification: Notification, now: float, prior: PriorDelivery, body: dict[str, Any]) -> str:
        """Post a message, unless it is there from an attempt before; its channel and `ts`."""
        if prior.begun_at is not None:
            time.sleep(min(max(prior.begun_at + SETTLED - now, 0.0), SETTLED))
            if ts := self._known(notification.key, now, body["channel"], body.get("thread_ts")):
                return f"{body['channel']} {ts}"
        metadata = {"event_type": "rankmon", "event_payload": {"key": notification.key}}
        answer = self._call(self._post_message, {**body, "metadata": metadata}) or {}
        return f"{answer['channel']} {answer['ts']}"

    def _known(self, key: str, now: float, channel: str, thread: str | None) -> str:
        """`ts` of the message with a notification's key, "" if there is none or the bot may not look."""
        asked = {"channel": channel, "limit": MOST_MESSAGES, "include_all_metadata": "true"}
        asked["oldest"] = f"{now - LOOKED_BACK:.6f}"
        method = "conversations.history" if thread is None else "conversations.replies"
        poster = Poster(f"{self._base}/{method}", self._timeout, self._ca_file, MOST_BYTES)
        found, _ = self._ask(poster, asked | ({} if thread is None else {"ts": thread}), is_form=True)
        messages = found.get("messages", ())  # none if it refused: better twice than never
        marks = ((m.get("metadata", {}).get("event_payload", {}).get("key"), m["ts"]) for m in messages)
        return next((ts for mark, ts in marks if mark == key), "")

    def add_chart(self, notification: Notification, receipt: str, chart: bytes) -> str:
        """Upload a PNG into a message's thread (https://docs.slack.dev/messaging/working-with-files).

        Returns:
            The receipt with the file's id, by which the next edit shows it.

        Raises:
            Undelivered: Slack did not take it in `UPLOAD_WITHIN`.
        """
        (place, ts, _), until = _parts(receipt), time.monotonic() + UPLOAD_WITHIN

        def poster(url: str) -> Poster:
            return self._poster(url, max(until - time.monotonic(), 0.01))

        about = {"filename": "fall.png", "length": len(chart), "alt_txt": notification.title}
        found = self._call(poster(f"{self._base}/files.getUploadURLExternal"), about, is_form=True) or {}
        poster(found["upload_url"]).post(chart, {"Content-Type": "image/png"})
        shared = {"files": [{"id": found["file_id"], "title": "The fall"}], "channel_id": place, "thread_ts": ts}
        self._call(poster(f"{self._base}/files.completeUploadExternal"), shared)
        return f"{place} {ts} {found['file_id']}"

    def show_chart(self, notification: Notification, receipt: str) -> None:
        """Show the uploaded PNG in the message, once Slack has read it in; if that takes too long, the next edit does.

        Raises:
            Undelivered: Slack refused.
        """
        (place, ts, file), until = _parts(receipt), time.monotonic() + UPLOAD_WITHIN
        body = {"channel": place, "ts": ts, **message(notification, file)}
        while self._call(self._update, body, (*GONE, NO_SUCH_FILE)) is None and time.monotonic() < until:
            time.sleep(AGAIN_AFTER)

    def _call(
        self, poster: Poster, body: dict[str, Any], borne: Collection[str] = (), is_form: bool = False
    ) -> dict[str, Any] | None:
        """The answer; None if it is one of the errors that are `borne`."""
        found, wait = self._ask(poster, body, is_form)
        error = str(found.get("error", "no reason given"))
        if found["ok"]:
            return found
        if error in borne:
            return None
        raise Undelivered(f"{poster.place}: refused: {_remedy(poster.harmless(error.encode(), self._headers))}", wait)

    def _ask(self, poster: Poster, body: dict[str, Any], is_form: bool = False) -> tuple[dict[str, Any], float]:
        """(answer, seconds to wait), though it may be a refusal. `is_form`: not all methods read JSON."""
        if is_form:
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = poster.post(urlencode(body).encode(), self._headers | form)
        else:
            answer = poster.post(json.dumps(body).encode(), self._headers)
        try:
            found: dict[str, Any] = json.loads(answer.said)
            return {**found, "ok": bool(found["ok"])}, answer.wait
        except (ValueError, KeyError, TypeError):
            raise Undelivered(f"{poster.place}: its answer is not Slack's; is the `url:` right?") from None


class SlackWebhook(OnlyReceiver):
    """Posts each notification to an incoming webhook."""

    def __init__(self, config: SlackConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._poster = Poster(str(config.webhook_url), config.timeout, config.ca_file)

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        self._poster.post(json.dumps(message(notification)).encode(), {})


REMEDIES = {
    "invalid_auth": "give a valid token",
    "token_revoked": "the token was revoked; give a new one",
    "account_inactive": "the token's account is gone; give a new token",
    "missing_scope": "the token is missing the scope chat:write, or files:write for charts",
    "channel_not_found": "no such channel for this bot; check the name, and invite the bot to it",
    "not_in_channel": "invite the bot to the channel",
    "is_archived": "the channel is archived; choose another",
}


def _remedy(error: str) -> str:
    return f"{error}; {REMEDIES[error]}" if error in REMEDIES else error


def _parts(receipt: str) -> tuple[str, str, str]:
    """(channel, `ts`, file id) of a receipt; the last one is empty without a chart, all without a message."""
    place, ts, file, *_ = [*receipt.split(" "), "", "", ""]
    return place, ts, file


def message(notification: Notification, chart: str = "") -> dict[str, Any]:
    """The incident's message as it stands with this notification. `chart`: id of a file to show in it."""
    shown = blocks(notification)
    if chart:
        file = {"type": "image", "alt_text": notification.title, "slack_file": {"id": chart}}
        shown = [*shown[:-1], file, shown[-1]]
    return {"text": _plainly(notification.title), "blocks": shown, "unfurl_links": False}


def blocks(notification: Notification) -> list[dict[str, Any]]:
    """Title, five lines, and where there is more."""
    sign = OVER if notification.is_over else SIGNS[notification.severity]
    title = f"{sign} {notification.title}"[:LONGEST_TITLE]
    found: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title, "emoji": True}}]
    if lines := notification.lines:
        text = _plainly("\n".join(lines))[:LONGEST_TEXT]
        found.append({"type": "section", "text": {"type": "mrkdwn", "text": text}})
    links = [f"<{url}|{name}>" for name, url in notification.links]
    about = " · ".join([notification.severity, f"incident {notification.incident}", *links])
    return [*found, {"type": "context", "elements": [{"type": "mrkdwn", "text": about}]}]


def _plainly(text: str) -> str:
    """Text in which Slack sees no link, mention or mark-up of its own: these begin with one of three characters."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
