"""Sits on the cable between two containers, and passes frames on: as they are, late, twice, changed, or not at all.

    python -m tests.model_manager.manager.packet_relay INTERFACE INTERFACE

Each line on stdin is what is done from now on: `pass`, `delay SECONDS`, `replay`, `garble FRAMES`, `cut`; `counts`
changes nothing. Says `ready`, and for each line how many frames were delayed, replayed, garbled and dropped so far.
Takes Linux and root. A changed frame has right checksums, so that only what reads the bytes can tell. Knows IPv4 and
TCP, and nothing that they carry.
"""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush

_ALL = 3
"""ETH_P_ALL."""
_OUTGOING = 4
_TCP = 6
_ETHERNET = 14
_KEPT = 200
_ONE_IN = 4
"""One frame in so many, of those with data, is garbled; one in so many is followed by an old frame."""


class Relay:
    """Two interfaces, and what comes over them."""

    def __init__(self, names: list[str], seed: int = 1) -> None:
        self._sockets = [_opened(name) for name in names]
        self._rnd = random.Random(seed)
        self._does: Callable[[int, bytes], None] = self._send
        self._ways: dict[str, Callable[[int, bytes], None]] = {
            "pass": self._send,
            "delay": self._hold,
            "replay": self._repeat,
            "garble": self._change,
            "cut": self._drop,
        }
        self._late: list[tuple[float, int, int, bytes]] = []
        self._delay = self._left = 0.0
        """Seconds that frames are late, and how many are still to be garbled."""
        self._number = 0
        self._old: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._counts: Counter[str] = Counter()

    def run(self) -> None:
        """Until stdin ends."""
        selector = selectors.DefaultSelector()
        for index, sock in enumerate(self._sockets):
            selector.register(sock, selectors.EVENT_READ, index)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select(self._pause()):
                if key.data is None and not self._obey(sys.stdin.readline().split()):
                    return
                if key.data is not None:
                    self._take(key.data)
            while self._late and self._late[0][0] <= time.monotonic():
                self._send(*heappop(self._late)[2:])

    def _pause(self) -> float:
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else 1.0

    def _obey(self, words: list[str]) -> bool:
        if not words:
            return False
        if words[0] != "counts":
            self._does = self._ways[words[0]]
            self._delay = self._left = float(words[1]) if words[1:] else 0.0
        print(json.dumps(self._counts), flush=True)
        return True

    def _take(self, index: int) -> None:
        frame, address = self._sockets[index].recvfrom(2**16)
        if address[2] != _OUTGOING:
            self._does(1 - index, _with_checksum(frame))

    def _send(self, index: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):  # the other end is down
            self._sockets[index].send(frame)

    def _hold(self, index: int, frame: bytes) -> None:
        self._counts["delayed"] += 1
        self._number += 1
        heappush(self._late, (time.monotonic() + self._delay, self._number, index, frame))

    def _repeat(self, index: int, frame: bytes) -> None:
        """Each frame twice, and between the two now and then an old one."""
        self._send(index, frame)
        if self._old and self._rnd.randrange(_ONE_IN) == 0:
            self._send(*self._rnd.choice(self._old))
        self._old.append((index, frame))
        self._counts["replayed"] += 1
        self._send(index, frame)

    def _change(self, index: int, frame: bytes) -> None:
        start = _payload(frame)
        if self._left and start is not None and start < len(frame) and self._rnd.randrange(_ONE_IN) == 0:
            self._left -= 1
            place = self._rnd.randrange(start, len(frame))
            frame = frame[:place] + bytes([frame[place] ^ 1 << self._rnd.randrange(8)]) + frame[place + 1 :]
            frame = _with_checksum(frame)
            self._counts["garbled"] += 1
        self._send(index, frame)

    def _drop(self, _index: int, _frame: bytes) -> None:
        self._counts["dropped"] += 1


def _opened(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    sock.bind((name, 0))
    return sock


def _segment(frame: bytes) -> tuple[int, int] | None:
    """Where the TCP segment of a frame begins and ends; None for other frames."""
    if len(frame) < _ETHERNET + 20 or frame[12:14] != b"\x08\x00" or frame[_ETHERNET + 9] != _TCP:
        return None
    (length,) = struct.unpack_from("!H", frame, _ETHERNET + 2)
    return _ETHERNET + (frame[_ETHERNET] & 15) * 4, _ETHERNET + length


def _payload(frame: bytes) -> int | None:
    """Where the data of a TCP segment begins."""
    found = _segment(frame)
    return None if found is None else found[0] + (frame[found[0] + 12] >> 4) * 4


def _with_checksum(frame: bytes) -> bytes:
    """The frame with the checksum of its TCP segment, which a virtual cable leaves to hardware that is not there
    (https://www.rfc-editor.org/rfc/rfc9293#section-3.1).
    """
    found = _segment(frame)
    if found is None:
        return frame
    start, stop = found
    segment = bytearray(frame[start:stop])
    segment[16:18] = b"\0\0"
    pseudo = frame[_ETHERNET + 12 : _ETHERNET + 20] + struct.pack("!HH", _TCP, len(segment))
    data = pseudo + segment + bytes(len(segment) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    segment[16:18] = struct.pack("!H", ~total & 0xFFFF)
    return frame[:start] + bytes(segment) + frame[stop:]


if __name__ == "__main__":
    Relay(sys.argv[1:3]).run()
