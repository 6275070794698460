"""Checks passwords against bcrypt hashes; slow by design, hence limited and cached."""

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
"""Successful checks kept in the cache; the least recently used is dropped first."""

MOST_WAITING = 8
"""Concurrent checks of different passwords per client."""

LONGEST_PASSWORD = 72
"""Bytes that bcrypt reads; all tools that make hashes drop the rest."""


class TooManyChecks(Exception):
    """A client checks too many passwords at once; it may retry later."""


class Passwords:
    """Users and their password hashes, for use from one event loop.

    Successes are cached by a hash keyed to this process, so no password is kept. An unknown user takes as long as a
    known one: one check at each cost found among the users.
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
        """Whether an `Authorization` header is right. Raises TooManyChecks above MOST_WAITING per `client`."""
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
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None
