"""`/events`: frames as server-sent events, one each second."""

from __future__ import annotations

import contextlib

from starlette.types import Receive, Scope, Send

from ..http.replies import HttpReply, HungUp, Stalled, unless_hung_up
from .shared_frames import Watching


class Feed:
    """The route as an ASGI application."""

    def __init__(self, watching: Watching, stall_timeout: float) -> None:
        self._watching = watching
        self._stall_timeout = stall_timeout

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send frames until the viewer leaves or the server ends."""
        reply = HttpReply(scope, send, self._stall_timeout)
        with contextlib.suppress(HungUp, Stalled):
            await unless_hung_up(scope, self._tell(reply, has_body=scope["method"] != "HEAD"))

    async def _tell(self, reply: HttpReply, *, has_body: bool) -> None:
        await reply.events([])  # the viewer learns at once that it is connected
        if has_body:
            async with contextlib.aclosing(self._watching.frames()) as frames:
                async for frame in frames:
                    await reply.events([frame])
        await reply.end()
