"""A server by litserve, run by its own environment's Python as `python with_litserve.py MODEL PORT`: transformers'
pipeline over what has gathered within 10 ms, 32 texts at most. It imports nothing of ours."""

import sys
from typing import Any

try:
    from litserve import LitAPI
except ModuleNotFoundError:  # in every environment but its own
    LitAPI = object

_TEXTS, _SECONDS = 32, 0.01


class Classify(LitAPI):  # type: ignore[misc]  # where types are checked, litserve is not installed
    """Texts to {"label", "score"}. In a module, for litserve's processes import it."""

    def setup(self, device: str) -> None:
        import transformers

        self.pipe = transformers.pipeline("text-classification", model=sys.argv[1], device=device, dtype="float32")

    def decode_request(self, request: dict[str, str]) -> str:
        return request["text"]

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.pipe(texts, batch_size=len(texts), truncation=True)
        return found

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    from litserve import LitServer

    api = Classify(max_batch_size=_TEXTS, batch_timeout=_SECONDS)
    server = LitServer(api, accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
