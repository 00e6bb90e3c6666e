"""The routes, as one ASGI application. Each is a function or an Endpoint of its own; here they have their paths."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.model_manager.wire.errors import MillraceError

from .batches.batch_routes import batch_routes
from .batches.served_batches import BatchRunner
from .files.file_routes import file_routes
from .files.owners import check_folder
from .files.space import Space
from .http.browsers import BrowserCheck
from .http.http_errors import NOT_FOUND, HttpError, http_error, internal
from .http.keys import KeyCheck, read_keys
from .openai.bodies import Body, DetokenizeBody, TokenizeBody
from .openai.chat import chat
from .openai.completions import completion
from .openai.embeddings import embedding
from .openai.endpoints import Computed, ModelEndpoint
from .openai.tokens import detokenize, tokenize
from .openapi import docs_page, openapi
from .requests.service import Service
from .responses.route import response_routes
from .settings import ServeConfig
from .tgi.tgi_routes import tgi_routes
from .window.feed import Feed
from .window.page import PATHS, page_routes

_MODEL_ROUTES = {"/v1/completions": completion, "/v1/chat/completions": chat, "/v1/embeddings": embedding}
_SHOWN = 100
"""Most characters of a path in an error."""
_REMEDY = "; name it by --cors_origin (https://app.example), or ask for keys by --api_key_file"
_COMPUTED: dict[str, tuple[Any, type[Body]]] = {
    "/tokenize": (tokenize, TokenizeBody),
    "/detokenize": (detokenize, DetokenizeBody),
}


def make_app(service: Service, batches: BatchRunner) -> ASGIApp:
    """The application; raises ConfigError for a file of keys that cannot be read, or files that cannot be kept."""
    check_folder(service.settings)
    views, space = _Views(service), Space(service.settings)
    asked = {path: ModelEndpoint(service, path, prepare) for path, prepare in _MODEL_ROUTES.items()}
    routes = [
        *(Route(path, route, methods=["POST"]) for path, route in asked.items()),
        *(Route(path, Computed(service, path, *made), methods=["POST"]) for path, made in _COMPUTED.items()),
        *response_routes(service),
        *file_routes(service, space),
        *batch_routes(service, batches, space),
        *tgi_routes(service),
        Route("/v1/models", views.models),
        Route("/v1/models/{name:path}", views.model),
        Route("/health", views.health),
        Route("/ready", views.ready),
        Route("/version", views.version),
        Route("/metrics", views.metrics),
        Route("/openapi.json", views.openapi),
        Route("/docs", views.docs),
        Route("/events", Feed(service.watching, service.settings.stall_timeout), methods=["GET"]),
        *page_routes(),
    ]
    handlers: Any = {HTTPException: _of_starlette, HttpError: _of_ours, Exception: _unexpected}
    app: ASGIApp = _Shortcut(Starlette(routes=routes, exception_handlers=handlers), asked)
    for around in reversed(_middleware(service.settings)):
        app = around.cls(app, *around.args, **around.kwargs)
    return app


class _Shortcut:
    """The routes that are asked most are found by their path alone, and answer their own errors."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        route = self._routes.get(scope["path"], self._app) if scope["method"] == "POST" else self._app
        await route(scope, receive, send)


def _middleware(settings: ServeConfig) -> list[Middleware]:
    """A browser's preflight has no key, so CORS is first."""
    found = []
    if settings.cors_origin:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origin),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-millrace-ignored", "retry-after"],
            )
        )
    if settings.api_key_file is not None:  # which no other site's page has
        found.append(Middleware(KeyCheck, keys=read_keys(settings.api_key_file), page=PATHS))
    elif "*" not in settings.cors_origin:
        found.append(Middleware(BrowserCheck, origins=settings.cors_origin, host=settings.host, remedy=_REMEDY))
    return found


class _Views:
    """Routes that ask the model nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since = int(time.time())

    async def models(self, _request: Request) -> Response:
        """The model, and its adapters."""
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._service.served.names]})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        name = request.path_params["name"]
        self._service.adapter_of(name)
        return JSONResponse(self._model(name))

    async def health(self, _request: Request) -> Response:
        """The server runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """The model is loaded."""
        try:
            key = self._service.engine.client.key
        except MillraceError as error:
            raise http_error(error) from None
        return JSONResponse({"status": "ready", "model": self._service.served.model, "key": key})

    async def version(self, _request: Request) -> Response:
        """The server's version."""
        return JSONResponse({"version": self._service.served.version})

    async def metrics(self, _request: Request) -> Response:
        """Metrics for Prometheus, of this server's requests and of the machine."""
        text = await asyncio.to_thread(generate_latest, self._service.metrics)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def openapi(self, _request: Request) -> Response:
        """What the routes take."""
        return JSONResponse(openapi(self._service.served.version))

    async def docs(self, _request: Request) -> Response:
        """The same for people."""
        return HTMLResponse(docs_page(self._service.served.version))

    def _model(self, name: str) -> dict[str, Any]:
        """As vLLM has it: an adapter's root is its path, and its parent the model."""
        engine, served = self._service.engine, self._service.served
        length = {"max_model_len": engine.client.info.max_model_len} if engine.is_ready else {}
        path = served.adapters.get(name)
        of = {"root": name, "parent": None} if path is None else {"root": path, "parent": served.model}
        return {"id": name, "object": "model", "created": self._since, "owned_by": "millrace", **of, **length}


async def _of_starlette(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException), "what this handler is registered for"
    path = request.url.path[:_SHOWN]
    if error.status_code == 404:
        return HttpError(404, f"{path}: no such route; /docs lists all", NOT_FOUND, code="not_found").response()
    message = f"{path}: does not take {request.method[:_SHOWN]}" if error.status_code == 405 else error.detail
    return HttpError(error.status_code, message, code="method_not_allowed", headers=error.headers).response()


async def _of_ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError), "what this handler is registered for"
    return error.response()


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """Starlette raises the error again after that; the log has it."""
    return internal().response()
