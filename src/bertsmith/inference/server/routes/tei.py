"""The routes of Text Embeddings Inference: classes, vectors, ranks, similarities and tokens, in its shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from bertsmith.inference.embed import Vectors
from bertsmith.inference.server.models import (
    SCORE,
    Asked,
    Cut,
    Encoded,
    Model,
    Named,
    RowModel,
    TextModel,
    check_texts,
)
from bertsmith.inference.server.refusals import Refusal, check_size
from bertsmith.inference.server.routes import schemas
from bertsmith.inference.server.service import Service
from bertsmith.tasks.kinds.embed import short_numbers

_BYTES_A_NUMBER = 10  # in an answer
_FEW_ROWS = 16  # whose scores take less time than a change of threads
_OWN_LISTS = 'give each row a list of its own, as in [["a"], ["b"]]'
VECTORS, CLASSES = "vectors of texts", "classes or numbers of rows"
WAY_TO_VECTORS = "`bertsmith finetune embed` makes a model that does, and `bertsmith embed` gives those of any BERT"


def classifies(model: Model) -> bool:
    return model.kind in ("classify", "regress", SCORE)


def ranks(model: Model) -> bool:
    return isinstance(model, RowModel) and model.kind in ("regress", SCORE) and model.pairs is not False


def tei_routes(service: Service) -> APIRouter:
    """/predict, /embed, /embed_all, /rerank, /similarity and /tokenize."""
    router = APIRouter(tags=["Text Embeddings Inference"], route_class=schemas.BodyRoute)

    @router.post("/predict", responses=schemas.json_of(list[schemas.Prediction] | list[list[schemas.Prediction]]))
    async def predict(request: Request, body: schemas.PredictRequest) -> Response:
        """The labels of texts or pairs with their probabilities, the likeliest first."""
        rows, batch = _rows(body.inputs)
        encoded, found = await predictions(service, request, rows, body.cut, body.raw_scores)
        return await service.answer(request, found if batch else found[0], encoded)

    @router.post("/embed", responses=schemas.json_of(list[list[float]]))
    async def embed(request: Request, body: schemas.EmbedRequest) -> Response:
        """A vector for each text."""
        encoded, vectors = await embeddings(service, request, listed(body.inputs), body)
        return await service.answer(request, await numbers(service, request, vectors), encoded)

    @router.post("/embed_all", responses=schemas.json_of(list[list[list[float]]]))
    async def embed_all(request: Request, body: schemas.EmbedAllRequest) -> Response:
        """The last hidden state of every token of each text, [CLS] and [SEP] included."""
        model = with_vectors(service, request)
        most = service.limits.answer_bytes // (_BYTES_A_NUMBER * model.token_width)
        asked = Asked(texts := listed(body.inputs), named("inputs", zip(texts)))
        cut = replace(body.cut, windows=False)  # a token that two windows share has no one vector
        encoded, states = await service.outputs(request, model, asked, cut, model.token_lane, most)
        found = await service.in_rows_thread(request, lambda: [list(map(short_numbers, each)) for each in states])
        return await service.answer(request, found, encoded)

    @router.post("/rerank", responses=schemas.json_of(list[schemas.Rank]))
    async def rerank(request: Request, body: schemas.RerankRequest) -> Response:
        """How well each text fits the query, the best first, by a model with one number for a pair."""
        model = service.model(request, ranks, "one number for a pair of texts")
        assert isinstance(model, RowModel)
        letters = len(body.texts) * len(body.query) + sum(map(len, body.texts))
        check_size("letters in the pairs of this request", letters, service.limits.encoded_bytes, "send fewer texts")
        names = chain([("query", body.query)], named("texts", zip(body.texts)))
        asked = _asked(model, [(body.query, text) for text in body.texts], names)
        encoded, outputs = await service.outputs(request, model, asked, body.cut)
        scores = _fits(model, encoded, outputs, body.raw_scores)
        order = np.argsort(-scores, kind="stable").tolist()
        texts = [{"text": body.texts[place]} if body.return_text else {} for place in order]
        found = [{"index": place, "score": scores[place], **text} for place, text in zip(order, texts, strict=True)]
        return await service.answer(request, found, encoded)

    @router.post("/similarity", responses=schemas.json_of(list[float]))
    async def similarity(request: Request, body: schemas.SimilarityRequest) -> Response:
        """The cosine of a text's vector with that of each of others."""
        cut = body.parameters.cut if body.parameters else Cut()
        encoded, found = await similarities(service, request, body.inputs, cut)
        return await service.answer(request, found, encoded)

    @router.post("/tokenize", responses=schemas.json_of(list[list[schemas.Token]]))
    async def tokenize(request: Request, body: schemas.TokenizeRequest) -> Response:
        """The pieces of texts, whole, with the characters that each stands for."""
        model = service.model(request, lambda _: True, "tokens")
        service.check_rows(texts := listed(body.inputs))
        work = service.in_rows_thread(request, _tokens, service, model, texts, body.add_special_tokens)
        return await service.answer(request, await service.in_time(work))

    return router


