"""Request and response bodies of the JSON interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from dsokr.errors import check_fields
from dsokr.index.candidates import LARGEST
from dsokr.rules import RULES, Rule

LARGEST_INPUT = 3.4e38  # networks compute in single precision
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # as in JSON: 10 or 10.0, but not true or "10"
Count = Annotated[Number, AfterValidator(int)]


@dataclass(frozen=True)
class Limits:
    """Requests beyond these limits are refused before any work is done for them."""

    body_bytes: int = 1_000_000
    inputs: int = 64  # per request
    text: int = 5_000  # characters of an input
    k: int = 100
    seconds: float = 10.0  # for a request to arrive, and for its answer
    waiting: int = 256  # requests in the queue
    rows: int = 256  # inputs of several requests that are answered together
    rate: float = 0.0  # requests of one client per second; 0 is any number

    def __post_init__(self) -> None:
        check_fields(self, seconds="(0, inf)")


class Hit(BaseModel):
    """A candidate among the best."""

    rank: int = Field(ge=1)
    index: int = Field(ge=0, description="Position in the index, from 0.")
    output: str = Field(description="The candidate, as written in the library.")
    name: str = Field(description="Its name in the library, or an empty string.")
    score: float = Field(description="By the decoding rule; larger is better.")
    cosine: float = Field(description="Cosine of prediction and candidate, from -1 to 1, whatever the rule.")
    probability: float | None = Field(description="That it is the right one; null if the model is not calibrated.")
    in_set: bool | None = Field(description="Whether it is in the set that holds the right one as often as asked.")
    cells: dict[str, str] = Field(description="Its further columns in the library.")


class Prediction(BaseModel):
    """What the model's decoder finds among all possible outputs, as `dsokr predict` does."""

    output: str
    score: float = Field(description="By the model's own rule, see /health; larger is better.")
    rank: int | None = Field(description="Its rank among the hits, if it is one of them.")


class Result(BaseModel):
    """The best candidates for one input, best first, and the model's own answer."""

    hits: list[Hit]
    confidence: float | None = Field(description="The probability that the first is right, if the model is calibrated.")
    prediction: Prediction | None = Field(description="If predict was set and the model searches, see /health.")


class Answer(BaseModel):
    rule: Rule
    candidates: int = Field(description="Number of candidates searched.")
    milliseconds: float
    results: list[Result] = Field(description="One per input, in the same order.")
    notes: list[str] = Field(description="Sentences that say why the answer may be a guess; usually none.")


class Part(BaseModel):
    """A part of an input or output, and what it contributes to the score."""

    text: str
    contribution: float
    color: str = Field(description="Relative to the strongest part: blue speaks for the output, orange against it.")


class Painted(BaseModel):
    """An input or output in parts: words, letters, labels, items or columns; atoms of a molecule, by number from 0."""

    parts: list[Part]
    between: str = Field(description="What to write between the parts.")
    drawing: str = Field(description="A molecule as SVG with coloured atoms; else an empty string.")


class Why(BaseModel):
    """Why an output has its score for an input."""

    score: float
    exact: bool = Field(description="Whether the contributions of the output's parts and the constant add up to it.")
    constant: float | None = Field(description="The part of the score without a place; null unless exact.")
    output: Painted
    input: Painted | None = Field(description="Null if the input has no parts that could be left out.")


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One sentence.")
    where: str = Field("", description="The part of the request it is about, such as inputs.2.")


def build_question_model(facts: dict[str, Any]) -> Any:
    """Return the model of a body of /predict: inputs of the model's kind, if they can be sent, or coefficients."""
    limits, most = facts["limits"], facts["limits"]["k"]
    either = {"coefficients": _rows(_numbers(facts["coefficients"], LARGEST), limits)}
    if facts["input"]:
        either["inputs"] = _rows(_input_type(facts), limits)
    options: dict[str, Any] = {
        "inputs": (ClassVar[None], None),  # for models whose inputs cannot be sent
        **either,
        "k": (Count, Field(min(10, most), multiple_of=1, ge=1, le=most, description="Number of candidates.")),
        "rule": _rule(facts),
        "coverage": (
            Number | None,
            Field(facts["coverage"], gt=0, lt=1, description="How often sets must hold the right candidate."),
        ),
        **_conditions(facts["candidate_columns"]),
        "predict": (bool, Field(False, strict=True, description="Whether to add the model's own answer.")),
    }
    config = ConfigDict(extra="forbid", json_schema_extra={"oneOf": [{"required": [name]} for name in either]})
    validators: Any = {"check": _check_question}
    return create_model("Question", __config__=config, __validators__=validators, **options)


def build_pair_model(facts: dict[str, Any]) -> Any:
    """Return the model of a body of /explain."""
    output = Field(description="As in the hits of /predict, or any other.")
    options: dict[str, Any] = {
        "input": (_input_type(facts), ...),
        "output": (_text(facts["limits"]), output),
        "rule": _rule(facts),
    }
    return create_model("Pair", __config__=ConfigDict(extra="forbid"), **options)


def _input_type(facts: dict[str, Any]) -> Any:
    if facts["input"] != "vector":
        return _text(facts["limits"])
    as_cell = AfterValidator(lambda row: ";".join(map(repr, row)))  # as the command line writes several numbers
    return Annotated[_numbers(facts["width"], LARGEST_INPUT), as_cell]


def _text(limits: dict[str, Any]) -> Any:
    return Annotated[str, Field(min_length=1, max_length=limits["text"], pattern=r"\S")]


def _rule(facts: dict[str, Any]) -> Any:
    return Rule, Field(facts["rule"], description=f"The decoding rule: {', '.join(RULES)}.")


def _conditions(kinds: dict[str, str]) -> dict[str, Any]:
    """The parts of a body that restrict candidates by their columns."""
    numeric = [name for name, kind in kinds.items() if kind == "number"]
    return {
        "within": _by_column(numeric, tuple[Number, Number], "from a number to another"),
        "match": _by_column(list(kinds), str, "with this cell"),
    }


def _by_column(columns: list[str], value: Any, what: str) -> Any:
    literal: Any = Literal
    column: Any = literal[tuple(columns or [""])]
    return dict[column, value], Field({}, max_length=len(columns), description=f"Only candidates {what}, by column.")


def _numbers(length: int, largest: float) -> Any:
    number = Annotated[Number, Field(ge=-largest, le=largest)]
    return Annotated[list[number], Field(min_length=length, max_length=length)]


def _rows(item: Any, limits: dict[str, Any]) -> Any:
    return list[item], Field(None, min_length=1, max_length=limits["inputs"])


@model_validator(mode="after")
def _check_question(question: Any) -> Any:
    if len(question.model_fields_set & {"inputs", "coefficients"}) != 1:
        raise PydanticCustomError("question", "Give inputs or coefficients, and not both")
    return question
