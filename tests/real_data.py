"""Real data, which the project does not ship: tests that need it skip where it is not."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "data"


def real_data(path: str) -> Path:
    """The data folder that has the file ``path``: DSOKR_DATA, or ``shared/data`` beside the project."""
    for folder in (Path(os.environ.get("DSOKR_DATA") or BESIDE), BESIDE):
        if (folder / path).exists():
            return folder
    pytest.skip(f"{path} is not in DSOKR_DATA nor in shared/data beside the project")
