"""What no other server has a route for: whatever a model answers, and what the server says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from bertsmith.base.versions import version_of
from bertsmith.inference.predictor import LISTS_BEST, Prediction
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.metrics import CONTENT_TYPE
from bertsmith.inference.server.models import SCORE, Asked, Model, RowModel
from bertsmith.inference.server.refusals import Refusal, check_size
from bertsmith.inference.server.routes import schemas
from bertsmith.inference.server.service import Service, answer
from bertsmith.model.config import label_maps


def answers_route(service: Service) -> APIRouter:
    """/answers."""
    router = APIRouter(tags=["Bertsmith"], route_class=schemas.BodyRoute)

    @router.post("/answers", responses=schemas.json_of(schemas.Answers))
    async def answers(request: Request, body: schemas.AnswersRequest) -> Response:
        """What `bertsmith predict` answers for each row, of any kind of model that is not for vectors; with
        `truncated_tokens`."""
        model = service.model(request, lambda model: isinstance(model, RowModel), "answers to rows")
        assert isinstance(model, RowModel)
        if "top" in body.model_fields_set and model.kind not in LISTS_BEST:
            kinds = " and ".join(LISTS_BEST)
            what = f"top: {model.name} ({model.kind}) lists no answers"
            raise Refusal(422, f"{what}; leave it out: only models of {kinds} read it")
        if model.kind == "choice":
            _check_choices(body.rows, model.columns.choices.split(","), service.limits)
        bare = ((f"rows: the text of row {n}", row) for n, row in enumerate(body.rows, 1) if isinstance(row, str))
        encoded, outputs = await service.outputs(request, model, Asked(body.rows, bare), body.cut)
        answered = await service.in_rows_thread(request, model.answers, encoded, outputs)
        found = {"model": model.name, "answers": [_shortened(each, body.top) for each in answered]}
        return await service.answer(request, found, encoded)

    return router


def info_route(service: Service) -> APIRouter:
    """/info."""
    router = APIRouter(tags=["Server"])

    @router.get("/info", responses=schemas.json_of(dict[str, Any]))
    async def info(request: Request) -> Response:
        """Of one model as Text Embeddings Inference has it; "models" lists all."""
        name = request.path_params.get("model")
        found = [service.named(name)] if name is not None else list(service.models.values())
        each = [_info(model, service) for model in found]
        return answer(
            (each[0] if len(each) == 1 else {})
            | {"models": each, "state": service.state, "version": version_of("bertsmith")}
        )

    return router


def probe_routes(service: Service) -> APIRouter:
    """/health and /metrics, which are of the whole server."""
    router = APIRouter(tags=["Server"])

    @router.get("/health", responses={503: schemas.ERRORS[503]})
    async def health() -> Response:
        """200 once all models are loaded, 503 before that and while the server stops. Needs no token."""
        service.check_ready()
        return answer({"status": "ready"})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(service.batcher.lanes), headers={"Content-Type": CONTENT_TYPE})

    return router


def _check_choices(rows: Sequence[str | dict[str, Any]], columns: Sequence[str], limits: Limits) -> None:
    """Raises Refusal (413) for too many choices, and for too much text beside them. columns: one that lists the
    choices, or one for each."""
    choices = letters = 0
    for row in rows:
        if isinstance(row, Mapping):
            listed = row.get(columns[0]) if len(columns) == 1 else columns
            count = len(listed) if isinstance(listed, list) else 1
            choices += count
            letters += count * sum(len(text) for text in row.values() if isinstance(text, str))
    check_size("choices in this request", choices, limits.rows)
    check_size("letters in the choices of this request, each with its text", letters, limits.encoded_bytes)


def _shortened(found: Prediction, top: int) -> dict[str, Any]:
    """An answer with the `top` best where it lists several."""
    shortened = dict(found)
    if "nbest" in found:
        shortened["nbest"] = found["nbest"][:top]
    if "guesses" in found:  # of each [MASK]
        shortened["guesses"] = [each[:top] for each in found["guesses"]]
    return shortened


def _info(model: Model, service: Service) -> dict[str, Any]:
    limits = service.limits
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": model.precision,
        "model_type": _model_type(model),
        "kind": model.kind,
        "columns": model.prompts if isinstance(model, RowModel) else [],
        "pairs": model.pairs if isinstance(model, RowModel) else None,
        "max_concurrent_requests": limits.queue_requests,
        "max_input_length": model.max_length,
        "max_batch_tokens": model.lane.budget_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.rows,
        "auto_truncate": False,
        "tokenization_workers": 1,
    }


def _model_type(model: Model) -> dict[str, Any]:
    if not isinstance(model, RowModel):
        return {"embedding": {"pooling": model.pooling}}
    ranker = "reranker" if model.pairs is not False else "classifier"
    names = {"classify": "classifier", "regress": ranker, SCORE: ranker}
    return {names.get(model.kind, model.kind.replace(" ", "_")): label_maps(model.labels) if model.labels else {}}
