"""The routes of `/v1/batches`: each writes to, or reads from, the disk; the runner does the work."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millrace.model_manager.wire.conversion import converted
from millrace.model_manager.wire.errors import InvalidRequest

from ..files.file_store import OwnerFiles
from ..files.owners import files_folder, owner_of
from ..files.paging import page
from ..files.space import Space, check_count
from ..http.http_errors import NOT_FOUND, HttpError, http_error
from ..http.replies import HungUp
from ..openai.bodies import decoded
from ..requests.service import Service
from .asking import ENDPOINTS
from .batch_store import Batches, next_id
from .record import WINDOW_SECONDS, Batch
from .served_batches import BatchRunner

_LISTED, _MOST_LISTED = 20, 100
_MOST_METADATA = 16
_MOST_BYTES = 2**16
_INPUT = "input_file_id"
_Metadata = dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]]


class BatchBody(msgspec.Struct, frozen=True, kw_only=True):
    """`/v1/batches`."""

    input_file_id: str
    """An uploaded file of purpose batch: a JSON object of custom_id, method, url and body a line."""
    endpoint: str
    """What answers each line: /v1/chat/completions, /v1/completions or /v1/embeddings."""
    completion_window: Literal["24h"]
    """Time after which what is not answered expires."""
    metadata: _Metadata | None = None
    """Up to 16 texts by names, given back with the batch."""


def batch_routes(service: Service, runner: BatchRunner, space: Space) -> list[Route]:
    """Routes of batches."""
    views = _BatchViews(service, runner, space)
    return [
        Route("/v1/batches", views.create, methods=["POST"]),
        Route("/v1/batches", views.listed, methods=["GET"]),
        Route("/v1/batches/{batch_id}", views.one, methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", views.cancel, methods=["POST"]),
    ]


class _BatchViews:
    def __init__(self, service: Service, runner: BatchRunner, space: Space) -> None:
        self._service = service
        self._runner = runner
        self._space = space
        self._folder = files_folder(service.settings)

    async def create(self, request: Request) -> Response:
        """Take a batch; it is checked and runs beside this request."""
        body = read_batch(await self._fields(request))
        owner = self._owner(request)
        await self._space.look()
        batch = await asyncio.to_thread(self._created, owner, body)
        self._runner.add(owner, batch)
        return JSONResponse(batch.shown())

    async def listed(self, request: Request) -> Response:
        """A page of batches, the latest first."""
        found = await asyncio.to_thread(Batches(self._owner(request)).all)
        return JSONResponse(page(found, request.query_params, default=_LISTED, most=_MOST_LISTED))

    async def one(self, request: Request) -> Response:
        """A batch as it is now."""
        return JSONResponse((await self._found(request)).shown())

    async def cancel(self, request: Request) -> Response:
        """End a batch early; again does nothing."""
        batch = await self._found(request)
        if batch.has_ended:
            told = f"{batch.id}: is {batch.status}, so it cannot be cancelled"
            raise HttpError(400, told, param="id", code="batch_has_ended")
        await asyncio.to_thread(Batches(self._owner(request)).folder(batch.id).cancel)
        self._runner.cancel(batch.id)
        return JSONResponse((await self._found(request)).shown())

    async def _fields(self, request: Request) -> dict[str, Any]:
        settings = self._service.settings
        client = self._service.client_of(request.scope)
        with self._service.body_memory.body(client) as body:
            try:
                await body.read(request.scope, request.receive, _MOST_BYTES, settings.body_timeout, limit="of a batch")
            except HungUp:
                raise HttpError(408, "the body did not come", headers={"connection": "close"}) from None
            return decoded(body.data())

    def _owner(self, request: Request) -> Path:
        return self._folder / owner_of(request.scope, self._service.settings)

    async def _found(self, request: Request) -> Batch:
        """The batch that the path names; raises HttpError (404). One that is to be cancelled says so at once."""
        batches, batch_id = Batches(self._owner(request)), request.path_params["batch_id"]
        batch = await asyncio.to_thread(batches.get, batch_id)
        if batch is None:
            raise HttpError(404, f"{batch_id}: there is no such batch", NOT_FOUND, param="id", code="not_found")
        is_cancelled = batch.status in ("validating", "in_progress") and batches.folder(batch_id).is_cancelled
        return batch.now("cancelling", int(time.time())) if is_cancelled else batch

    def _created(self, owner: Path, body: BatchBody) -> Batch:
        files, now, served = OwnerFiles(owner), int(time.time()), self._service.served
        batch = Batch(
            id=next_id(),
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            model=served.model,
            backend=served.backend,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            completion_window=body.completion_window,
            metadata=body.metadata,
        )
        file = files.get(body.input_file_id)
        try:
            if file is None:
                raise FileNotFoundError
            if file.purpose != "batch":
                raise HttpError(
                    400, f"input_file_id: {file.id} has the purpose {file.purpose}; takes batch", param=_INPUT
                )
            check_count(files)  # it is to have files of its own
            self._space.check_batch(file.bytes)
            Batches(owner).create(batch, files.content(file.id))
        except FileNotFoundError:
            told = f"input_file_id={body.input_file_id!r}: there is no such file"
            raise HttpError(400, told, param=_INPUT, code="invalid_file") from None
        return batch


def read_batch(fields: dict[str, Any]) -> BatchBody:
    """A body as a batch; raises HttpError (400), which names the field."""
    try:
        for name in fields.keys() - {*BatchBody.__struct_fields__}:
            raise InvalidRequest(f"{name}: is not taken here")
        body = converted(fields, BatchBody, InvalidRequest, what="field")
    except InvalidRequest as error:
        raise http_error(error) from None
    if body.endpoint not in ENDPOINTS:
        told = f"endpoint={body.endpoint!r}: takes {', '.join(ENDPOINTS)}"
        raise HttpError(400, told, param="endpoint", code="invalid_value")
    if len(body.metadata or {}) > _MOST_METADATA:
        raise HttpError(400, f"metadata: takes up to {_MOST_METADATA} texts", param="metadata", code="invalid_value")
    return body
