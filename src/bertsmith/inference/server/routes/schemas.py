"""The bodies of requests and answers, as the OpenAPI of the server has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from bertsmith.inference.server.models import HALF_A_PAIR, MOST_GUESSES, Cut
from bertsmith.rows.json_lines import each_once

# A list of wrong items has one error, not one for each.
TextList = Annotated[list[str], Field(fail_fast=True)]
Texts = str | TextList
OneOrTwo = Annotated[list[str], Field(min_length=1, max_length=2, fail_fast=True)]
# As OneOrTwo, but a longer one is refused by the route, with how a list of rows is written.
OneRow = Annotated[list[str], Field(min_length=1, fail_fast=True, json_schema_extra={"maxItems": 2})]
NoPrompt = Annotated[None, Field(description="There are no prompts here; write them into the texts.")]


class _Request(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=each_once)


class BodyRoute(APIRoute):
    """A route whose body has no key of an object twice: one of the two values would be lost."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handled


class Body(BaseModel):
    """A field that is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Truncation(Body):
    truncate: bool | None = Field(
        False, description="Whether a row that is longer than the model reads loses tokens; else it is refused (413)."
    )
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = Field(
        None, description="Which end a long row loses; left out, what the model's folder says, mostly the right one."
    )

    @property
    def cut(self) -> Cut:
        """As the models take it."""
        side = self.truncation_direction
        return Cut(bool(self.truncate), None if side is None else side.lower() == "left")


class PredictRequest(Truncation):
    inputs: str | OneRow | Annotated[list[OneOrTwo], Field(fail_fast=True)] = Field(
        description="A text, by itself or in a list, a pair of texts, or a list of rows with one text or a pair each."
    )
    raw_scores: bool = Field(False, description="Numbers before the softmax or sigmoid.")


class EmbedAllRequest(Truncation):
    inputs: Texts
    prompt_name: NoPrompt = None


class EmbedRequest(EmbedAllRequest):
    normalize: bool | None = Field(True, description="Vectors of length 1.")
    dimensions: int | None = Field(None, ge=1, description="The first so many numbers of each vector.")


class RerankRequest(Truncation):
    query: str
    texts: TextList
    raw_scores: bool = Field(False, description="The model's numbers, without a sigmoid.")
    return_text: bool = False


class SimilarityInput(Body):
    source_sentence: str
    sentences: TextList


class SimilarityParameters(Truncation):
    prompt_name: NoPrompt = None


class SimilarityRequest(Body):
    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None


class TokenizeRequest(Body):
    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: NoPrompt = None


class AnswersRequest(Truncation):
    rows: Annotated[list[str | dict[str, Any]], Field(fail_fast=True)] = Field(
        description="As `bertsmith predict` reads them: texts, or objects."
    )
    top: int = Field(
        5, ge=1, le=MOST_GUESSES, description="How many answers to a question, or words for a [MASK]; others refuse it."
    )


class OpenAIEmbeddings(Truncation):
    input: Texts
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = Field(None, description="Not used.")


class HuggingFaceRequest(Truncation):
    """Of `InferenceClient`: `inputs` and `parameters`, or for vectors the fields beside `inputs`."""

    inputs: Any = Field(description="Texts; for questions {question, context}; for similarity {source_sentence, ...}.")
    parameters: dict[str, Any] | None = None
    normalize: bool | None = True
    prompt_name: NoPrompt = None
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float"] | None = None


class Error(BaseModel):
    error: str
    error_type: str


class OpenAIErrorFacts(BaseModel):
    message: str
    type: str
    code: int
    param: None


class OpenAIError(BaseModel):
    error: OpenAIErrorFacts


class Prediction(BaseModel):
    label: str
    score: float


class Rank(BaseModel):
    index: int
    score: float
    text: str | None = None


class Token(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Answers(BaseModel):
    model: str
    answers: list[dict[str, Any]]


def complaint(errors: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a body, in words, without what it holds. Of a field that may be several things, it says what
    each of them wants."""
    by_field: dict[str, dict[str, None]] = {}
    for error in errors:
        if error["type"] == "json_invalid":
            return f"the body is not JSON: {error['ctx']['error'].removesuffix(' at')} at character {error['loc'][-1]}"
        field = ".".join(_names(error["loc"]))[:LONGEST_NAME] or "the body"
        known = _PLAIN.get(error["type"])
        by_field.setdefault(field, {})[known.format_map(error.get("ctx", {})) if known else error["msg"]] = None
    return "; ".join(f"{field}: {', or '.join(said)}" for field, said in by_field.items())


def _names(place: Sequence[str | int]) -> list[str]:
    """The fields on the way to an error. Behind a field of several types pydantic has the type, such as "list[str]"."""
    inner = [each for each in place[1:] if isinstance(each, str) and each != "str" and not each.endswith("]")]
    return [*map(str, place[:1]), *inner]


LONGEST_NAME = 60
# By the type of pydantic's error, with what its "ctx" has.
_PLAIN = {
    "missing": "this is missing",
    "extra_forbidden": "there is no such field; /openapi.json lists those there are",
    "string_type": "give a text",
    "list_type": "give a list",
    "too_short": "give a list of at least {min_length}",
    "too_long": "give a list of at most {max_length}",
    "dict_type": "give an object",
    "model_attributes_type": "give an object",
    "model_type": "give an object",
    "bool_type": "give true or false",
    "int_type": "give a whole number",
    "greater_than_equal": "give {ge} or more",
    "less_than_equal": "give {le} or less",
    "literal_error": "give {expected}",
    "none_required": "leave it out",
    "string_unicode": f"this text {HALF_A_PAIR}",
}


def _model_name(model: Annotated[str, Path(description="One of those that /info lists.")]) -> None:
    """Has the name of a model that stands in a path in the OpenAPI."""


NAMED = Depends(_model_name)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": what}
    for status, what in {
        401: "The bearer token is missing or wrong.",
        404: "There is no such model.",
        408: "The body did not arrive in time.",
        413: "The body, a row, or the number of rows is too large.",
        415: "The body is not JSON.",
        421: "The Host header has another name than the server's.",
        422: "The body cannot be used.",
        424: "The model cannot do this, or failed.",
        429: "The queue is full; Retry-After says when to try again.",
        500: "The server failed.",
        503: "Models are being loaded, or the server is stopping.",
        504: "There was no answer in time.",
    }.items()
}


def json_of(kind: Any, error: type[BaseModel] = Error) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route whose answer is of this type, and whose errors are of that."""
    errors = {status: {**facts, "model": error} for status, facts in ERRORS.items()}
    return {**errors, 200: {"model": kind, "description": "The answer."}}
