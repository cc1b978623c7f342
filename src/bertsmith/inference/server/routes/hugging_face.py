"""POST / as Hugging Face's inference has it, in the shapes that huggingface_hub.InferenceClient reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter, ValidationError

from bertsmith.inference.predictor import Prediction
from bertsmith.inference.server.models import MASKED, MOST_GUESSES, Asked, Encoded, Model, RowModel
from bertsmith.inference.server.refusals import Refusal, check_size
from bertsmith.inference.server.routes import schemas
from bertsmith.inference.server.routes.schemas import NAMED
from bertsmith.inference.server.routes.tei import (
    classifies,
    embeddings,
    listed,
    named,
    numbers,
    predictions,
    similarities,
)
from bertsmith.inference.server.service import Service
from bertsmith.tasks.kinds.masked_words import MASK

_TASKS = "answers of Hugging Face's tasks"
_PAIR, _QUESTION = ("text", "text_pair"), ("question", "context")
_TEXTS: TypeAdapter[schemas.Texts] = TypeAdapter(schemas.Texts)


def hugging_face_routes(service: Service) -> APIRouter:
    """POST / and POST /models/NAME, whose answer depends on the model and, of vectors, on the inputs."""
    router = APIRouter(tags=["Hugging Face"], route_class=schemas.BodyRoute)

    @router.post("/", responses=schemas.json_of(list[Any] | dict[str, Any]))
    @router.post("/models/{model}", responses=schemas.json_of(list[Any] | dict[str, Any]), dependencies=[NAMED])
    async def task(request: Request, body: schemas.HuggingFaceRequest) -> Response:
        """Classes, entities, an answer, masked words, vectors or similarities."""
        model = service.model(request, lambda model: model.kind != "choice", _TASKS)
        encoded, found = await _found(service, request, model, body)
        return await service.answer(request, found, encoded)

    return router


async def _found(
    service: Service, request: Request, model: Model, body: schemas.HuggingFaceRequest
) -> tuple[Encoded, Any]:
    of_vectors = body.normalize is False or body.dimensions is not None or body.encoding_format is not None
    if of_vectors and (isinstance(model, RowModel) or isinstance(body.inputs, Mapping)):
        raise Refusal(422, "normalize, dimensions and encoding_format are of vectors, and this asks for none")
    if isinstance(model, RowModel):
        if classifies(model):
            return await _classes(service, request, model, body)
        return await _rows(service, request, model, body)
    if isinstance(body.inputs, Mapping):
        given = _check(body.parameters, ("truncate", "truncation_direction", "prompt_name"))
        beside = body.model_dump(include={"truncate", "truncation_direction"}, exclude_unset=True)
        parameters = _read("parameters", schemas.SimilarityParameters, {**beside, **given})
        inputs = _read("inputs", schemas.SimilarityInput, body.inputs)
        return await similarities(service, request, inputs, parameters.cut)
    _check(body.parameters, ())
    encoded, vectors = await embeddings(service, request, listed(_read("inputs", _TEXTS, body.inputs)), body)
    return encoded, await numbers(service, request, vectors)


async def _classes(
    service: Service, request: Request, model: RowModel, body: schemas.HuggingFaceRequest
) -> tuple[Encoded, Any]:
    """A list of labels for each row; also for one row, as the client wants it."""
    parameters = _check(body.parameters, ("top_k", "function_to_apply"), most=None)
    how = parameters.get("function_to_apply")
    own = ["none"]
    if model.kind == "classify":
        own.insert(0, "sigmoid" if model.several_labels else "softmax")
    if how is not None and how not in own:
        names = " and ".join(f"'{each}'" for each in own)
        raise Refusal(422, f"function_to_apply is {str(how)[:40]!r}; this model has {names}")
    inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    rows = [_texts(each) for each in inputs]
    encoded, found = await predictions(service, request, rows, body.cut, how == "none", _PAIR, "leave text_pair out")
    return encoded, [each[: parameters.get("top_k")] for each in found]


def _texts(row: Any) -> Sequence[str]:
    """A text, or the two of a pair as the text-classification pipeline takes them."""
    if isinstance(row, str):
        return [row]
    if _has_texts(row, _PAIR):
        return [row[field] for field in _PAIR]
    raise Refusal(422, 'inputs: give texts, or {"text", "text_pair"} for pairs')


def _has_texts(row: Any, fields: Collection[str]) -> bool:
    """Whether it is an object of these fields alone, each with a text."""
    return isinstance(row, Mapping) and set(row) == set(fields) and all(isinstance(each, str) for each in row.values())


async def _rows(
    service: Service, request: Request, model: RowModel, body: schemas.HuggingFaceRequest
) -> tuple[Encoded, Any]:
    """Entities, answers to questions or masked words: of one input by itself, or of each in a list."""
    known = {"tag": ("aggregation_strategy", "ignore_labels"), "qa": ("top_k",), MASKED: ("top_k",)}[model.kind]
    parameters = _check(body.parameters, known)
    inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    rows: list[Any]
    if model.kind == "qa":
        if not all(_has_texts(each, _QUESTION) for each in inputs):
            raise Refusal(422, 'inputs: give {"question", "context"}, two texts')
        columns = (model.columns.question, model.columns.context)
        rows = [{column: each[field] for column, field in zip(columns, _QUESTION, strict=True)} for each in inputs]
        texts = named("inputs", (row.values() for row in rows), _QUESTION)
    else:
        texts = named("inputs", zip(rows := listed(_read("inputs", _TEXTS, inputs))))
    top = parameters.get("top_k", 5)
    if model.kind == MASKED:
        # Each guess of each mask comes with the whole text.
        letters = sum(text.count(MASK) * top * len(text) for text in rows)
        fix = "send fewer or shorter texts, or a smaller top_k"
        check_size("letters in the texts of this answer", letters, service.limits.answer_bytes, fix)
    encoded, outputs = await service.outputs(request, model, Asked(rows, texts), body.cut)
    answers = await service.in_rows_thread(request, model.answers, encoded, outputs)
    if model.kind == "tag":
        found = [_entities(each, parameters) for each in answers]
    elif model.kind == "qa":
        found = [_spans(each, parameters.get("top_k")) for each in answers]
    else:
        found = await service.in_rows_thread(
            request,
            lambda: [_filled(text, each, model.piece_ids, top) for text, each in zip(rows, answers, strict=True)],
        )
    return encoded, found if isinstance(body.inputs, list) else found[0]


def _entities(found: Prediction, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    strategy = parameters.get("aggregation_strategy")
    if strategy not in (None, "simple", "first"):
        what = f"aggregation_strategy is {str(strategy)[:40]!r}; entities are grouped by the first piece of each word"
        raise Refusal(422, f"{what}, which is 'first' (or 'simple')")
    ignored = parameters.get("ignore_labels", [])
    return [
        {
            "entity_group": each["label"],
            "score": each["score"],
            "word": each["text"],
            "start": each["start"],
            "end": each["end"],
        }
        for each in found["entities"]
        if each["label"] not in ignored
    ]


def _spans(found: Prediction, top: int | None) -> Any:
    """The answer, or with `top` above 1 the best ones. No answer is "" from 0 to 0, as in the pipeline."""
    if top is None or top == 1:
        return {name: found[name] or 0 for name in ("score", "start", "end")} | {"answer": found["answer"]}
    return [
        {"score": each["probability"], "start": each["start"] or 0, "end": each["end"] or 0, "answer": each["text"]}
        for each in found["nbest"][:top]
    ]


def _filled(text: str, found: Prediction, pieces: Mapping[str, int], top: int) -> list[Any]:
    """The likeliest pieces of the mask; of several masks a list for each."""
    before = text.split(MASK)
    filled = []
    for place, guesses in enumerate(found["guesses"]):
        left, right = MASK.join(before[: place + 1]), MASK.join(before[place + 1 :])
        filled.append(
            [
                {
                    "score": each["probability"],
                    "token": pieces[each["piece"]],
                    "token_str": each["piece"],
                    "sequence": _joined(left, each["piece"]) + right,
                }
                for each in guesses[:top]
            ]
        )
    return filled[0] if len(filled) == 1 else filled


def _joined(text: str, piece: str) -> str:
    """A text and the next piece; one within a word stands right behind it, as in the pipeline."""
    inner = piece.startswith("##") and text.strip()
    return text.rstrip() + piece.removeprefix("##") if inner else text + piece


def _check(
    parameters: Mapping[str, Any] | None, known: Collection[str], most: int | None = MOST_GUESSES
) -> Mapping[str, Any]:
    """The parameters that are not null. most: of top_k. Raises Refusal (422) for others than the known ones, and for a
    bad top_k."""
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    for name in given.keys() - set(known):
        can = f"it has {', '.join(known)}" if known else "it has none"
        raise Refusal(422, f"parameters: '{name[:40]}' is not a parameter of this model's task; {can}")
    top = given.get("top_k", 1)
    if type(top) is not int or top < 1 or (most is not None and top > most):
        raise Refusal(422, f"parameters: top_k is not a whole number from 1{f' to {most}' if most else ''}")
    labels = given.get("ignore_labels", [])
    if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
        raise Refusal(422, "parameters: ignore_labels is not a list of labels")
    return given


def _read(field: str, kind: Any, value: Any) -> Any:
    """A field of a body as its type. Raises Refusal (422)."""
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        errors = [{**each, "loc": (field, *each["loc"])} for each in error.errors()]
        raise Refusal(422, schemas.complaint(errors)) from None
