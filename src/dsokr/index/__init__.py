"""Candidates on disk, by their coordinates: built once, searched many times."""

from dsokr.files import fingerprint
from dsokr.index.build import Block, BuildOptions, Progress, build
from dsokr.index.candidates import CandidateIndex, Head
from dsokr.index.columns import Columns, Condition
