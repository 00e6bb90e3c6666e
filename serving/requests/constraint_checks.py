"""Constraints are compiled once before the engine is asked to, in processes beside it (constraint_child.py): one that
takes long is refused there, and other requests go on.

A client has one check at a time, so however many constraints it sends, others get theirs. Verdicts are kept by digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Hashable
from weakref import WeakValueDictionary

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest

from .constraint_child import HEAD
from .turns import FairSemaphore

_CHILDREN = 2
_MOST_KEPT = 10_000
"""Verdicts."""
_DIED = "constraint: takes one that compiles; this one takes more memory than there is for it"


class ConstraintChecks:
    """Checks constraints in processes of its own, for one event loop. `close` ends the processes."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._slots = FairSemaphore(_CHILDREN)
        self._children = [_Child() for _ in range(_CHILDREN)]
        self._own: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def check(self, constraint: Constraint, client: Hashable) -> None:
        """Raises InvalidRequest for a constraint that cannot be compiled, or takes too long."""
        if constraint.json:
            return
        key = constraint.key()
        digest = hashlib.blake2b(key, digest_size=32).digest()
        if digest not in self._verdicts:
            await self._judge(key, digest, client)
        self._verdicts.move_to_end(digest)
        if said := self._verdicts[digest]:
            raise InvalidRequest(said)

    async def _judge(self, key: bytes, digest: bytes, client: Hashable) -> None:
        own = self._own.setdefault(client, asyncio.Lock())
        async with own, self._slots.of(client):
            if digest in self._verdicts:  # it was asked twice
                return
            child = self._children.pop()
            try:
                self._verdicts[digest] = await child.fault(key)
            finally:
                self._children.append(child)
        while len(self._verdicts) > _MOST_KEPT:
            self._verdicts.popitem(last=False)

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()


class _Child:
    """One process, started when it is needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def fault(self, key: bytes) -> str:
        """What is wrong with the constraint of that key. One whose process dies is tried again once."""
        for _ in range(2):
            try:
                return await self._asked(key)
            except (
                OSError,
                RuntimeError,
                asyncio.IncompleteReadError,
            ):  # uvloop raises RuntimeError for a closed pipe
                self.kill()
            except BaseException:  # nobody waits any more
                self.kill()
                raise
        return _DIED

    async def _asked(self, key: bytes) -> str:
        process = self._process or await self._started()
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        process.stdin.write(len(key).to_bytes(HEAD) + key)
        await process.stdin.drain()
        head = await process.stdout.readexactly(HEAD + 1)
        said = await process.stdout.readexactly(int.from_bytes(head[:HEAD]))
        if head[HEAD]:
            self.kill()
        return said.decode()

    async def _started(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "millrace.serving.requests.constraint_child"]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        return self._process

    def kill(self) -> None:
        """End it; the next constraint starts another."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
