"""The code in the README and the docs runs, and their numbers are the ones in results/."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_code_runs(page: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng([]):
        for block in python_blocks(page):
            exec(compile(block, str(page), "exec"), names)
    if page.name == "README.md":
        assert names["sets"].shape == (200, 8)
        assert (names["sets"] == names["Y"][1000:]).mean() > 0.85
        assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert "WeisfeilerLehman" in reference and "Parameters" in reference


@pytest.fixture(scope="module")
def render():
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_with_numbers_are_rendered_from_the_results(render):
    for name in render.FIELDS:
        written = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
        assert render.render_page(name, ROOT / "results" / name) == written, "run `make docs`"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert render.insert_overview(readme, render.render_overview(ROOT / "results")) == readme, "run `make docs`"


def test_the_defaults_are_compared_where_all_folds_are_known(render, tmp_path):
    def write(name: str, values: dict[str, float], folds: int = 5) -> None:
        with (tmp_path / "defaults.jsonl").open("a") as file:
            for method, value in values.items():
                for fold in range(folds):
                    row = {"dataset": name, "split": fold, "method": method, "hardware": "a computer"}
                    metrics = {"f1" if name == "yeast" else "kendall_tau": value + fold / 100}
                    print(json.dumps(row | {"metrics": metrics, "seconds": {"fit": 2 * value}}), file=file)

    write("yeast", {"DSOKR(Tanimoto())": 0.5, "random forest, threshold": 0.4, "DSOKR(Dice())": 0.5018})
    write("iris", {"DSOKR(Kemeny())": 0.9, "random forest": 0.8})
    write("wine", {"DSOKR(Kemeny())": 0.8, "random forest": 0.8024})
    write("glass", {"DSOKR(Kemeny())": 0.5, "random forest": 0.5201})
    write("sushi", {"DSOKR(Kemeny())": 0.1, "random forest": 0.9}, folds=4)
    fields = render.describe_tabular(tmp_path)
    assert [fields[name] for name in ("first", "total", "near", "behind", "apart")] == [2, 4, 1, 0.021, 0.002]
    assert "| yeast | **0.520** | 0.420 | 1.0 | 0.8 | 1.2 |" in fields["sets"]
    assert "| wine | 0.820 | **0.822** |" in fields["rankings"] and "sushi" not in fields["rankings"]
    assert "sushi" in fields["missing"] and "wine" not in fields["missing"]
    assert "| yeast | 0.520 | 0.522 | 0.0018 ± 0.0000 |" in fields["kernels"]


def test_the_compose_file_fits_the_page():
    """It cannot be started here: its parts must at least fit together, and the page name its port."""
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    services = found["services"]
    for service in services.values():
        assert re.fullmatch(r"[\w./-]+:v?[\w.-]+", service["image"]) and service["healthcheck"]["test"]
        assert set(service.get("depends_on", ())) <= set(services)
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(found["volumes"])
    milvus, store = services["milvus"], services["minio"]["environment"]
    addresses = [milvus["environment"][name].split(":") for name in ("ETCD_ENDPOINTS", "MINIO_ADDRESS")]
    assert addresses == [["etcd", "2379"], ["minio", "9000"]] and set(milvus["depends_on"]) == {"etcd", "minio"}
    assert ":2379" in services["etcd"]["command"]
    keys = [milvus["environment"][name] for name in ("MINIO_ACCESS_KEY_ID", "MINIO_SECRET_ACCESS_KEY")]
    assert keys == [store["MINIO_ROOT_USER"], store["MINIO_ROOT_PASSWORD"]]
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert any(port.endswith(":19530:19530") for port in milvus["ports"]) and "milvus://localhost:19530/" in page