def _fits(model: RowModel, encoded: Encoded, outputs: Sequence[Any], raw: bool) -> NDArray[np.float64]:
    """One number for each row: what the model was made to give, a sigmoid of it, or with `raw` its output: [N]."""
    scores = model.raw_scores(encoded, outputs)[:, 0].astype(np.float64)
    if raw:
        return scores
    if model.kind == SCORE:
        return np.array([each["score"] for each in model.answers(encoded, outputs)])
    return 1 / (1 + np.exp(-scores))


def listed(inputs: schemas.Texts) -> list[str]:
    """One text or several as several."""
    return [inputs] if isinstance(inputs, str) else inputs


def named(
    field: str, rows: Iterable[Iterable[str]], of_pair: Sequence[str] = ("first text", "second text")
) -> Iterator[tuple[str, str]]:
    """The texts of a field for messages. of_pair: what those of a row with two are called."""
    for number, row in enumerate(rows, 1):
        names = of_pair if len(texts := list(row)) == 2 else ("text",)
        yield from ((f"{field}: the {name} of row {number}", text) for name, text in zip(names, texts, strict=True))


async def predictions(
    service: Service,
    request: Request,
    rows: Sequence[Sequence[str]],
    cut: Cut,
    raw: bool = False,
    of_pair: Sequence[str] = ("first text", "second text"),
    one_text: str = _OWN_LISTS,
) -> tuple[Encoded, list[list[dict[str, Any]]]]:
    """{"label", "score"} of every label for each row of one or two texts, the highest first. of_pair: as of `named`.
    one_text: how a client gives a row of one text in place of two."""
    model = service.model(request, classifies, CLASSES)
    assert isinstance(model, RowModel)
    asked = _asked(model, rows, named("inputs", rows, of_pair), one_text)
    encoded, outputs = await service.outputs(request, model, asked, cut)

    def scored() -> list[Mapping[str, float]]:
        if raw or model.kind == "regress":
            scores = model.raw_scores(encoded, outputs).tolist()
            return [dict(zip(model.labels, row, strict=True)) for row in scores]
        if model.kind == SCORE:
            return [{model.labels[0]: each["score"]} for each in model.answers(encoded, outputs)]
        return [each["scores"] for each in model.answers(encoded, outputs)]

    found = scored() if len(rows) <= _FEW_ROWS else await service.in_rows_thread(request, scored)
    ordered = (sorted(each.items(), key=lambda pair: -pair[1]) for each in found)
    return encoded, [[{"label": label, "score": score} for label, score in each] for each in ordered]


async def numbers(service: Service, request: Request, vectors: Vectors) -> list[list[float]]:
    """The numbers of vectors as JSON has them, made beside the event loop: for many vectors that takes a while."""
    return await service.in_rows_thread(request, lambda: [short_numbers(each) for each in vectors])


async def embeddings(
    service: Service, request: Request, texts: Sequence[str], body: schemas.EmbedRequest | schemas.HuggingFaceRequest
) -> tuple[Encoded, Vectors]:
    """float32[N, H]."""
    model = with_vectors(service, request)
    normalize = body.normalize is not False
    check_dimensions(model, body.dimensions)
    if not normalize and model.unit:
        what = "the vectors of this model have length 1, as its folder says"
        raise Refusal(422, f"{what}; leave normalize out, or set it to true")
    asked = Asked(texts, named("inputs", zip(texts)))
    encoded, outputs = await service.outputs(request, model, asked, body.cut)
    return encoded, model.vectors(encoded, outputs, normalize, body.dimensions)


