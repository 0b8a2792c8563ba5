"""An index in a collection of Milvus: of a server, ``milvus://HOST:PORT/COLLECTION``, or of Milvus Lite in ``x.db``.

Each row is a candidate: its position as ``id``; a vector for every decoding rule, see :func:`dsokr.rules.as_points`
(the vector of "projected" begins with ψ̃(y)); k(y, y); a line of JSON as in a local index; and its columns as numbers
(n0, n1, …) and as hashes of their texts (h0, h1, …). The head is a property of the collection. Searches filter by the
count in the head, so that rows of an unfinished update are not found, and score their hits again in double precision.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.decoders.scan import Ranking
from dsokr.errors import InputError, ModelFolderError, check_k, check_types, import_extra
from dsokr.index.candidates import check_coordinates, check_usable
from dsokr.index.columns import Condition, check_column, no_numbers
from dsokr.index.stored import Head
from dsokr.rules import RULES, Rule, as_queries, check_rule, largest, score

ADDRESS = re.compile(r"milvus:/+((?P<token>[^/@]+)@)?(?P<host>[^/@]+)/(?P<collection>\w+)")  # of a Path, with one slash
HEAD, DROPPED = "dsokr.head", "dsokr.dropped"  # properties; the second lists rows about to be deleted
FIELDS = ["line", "projected", "diag"]  # of a candidate that was found
KINDS = {"exact": ("FLAT", {}), "hnsw": ("HNSW", {"M": 32, "efConstruction": 100})}
MOST = 16384  # hits of a search, the limit of Milvus
# Most gRPC servers, Milvus Lite among them, hang up on a client that pings oftener, as pymilvus would.
PINGS = {"grpc.keepalive_time_ms": 300_000, "grpc.keepalive_permit_without_calls": 0}
LONGEST = 65535  # bytes of a text
ROWS = 1000  # written or asked for at once
CACHE = 2**16  # candidates held after a search
SECONDS = 5.0  # to connect


def is_milvus(address: str | Path) -> bool:
    """Whether an address is one of Milvus."""
    return str(address).startswith("milvus:") or Path(address).suffix == ".db"


class Collection:
    """A Milvus collection and its properties. Errors of Milvus are raised as ModelFolderError."""

    def __init__(self, address: str | Path):
        found = ADDRESS.fullmatch(str(address))
        if found is None and Path(address).suffix != ".db":
            raise InputError(
                f"Addresses of Milvus are milvus://HOST:PORT/COLLECTION, or x.db for a file. Got {address}."
            )
        pymilvus = import_extra("pymilvus", "milvus")
        self.address, self.name, place, token = str(address), "candidates", str(address), ""
        if found is None:
            import_extra("milvus_lite", "milvus")
        else:
            self.name, place, token = found["collection"], f"http://{found['host']}", found["token"] or ""
            self.address = f"milvus://{found['host']}/{self.name}"
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # they would print a traceback beside our error
        self.failure = pymilvus.MilvusException
        with self.errors():
            self.client = pymilvus.MilvusClient(place, token=token, timeout=SECONDS, grpc_options=PINGS)

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self.failure as error:
            what = str(error.message).strip().rstrip(".").partition("\n")[0]
            if "Open local milvus failed" in what:
                what = "the place cannot be written, or another process has opened it"
            raise ModelFolderError(f"Milvus at {self.address}: {what}.") from error

    def call(self, name: str, *given: Any, **options: Any) -> Any:
        """Call a method of the client for this collection."""
        with self.errors():
            return getattr(self.client, name)(self.name, *given, **options)

    def read_head(self) -> tuple[Head, list[int]] | None:
        """Return the head and the rows about to be deleted, or None if there is no such collection."""
        if not self.call("has_collection"):
            return None
        properties = self.call("describe_collection")["properties"]
        try:
            head, dropped = Head(**json.loads(properties[HEAD])), json.loads(properties.get(DROPPED, "[]"))
            check_types(head)
            if head.dim < 1 or not 0 <= head.deleted <= head.count or any(type(at) is not int for at in dropped):
                raise ValueError("its parts do not fit together")
        except (LookupError, TypeError, ValueError) as error:
            raise ModelFolderError(
                f"{self.address} is not an index of this version of dsokr. Choose another name."
            ) from error
        return head, dropped

    def write_head(self, head: Head, dropped: Sequence[int] = ()) -> None:
        self.call("alter_collection_properties", properties=describe_state(head, dropped))

    def create(self, head: Head) -> None:
        """Create the collection, with an index for every field that is searched."""
        kinds, indexes = import_extra("pymilvus", "milvus").DataType, self.client.prepare_index_params()
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("line", kinds.VARCHAR, max_length=LONGEST)
        schema.add_field("diag", kinds.DOUBLE)
        kind, given = KINDS[head.kind]
        for rule in rules_of(head):
            schema.add_field(rule, kinds.FLOAT_VECTOR, dim=head.dim + 1)
            indexes.add_index(rule, index_type=kind, metric_type="L2", params=given)
        columns = [f"{letter}{number}" for letter in "nh" for number in range(len(head.columns))]
        for name in ("code", *columns):
            is_number = name.startswith("n")
            schema.add_field(name, kinds.DOUBLE if is_number else kinds.INT64, nullable=is_number)
            indexes.add_index(name, index_type="INVERTED")
        self.call("create_collection", schema=schema, properties=describe_state(head), consistency_level="Strong")
        self.call("create_index", indexes, sync=False)  # otherwise it waits half a second for each


def describe_state(head: Head, dropped: Sequence[int] = ()) -> dict[str, str]:
    """The properties of a collection."""
    return {HEAD: json.dumps(asdict(head)), DROPPED: json.dumps(list(dropped))}


def rules_of(head: Head) -> list[Rule]:
    """The rules by which a collection can be searched; coordinates are read from "projected"."""
    return [rule for rule in RULES if head.rule in (None, rule) or rule == "projected"]


class Row(NamedTuple):
    """A candidate returned by Milvus."""

    line: list[str]  # text, name, further cells
    psi: Tensor  # (p,)
    diag: float


class Lines:
    """Texts (part 0), names (part 1) or further cells of candidates, by their positions."""

    def __init__(self, look_up: Callable[[int], Row], part: int):
        self.look_up, self.part = look_up, part

    def __getitem__(self, at: Any) -> str:
        return self.look_up(int(at)).line[self.part]


class MilvusIndex:
    """Candidates in a Milvus collection, with the interface of :class:`CandidateIndex`."""

    def __init__(self, collection: Collection, head: Head, dropped: list[int]):
        self.collection, self.head, self.dropped = collection, head, dropped
        self._rows: dict[int, Row] = {}
        self.texts, self.names, *cells = (Lines(self._look_up, part) for part in range(2 + len(head.columns)))
        self.cells = dict(zip(head.columns, cells, strict=True))

    @classmethod
    def open(cls, address: str | Path | Collection, model: str | None = None) -> MilvusIndex:
        collection = address if isinstance(address, Collection) else Collection(address)
        there = collection.read_head()
        if there is None:
            raise ModelFolderError(f"{collection.address} does not exist. Build it with dsokr embed.")
        check_usable(collection.address, there[0].finished, there[0].model, model)
        collection.call("load_collection")
        return cls(collection, *there)

    def refreshed(self) -> MilvusIndex:
        """Return the newest version of this index; the same object if nothing changed."""
        same = self.collection.read_head() == (self.head, self.dropped)
        return self if same else MilvusIndex.open(self.collection, self.head.model)

    def __len__(self) -> int:
        return self.head.count - self.head.deleted

    def search(self, z: Tensor, k: int, rule: Rule, conditions: Sequence[Condition] = ()) -> Ranking:
        """Find the k best candidates for every row of z (n, p) by Milvus, and score them again, exactly.

        Where fewer than k candidates meet the conditions, positions are −1 and scores −∞.
        """
        check_rule(rule)
        z, k = check_coordinates(z, self.head.dim), min(check_k(k), len(self))
        if rule not in rules_of(self.head) or k > MOST:
            rules = ", ".join(rules_of(self.head))
            raise InputError(f"{self.collection.address} answers the rules {rules}, with at most {MOST:,} candidates.")
        if len(self._rows) > CACHE:
            self._rows.clear()
        indices = torch.full((len(z), k), -1)
        scores = torch.full((len(z), k), -torch.inf, dtype=torch.float64)
        wanted = [self._describe(conditions, row) for row in range(len(z))]
        for text in dict.fromkeys(wanted):
            rows = [row for row in range(len(z)) if wanted[row] == text]
            for row, found in zip(rows, self._find(z[rows], k, rule, text), strict=True):
                at = torch.tensor(sorted(found), dtype=torch.long)
                if len(at):
                    scored = score(z[row : row + 1], *self._coordinates(at.tolist()), rule)
                    best, columns = largest(scored, min(k, len(at)))
                    indices[row, : best.shape[1]], scores[row, : best.shape[1]] = at[columns[0]], best[0]
        width = max(1, int((indices >= 0).sum(dim=1).amax())) if len(z) else k  # fewer may meet the conditions
        return Ranking(indices[:, :width], scores[:, :width])

    def _find(self, z: Tensor, k: int, rule: Rule, wanted: str) -> list[list[int]]:
        """Positions of candidates that should include the k best, for every row of z."""
        limit = min(2 * k + 16, MOST)
        asked = list(as_queries(z, rule).float().numpy())
        options = {"limit": limit, "output_fields": FIELDS, "search_params": {"params": {"ef": max(128, 2 * limit)}}}
        found = self.collection.call("search", asked, wanted, anns_field=rule, **options)
        return [[self._remember(hit["id"], hit["entity"]) for hit in hits] for hits in found]

    def _describe(self, conditions: Sequence[Condition], row: int) -> str:
        """Return the Milvus filter for the candidates of a row."""
        parts = [f"id < {self.head.count}", *([f"id not in {self.dropped}"] if self.dropped else [])]
        for column, low, high in conditions:
            check_column(column, self.head.columns)
            at = self.head.columns.index(column)
            if low.dtype == np.int64:
                parts.append(f"h{at} == {low[row]}")
                continue
            if not self._numbers[column]:
                raise no_numbers(column)
            ends = np.nan_to_num([low[row], high[row]], nan=np.inf).tolist()
            parts.append(f"n{at} >= {ends[0]!r} and n{at} <= {ends[1]!r}")
        return " and ".join(parts)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """How many cells of every column are numbers."""
        counts = {}
        for at, column in enumerate(self.head.columns):
            asked = f"{self._describe((), 0)} and n{at} is not null"
            [found] = self.collection.call("query", asked, output_fields=["count(*)"])
            counts[column] = found["count(*)"]
        return counts

    def kinds(self) -> dict[str, str]:
        """Whether most cells of a column are numbers or other texts, by name."""
        return {name: "number" if 2 * count >= len(self) else "text" for name, count in self._numbers.items()}

    def find_codes(self, codes: np.ndarray) -> list[tuple[int, int]]:  # (m,)
        """Positions and codes of the candidates with one of these codes."""
        found = []
        for start in range(0, len(codes), ROWS):
            asked = f"{self._describe((), 0)} and code in {codes[start : start + ROWS].tolist()}"
            for row in self.collection.call("query", asked, output_fields=["id", "code", *FIELDS]):
                found.append((self._remember(row["id"], row), row["code"]))
        return found

    def find_cells(self, column: str) -> Lines:
        """The cells of a column, by the positions of candidates."""
        check_column(column, self.head.columns)
        return self.cells[column]

    def cosines(self, z: Tensor, indices: Tensor) -> Tensor:  # (n, k)
        """Cosines of z and the given candidates' coordinates: from −1 to 1, and 0 where either is zero."""
        z = F.normalize(check_coordinates(z, self.head.dim), dim=1)
        rows = [score(one[None], *self._coordinates(at), "cosine") for one, at in zip(z, indices.tolist(), strict=True)]
        return torch.cat([z.new_empty(0, indices.shape[1]), *rows])

    def _coordinates(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:  # (h, p), (h,)
        rows = [self._look_up(at) for at in positions]
        return torch.stack([row.psi for row in rows]), torch.tensor([row.diag for row in rows], dtype=torch.float64)

    def _look_up(self, at: int) -> Row:
        """Return a candidate, usually cached by a search; an empty one if it was deleted meanwhile."""
        if at not in self._rows:
            empty = {"line": json.dumps([""] * (2 + len(self.head.columns))), "projected": [0.0] * (self.head.dim + 1)}
            found = self.collection.call("get", ids=[at], output_fields=FIELDS)
            self._remember(at, found[0] if found else empty | {"diag": 0.0})
        return self._rows[at]

    def _remember(self, at: int, row: Mapping[str, Any]) -> int:
        """Check and cache a candidate, and return its position."""
        psi, fits = torch.tensor(row["projected"][:-1], dtype=torch.float64), False
        with suppress(ValueError, TypeError, RecursionError):  # others may have written to the collection
            line = json.loads(row["line"])
            fits = list(map(type, line)) == [str] * (2 + len(self.head.columns)) and psi.shape == (self.head.dim,)
        if not fits:
            raise ModelFolderError(f"{self.collection.address}: candidate {at} is damaged. Embed the candidates again.")
        self._rows[at] = Row(line, psi, float(row["diag"]))
        return at
