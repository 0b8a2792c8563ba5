"""Pairs of a :class:`Stream` and their targets, for regressors that read them window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from dsokr.compute import compute_once
from dsokr.errors import InputError
from dsokr.outputs import Form, canonical
from dsokr.regressors.base import Targets
from dsokr.regressors.streams import Stream


@dataclass(frozen=True)
class TargetStream:
    """A stream of ``count`` pairs. ``read_inputs`` and ``embed`` turn inputs and outputs into what a network learns."""

    stream: Stream
    count: int
    read_inputs: Callable[[Any], Any]
    embed: Callable[[Any], Targets]

    def read(self, epoch: int, rows: int) -> Iterator[tuple[Any, Any]]:
        """Yield windows of ``rows`` pairs, the last of which may be smaller: inputs as read, outputs as given."""
        for X, Y in self.stream.windows(epoch, rows):
            yield self.read_inputs(X), Y

    def prepared(self, prepare: Callable[[Any], Any]) -> TargetStream:
        """The same stream, with a further step after ``read_inputs``."""
        return replace(self, read_inputs=lambda X: prepare(self.read_inputs(X)))


class Drawn(NamedTuple):
    """The pairs of a fit, or a sample of the pairs of a stream."""

    X: Any
    Y: Any
    total: int | None = None  # number of pairs of the stream
    stream: Stream | None = None

    def embedded(
        self, read_inputs: Callable[[Any], Any], form: Form, embed: Callable[[Any], tuple[Tensor, Tensor]]
    ) -> dict[str, TargetStream]:
        """The stream with its targets, as a further argument of ``Regressor.fit``."""

        def embed_outputs(ys: Any) -> Targets:
            Y, own = canonical(ys)
            form.matching(own, "Y")
            return Targets(*embed(Y))

        if self.stream is None or self.total is None:
            return {}
        return {"stream": TargetStream(self.stream, self.total, read_inputs, embed_outputs)}


def draw_pairs(X: Any, y: Any, regressor: Any, seed: int, validation: Any, *of_pairs: Any) -> Drawn:
    """Return X and y as they are or, if X is a stream, a sample of its pairs."""
    if not isinstance(X, Stream):
        return Drawn(X, y)
    if not getattr(regressor, "streams", False):
        raise InputError(f"Only networks learn from a stream: use regressors.Neural. Got {regressor!r}.")
    if y is not None or any(part is not None for part in of_pairs):
        raise InputError("A stream brings its outputs: pass neither y nor sample_weight nor groups.")
    if validation is None and regressor.validation_fraction:
        raise InputError(
            "No pairs of a stream are held out: pass validation=(X, Y), or Training(validation_fraction=0)."
        )
    return Drawn(*compute_once(partial(X.draw, seed)), X)
