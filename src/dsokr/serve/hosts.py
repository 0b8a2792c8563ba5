"""The names that the server answers to."""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from dsokr.errors import InputError
from dsokr.serve.refusals import problem

HOST = re.compile(r"(\[[\w:.%]+]|[\w.-]+)(:\d*)?", re.ASCII)  # a name or an address, and a port
SHOWN = 100  # characters of a name that is not known


class KnownHosts:
    """Refuses requests under names that are not the server's own.

    A page of another site can have its own name lead to this machine (DNS rebinding) and then read what the server
    answers; but it cannot do so under the name localhost, nor under an address in numbers.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]):
        self.app, self.names = app, {"localhost", *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            name = _name(host)
            if name not in self.names and not _is_address(name):
                sentence = f"This server does not answer to {host[:SHOWN]!r}: --allow-host of dsokr serve adds a name."
                await problem(400, sentence)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def checked_name(host: str) -> str:
    """The name as it is compared.

    >>> checked_name("Models.Example.org:8000")
    'models.example.org'
    """
    name = host.lower() if _is_address(host) else _name(host)
    if not name:
        raise InputError(f"Hosts are names such as models.example.org. Got {host!r}.")
    return name


def _name(host: str) -> str:
    """Without the port, or nothing if that is no host: of localhost:8000 and [::1]:8000."""
    found = HOST.fullmatch(host)
    return found[1].strip("[]").rstrip(".").lower() if found else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
