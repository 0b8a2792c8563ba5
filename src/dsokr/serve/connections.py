"""Limits on connections: how many there may be, and how long each may wait. Protocol errors are answered as JSON."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS, OF_CLIENT = 1000, 200  # at once: of all clients, and of one address
LINGER_SECONDS = 1.0  # for a client to read why its request was refused, while the rest of what it sends is dropped
HEADER_SECONDS = 10.0  # for the headers of a request, and for the rest of a body after its answer
READ_SECONDS = 30.0  # for a client to read an answer that does not fit into buffers


class Connection(H11Protocol):
    """A connection: refused if there are too many, and closed if its client does not send or read in time."""

    refused = False
    extra: dict[str, str] = {}  # noqa: RUF012 # headers of a refusal, set once

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timers: dict[str, asyncio.TimerHandle] = {}  # while the client has to send, or to read
        host = self.client and self.client[0]
        others: Any = self.connections
        own = sum(other.client is not None and other.client[0] == host for other in others)
        if len(self.connections) > CONNECTIONS or own > OF_CLIENT:
            self.connections.discard(self)  # at once: many may be made before the first of them is closed
            self.refuse(503, "There are too many connections. Try again in a second.")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if not (self.refused or self.transport.is_closing()):
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_timer("read", READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_timer("read")

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer("send")
        self._set_timer("read")
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "The request is not valid HTTP.", linger=LINGER_SECONDS)

    def refuse(self, status: int, sentence: str, linger: float = 0.0) -> None:
        """Answer without a request, and close the connection after ``linger`` seconds.

        Closing while bytes of the client are unread resets the connection: the client might never see the answer.
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

    def _watch(self) -> None:
        """Run the timer while the client owes headers, or the rest of a body that was answered early."""
        has_answer = self.cycle is not None and self.cycle.response_complete
        waits = self.conn.their_state is h11.IDLE or (has_answer and self.conn.their_state is h11.SEND_BODY)
        if waits and not self.refused:
            self._set_timer("send", HEADER_SECONDS, self._give_up)
        else:
            self._set_timer("send")

    def _give_up(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.refuse(408, "The headers of the request took too long to arrive.")
        else:
            self.transport.close()

    def _set_timer(self, what: str, seconds: float = 0, end: Callable[[], None] | None = None) -> None:
        """Start a timer that calls ``end``, unless it runs already. Without ``end``, stop it."""
        if end is None:
            if timer := self.timers.pop(what, None):
                timer.cancel()
        elif what not in self.timers:
            self.timers[what] = self.loop.call_later(seconds, end)
