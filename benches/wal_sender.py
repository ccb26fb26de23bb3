"""How fast a stock server sends WAL to somebody who does nothing with it: no follower can be faster."""

import socket
import struct
import time
from pathlib import Path

from fixtures.lsn import show

PROTOCOL = 196608
BUFFER = 1 << 20


class Replication:
    """A connection for physical replication, over the server's unix socket."""

    def __init__(self, sockets: Path, port: int = 5432):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{sockets}/.s.PGSQL.{port}")
        self.rest = bytearray()
        parameters = b"user\0postgres\0replication\0true\0\0"
        self.socket.sendall(struct.pack("!ii", 8 + len(parameters), PROTOCOL) + parameters)
        while self._message()[:1] != b"Z":
            pass

    def _message(self) -> bytes:
        while len(self.rest) < 5 or len(self.rest) < 1 + struct.unpack_from("!i", self.rest, 1)[0]:
            received = self.socket.recv(BUFFER)
            if not received:
                raise ConnectionError("the server has closed the connection")
            self.rest.extend(received)
        length = 1 + struct.unpack_from("!i", self.rest, 1)[0]
        message = bytes(self.rest[:length])
        del self.rest[:length]
        if message[:1] == b"E":
            raise ConnectionError(message.decode(errors="replace"))
        return message

    def drain(self, start: int, end: int) -> float:
        """MiB/s at which WAL from `start` to `end` arrives, from a tenth of the way on; nothing is done with it."""
        command = f"START_REPLICATION PHYSICAL {show(start)} TIMELINE 1\0".encode()
        self.socket.sendall(b"Q" + struct.pack("!i", 4 + len(command)) + command)
        self._message()
        received, at, buffer = len(self.rest), None, memoryview(bytearray(BUFFER))
        while received < end - start:
            count = self.socket.recv_into(buffer)
            if not count:
                raise ConnectionError("the server has closed the connection")
            received += count
            if at is None and received >= (end - start) // 10:
                at, began = received, time.monotonic()
        return (received - at) / (time.monotonic() - began) / (1 << 20)

    def close(self):
        self.socket.close()
