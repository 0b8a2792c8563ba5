"""Candidates on disk, by their coordinates: built once, searched many times."""

from dsokr.index.build import BuildOptions, build
from dsokr.index.candidates import CandidateIndex
from dsokr.index.files import Block, Head, fingerprint

__all__ = ["Block", "BuildOptions", "CandidateIndex", "Head", "build", "fingerprint"]
