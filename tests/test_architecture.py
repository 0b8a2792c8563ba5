"""The import direction is downwards only, and optional dependencies stay optional."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dsokr"

# A module imports only from layers before its own, or from its own package.
LAYERS = [
    {"errors"},
    {"compute", "files"},
    {"graphs", "spectra"},
    {"chem", "outputs"},
    {"rules"},
    {"kernels", "losses", "metrics"},
    {"sketches"},
    {"basis"},
    {"saving"},
    {"regressors"},
    {"decoders"},
    {"index"},
    {"selection"},
    {"estimator"},
    {"conformal", "ensemble", "explain", "testing"},
    {"serve"},
    {"commands"},
]
LAYER = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
SEEN_BY_LIGHTNING = {"matplotlib", "transformers"}  # torchmetrics imports them where they are installed
OPTIONAL = (
    "rdkit",
    "transformers",
    "ot",
    "faiss",
    "fastapi",
    "uvicorn",
    "matplotlib",
    "numba",
    "networkx",
    "pyarrow",
    "ray",
    "pymilvus",
    "milvus_lite",
)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def family(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "dsokr":
            names |= {f"dsokr.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_only_downwards(path: Path):
    own = family(path)
    if own == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in ("studies", "tests"), name
        if parts[0] == "dsokr" and len(parts) > 1 and parts[1] in LAYER and parts[1] != own:
            assert LAYER[parts[1]] < LAYER[own], f"{own} imports {parts[1]}"


def test_the_map_lists_every_module():
    map_ = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in LAYER:
        assert f"`{name}`" in map_ or f"`{name}/`" in map_, name


def test_modules_do_not_import_each_other_in_circles():
    """Within a folder, too: a module is imported before those that import it."""
    edges = {module_name(path): imported_modules(path) for path in modules()}
    order = TopologicalSorter({name: {other for other in others if other in edges} for name, others in edges.items()})
    order.prepare()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that this one imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found - {"dsokr", module_name(path)}


def test_the_house_stays_small():
    """The limits of the design: modules at the top level, and lines in a file."""
    assert len(list(SOURCE.glob("*.py"))) <= 18
    assert not [path for path in modules() if len(path.read_text(encoding="utf-8").splitlines()) > 400]


def test_every_module_has_a_layer():
    assert {family(path) for path in modules()} - {"__init__"} <= set(LAYER)


def test_only_chem_imports_rdkit():
    assert {family(path) for path in modules() if any(n.split(".")[0] == "rdkit" for n in imported(path))} <= {"chem"}


def test_what_lightning_would_import_is_imported_where_it_is_used():
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not SEEN_BY_LIGHTNING & {name.split(".")[0] for name in names}, path


def test_no_optional_dependency_is_needed():
    hidden = set(OPTIONAL) - SEEN_BY_LIGHTNING
    block = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(hidden))
    script = (
        block
        + "import dsokr.estimator, dsokr.ensemble, dsokr.kernels, dsokr.decoders, dsokr.index, dsokr.commands.app\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"), [("dsokr.commands.app", "torch"), ("dsokr.commands.fit, dsokr.estimator", "lightning")]
)
def test_what_takes_seconds_to_import_is_imported_when_it_is_needed(module: str, unwanted: str):
    script = f"import sys, {module}\nassert {unwanted!r} not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_wheel_has_every_file():
    """What is no Python file is installed only if pyproject.toml names it."""
    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["dsokr"]
    others = (path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".py")
    files = {path.relative_to(SOURCE) for path in others if path.parent.name != "__pycache__"}
    assert Path("serve/page/index.html") in files
    assert not {file for file in files if not any(file.match(pattern) for pattern in patterns)}
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()], "packages that are not found"
