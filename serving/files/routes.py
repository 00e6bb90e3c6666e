"""The routes of `/v1/files`. No file is held in memory: it goes to the disk as it comes, and leaves as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..http.errors import NOT_FOUND, SERVER, HttpError
from ..http.reading import check_encoding
from ..requests.service import Service
from .content import FileContent
from .form import Form
from .owners import files_folder, owner_of
from .paging import page
from .space import Space
from .store import OwnerFiles, StoredFile

_MOST_LISTED = 10_000


def file_routes(service: Service) -> list[Route]:
    """Routes of files."""
    views = _FileViews(service)
    return [
        Route("/v1/files", views.create, methods=["POST"]),
        Route("/v1/files", views.listed, methods=["GET"]),
        Route("/v1/files/{file_id}", views.one, methods=["GET"]),
        Route("/v1/files/{file_id}", views.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", _Content(views), methods=["GET"]),
    ]


class _FileViews:
    def __init__(self, service: Service) -> None:
        self._settings = service.settings
        self._space = Space(service.settings)
        self.stall_timeout = service.settings.stall_timeout
        self._folder = files_folder(service.settings)

    def of(self, scope: Scope) -> OwnerFiles:
        """The files of whoever asks."""
        return OwnerFiles(self._folder / owner_of(scope, self._settings))

    async def found(self, request: Request) -> StoredFile:
        """The file that the path names; raises HttpError (404)."""
        file_id = request.path_params["file_id"]
        found = await asyncio.to_thread(self.of(request.scope).get, file_id)
        if found is None:
            raise HttpError(404, f"{file_id}: there is no such file", NOT_FOUND, param="id", code="not_found")
        return found

    async def create(self, request: Request) -> Response:
        """Take a file; it is there once it is whole. It takes no place of requests that are answered."""
        check_encoding(request.scope)
        try:
            return JSONResponse((await self._kept(request)).shown())
        except OSError as error:
            told = f"the file cannot be kept: {error.strerror or error} (--files_dir)"
            raise HttpError(507, told, SERVER, code="storage_failed", headers={"connection": "close"}) from None

    async def _kept(self, request: Request) -> StoredFile:
        most, limit = await asyncio.to_thread(self._space.for_upload)
        with self.of(request.scope).new() as new:
            form = Form(request.headers.get("content-type", ""), new.stream, most, limit)
            async for piece in self._pieces(request):
                await asyncio.to_thread(form.feed, piece)
            form.end()
            _check_fields(form.fields)
            await asyncio.to_thread(self._space.check_uploaded)
            return await asyncio.to_thread(new.keep, form.filename or "", "batch")

    async def listed(self, request: Request) -> Response:
        """A page of files, the latest first."""
        purpose = request.query_params.get("purpose")
        files = await asyncio.to_thread(self.of(request.scope).all)
        wanted = [each for each in files if purpose in (None, each.purpose)]
        return JSONResponse(page(wanted, request.query_params, default=_MOST_LISTED, most=_MOST_LISTED))

    async def one(self, request: Request) -> Response:
        """What is known of a file."""
        return JSONResponse((await self.found(request)).shown())

    async def delete(self, request: Request) -> Response:
        """Remove a file. A batch that has begun has its own copy."""
        found = await self.found(request)
        try:
            await asyncio.to_thread(self.of(request.scope).delete, found.id)
        except FileNotFoundError:  # somebody else has just removed it
            await self.found(request)
        return JSONResponse({"id": found.id, "object": "file", "deleted": True})

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        """The body as it comes; raises HttpError (408) for a client that stops sending, or is gone."""
        stream = request.stream()
        while True:
            try:
                async with asyncio.timeout(self.stall_timeout):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except (TimeoutError, ClientDisconnect):
                told = f"nothing came for {self.stall_timeout:g} s (--stall_timeout): the upload is given up"
                raise HttpError(408, told, code="upload_stalled", headers={"connection": "close"}) from None
            yield piece


class _Content:
    """The route of a file's content, an ASGI application: it sees for itself whether its client reads."""

    def __init__(self, views: _FileViews) -> None:
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the content."""
        found = await self._views.found(Request(scope))
        path = self._views.of(scope).content(found.id)
        await FileContent(path, found, self._views.stall_timeout)(scope, receive, send)


def _check_fields(fields: dict[str, Any]) -> None:
    """Raises HttpError (400) for another purpose, or a field that is not taken."""
    purpose = fields.pop("purpose", None)
    if purpose != "batch":
        raise HttpError(400, f"purpose={purpose!r}: takes batch", param="purpose", code="invalid_value")
    for name in fields:
        raise HttpError(400, f"{name}: is not taken here", param=name, code="unknown_parameter")
