"""The client. Made by scripts/generate.py from _async.py."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import httpx

from . import types as t
from ._common import (
    LONG,
    MAX_WAIT_MS,
    SILENCE,
    TRIES,
    Decoder,
    Event,
    Lost,
    Message,
    Output,
    Result,
    archive_type,
    encode,
    may_repeat,
    moment,
    new_id,
    output_of,
    path_of,
    pause,
    problem_of,
    result_of,
    token_of,
    unreachable,
    without_none,
)
from ._embedded import Embedded, command_of
from ._errors import APIError, ToolfleetError, of_problem

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class Client:
    """A fleet, over HTTP.

    ``url`` is what ``coordinator http`` or ``coordinator serve --http`` serves. Close the client,
    or use it in a with statement.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        token_file: str | Path | None = None,
        timeout: float = 30.0,
        reconnect: float = 60.0,
        verify: Any = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """``timeout`` bounds one request, in seconds; ``reconnect`` is how long a stream, or a wait, tries to continue."""
        secret = token_of(token, token_file)
        if url.startswith("unix:"):
            if transport is None:
                transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
            url = "http://localhost"
        self.url = url.rstrip("/")
        self._timeout, self._reconnect = timeout, reconnect
        self._embedded: Embedded | None = None
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {secret}"} if secret else {},
            timeout=timeout,
            verify=verify,
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    @classmethod
    def from_embedded(
        cls,
        workspace: str | os.PathLike[str] | None = None,
        *,
        model: str | Sequence[str] | None = None,
        data: str | os.PathLike[str] | None = None,
        toolsets: Sequence[str] | None = None,
        args: Sequence[str] = (),
        coordinator: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
        timeout: float = 30.0,
    ) -> Self:
        """Starts ``coordinator http`` for a directory, with a fleet and a worker of its own.

        It ends when the client is closed, or this process ends in any way. ``args`` are further
        flags of ``coordinator http``, ``coordinator`` is the program if it is not in PATH.
        """
        command = command_of(workspace, model, data, toolsets, coordinator, args)

        def start() -> Embedded:
            return Embedded(command, env, start_timeout)

        embedded = start()
        client = cls(embedded.url, embedded.token, timeout=timeout)
        client._embedded = embedded
        return client

    def close(self) -> None:
        """Closes connections, and ends the server if from_embedded started it."""
        self._http.close()
        if self._embedded is not None:
            end = self._embedded.close
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Calls

    def call(
        self,
        tool: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        id: str | None = None,
        check: bool = True,
        **options: Unpack[t.CallRequest],
    ) -> Result:
        """Calls a tool, and waits for its result.

        Raises CallFailed if the call does not end ok; with ``check=False`` any result is returned.
        """
        future = self.send(tool, arguments, id=id, **options)
        result = future.wait()
        return result.check() if check else result

    def send(
        self, tool: str | None = None, arguments: Mapping[str, Any] | None = None, /, *, id: str | None = None, **options: Unpack[t.CallRequest]
    ) -> Future:
        """Sends a call. Once this returns the call is stored, and runs even if the server ends.

        ``id`` is your own id of the call: one that is sent again with it starts no second time while
        the first one's result is stored.
        """
        state = self._ask("send-call", t.CallState, body=_call(tool, arguments, options), key=id or new_id())
        return Future(self, state["session_id"], state["call_id"])

    def send_many(self, calls: Sequence[t.BatchedCall]) -> list[Future | APIError]:
        """Sends up to 1,000 calls, in order. Each has its own answer: its future, or why it was not sent."""
        body = {"calls": [{"call_id": new_id(), **call} for call in calls]}
        sent = self._ask("send-calls", t.CallList, body=body, repeat=True)
        made: list[Future | APIError] = []
        for one in sent["calls"]:
            if "problem" in one:
                made.append(of_problem(cast("dict[str, Any]", one["problem"])))
            else:
                made.append(Future(self, one["session_id"], one["call_id"]))
        return made

    def future(self, session_id: str, call_id: str) -> Future:
        """A call or a turn that was sent before, also by another program."""
        return Future(self, session_id, call_id)

    def tools(self) -> list[t.ToolInfo]:
        """The tools that calls may name."""
        return (self._ask("list-tools", t.ToolList))["tools"]

    # Sessions

    def calls(self, *, since: datetime | None = None, until: datetime | None = None, **filter: Any) -> t.CallLog:
        """A page of the log of calls that ended, the last one first.

        The filter has session, call, tool, status, lane, tenant, worker, text, limit, and after: the ``next`` of the page before. With
        ``position``, that of an earlier page, it has the calls that the log took in since then, the first one first.
        """
        return self._ask("list-calls", t.CallLog, query=without_none(since=moment(since), until=moment(until), **filter))

    def logged_call(self, session_id: str, call_id: str) -> t.LoggedCall:
        """A call of the log, with its input and output."""
        return self._ask("get-logged-call", t.LoggedCall, {"session": session_id, "call": call_id})

    def call_rates(self, *, since: datetime | None = None, until: datetime | None = None, **filter: Any) -> t.CallRates:
        """How many calls ended in each step of ``step_ms``, and how long they took; without a time, in the last hour. The filter is as in calls."""
        return self._ask("get-call-rates", t.CallRates, query=without_none(since=moment(since), until=moment(until), **filter))

    def session(self, session_id: str) -> Session:
        """A session by its id. Nothing is sent."""
        return Session(self, session_id)

    def new_session(self, prompt: str, /, *, id: str | None = None, turn_id: str | None = None, **options: Unpack[t.TurnRequest]) -> Session:
        """Begins a session with a turn, which is its ``turn``."""
        body = {**options, "prompt": prompt, "session_id": id or new_id()}  # its own id: a repeated request begins no second one
        state = self._ask("new-session", t.CallState, body=body, key=turn_id or new_id())
        return Session(self, state["session_id"], Future(self, state["session_id"], state["call_id"]))

    def sessions(self, limit: int = 100) -> t.SessionList:
        """The sessions that changed last."""
        return self._ask("list-sessions", t.SessionList, query={"limit": limit})

    def search(self, words: str, since: datetime | None = None, limit: int = 20) -> t.Found:
        """Searches all sessions for words, "phrases in quotes" and beginnings of words (word*). The best passage is first."""
        return self._ask("search-sessions", t.Found, query=without_none(words=words, limit=limit, since=moment(since)))

    def import_session(self, session_id: str, events: bytes) -> Session:
        """Makes a session of what export returned."""
        self._ask("import-session", t.Forked, {"session": session_id}, content=events)
        return Session(self, session_id)

    def questions(self) -> list[t.Question]:
        """What waits for a person: approvals, and questions of running calls."""
        return (self._ask("list-questions", t.QuestionList))["questions"]

    # The fleet

    def workers(self, pool: str | None = None) -> list[t.Worker]:
        return (self._ask("list-workers", t.WorkerList, query=without_none(pool=pool)))["workers"]

    def pools(self) -> list[str]:
        return (self._ask("list-pools", t.PoolList))["pools"]

    def lanes(self, pool: str | None = None, limit: int = 100) -> t.LaneList:
        return self._ask("list-lanes", t.LaneList, query=without_none(pool=pool, limit=limit))

    def lane(self, lane: str, pool: str | None = None, limit: int = 100) -> t.LaneCalls:
        return self._ask("get-lane", t.LaneCalls, query=without_none(lane=lane, pool=pool, limit=limit))

    def pause_lane(self, lane: str, pool: str | None = None) -> t.Paused:
        return self._ask("pause-lane", t.Paused, query=without_none(lane=lane, pool=pool))

    def resume_lane(self, lane: str, pool: str | None = None) -> None:
        self._ask("resume-lane", None, query=without_none(lane=lane, pool=pool))

    def wake_lane(self, lane: str, pool: str | None = None) -> t.Woken:
        """Offers a lane to the workers again, if its offer is missing."""
        return self._ask("wake-lane", t.Woken, query=without_none(lane=lane, pool=pool))

    def kill_lane(self, lane: str, pool: str | None = None) -> t.KilledList:
        """Cancels the running calls of a lane."""
        return self._ask("kill-lane", t.KilledList, query=without_none(lane=lane, pool=pool))

    def skip_call(self, lane: str, call_id: str, pool: str | None = None) -> None:
        """Cancels a call of a lane: it does not start, or is killed."""
        self._ask("skip-call", None, query=without_none(lane=lane, call=call_id, pool=pool))

    def limits(self) -> list[t.Limit]:
        return (self._ask("list-limits", t.LimitList))["limits"]

    def set_limit(self, **limit: Unpack[t.Limit]) -> None:
        self._ask("set-limit", None, body=limit)

    def remove_limit(self, *, lane: str | None = None, tenant: str | None = None, pool: str | None = None) -> None:
        self._ask("remove-limit", None, query=without_none(lane=lane, tenant=tenant, pool=pool))

    def schedules(self, limit: int = 100, after: str | None = None) -> t.ScheduleList:
        return self._ask("list-schedules", t.ScheduleList, query=without_none(limit=limit, after=after))

    def add_schedule(self, **schedule: Unpack[t.NewSchedule]) -> t.Schedule:
        return self._ask("add-schedule", t.Schedule, body=schedule)

    def pause_schedule(self, name: str) -> t.Schedule:
        return self._ask("pause-schedule", t.Schedule, {"name": name})

    def resume_schedule(self, name: str) -> t.Schedule:
        return self._ask("resume-schedule", t.Schedule, {"name": name})

    def remove_schedule(self, name: str) -> None:
        self._ask("remove-schedule", None, {"name": name})

    def templates(self) -> list[t.Template]:
        return (self._ask("list-templates", t.TemplateList))["templates"]

    def add_template(self, name: str, session_id: str) -> None:
        self._ask("add-template", None, body={"name": name, "session_id": session_id})

    def remove_template(self, name: str) -> None:
        self._ask("remove-template", None, {"name": name})

    def tokens(self) -> list[t.Token]:
        """The stored tokens of clients, without their secrets."""
        return (self._ask("list-tokens", t.TokenList))["tokens"]

    def add_token(self, **token: Unpack[t.NewToken]) -> t.MadeToken:
        """Makes a token of a client. Only this answer has its secret, ``token``."""
        return self._ask("add-token", t.MadeToken, body=token)

    def remove_token(self, id: str) -> None:
        """Removes a token by its id: within a second no server takes it any more."""
        self._ask("remove-token", None, {"token": id})

    def webhooks(self) -> list[t.Webhook]:
        """The receivers that the fleet notifies."""
        return (self._ask("list-webhooks", t.WebhookList))["webhooks"]

    def add_webhook(self, **webhook: Unpack[t.WebhookRequest]) -> t.AddedWebhook:
        """Adds a receiver. Only this answer has its ``secret``, which signs what it gets."""
        return self._ask("add-webhook", t.AddedWebhook, body=webhook)

    def test_webhook(self, id: str, wait_ms: int = 30_000) -> t.WebhookTest:
        """Sends an event to a receiver, and says whether it took that."""
        return self._ask("test-webhook", t.WebhookTest, {"webhook": id}, query={"wait_ms": wait_ms}, timeout=wait_ms / 1000)

    def failed_events(self, id: str) -> list[t.FailedDelivery]:
        """The events that a receiver did not take."""
        return (self._ask("list-failed-events", t.FailedList, {"webhook": id}))["failed"]

    def resume_webhook(self, id: str) -> t.ResumedWebhook:
        """Sends to a receiver again, also what failed."""
        return self._ask("resume-webhook", t.ResumedWebhook, {"webhook": id})

    def remove_webhook(self, id: str) -> None:
        self._ask("remove-webhook", None, {"webhook": id})

    # Requests

    def _ask(
        self,
        operation: t.Operation,
        into: type[T] | None,
        path: dict[str, str] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        kind: str = "application/x-ndjson",
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        repeat: bool = False,
        timeout: float = 0.0,
    ) -> T:
        """Sends a request, and again if it changes nothing or has a key: then it makes nothing twice."""
        method, where = path_of(operation, path or {})
        headers = dict(headers or {}) if key is None else {**(headers or {}), "Idempotency-Key": key}
        if content is not None:
            headers["Content-Type"] = kind
        elif body is not None:
            content, headers["Content-Type"] = encode(body), "application/json"
        attempt = 0
        while True:
            try:
                answer = self._http.request(
                    method,
                    self.url + where,
                    params={name: str(value).lower() if isinstance(value, bool) else value for name, value in (query or {}).items()},
                    content=content,
                    headers=headers,
                    timeout=self._timeout + timeout,
                )
            except httpx.TransportError as error:
                problem = unreachable(error, self.url)
            else:
                if answer.is_success:
                    if answer.headers.get("Content-Type", "").startswith("application/json"):
                        return cast(T, answer.json())
                    return cast(T, answer.content)
                problem = problem_of(answer)
            attempt += 1
            if attempt >= TRIES or not may_repeat(problem) or not (repeat or key or method == "GET"):
                raise problem
            time.sleep(pause(attempt - 1, problem))

    def _stream(
        self, operation: t.Operation, path: dict[str, str], query: Mapping[str, Any] | None = None, last: str | None = None
    ) -> Generator[tuple[str, str, Any], None]:
        """Messages of a stream, which continues behind the last event after a break, or if its server drains."""
        _, where = path_of(operation, path)
        broken_since, attempt = time.monotonic(), 0
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            problem = unreachable(ToolfleetError("the stream was cut"), self.url)
            try:
                with self._http.stream(
                    "GET", self.url + where, params=dict(query or {}), headers=headers, timeout=httpx.Timeout(self._timeout, read=SILENCE)
                ) as answer:
                    if answer.is_success:
                        decoder = Decoder()
                        for data in answer.iter_bytes():
                            broken_since, attempt = time.monotonic(), 0
                            for kind, id, message in decoder.feed(data):
                                last = id or last
                                if kind == "end":  # the last message
                                    problem = of_problem(message)
                                else:
                                    yield kind, id, message
                        broken_since = time.monotonic()
                    else:
                        answer.read()
                        problem = problem_of(answer)
            except httpx.TransportError as error:
                problem = unreachable(error, self.url)
            if not may_repeat(problem) or time.monotonic() - broken_since > self._reconnect:
                raise problem
            time.sleep(pause(attempt, problem))
            attempt += 1


