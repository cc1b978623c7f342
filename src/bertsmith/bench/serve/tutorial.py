"""A server as a tutorial writes it, run as `python tutorial.py MODEL PORT`: FastAPI over transformers' pipeline, one
text at a time. It imports nothing of ours: it runs in a virtual environment of its own."""

import sys

from fastapi import FastAPI
from pydantic import BaseModel


class Request(BaseModel):
    text: str


def make_app(model: str) -> FastAPI:
    """The application for the model of a folder."""
    import transformers

    app = FastAPI()
    pipe = transformers.pipeline("text-classification", model=model, device="cpu", dtype="float32")

    @app.post("/predict")
    def predict(request: Request) -> dict[str, object]:
        found: dict[str, object] = pipe(request.text, truncation=True)[0]
        return found

    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
