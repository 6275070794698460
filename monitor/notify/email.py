"""E-mail over SMTP: plain text and HTML with a chart, one thread per incident. Each address is a separate receiver.

RFC 5322: the message that opens an incident has an id made of the incident, and all later ones refer to it. A message
that is sent again has the same id, by which mail servers drop copies.
"""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate
from html import escape
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from monitor.errors import Undelivered, without
from monitor.fields import Maybe, PositiveDuration, Text
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.messages.words import plain
from monitor.notify import ChannelConfig, GiveUpAfter, Receiver
from monitor.section import FromFile, key
from monitor.units import DAY

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

DOMAIN = "rankmon.invalid"
"""Right side of message ids: reserved, so it is not a mail server's own (RFC 2606)."""


NO_TLS = "does not offer the required TLS; set `security:` to what it offers"
ALT = "Chart of the fall: measured and expected"


def _address(text: str) -> str:
    name, at, domain = text.rpartition("@")
    if not (name and at and domain) or any(c.isspace() or c in "<>,;" for c in text):
        raise ValueError(f"{text!r} is not a mail address; write e.g. oncall@example.com")
    return text


_Address = Annotated[Text, AfterValidator(_address)]


@dataclass(frozen=True, slots=True)
class EmailConfig(ChannelConfig):
    """Mail addresses, by a mail server."""

    kind: ClassVar[str] = "email"
    MAILS: ClassVar[bool] = True

    host: Annotated[Text, key("The mail server.", examples=["smtp.example.com"])]
    sender: Annotated[_Address, key("Sender address.", alias="from", examples=["rankmon@example.com"])]
    to: Annotated[
        tuple[_Address, ...],
        key("Recipients; each gets a separate mail.", min_length=1, examples=["[oncall@example.com]"]),
    ]
    port: Annotated[int, Field(ge=1, le=65_535), key("Port of the mail server.")] = 587
    security: Annotated[
        Literal["starttls", "tls", "none"],
        key(
            "TLS after the greeting, from the start (usually port 465), or none. Nothing is sent if the server does "
            "not offer what is set."
        ),
    ] = "starttls"
    username: Annotated[Maybe[Text], key("User name to log in with. Default: no login.")] = None
    password: Annotated[Maybe[str], FromFile, key("Password; best set as ${NAME}. Default: none.")] = field(
        default=None, repr=False
    )
    timeout: Annotated[PositiveDuration, key("Time limit of each step of the SMTP conversation.")] = 10
    give_up_after: GiveUpAfter = DAY

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("needs both `username:` and `password:` to log in, or neither")
        if self.username is not None and self.security == "none":
            raise ValueError("would send the password without TLS; set `security: starttls` or `tls`")
        return self

    def receivers(self) -> list[Receiver]:
        return [Email(self, to) for to in self.to]


class Email:
    """Mails notifications to one address."""

    repeat: float | None = None

    def __init__(self, config: EmailConfig, to: str) -> None:
        self.channel = config.name
        self.target = f"{config.name} {to}" if len(config.to) > 1 else config.name
        self.give_up_after = float(config.give_up_after)
        self._config, self._to = config, to
        self._place = f"{config.host}:{config.port}"

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        self.send_with(notification, now, prior, b"")

    def send_with(self, notification: Notification, now: float, prior: PriorDelivery, chart: bytes) -> None:
        """Mail it with a PNG, if that is not empty. Raises Undelivered."""
        found = mail(notification, self._config.sender, self._to, now, chart)
        try:
            with self._session() as session:
                session.send_message(found)
        except smtplib.SMTPNotSupportedError:
            raise Undelivered(f"{self._place}: {NO_TLS}") from None
        except smtplib.SMTPAuthenticationError as error:
            raise Undelivered(
                f"{self._place}: login refused ({error.smtp_code}); check username and password"
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            ((code, answer),) = error.recipients.values()
            raise Undelivered(f"{self._place}: refused {self._to} ({code} {self._line(answer)})") from None
        except smtplib.SMTPResponseException as error:
            raise Undelivered(f"{self._place}: answered {error.smtp_code} {self._line(error.smtp_error)}") from None
        except ssl.SSLCertVerificationError as error:
            raise Undelivered(f"{self._place}: its certificate is not trusted ({error.verify_message})") from None
        except ssl.SSLError as error:
            raise Undelivered(f"{self._place}: {NO_TLS} ({error.reason or 'no TLS'})") from None
        except TimeoutError:
            raise Undelivered(f"{self._place}: did not answer in time") from None
        except smtplib.SMTPException as error:
            raise Undelivered(f"{self._place}: {self._line(str(error)) or type(error).__name__}") from None
        except OSError as error:
            raise Undelivered(
                f"{self._place}: cannot be reached ({error.strerror or self._line(str(error))})"
            ) from None

    def _line(self, said: bytes | str) -> str:
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        return without(plain(text, one_line=True), [self._config.password or ""])

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        config, trust = self._config, ssl.create_default_context()
        if config.security == "tls":
            session: smtplib.SMTP = smtplib.SMTP_SSL(config.host, config.port, timeout=config.timeout, context=trust)
        else:
            session = smtplib.SMTP(config.host, config.port, timeout=config.timeout)
        with session:
            if config.security == "starttls":
                session.starttls(context=trust)
            if config.username is not None:
                session.login(config.username, config.password or "")
            yield session


def mail(notification: Notification, sender: str, to: str, now: float, chart: bytes = b"") -> EmailMessage:
    """The notification as a mail, with a PNG if that is not empty; `now` in seconds since 1970."""
    found = EmailMessage()
    first = f"<{notification.incident}@{DOMAIN}>"
    found["From"], found["To"], found["Date"] = sender, to, formatdate(now)
    found["Subject"] = notification.title
    if notification.kind in ("firing", "report"):
        found["Message-ID"] = first
    else:
        found["Message-ID"] = f"<{notification.key}@{DOMAIN}>"
        found["In-Reply-To"] = found["References"] = first
    found["Auto-Submitted"] = "auto-generated"  # no holiday notes in answer (RFC 3834)
    if notification.kind == "report":
        found["List-Unsubscribe"] = f"<mailto:{sender}?subject=unsubscribe>"
        leave = f"To stop receiving this report, ask {sender} to take {to} off the mail channel."
        found.set_content(f"{notification.text}\n\n{leave}\n")
        found.add_attachment(notification.html, subtype="html", filename="report.html")
        return found
    found.set_content(notification.full_text + "\n")
    lines = _paragraphs(notification.lines)
    more = f"<hr>{_paragraphs(notification.details.splitlines())}" if notification.details else ""
    links = " &nbsp; ".join(f'<a href="{escape(url)}">{name}</a>' for name, url in notification.links)
    cid = f"chart.{notification.key}@{DOMAIN}"
    picture = f'<p><img src="cid:{cid}" alt="{ALT}" width="600" style="max-width:100%"></p>' if chart else ""
    found.add_alternative(
        f"<html><body><h3>{escape(notification.title)}</h3>{lines}<p>{links}</p>{picture}{more}</body></html>",
        subtype="html",
    )
    if chart:
        *_, html = found.iter_parts()
        html.add_related(chart, "image", "png", cid=f"<{cid}>", filename="fall.png", disposition="inline")
    return found


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
