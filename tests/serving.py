"""A model to serve in tests: made by hand, so that nothing is trained."""

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from dsokr.commands.predictor import Predictor
from dsokr.errors import InputError
from dsokr.explain import Colored, Explanation, Reasons
from dsokr.index import CandidateIndex

DIM = 4
JSON = {"Content-Type": "application/json"}
MOLECULES = ["C", "CC", "CCO", "CCN", "c1ccccc1", "CC(=O)O", "C#N", "OCCO", "CCCC", "C1CC1", "CC(C)O", "N"]
NAMES = ["methane", "ethane", "ethanol", "", 'benzene, "pure"', "acetic acid"] + [""] * 6


class Read(NamedTuple):
    bad: dict[int, str]


@dataclass(frozen=True)
class Kind:
    """Cells are what they say; only "bad" cannot be read. Labels are sets, in any order and case."""

    name: str
    mean: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()

    def read(self, cells: list[Any]) -> Read:
        return Read({at: "'bad' cannot be read." for at, cell in enumerate(cells) if cell == "bad"})

    def key(self, cell: str) -> str:
        assert cell, "an empty cell has no key"
        return ";".join(sorted(cell.lower().split(";")))


@dataclass
class HandMade:
    """Coefficients from the letters of a text, or the numbers of a vector. It may decode, to one output."""

    input: Any = field(default_factory=lambda: Kind("text"))
    output: Any = field(default_factory=lambda: Kind("smiles"))
    rule: Any = "cosine"
    answer: str = ""  # what it decodes to
    searches: bool = False
    asked: list[int] = field(default_factory=list)  # how many inputs came at once

    def coefficients(self, inputs: list[Any]) -> torch.Tensor:
        self.asked.append(len(inputs))
        for position, reason in self.input.read(inputs).bad.items():
            raise InputError(f"Input {position}: {reason}")
        numbers = [map(float, cell.split(";") if self.input.name == "vector" else map(ord, cell)) for cell in inputs]
        rows = [(list(row) * DIM)[:DIM] for row in numbers]
        return torch.tensor(rows, dtype=torch.float64) + 1

    def decode(self, z: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        return [self.answer] * len(z), z.sum(dim=1)

    def index(self, texts: list[str] = MOLECULES) -> CandidateIndex:
        psi = torch.randn(len(texts), DIM, generator=torch.Generator().manual_seed(1))
        return CandidateIndex.in_memory(texts, psi, psi.square().sum(1), NAMES if texts is MOLECULES else None)


def reason_by_letters(input: str, output: str, rule: str) -> Reasons:
    """Every letter contributes its position, the second half of them against."""
    given, found = (np.linspace(1, -1, len(cell)) for cell in (input, output))
    why = Explanation(found.sum() + 0.5, found, np.arange(len(found)), 0.5)
    return Reasons(why, Colored(output, found, ""), Colored(input, given, ""))


def describe_molecules() -> Predictor:
    """A model from words to molecules."""
    from dsokr import DSOKR, kernels
    from dsokr.commands.columns import Molecule, Text
    from dsokr.decoders import Candidates
    from dsokr.regressors import KernelRidge

    ends, sizes = {"alcohol": "O", "amine": "N", "acid": "C(=O)O", "alkane": "C"}, {"short": "CC", "long": "CCCCC"}
    pairs = {f"a {size} {name}": start + end for name, end in ends.items() for size, start in sizes.items()}
    kernel = kernels.WeisfeilerLehman(1)
    model = DSOKR(kernel, regressor=KernelRidge(), decoder=Candidates("kernel"), random_state=0)
    return Predictor.fit(model, Text(), Molecule(as_graph=True), list(pairs), list(pairs.values()))


@contextmanager
def running(app: Any, **options: Any) -> Any:
    """A real server on a free port of this machine: its address, and the server itself."""
    import uvicorn

    from dsokr.serve.app import bind, configure

    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    listening = bind("127.0.0.1", 0)
    real = Server(configure(app, **options))
    thread = threading.Thread(target=real.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        assert started.wait(10)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", real
    finally:
        real.should_exit = True
        thread.join(10)
        listening.close()


class Client:
    """Asks an application in this process, within its lifespan."""

    def __init__(self, model, limits=None, texts=MOLECULES, index=None, **options):
        from dsokr.serve import Limits, create_app

        self.app = create_app(model, index or model.index(texts), limits or Limits(), **options)

    def __call__(self, method, url, **options):
        return self.together([(method, url, options)])[0]

    def get(self, url, **params):
        return self("GET", url, params=params)

    def together(self, requests):
        import httpx

        async def ask():
            async with self.app.router.lifespan_context(self.app):
                transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                    return await asyncio.gather(*(client.request(m, u, **options) for m, u, options in requests))

        return asyncio.run(ask())

    def predict(self, *bodies):
        """The answer to a body, or to several that come at the same time."""
        contents = [body if isinstance(body, str | bytes) else json.dumps(body) for body in bodies]
        found = self.together([("POST", "/predict", {"content": content, "headers": JSON}) for content in contents])
        return found[0] if len(bodies) == 1 else found

    def explain(self, input, output, **options):
        return self("POST", "/explain", json={"input": input, "output": output, **options})


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "where"} and body["error"].endswith(".")
    assert all(word in body["error"] for word in words), body
    return body
