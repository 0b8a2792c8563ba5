"""The messages of the JSON interface, built for one model and its limits, so that the schema says what is accepted."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from dsokr.errors import check_number
from dsokr.index.candidates import LARGEST
from dsokr.rules import RULES, Rule

LARGEST_INPUT = 3.4e38  # networks compute in single precision
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # as in JSON: 10 or 10.0, but not true or "10"


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

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(self, field.name, "above 0", getattr(self, field.name) > 0)


class Hit(BaseModel):
    """A candidate among the best."""

    rank: int = Field(ge=1)
    index: int = Field(ge=0, description="Position in the index, from 0.")
    output: str = Field(description="The candidate, as written in the library.")
    name: str = Field(description="Its name in the library, or an empty string.")
    score: float = Field(description="By the decoding rule; larger is better.")
    cosine: float = Field(description="Cosine of prediction and candidate, from -1 to 1, whatever the rule.")


class Prediction(BaseModel):
    """What the model's decoder finds among all possible outputs, as `dsokr predict` does."""

    output: str
    score: float = Field(description="By the model's own rule, see /health; larger is better.")
    rank: int | None = Field(description="Its rank among the hits, if it is one of them.")


class Result(BaseModel):
    """The best candidates for one input, best first, and the model's own answer."""

    hits: list[Hit]
    prediction: Prediction | None = Field(description="If predict was set and the model searches, see /health.")


class Answer(BaseModel):
    rule: Rule
    candidates: int = Field(description="Number of candidates searched.")
    milliseconds: float
    results: list[Result] = Field(description="One per input, in the same order.")
    notes: list[str] = Field(description="Sentences that say why the answer may be a guess; usually none.")


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One sentence.")
    where: str = Field("", description="The part of the request it is about, such as inputs.2.")


def build_question_model(facts: dict[str, Any]) -> Any:
    """Return the model of a body of /predict: inputs of the model's kind, if they can be sent, or coefficients."""
    limits, most = facts["limits"], facts["limits"]["k"]
    either = {"coefficients": _rows(_numbers(facts["coefficients"], LARGEST), limits)}
    if facts["input"] == "vector":
        as_cell = AfterValidator(lambda row: ";".join(map(repr, row)))  # as the command line writes several numbers
        either["inputs"] = _rows(Annotated[_numbers(facts["width"], LARGEST_INPUT), as_cell], limits)
    elif facts["input"]:
        either["inputs"] = _rows(Annotated[str, Field(min_length=1, max_length=limits["text"], pattern=r"\S")], limits)
    options: dict[str, Any] = {
        "k": (Number, Field(min(10, most), multiple_of=1, ge=1, le=most, description="Number of candidates.")),
        "rule": (Rule, Field(facts["rule"], description=f"The decoding rule: {', '.join(RULES)}.")),
        "predict": (bool, Field(False, strict=True, description="Whether to add the model's own answer.")),
    }
    config = ConfigDict(extra="forbid", json_schema_extra={"oneOf": [{"required": [name]} for name in either]})
    validators: Any = {"check": _check_question}
    return create_model("Question", __config__=config, __validators__=validators, **either, **options)


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
