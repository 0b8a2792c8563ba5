"""Running the application until it is told to stop."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from dsokr.errors import InputError, MissingExtraError

GRACE_SECONDS = 10  # for requests under way when the server is told to stop
CONNECTIONS = 1000
SWITCH_SECONDS = 2e-4  # the thread that searches and the one that speaks HTTP take turns; Python's 5 ms are long here


def run(app: Any, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; requests under way are answered first."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve") from error
    listening = _bound(host, port)
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # one core is for the requests themselves
    shown, number = listening.getsockname()[:2]
    address = f"[{shown}]" if ":" in shown else shown
    say(f"Serving at http://{address}:{number} (Ctrl-C stops it)")
    if not _is_local(shown):
        say("Anyone who reaches this address can ask: the server has no passwords.")
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):  # the way to stop it, and nothing to complain about
        uvicorn.Server(config).run(sockets=[listening])
    say("Stopped.")


def _bound(host: str, port: int) -> socket.socket:
    made = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        raise InputError(
            f"Cannot listen at {host}, port {port}: {error}. Choose others with --host and --port."
        ) from error
    return made


def _is_local(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
