"""Server-Sent Events."""

from __future__ import annotations

from typing import IO, Iterator, NamedTuple, Optional


class Message(NamedTuple):
    """A message. id is that of its own line, or None."""

    id: Optional[str]
    event: str
    data: str


def messages(body: IO[bytes]) -> Iterator[Message]:
    """Yields the messages of an answer, also those with an id and no data. A comment is a message without id and data."""
    id_: Optional[str] = None
    event, data = "message", ""
    for raw in body:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line == "":
            yield Message(id_, event, data)
            id_, event, data = None, "message", ""
            continue
        name, _, text = line.partition(":")
        text = text[1:] if text.startswith(" ") else text
        if name == "id":
            id_ = text
        elif name == "event":
            event = text
        elif name == "data":
            data += ("\n" if data else "") + text
