"""Decoders: from predicted coefficients back to outputs."""

from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.candidates import Candidates
from dsokr.decoders.embedded import EmbeddedOutputs, Ranking

__all__ = ["Candidates", "Decoded", "Decoder", "EmbeddedOutputs", "Ranking"]
