"""Indexes of candidates, on disk or in Milvus: searched by coordinates, and updated while they are read."""

from dsokr.files import fingerprint
from dsokr.index.build import Block, BuildOptions, Progress
from dsokr.index.candidates import CandidateIndex
from dsokr.index.columns import Columns, Condition
from dsokr.index.milvus import MilvusIndex
from dsokr.index.places import Changes, Index, Listed, build, is_index, open_index, update
from dsokr.index.stored import Head
