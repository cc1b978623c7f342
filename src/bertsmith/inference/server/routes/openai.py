"""OpenAI's /v1/embeddings and /v1/models, for its client libraries and what is written for them."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter, Request, Response

from bertsmith.inference.server.models import Asked, TextModel
from bertsmith.inference.server.routes import schemas
from bertsmith.inference.server.routes.tei import check_dimensions, listed, named, numbers, with_vectors
from bertsmith.inference.server.service import Service, answer


def openai_routes(service: Service) -> APIRouter:
    """The model is named in the body."""
    router = APIRouter(tags=["OpenAI"], route_class=schemas.BodyRoute)

    @router.post("/v1/embeddings", responses=schemas.json_of(dict[str, Any], schemas.OpenAIError))
    async def embeddings(request: Request, body: schemas.OpenAIEmbeddings) -> Response:
        """Vectors of length 1, as numbers or as base64 of little-endian float32."""
        model = with_vectors(service, request, body.model)
        check_dimensions(model, body.dimensions)
        asked = Asked(texts := listed(body.input), named("input", zip(texts)))
        encoded, outputs = await service.outputs(request, model, asked, body.cut)
        vectors = model.vectors(encoded, outputs, normalize=True, dimensions=body.dimensions)
        is_base64 = body.encoding_format == "base64"
        forms = map(_base64, vectors) if is_base64 else await numbers(service, request, vectors)
        tokens = int(encoded.sequences.lengths.sum())
        found: dict[str, Any] = {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(forms)],
            "model": model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        if encoded.sequences.truncated.rows:
            found["truncated_tokens"] = encoded.sequences.row_lost_tokens.tolist()
        return await service.answer(request, found, encoded)

    @router.get("/v1/models", responses=schemas.json_of(dict[str, Any], schemas.OpenAIError))
    async def models() -> Response:
        """The models that give vectors."""
        service.check_ready()
        named = [name for name, model in service.models.items() if isinstance(model, TextModel)]
        return answer({"object": "list", "data": [_facts(name) for name in named]})

    @router.get("/v1/models/{model}", responses=schemas.json_of(dict[str, Any], schemas.OpenAIError))
    async def one_model(request: Request, model: str) -> Response:
        """A model that gives vectors."""
        return answer(_facts(with_vectors(service, request, model).name))

    return router


def _facts(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "bertsmith"}


def _base64(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
