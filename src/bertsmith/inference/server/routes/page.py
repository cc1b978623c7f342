"""The page at /: one file each of HTML, style and script, which load nothing from elsewhere."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Response

# Nothing but the server's own files and answers; no page may frame it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def page_routes() -> APIRouter:
    """GET /, /page.css and /page.js."""
    router = APIRouter(include_in_schema=False)
    folder = resources.files("bertsmith.inference.server") / "static"

    def add(path: str, content: bytes, kind: str) -> None:
        async def page() -> Response:
            return Response(content, headers={**_HEADERS, "Content-Type": kind})

        router.add_api_route(path, page, methods=["GET"])

    for path, (name, kind) in _FILES.items():
        add(path, (folder / name).read_bytes(), kind)
    return router
