"""The messages of the JSON interface. Made for one model and its limits, so that the schema says what is taken."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from dsokr.basis import RULES, Rule
from dsokr.index.exact import LARGEST
from dsokr.serve.limits import Limits

Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


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


class Result(BaseModel):
    """The best candidates for one input, best first."""

    hits: list[Hit]


class Answer(BaseModel):
    rule: Rule
    candidates: int = Field(description="How many were searched.")
    milliseconds: float
    results: list[Result] = Field(description="One for every input, in their order.")


class Problem(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="One sentence.")
    where: str = Field("", description="The part of the request it is about, such as inputs.2.")


class Health(BaseModel):
    status: str
    version: str
    input: str = Field(description="The kind of inputs: text, smiles, string or vector; or none.")
    width: int = Field(description="How many numbers an input of kind vector has.")
    output: str = Field(description="The kind of outputs.")
    candidates: int
    coefficients: int = Field(description="p, how many coefficients a prediction has.")
    rule: Rule = Field(description="The decoding rule that is used unless another is asked for.")
    rules: list[Rule]
    drawing: bool = Field(description="Whether /drawing draws molecules here.")
    kind: str = Field(description="How the candidates are searched: exact, flat, hnsw or ivfpq.")
    limits: dict[str, float]
    examples: list[str] = Field(description="Inputs to try.")


def question_models(kind: str, width: int, dim: int, rule: Rule, limits: Limits) -> list[type[BaseModel]]:
    """What /predict takes: inputs of the model's kind, if they can be sent, or coefficients."""
    common: dict[str, Any] = {
        "k": (Whole, Field(min(10, limits.k), ge=1, le=limits.k, description="How many candidates.")),
        "rule": (Rule, Field(rule, description=f"The decoding rule: {', '.join(RULES)}.")),
    }
    asked: dict[str, Any] = {}
    if kind == "vector":
        asked["inputs"] = Annotated[list[Number], Field(min_length=width, max_length=width)]
    elif kind:
        asked["inputs"] = Annotated[str, Field(min_length=1, max_length=limits.text, pattern=r"\S")]
    asked["coefficients"] = Annotated[list[Number], Field(min_length=dim, max_length=dim)]
    return [_question(name, one, limits, common) for name, one in asked.items()]


def _question(name: str, one: Any, limits: Limits, common: dict[str, Any]) -> type[BaseModel]:
    title = name.capitalize()
    rows = (list[one], Field(min_length=1, max_length=limits.inputs))
    fields: dict[str, Any] = {name: rows, **common}
    return create_model(title, __config__=ConfigDict(extra="forbid", title=title), **fields)
