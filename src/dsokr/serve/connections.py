"""Connections before they are requests: limits on their number and on the time of headers, and errors as JSON."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS, OF_CLIENT = 1000, 200  # at once: of all clients, and of one address
LINGER_SECONDS = 1.0  # for a client to read why its request was refused, while the rest of what it sends is dropped
HEADER_SECONDS = 10.0  # from a connection, or the first byte of a further request, to the end of its headers


class Connection(H11Protocol):
    """A connection that is refused beyond the limits, and closed if the headers of a request do not come."""

    timer: asyncio.TimerHandle | None = None
    refused = False
    extra: dict[str, str] = {}  # noqa: RUF012 # headers of a refusal, set once

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        host = self.client and self.client[0]
        others: Any = self.connections
        own = sum(other.client is not None and other.client[0] == host for other in others)
        if len(self.connections) > CONNECTIONS or own > OF_CLIENT:
            self.connections.discard(self)  # at once: many may be made before the first of them is closed
            self.refuse(503, "There are too many connections. Try again in a second.")
        else:
            self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self.refused or self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "The request is not valid HTTP.", linger=LINGER_SECONDS)

    def refuse(self, status: int, sentence: str, linger: float = 0.0) -> None:
        """Answer without a request, and close: at once, or later.

        To close while bytes of the client are unread resets the connection, and the client may never see the answer.
        """
        self.refused = True
        body = json.dumps({"error": sentence, "where": ""})
        lines = {"content-type": "application/json", "content-length": len(body), "connection": "close", **self.extra}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n{body}".encode())
        if linger and self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
            self.loop.call_later(linger, self.transport.close)
        else:
            self.transport.close()

    def _await_headers(self) -> None:
        if self.timer is None:
            late = "The headers of the request took too long to arrive."
            self.timer = self.loop.call_later(HEADER_SECONDS, self.refuse, 408, late)

    def _stop_waiting(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
