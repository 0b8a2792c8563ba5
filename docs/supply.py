"""What the package depends on: the licences of all dependencies, and their exact versions with hashes.

    python docs/supply.py licences docs/licences.md          # of what is installed here
    python docs/supply.py pins build/report.json requirements.txt   # of a report of `pip install --dry-run --report`

``make bom`` and ``make pins`` run them.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OF_CUDA = ("nvidia-", "cuda-", "triton")  # what torch brings along where it is built for GPUs
HEAD = """# Licences of the dependencies

`dsokr` itself has the MIT licence. These packages are installed with it, by `pip install dsokr` or with an extra. The
extras `dev` and `studies` are for work on `dsokr` and not listed. Builds of PyTorch for GPUs bring libraries of NVIDIA,
under NVIDIA's own licence.
`make bom` writes this page, and a bill of materials (CycloneDX) with all versions to `build/bom.json`.

| package | licence |
|---|---|
"""


def list_dependencies() -> dict[str, Distribution]:
    """Every package that the package and its extras for users need, if it is installed, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (part for name, part in project["optional-dependencies"].items() if name not in ("dev", "studies"))
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), "") for part in (project["dependencies"], *extras) for text in part]
    seen = set()
    while waiting:
        wanted, extra = waiting.pop()
        name = canonicalize_name(wanted.name)
        is_wanted = wanted.marker is None or wanted.marker.evaluate({"extra": extra})
        if not is_wanted or name == "dsokr" or name.startswith(OF_CUDA) or (name, extra, str(wanted)) in seen:
            continue
        seen.add((name, extra, str(wanted)))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        waiting += [(Requirement(text), own) for text in found[name].requires or () for own in ("", *wanted.extras)]
    return dict(sorted(found.items()))


def name_licence(package: Distribution) -> str:
    """Return the licence of a package: an SPDX expression, its classifiers, or the first line of what it says."""
    about = package.metadata
    classifiers = [
        text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License ::")
    ]
    classifiers = [text for text in classifiers if text != "OSI Approved"]
    files = (package.read_text(f"licenses/{name}") or "" for name in about.get_all("License-File", []))
    said = about.get("License-Expression") or "; ".join(classifiers) or about.get("License") or "".join(files)
    return said.strip().partition("\n")[0]


def write_licences(path: Path) -> None:
    rows = [f"| {name} | {name_licence(package)} |" for name, package in list_dependencies().items()]
    path.write_text(HEAD + "\n".join([*rows, ""]), encoding="utf-8")


def list_pins(report: dict) -> Iterator[str]:
    """Lines of a file for ``pip install --require-hashes``, of a report of pip."""
    for entry in sorted(report["install"], key=lambda entry: canonicalize_name(entry["metadata"]["name"])):
        about, archive = entry["metadata"], entry["download_info"].get("archive_info")
        if canonicalize_name(about["name"]) == "dsokr":
            continue
        if not archive or not re.fullmatch("[0-9a-f]{64}", archive.get("hashes", {}).get("sha256", "")):
            raise SystemExit(f"{about['name']} has no hash in the report.")
        yield f"{about['name']}=={about['version']} --hash=sha256:{archive['hashes']['sha256']}"


def main(what: str, *paths: str) -> None:
    if what == "licences":
        write_licences(Path(paths[0]))
    else:
        report, pins = map(Path, paths)
        pins.write_text("\n".join([*list_pins(json.loads(report.read_text(encoding="utf-8"))), ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
