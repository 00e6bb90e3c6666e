"""The routes of `/v1/files`. No file is held in memory: it goes to the disk as it comes, and leaves as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..http.http_errors import NOT_FOUND, SERVER, HttpError
from ..http.reading import check_encoding
from ..http.slots import ClientSlots
from ..requests.service import Service
from .file_content import FileContent
from .file_store import OwnerFiles, StoredFile
from .form import Form
from .owners import files_folder, owner_of
from .paging import page
from .space import Space, check_count, too_many_uploads

_MOST_LISTED = 10_000
_SLOWEST = 2**16
"""Bytes a second that an upload has on average, after the time that other bodies have for all of theirs."""


def file_routes(service: Service, space: Space) -> list[Route]:
    """Routes of files."""
    views = _FileViews(service, space)
    return [
        Route("/v1/files", views.create, methods=["POST"]),
        Route("/v1/files", views.listed, methods=["GET"]),
        Route("/v1/files/{file_id}", views.one, methods=["GET"]),
        Route("/v1/files/{file_id}", views.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", _Content(views), methods=["GET"]),
    ]


class _FileViews:
    def __init__(self, service: Service, space: Space) -> None:
        self._service = service
        self._settings = service.settings
        self._space = space
        self._slots = ClientSlots(service.settings.max_uploads)
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
            return JSONResponse((await self._uploaded(request)).shown())
        except OSError as error:
            told = f"the file cannot be kept: {error.strerror or error} (--files_dir)"
            raise HttpError(507, told, SERVER, code="storage_failed", headers={"connection": "close"}) from None

    async def _uploaded(self, request: Request) -> StoredFile:
        """Take a file if there is a slot for its client."""
        client = self._service.client_of(request.scope)
        if not self._slots.take(client):
            raise too_many_uploads(self._settings.max_uploads)
        try:
            return await self._kept(request, self.of(request.scope))
        finally:
            self._slots.give(client)

    async def _kept(self, request: Request, files: OwnerFiles) -> StoredFile:
        await asyncio.to_thread(check_count, files)
        await self._space.look()
        length = request.headers.get("content-length")
        with (
            files.new() as new,
            self._space.room(new.folder_name, None if length is None else int(length)) as room,
        ):
            form = Form(request.headers.get("content-type", ""), new.stream, room.most, room.refusal)
            async for piece in self._pieces(request):
                await asyncio.to_thread(form.feed, piece)
            form.end()
            _check_fields(form.fields)
            kept = await asyncio.to_thread(new.keep, form.filename or "", "batch")
            self._space.added(await asyncio.to_thread(files.disk_bytes, kept.id))
            return kept

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
            self._space.removed(await asyncio.to_thread(self.of(request.scope).delete, found.id))
        except FileNotFoundError:  # somebody else has just removed it
            await self.found(request)
        return JSONResponse({"id": found.id, "object": "file", "deleted": True})

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        """The body as it comes; raises HttpError (408) for a client that stops sending, is too slow, or is gone."""
        stream, now = request.stream(), asyncio.get_running_loop().time
        until = now() + self._settings.body_timeout
        while True:
            within = min(self.stall_timeout, until - now())
            try:
                async with asyncio.timeout(within):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except (TimeoutError, ClientDisconnect):
                raise self._too_slow(is_stalled=within == self.stall_timeout) from None
            until += len(piece) / _SLOWEST
            yield piece

    def _too_slow(self, *, is_stalled: bool) -> HttpError:
        told, code = f"nothing came for {self.stall_timeout:g} s (--stall_timeout)", "upload_stalled"
        if not is_stalled:
            within = f"{self._settings.body_timeout:g} s (--body_timeout) and a second for each {_SLOWEST} bytes of it"
            told, code = f"the file did not come within {within}", "upload_too_slow"
        return HttpError(408, f"{told}: the upload is given up", code=code, headers={"connection": "close"})


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
