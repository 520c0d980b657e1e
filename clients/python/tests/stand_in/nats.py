"""Stands in for the NATS client nats-py where that is not installed: the calls of examples/nats_callbacks.py, and no others."""

import asyncio
import json
import urllib.parse
from dataclasses import dataclass

_VERSION = b"NATS/1.0\r\n"


@dataclass
class Msg:
    subject: str
    reply: str
    headers: dict
    data: bytes


async def connect(url, max_reconnect_attempts=60):
    """Connects. It does not reconnect."""
    address = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    await reader.readline()  # INFO
    options = {"verbose": False, "pedantic": True, "headers": True, "no_responders": True, "lang": "python", "version": "0"}
    writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
    client = Client(reader, writer)
    await client.flush()
    return client


class Client:
    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._callbacks = {}
        self._pongs = []
        self._task = asyncio.create_task(self._read())

    async def subscribe(self, subject, queue="", cb=None):
        sid = str(len(self._callbacks) + 1)
        self._callbacks[sid] = cb
        self._writer.write(f"SUB {subject} {queue} {sid}\r\n".encode())

    async def publish(self, subject, payload=b"", headers=None):
        if headers is None:
            self._writer.write(f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")
        else:
            lines = _VERSION + b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items()) + b"\r\n"
            self._writer.write(f"HPUB {subject} {len(lines)} {len(lines) + len(payload)}\r\n".encode() + lines + payload + b"\r\n")
        await self._writer.drain()

    async def flush(self):
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self._writer.write(b"PING\r\n")
        await pong

    async def drain(self):
        for sid in self._callbacks:
            self._writer.write(f"UNSUB {sid}\r\n".encode())
        await self.flush()
        self._task.cancel()
        self._writer.close()

    async def _read(self):
        while line := await self._reader.readline():
            operation, *fields = line.decode().split()
            if operation == "PING":
                self._writer.write(b"PONG\r\n")
            elif operation == "PONG":
                self._pongs.pop(0).set_result(None)
            elif operation == "-ERR":
                raise ConnectionError(line.decode())
            elif operation == "HMSG":  # subject sid reply bytes-of-headers bytes
                subject, sid, reply, head, size = fields
                body = await self._reader.readexactly(int(size) + 2)
                await self._callbacks[sid](Msg(subject, reply, _headers(body[: int(head)]), body[int(head) : -2]))


def _headers(block):
    lines = block[len(_VERSION) :].decode().split("\r\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
