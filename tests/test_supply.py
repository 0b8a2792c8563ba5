"""Licences of the dependencies, pins with hashes, and a container that may do little."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PERMISSIVE = re.compile(r"MIT|BSD|Apache|Python Software Foundation|PSF|MPL|Mozilla|ISC|Zlib|CC0|CNRI|BSL|LLVM")


@pytest.fixture(scope="module")
def supply():
    pytest.importorskip("packaging")
    sys.path.insert(0, str(ROOT / "docs"))
    yield import_module("supply")
    sys.path.remove(str(ROOT / "docs"))


def test_every_dependency_is_listed_with_a_licence_that_allows_use(supply):
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| ([\w.-]+) \| (.+) \|$", page, re.MULTILINE))
    found = {name: supply.name_licence(package) for name, package in supply.list_dependencies().items()}
    assert {"torch", "numpy", "starlette", "markupsafe"} <= set(found)  # those of others, too
    assert set(found) <= set(listed), "run `make bom`"
    for name, licence in {**listed, **found}.items():
        parts = re.split(r" AND |; ", licence) if name != "package" else ["MIT"]
        assert all(PERMISSIVE.search(part) for part in parts), (name, licence)
        assert "GPL" not in licence.replace("LGPL", ""), (name, licence)


def test_pins_have_hashes(supply):
    def entry(name, hashes):
        return {"metadata": {"name": name, "version": "1.0"}, "download_info": {"archive_info": {"hashes": hashes}}}

    good = {"sha256": "0" * 64}
    lines = list(supply.list_pins({"install": [entry("Torch", good), entry("numpy", good), entry("dsokr", {})]}))
    assert lines == [f"{name}==1.0 --hash=sha256:{'0' * 64}" for name in ("numpy", "Torch")]
    for bad in ({}, {"sha256": "short"}, {"md5": "0" * 32}):
        with pytest.raises(SystemExit, match="numpy has no hash"):
            list(supply.list_pins({"install": [entry("numpy", bad)]}))


def test_every_pin_of_a_dependency_is_exact():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert len(lines) > 100 and all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in lines)


def test_the_container_has_no_rights_it_does_not_need():
    lines = [line for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line[:1].isupper()]
    last = lines[max(at for at, line in enumerate(lines) if line.startswith("FROM")) :]
    [user] = [line.split()[1] for line in last if line.startswith("USER")]
    assert re.fullmatch(r"[1-9]\d+(:[1-9]\d+)?", user)  # a number: an orchestrator sees that it is not root
    assert last.index(f"USER {user}") > max(at for at, line in enumerate(last) if line.startswith(("RUN", "COPY")))
    assert not any(line.startswith(("ADD", "VOLUME")) or re.search(r"sudo|curl|chmod|\bssh", line) for line in lines)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*" and not {"!.git", "!."} & set(ignored)  # nothing but what is named gets in
