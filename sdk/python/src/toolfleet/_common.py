"""What the two clients share: results, messages of streams, requests without the network."""

from __future__ import annotations

import base64
import email.utils
import json
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Union

import httpx

from . import types as t
from ._errors import APIError, CallFailed, ToolfleetError, of_problem

# How often a request is repeated that did not reach the server, or that it was too busy for, and
# how long the pauses are, in seconds. Requests that make something have a key of their own, so a
# repeated one makes nothing twice.
TRIES = 6
PAUSE, MAX_PAUSE = 0.1, 5.0

# A stream without any byte for so long is broken: the server sends a comment every 15 s.
SILENCE = 45.0

# How much longer a request with an archive may take, in seconds.
LONG = 600.0

# Bound of one request's wait for the end of a call, in milliseconds.
MAX_WAIT_MS = 60_000


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    session_id: str
    call_id: str
    status: str
    """ok, failed, timeout, cancelled, rejected or outcome_unknown."""
    text: str
    """What a model would read."""
    value: Any
    """Typed output."""
    error: t.Error | None
    raw: t.CallResult = field(repr=False)
    """The whole result."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def check(self) -> Result:
        """This result; raises CallFailed if the call did not end ok."""
        if not self.ok:
            raise CallFailed(self)
        return self


def result_of(raw: t.CallResult) -> Result:
    return Result(raw["session_id"], raw["call_id"], raw["status"], raw["text"], raw.get("value"), raw.get("error"), raw)


@dataclass(frozen=True)
class Event:
    """An event of a session. Stored ones have an id, behind which a stream can continue."""

    type: str
    data: t.Event
    id: str


@dataclass(frozen=True)
class Output:
    """A piece of what a running call writes."""

    call_id: str
    stream: str
    """stdout or stderr."""
    data: bytes
    attempt: int
    gap: bool
    """Something before it was lost; the result has it."""


@dataclass(frozen=True)
class Lost:
    """Something that is only live was lost. Stored events never are."""

    reason: str


Message = Union[Event, Output, Lost]


def output_of(raw: t.OutputPiece) -> Output:
    return Output(raw["call_id"], raw["stream"], base64.b64decode(raw["data"]), raw["attempt"], raw.get("gap", False))


class Decoder:
    """Reads text/event-stream: feed takes bytes, and returns the messages that are complete.

    Only the line breaks of the format separate lines: JSON may have others, such as U+2028.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._kind, self._id, self._data = "", "", b""

    def feed(self, data: bytes) -> Iterator[tuple[str, str, Any]]:
        """Messages: the kind, the id or "", the data."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                self._kind = value.decode()
            elif name == b"id":
                self._id = value.decode()
            elif name == b"data":
                self._data += value
            elif not line.rstrip(b"\r"):
                kind, last, body = self._kind, self._id, self._data
                self._kind, self._id, self._data = "", "", b""
                if body:
                    yield kind, last, json.loads(body)


def new_id() -> str:
    """An id of one's own for a call."""
    return uuid.uuid4().hex


def without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def moment(at: datetime | None) -> str | None:
    """A time in a query."""
    return None if at is None else at.astimezone(timezone.utc).isoformat()


def encode(body: Any) -> bytes:
    """JSON; a time may be a datetime, and data may be bytes."""

    def more(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone().isoformat()
        if isinstance(value, (bytes, bytearray)):
            return base64.b64encode(value).decode()
        raise TypeError(f"{type(value).__name__}: cannot be sent as JSON")

    return json.dumps(body, default=more, ensure_ascii=False, allow_nan=False).encode()


def archive_type(archive: bytes) -> str:
    """Type of a tar archive, by its first bytes."""
    if archive.startswith(b"\x1f\x8b"):
        return "application/gzip"
    return "application/zstd" if archive.startswith(b"\x28\xb5\x2f\xfd") else "application/x-tar"


def path_of(operation: t.Operation, path: dict[str, str]) -> tuple[str, str]:
    """Method and path of an operation."""
    method, template = t.OPERATIONS[operation]
    for name, value in path.items():
        if not value or value in (".", ".."):
            raise ToolfleetError(f"{name} {value!r}: must not be empty, '.' or '..'")
        template = template.replace("{" + name + "}", urllib.parse.quote(value, safe=""))
    return method, template


def token_of(token: str | None, token_file: str | Path | None) -> str | None:
    if token_file is None:
        return token
    if token is not None:
        raise ToolfleetError("token, token_file: only one of them can be given")
    return Path(token_file).read_text().strip()


def seconds_of(after: str) -> float | None:
    """How long Retry-After asks to wait; None if it says nothing that is known: it may be of a proxy."""
    try:
        if after.isdigit():
            return float(after)
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def problem_of(answer: httpx.Response) -> APIError:
    """The error of an answer whose body has been read."""
    seconds = seconds_of(answer.headers.get("Retry-After", ""))
    try:
        problem = answer.json()
        if not isinstance(problem, dict) or "code" not in problem:
            raise ValueError
    except ValueError:  # of a proxy
        code = "unreachable" if answer.status_code in (502, 503, 504) else "internal"
        problem = {"status": answer.status_code, "code": code, "title": answer.reason_phrase, "detail": answer.text[:500]}
    return of_problem(problem, seconds)


def unreachable(error: Exception, url: str) -> APIError:
    """The error of a request that got no answer."""
    detail = f"{url}: {error or type(error).__name__}"
    return of_problem({"status": 0, "code": "unreachable", "title": "Unreachable", "detail": detail})


def pause(attempt: int, error: APIError) -> float:
    """How long to wait before a request is repeated; attempt counts from 0."""
    return float(min(MAX_PAUSE, max(PAUSE * 2**attempt, error.retry_after or 0.0)))


def may_repeat(error: APIError) -> bool:
    """Whether the same request can be answered later."""
    return error.status in (0, 429, 502, 503, 504)
