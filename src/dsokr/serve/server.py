"""Running the application until it is stopped."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from dsokr.errors import InputError, import_extra

GRACE_SECONDS = 10  # for requests under way when the server is stopped
CONNECTIONS = 1000
SWITCH_SECONDS = 2e-4  # between the threads for searching and for HTTP; Python's default of 5 ms is long here


def run(app: Any, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; requests under way are answered first."""
    uvicorn = import_extra("uvicorn", "serve")
    listening = bind(host, port)
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # one core is for HTTP
    shown, number = listening.getsockname()[:2]
    say(f"Serving at http://{f'[{shown}]' if ':' in shown else shown}:{number} (Ctrl-C to stop)")
    if not shown.startswith("127.") and shown != "::1":
        say("Anyone who can reach this address can use the server: it has no passwords.")
    limits = {"limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": GRACE_SECONDS}
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False, **limits)
    with suppress(KeyboardInterrupt):  # the usual way to stop
        uvicorn.Server(config).run(sockets=[listening])
    say("Stopped.")


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address; port 0 is any free port."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        message = f"Cannot listen at {host}, port {port}: {error}. Choose others with --host and --port."
        raise InputError(message) from error
