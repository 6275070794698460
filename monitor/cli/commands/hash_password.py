"""Print a line for basic_auth_users in web.config_file.

Asks for the password, or reads it from standard input: `rankmon hash-password prometheus <password.txt`.
"""

from __future__ import annotations

import json
import sys

import click

from monitor.cli.common import command
from monitor.errors import InputError

COST = 10
"""bcrypt cost: a check takes some 50 ms."""


@command
@click.argument("name")
def hash_password(name: str) -> None:
    import bcrypt

    from monitor.web.passwords import LONGEST_PASSWORD

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not name or ":" in name:
        raise InputError(f"{name!r} is not a user name; write at least one letter, and no colon")
    if not password:
        raise InputError("there is no password on standard input; write it there, on one line")
    if len(password.encode()) > LONGEST_PASSWORD:
        raise InputError(f"the password has more than the {LONGEST_PASSWORD} bytes that bcrypt sees; shorten it")
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(COST)).decode()
    click.echo(f"  {json.dumps(name, ensure_ascii=False)}: {hashed}")
