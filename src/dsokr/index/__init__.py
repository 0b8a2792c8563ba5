"""Candidates on disk, by their coordinates: built once, searched many times."""

from dsokr.index.build import BuildOptions, Progress, build
from dsokr.index.candidates import CandidateIndex
from dsokr.index.storage import Block, Head, fingerprint
