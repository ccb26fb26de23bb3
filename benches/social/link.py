"""A slow link to a bucket that notes each request: when it was sent, when its answer ended, and how long that was."""

import asyncio
from dataclasses import dataclass

from fixtures.slow_link import CHUNK, SlowLink

METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")


@dataclass
class Request:
    """Times are those of the link's loop, at the side of the client."""

    method: str
    began: float
    ended: float
    received: int = 0


class CountedLink(SlowLink):
    """Requests are told apart by the bytes that begin them: on one connection they come one after the other."""

    def __init__(self, port: int):
        super().__init__(lambda: asyncio.open_connection("127.0.0.1", port, limit=CHUNK), 0)
        self.requests: list[Request] = []

    async def accept(self, reader, writer):
        self.connections += 1
        try:
            there_reader, there_writer = await self.connect()
        except OSError:
            writer.close()
            return
        current: list[Request] = []
        await asyncio.gather(self.pump(Asking(self, reader, current), there_writer),
                             self.pump(there_reader, Answered(self, writer, current)))

    def taken(self) -> list[Request]:
        """Those since the last call."""
        found, self.requests = self.requests, []
        return found


class Asking:
    """Reads from the client."""

    def __init__(self, link: CountedLink, reader, current: list[Request]):
        self.link, self.reader, self.current = link, reader, current

    async def read(self, size: int) -> bytes:
        data = await self.reader.read(size)
        method = next((method for method in METHODS if data.startswith(method)), None)
        if method:
            now = self.link.loop.time()
            self.current[:] = [Request(method.decode().strip(), now, now)]
            self.link.requests.append(self.current[0])
        return data


class Answered:
    """Writes to the client."""

    def __init__(self, link: CountedLink, writer, current: list[Request]):
        self.link, self.writer, self.current = link, writer, current

    def write(self, data: bytes):
        for request in self.current:
            request.ended = self.link.loop.time()
            request.received += len(data)
        self.writer.write(data)

    async def drain(self):
        await self.writer.drain()

    def close(self):
        self.writer.close()


def one_after_the_other(requests: list[Request]) -> int:
    """The most requests of which each began only when the one before had ended: what a slow link makes the client
    wait for."""
    found, end = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended):
        if request.began >= end:
            found, end = found + 1, request.ended
    return found
