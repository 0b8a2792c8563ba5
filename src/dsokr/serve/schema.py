"""The messages of the JSON interface. Made for one model and its limits, so that the schema says what is taken."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from dsokr.basis import RULES, Rule
from dsokr.index.exact import LARGEST
from dsokr.serve.limits import Limits

LARGEST_INPUT = 3.4e38  # networks compute in single precision
InputNumber = Annotated[float, Field(strict=True, ge=-LARGEST_INPUT, le=LARGEST_INPUT, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


def _number(value: Any) -> Any:
    """What JSON calls a number: 10 and 10.0, not true or "10"."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


Whole = Annotated[int, BeforeValidator(_number)]


class Hit(BaseModel):
    """A candidate among the best."""

    rank: int = Field(ge=1)
    index: int = Field(ge=0, description="Its place in the index, from 0.")
    output: str = Field(description="The candidate, as it is written in the library.")
    name: str = Field(description="Its name there, or nothing.")
    score: float = Field(description="By the decoding rule; larger is better.")
    cosine: float = Field(description="The cosine of prediction and candidate, from -1 to 1, whatever the rule.")


class Prediction(BaseModel):
    """What the model's decoder finds among all outputs there can be, as `dsokr predict` does."""

    output: str
    score: float = Field(description="By the rule of the model, see /health; larger is better.")
    rank: int | None = Field(description="Its rank among the hits, if it is one of them.")


class Result(BaseModel):
    """The best candidates for one input, best first, and the model's own answer."""

    hits: list[Hit]
    prediction: Prediction | None = Field(description="If predict was asked for and the model searches, see /health.")


class Answer(BaseModel):
    rule: Rule
    candidates: int = Field(description="How many were searched.")
    milliseconds: float
    results: list[Result] = Field(description="One for every input, in their order.")
    notes: list[str] = Field(description="Why the answer may be a guess, in sentences; most often none.")


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One sentence.")
    where: str = Field("", description="The part of the request it is about, such as inputs.2.")


class Health(BaseModel):
    status: str
    version: str
    input: str = Field(description="The kind of inputs: text, smiles, string or vector; or none.")
    width: int = Field(description="How many numbers an input of kind vector has.")
    columns: list[str] = Field(description="The columns these numbers had in training, in their order.")
    output: str = Field(description="The kind of outputs.")
    output_columns: list[str] = Field(description="The columns that outputs of kind vector had in training.")
    searches: bool = Field(description="Whether predict gives an answer of the model's own, beside the candidates.")
    candidates: int
    coefficients: int = Field(description="p, how many coefficients a prediction has.")
    rule: Rule = Field(description="The decoding rule that is used unless another is asked for.")
    rules: list[Rule]
    drawing: bool = Field(description="Whether /drawing draws molecules here.")
    kind: str = Field(description="How the candidates are searched: exact, flat, hnsw or ivfpq.")
    limits: dict[str, int | float]
    examples: list[str] = Field(description="Inputs to try.")


def question_models(facts: Health, limits: Limits) -> list[type[BaseModel]]:
    """What /predict takes: inputs of the model's kind, if they can be sent, or coefficients."""
    width, dim = facts.width, facts.coefficients
    common: dict[str, Any] = {
        "k": (Whole, Field(min(10, limits.k), ge=1, le=limits.k, description="How many candidates.")),
        "rule": (Rule, Field(facts.rule, description=f"The decoding rule: {', '.join(RULES)}.")),
        "predict": (bool, Field(False, strict=True, description="Whether the model's own answer is wanted too.")),
    }
    asked: dict[str, Any] = {}
    if facts.input == "vector":
        order = f"In this order: {', '.join(facts.columns)}." if len(facts.columns) == width else None
        numbers = Field(min_length=width, max_length=width, description=order)
        asked["inputs"] = Annotated[list[InputNumber], numbers]
    elif facts.input:
        asked["inputs"] = Annotated[str, Field(min_length=1, max_length=limits.text, pattern=r"\S")]
    asked["coefficients"] = Annotated[list[Coefficient], Field(min_length=dim, max_length=dim)]
    return [_question(name, one, limits, common) for name, one in asked.items()]


def _question(name: str, one: Any, limits: Limits, common: dict[str, Any]) -> type[BaseModel]:
    title = name.capitalize()
    rows = (list[one], Field(min_length=1, max_length=limits.inputs))
    fields: dict[str, Any] = {name: rows, **common}
    return create_model(title, __config__=ConfigDict(extra="forbid", title=title), **fields)
