"""Decoders: from predicted coordinates back to outputs."""

from dsokr.decoders.auto import choose_decoder, find_search
from dsokr.decoders.base import Candidates, Decoded, Decoder
from dsokr.decoders.graphs import GraphSearch
from dsokr.decoders.labelled import LabelledGraphs
from dsokr.decoders.labels import LabelSet
from dsokr.decoders.moves import Molecules, Moves, Neighbors
from dsokr.decoders.rankings import HammingRanking, Kemeny, Lehmer
from dsokr.decoders.scan import EmbeddedOutputs, Ranking
from dsokr.decoders.strings import NGram
from dsokr.decoders.vectors import Box, Gradient, Simplex