class Future:
    """A call, or a turn of a session, that has been sent."""

    def __init__(self, client: Client, session_id: str, call_id: str) -> None:
        self._client, self.session_id, self.call_id = client, session_id, call_id
        self._path = {"session": session_id, "call": call_id}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r}, {self.call_id!r})"

    def state(self, wait_ms: int = 0) -> t.CallState:
        """What is known of it, after up to ``wait_ms`` (at most 60,000) milliseconds."""
        return self._client._ask("get-call", t.CallState, self._path, query={"wait_ms": wait_ms}, timeout=wait_ms / 1000)

    def wait(self, timeout: float | None = None) -> Result:
        """Waits for the end. Raises TimeoutError after ``timeout`` seconds: the call continues."""
        answered = time.monotonic()
        until = None if timeout is None else answered + timeout
        while True:
            wait = MAX_WAIT_MS if until is None else min(MAX_WAIT_MS, max(0, round((until - time.monotonic()) * 1000)))
            try:
                state = self.state(wait)
            except APIError as error:  # as a stream, it waits for a server that starts again
                if not may_repeat(error) or time.monotonic() - answered > self._client._reconnect:
                    raise
            else:
                if state["state"] == "ended":
                    return result_of(state["result"])
                answered = time.monotonic()
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"call {self.call_id} has not ended within {timeout:g} s")

    def result(self, timeout: float | None = None) -> Result:
        """As wait, and raises CallFailed if it did not end ok."""
        return (self.wait(timeout)).check()

    def cancel(self) -> None:
        """Asks it to stop. How it ends is in its result."""
        self._client._ask("cancel-call", None, self._path, repeat=True)

    def output(self) -> Iterator[Output]:
        """What the call writes, live, until it ends. After a break what was written meanwhile is only in the result."""
        for kind, _, data in self._client._stream("follow-call", self._path):
            if kind == "output":
                yield output_of(data)
            elif kind == "state":
                return


