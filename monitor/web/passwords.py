"""Checks user names and passwords against bcrypt hashes, which is slow by design, and so bounded and remembered."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial

import bcrypt

MOST_REMEMBERED = 100
"""Successful checks that need no second one; the longest unused is forgotten first."""

MOST_WAITING = 8
"""Checks of different passwords that one client may have under way."""

LONGEST_PASSWORD = 72
"""Bytes that bcrypt looks at; all tools that make hashes leave out the rest."""


class TooManyChecks(Exception):
    """A client tries many passwords at once; later it may try again."""


class Passwords:
    """Some users and the hashes of their passwords. To be used from one event loop.

    What was right is remembered by a hash under a key of this process, so no password is kept. An unknown user takes
    as long as a known one: a check is made at each cost that there is among the users.
    """

    def __init__(self, users: Iterable[tuple[str, bytes]], threads: Executor) -> None:
        self._users = dict(users)
        self._of_nobody = {_cost(one): bcrypt.gensalt(_cost(one)) + b"." * 31 for one in self._users.values()}
        self._threads = threads
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting: Counter[str] = Counter()

    async def are_right(self, header: str, client: str) -> bool:
        """Whether an `Authorization` header holds a user and the password. `client` is the address it came from.

        Raises:
            TooManyChecks: the client has MOST_WAITING other passwords under way.
        """
        credentials = _credentials(header)
        if credentials is None:
            return False
        mark = hmac.digest(self._key, b":".join(credentials), hashlib.sha256)
        if mark in self._right:
            self._right.move_to_end(mark)
            return True
        if mark not in self._under_way:
            self._begin(mark, *credentials, client)
        return await asyncio.shield(self._under_way[mark])

    def _begin(self, mark: bytes, name: bytes, password: bytes, client: str) -> None:
        if self._waiting[client] >= MOST_WAITING:
            raise TooManyChecks
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._threads, self._is_password_of, name.decode(errors="replace"), password)
        self._waiting[client] += 1
        self._under_way[mark] = check
        check.add_done_callback(partial(self._end, mark, client))

    def _end(self, mark: bytes, client: str, check: asyncio.Future[bool]) -> None:
        del self._under_way[mark]
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        if not check.cancelled() and check.exception() is None and check.result():
            self._right[mark] = None
            if len(self._right) > MOST_REMEMBERED:
                self._right.popitem(last=False)

    def _is_password_of(self, name: str, password: bytes) -> bool:
        known = self._users.get(name)
        mine = {} if known is None else {_cost(known): known}
        is_right = [bcrypt.checkpw(password[:LONGEST_PASSWORD], one) for one in (self._of_nobody | mine).values()]
        return known is not None and any(is_right)


def _cost(one: bytes) -> int:
    return int(one.split(b"$")[2])


def _credentials(header: str) -> tuple[bytes, bytes] | None:
    """User and password of a header for basic authentication; None if it is none."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None
