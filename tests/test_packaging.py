"""The wheel installs and works without extras in a clean environment, also with the oldest dependencies it allows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import csv, pathlib, subprocess, sys
import numpy as np
import dsokr
from dsokr import DSOKR, Training, kernels, networks, sketches
from dsokr.decoders import Gradient
from dsokr.regressors import KernelRidge, Neural

folder = pathlib.Path(dsokr.__file__).parent
assert (folder / "py.typed").is_file() and (folder / "serve" / "page" / "index.html").is_file()
X = np.random.default_rng(0).normal(size=(80, 5))
Y = (X[:, :3] > 0).astype(int)
for regressor in (Neural(networks.MLP((16,)), training=Training(epochs=3)), KernelRidge(kernels.Gaussian(0.1))):
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(20), regressor, random_state=0).fit(X, Y)
    model.save("model")
    assert (DSOKR.load("model").predict(X) == model.predict(X)).all()
curves = DSOKR(kernels.Gaussian(0.1), sketches.SubSample(20), networks.MLP((8,)), decoder=Gradient(), random_state=0)
assert curves.fit(X, X[:, :2]).predict(X).shape == (80, 2)

with open("pairs.csv", "w", newline="") as file:
    csv.writer(file).writerows([["a", "b"], *([f"{x[0]:.3f}", f"{x[1]:.3f}"] for x in X)])
command = pathlib.Path(sys.executable).parent / "dsokr"
subprocess.run([command, "info", "--json"], check=True)
for line in (
    "fit --train pairs.csv --input a --output b --epochs 2 --out task",
    "predict task pairs.csv --out predicted.csv",
    "evaluate task pairs.csv",
    "report task --out report.html",
):
    subprocess.run([command, *line.split()], check=True)
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def lower_bounds() -> list[str]:
    """The oldest versions that the package says it works with, but for torch, whose oldest builds need CUDA."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text).groups() for text in settings["project"]["dependencies"]]
    return [f"{name}=={version}.*" for name, version in bounds if name != "torch"]


def torch_pin() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]


@pytest.mark.slow
@pytest.mark.parametrize("pins", [[], lower_bounds()], ids=["newest", "oldest"])
def test_the_wheel_works_without_extras(wheel, pins, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join([*torch_pin(), *pins]))
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, wheel], check=True)
    done = subprocess.run([python, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("works\n"), done.stdout + done.stderr
