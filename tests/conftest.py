from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # what is tested is small: more threads only wait for each other

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def global_random_state_untouched():
    """No part of the package may move the global random state."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random state was touched"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", type=Path, help="append counts of what was tried to this file")
    parser.addoption("--thorough", action="store_true", help="try every fault, kill and flip, not a sample")


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether to try everything, which takes minutes, or a sample."""
    return request.config.getoption("--thorough")


@pytest.fixture
def tally(request: pytest.FixtureRequest):
    """A function that adds to what was tried: ``tally("bits flipped", 280)``. Written down if the test passes."""
    counts: dict[str, int] = {}

    def add(what: str, count: int = 1) -> None:
        counts[what] = counts.get(what, 0) + count

    yield add
    if (path := request.config.getoption("--tally")) and not request.node.stash.get(FAILED, False):
        from studies.results import Results

        results = Results(path, say=print)
        for what, count in counts.items():
            key = {"experiment": "trust", "method": what, "test": request.node.nodeid}
            results.record(key, lambda count=count: {"metrics": {"count": count}})


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