class Session:
    """A session: a conversation with a model, its calls and its files."""

    def __init__(self, client: Client, id: str, turn: Future | None = None) -> None:
        self._client, self.id, self._path = client, id, {"session": id}
        self.turn = turn
        """The turn that began the session, of new_session."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def get(self) -> t.Session:
        return self._client._ask("get-session", t.Session, self._path)

    def trace(self, turn: int | Literal["last"] = "last") -> t.Trace:
        """Where the time of a turn went, also of one that runs."""
        return self._client._ask("get-turn-trace", t.Trace, {**self._path, "turn": str(turn)})

    def send(self, prompt: str, /, *, turn_id: str | None = None, **options: Unpack[t.TurnRequest]) -> Future:
        """Continues the session with a turn."""
        state = self._client._ask("send-turn", t.CallState, self._path, body={**options, "prompt": prompt}, key=turn_id or new_id())
        return Future(self._client, state["session_id"], state["call_id"])

    def events(self, *, last_event_id: str | None = None, output: bool = False, until_turn_ended: bool = False) -> Iterator[Message]:
        """The events of the session from its first one on, or behind ``last_event_id``; they end if the session is removed.

        After a break the stream continues without a gap and without a repeat. With ``output`` also
        what running calls write, with ``until_turn_ended`` up to the end of a turn.
        """
        query = {name: "true" for name, wanted in (("output", output), ("until_turn_ended", until_turn_ended)) if wanted}
        for kind, id, data in self._client._stream("follow-session", self._path, query, last_event_id):
            if kind == "event":
                yield Event(data["type"], data, id)
                if until_turn_ended and data["type"] == "turn_ended":
                    return
            elif kind == "output":
                yield output_of(data)
            elif kind == "lost":
                yield Lost(data["reason"])

    def calls(self) -> list[t.Call]:
        """The calls that run or wait."""
        return (self._client._ask("list-session-calls", t.UnfinishedList, self._path))["calls"]

    def cancel(self) -> list[str]:
        """Cancels the running and waiting calls, and returns their ids."""
        return (self._client._ask("cancel-session", t.Cancelled, self._path))["calls"]

    def approve(self, call_id: str, granted: bool = True, note: str | None = None) -> None:
        """Approves a call that waits for it, or refuses it; the model reads the note."""
        self._client._ask("approve-call", None, self._path, body=without_none(call_id=call_id, granted=granted, note=note))

    def answer(
        self, call_id: str, content: Any = None, *, action: Literal["accept", "decline", "cancel"] = "accept", question: str | None = None
    ) -> None:
        """Answers a question of a running call, as the question's schema says."""
        body = without_none(call_id=call_id, content=content, action=action, question=question)
        self._client._ask("answer-question", None, self._path, body=body)

    def resolve(self, call_id: str, happened: bool) -> None:
        """Says what became of a call of unknown outcome."""
        self._client._ask("resolve-call", None, self._path, body={"call_id": call_id, "happened": happened})

    def fork(self, to: str | None = None, *, call_id: str | None = None, turn: int | None = None) -> Session:
        """Makes a session of this one, with its files, at a call or the end of a turn."""
        body = without_none(session_id=to or new_id(), call_id=call_id, turn=turn)
        made = self._client._ask("fork-session", t.Forked, self._path, body=body)
        return Session(self._client, made["session_id"])

    def merge(self, fork: str) -> t.Merged:
        """Merges the files and the answer of a fork."""
        return self._client._ask("merge-session", t.Merged, self._path, body={"fork": fork})

    def restore(self, call_id: str) -> t.Restored:
        """Restores the files as they were after a call."""
        return self._client._ask("restore-session", t.Restored, self._path, body={"call_id": call_id})

    def revert(self, *, call_id: str | None = None, turn: int | None = None) -> list[t.Effect]:
        """Undoes effects outside of the workspace, behind a call or a turn."""
        return (self._client._ask("revert-session", t.EffectList, self._path, body=without_none(call_id=call_id, turn=turn)))["effects"]

    def compact(self, model: str | None = None) -> t.Compacted:
        """Has a coordinator replace older replies by a summary."""
        return self._client._ask("compact-session", t.Compacted, self._path, query=without_none(model=model))

    def effects(self) -> list[t.Effect]:
        return (self._client._ask("list-effects", t.EffectList, self._path))["effects"]

    def export(self) -> bytes:
        """The stored events, one JSON object a line."""
        return self._client._ask("export-session", bytes, self._path)

    def remove(self, force: bool = False) -> t.Removed:
        """Removes the session with all that is stored of it; with ``force`` unfinished calls are cancelled."""
        return self._client._ask("remove-session", t.Removed, self._path, query={"force": force})

    # Files

    def files(self, at: str | None = None) -> list[t.File]:
        """The files of the workspace, as they are or were after the call ``at``."""
        return (self._client._ask("list-files", t.FileList, self._path, query=without_none(at=at)))["files"]

    def read_file(self, path: str, at: str | None = None) -> bytes:
        return self._client._ask("read-file", bytes, self._path, query=without_none(path=path, at=at))

    def write_file(
        self, path: str, content: bytes, *, mode: str | None = None, replaces: str | None = None, new: bool = False, id: str | None = None
    ) -> Result:
        """Writes a file, whole or not at all, as a call of the session with the id ``id``.

        It fails if the file has not the SHA-256 ``replaces``, or if it exists, with ``new``.
        """
        query = without_none(path=path, mode=mode)
        return self._changed("write-file", query, id, replaces, new, content, "application/octet-stream")

    def remove_file(self, path: str, *, replaces: str | None = None, id: str | None = None) -> Result:
        """Removes a file, as a call of the session."""
        return self._changed("remove-file", {"path": path}, id, replaces)

    def archive(self, at: str | None = None, format: Literal["tar", "tar.gz", "tar.zst"] = "tar.gz") -> bytes:
        """The files of the workspace, as they are or were after the call ``at``."""
        return self._client._ask("get-archive", bytes, self._path, query=without_none(at=at, format=format), timeout=LONG)

    def unpack(self, archive: bytes, path: str | None = None, *, id: str | None = None) -> Result:
        """Lays the files of a tar archive over the workspace or its directory ``path``, all or none, as a call of the session.

        The archive may be compressed by gzip or zstd.
        """
        return self._changed("unpack-archive", without_none(path=path), id, None, False, archive, archive_type(archive), LONG)

    def _changed(
        self,
        operation: t.Operation,
        query: dict[str, Any],
        id: str | None,
        replaces: str | None,
        new: bool = False,
        content: bytes | None = None,
        kind: str = "",
        timeout: float = 0.0,
    ) -> Result:
        """Sends a call that changes files, and waits for it."""
        headers = ({"If-Match": f'"{replaces}"'} if replaces else {}) | ({"If-None-Match": "*"} if new else {})
        state = self._client._ask(
            operation, t.CallState, self._path, query=query, content=content, kind=kind, headers=headers, key=id or new_id(), timeout=timeout
        )
        return Future(self._client, state["session_id"], state["call_id"]).result()

    def changes(self) -> list[t.Change]:
        """Which calls changed which files."""
        return (self._client._ask("list-changes", t.ChangeList, self._path))["changes"]

    def diff(self, call_id: str | None = None) -> str:
        """What a call changed, or the whole session, as a unified diff."""
        return (self._client._ask("get-diff", t.Diff, self._path, query=without_none(call=call_id)))["diff"]

    def compare(self, other: str) -> str:
        """The files of this and another session, as a unified diff."""
        return (self._client._ask("compare-sessions", t.Diff, self._path, query={"other": other}))["diff"]


def _call(tool: str | None, arguments: Mapping[str, Any] | None, options: t.CallRequest) -> dict[str, Any]:
    """The body of a call."""
    return without_none(**{"tool": tool, "arguments": arguments, **options})