def with_vectors(service: Service, request: Request, name: str | None = None) -> TextModel:
    """As `Service.model`, and raises as that."""
    model = service.model(request, lambda model: isinstance(model, TextModel), VECTORS, WAY_TO_VECTORS, name)
    assert isinstance(model, TextModel)
    return model


def check_dimensions(model: TextModel, dimensions: int | None) -> None:
    """Raises Refusal (422) for more numbers than a vector has."""
    if dimensions is not None and dimensions > model.width:
        raise Refusal(422, f"dimensions is {dimensions}, and the vectors have {model.width} numbers")


async def similarities(
    service: Service, request: Request, inputs: schemas.SimilarityInput, cut: Cut
) -> tuple[Encoded, list[float]]:
    """The cosines of the source sentence with the others."""
    model = with_vectors(service, request)
    if not inputs.sentences:
        raise Refusal(422, "there are no sentences; give at least one")
    names = chain([("source_sentence", inputs.source_sentence)], named("sentences", zip(inputs.sentences)))
    asked = Asked([inputs.source_sentence, *inputs.sentences], names)
    encoded, outputs = await service.outputs(request, model, asked, cut)
    source, *others = model.vectors(encoded, outputs, normalize=True).astype(np.float64)
    return encoded, [float(np.clip(each @ source, -1, 1)) for each in others]


def _asked(model: RowModel, rows: Sequence[Sequence[str]], named_texts: Named, one_text: str = "") -> Asked:
    """One or two texts a row by their columns. one_text: as of `predictions`.

    Raises Refusal (422) for one where the model takes two, and the reverse, and for an empty text of a pair: in a file
    that stands for no second text."""
    for number, texts in enumerate(rows, 1):
        if model.pairs is not None and model.pairs != (len(texts) == 2):
            wanted, fix = ("two texts", "") if model.pairs else ("one text", f"; {one_text}")
            what = f"{model.name} takes rows of {wanted}, and this one has {len(texts)} (row {number})"
            raise Refusal(422, what + fix)
        if len(texts) == 2 and not all(text.strip() for text in texts):
            check_texts(named_texts)
    columns = model.columns.text, model.columns.text_b
    return Asked([dict(zip(columns[: len(texts)], texts, strict=True)) for texts in rows], named_texts)


def _rows(inputs: str | list[str] | list[list[str]]) -> tuple[list[list[str]], bool]:
    """The rows of a request, and whether it is a batch. Raises Refusal (422) for a row of more than two texts."""
    if isinstance(inputs, str):
        return [[inputs]], False
    texts = [each for each in inputs if isinstance(each, str)]
    if len(texts) > 2:
        what = f"inputs: a list of texts is one row, of a text or a pair, and this has {len(texts)}"
        raise Refusal(422, f"{what}; {_OWN_LISTS}")
    return ([texts], False) if texts else ([list(each) for each in inputs], True)


def _tokens(service: Service, model: Model, texts: Sequence[str], specials: bool) -> list[list[dict[str, Any]]]:
    """Raises Refusal: 413 for more than a queue takes, 422 for a text with half of a surrogate pair."""
    check_texts(named("inputs", zip(texts)), may_be_empty=True)
    tokenizer = model.tokenizer
    encoded = tokenizer.encode_offsets(texts, isinstance(model, RowModel) and model.reads_masks)
    check_size("tokens in this request", sum(len(ids) for ids, _ in encoded), service.limits.queue_tokens)
    special, pieces = tokenizer.special, tokenizer.pieces
    roles = {special.cls, special.sep, special.mask, special.pad}  # which a text may hold by their names
    first, last = ([_special(number, pieces)] if specials else [] for number in (special.cls, special.sep))
    found = []
    for text, (ids, offsets) in zip(texts, encoded, strict=True):
        places = zip(ids.tolist(), offsets.tolist(), strict=True)
        inner = [
            {"id": number, "text": text[start:stop], "special": number in roles, "start": start, "stop": stop}
            for number, (start, stop) in places
        ]
        found.append([*first, *inner, *last])
    return found


def _special(number: int, pieces: Sequence[str]) -> dict[str, Any]:
    return {"id": number, "text": pieces[number], "special": True, "start": None, "stop": None}
