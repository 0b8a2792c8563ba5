"""What a server takes on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dsokr.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Requests beyond these are refused, in a sentence, before work is done for them."""

    body_bytes: int = 1_000_000
    inputs: int = 64  # in one request
    text: int = 5_000  # characters of one input
    k: int = 100
    seconds: float = 10.0  # for a request to arrive, and for its answer
    waiting: int = 256  # requests that wait for their turn
    rows: int = 256  # inputs of several requests that are answered together

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InputError(f"Limits.{field.name} must be above 0. Got {getattr(self, field.name)}.")
