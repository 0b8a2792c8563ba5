"""Fields of every part are checked before anything is built."""

from dataclasses import dataclass
from typing import Literal

import pytest

from dsokr import Training, kernels, networks
from dsokr.errors import InputError, check_fields


@dataclass(frozen=True)
class Part:
    size: int = 3
    widths: tuple[int, ...] = (4,)
    share: float = 0.5
    rate: float | None = None
    rule: Literal["a", "b"] | Literal["auto"] = "auto"
    kernel: kernels.Kernel | None = None
    name: str = ""
    on: bool = True

    def __post_init__(self) -> None:
        check_fields(self, share="(0, 1]", rate="(0, inf)")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("size", 0, "an integer of at least 1"),
        ("size", 2.0, "an integer of at least 1"),
        ("size", True, "an integer of at least 1"),
        ("widths", (4, 0), "an integer of at least 1"),
        ("widths", 4, "an integer of at least 1"),
        ("share", "0.5", r"in \(0, 1\]"),
        ("share", 0.0, r"in \(0, 1\]"),
        ("share", float("nan"), r"in \(0, 1\]"),
        ("rate", float("inf"), "positive and finite, or None"),
        ("rule", "c", "one of 'a', 'b', 'auto'"),
        ("rule", ["a"], "one of 'a', 'b', 'auto'"),
        ("kernel", "Linear", "a Kernel, or None"),
        ("name", 3, "a text"),
        ("on", 1, "one of True, False"),
        ("on", None, "one of True, False"),
    ],
)
def test_a_wrong_field_is_one_sentence(field, value, expected):
    with pytest.raises(InputError, match=f"Part.{field} must be {expected}. Got "):
        Part(**{field: value})


def test_good_fields():
    Part(1, (1, 2), 1.0, 0.1, "a", kernels.Linear(), "x", False)
    Part(widths=[2, 3], share=1)


@pytest.mark.parametrize("part", [lambda: networks.CharTransformer(heads=True), lambda: Training(learning_rate="fast")])
def test_parts_use_it(part):
    with pytest.raises(InputError, match="must be"):
        part()
