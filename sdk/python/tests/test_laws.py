"""What docs/guarantees.md promises of calls, for tools in Python: workers and servers are killed while a tool runs.

Each start of a tool is a line in a file, which the tests compare with the results: a call that is at
most once has one start, one that is idempotent starts again, and a resource that keeps the greatest
fence refuses what an older attempt writes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from toolfleet import Client, Future, Result

from conftest import COORDINATOR, ROOT, free_port, until

pytest.importorskip("mcp", reason="toolfleet[mcp] is not installed")

TOOLS = '''
import fcntl
import json
import os
import time
from typing import Literal

from toolfleet import tool
from toolfleet.tools import current_call


def line(what: str) -> None:
    call = current_call()
    with open(os.path.join(RECORD, "lines"), "a") as file:
        file.write(json.dumps([what, call.call_id, call.attempt, call.fence, os.getpid()]) + "\\n")


def work(name: str) -> str:
    """Runs until the test lets it end, and then writes to a database that refuses older fences."""
    call = current_call()
    line("begin")
    while not os.path.exists(os.path.join(RECORD, f"go-{name}-{call.attempt}")):
        time.sleep(0.02)
    with open(os.path.join(RECORD, f"fence-{name}"), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        greatest = int(file.read() or 0)
        if call.fence < greatest:
            line("refused")
            raise ValueError(f"fence {call.fence}: is older than {greatest}")
        file.truncate(0)
        file.write(str(call.fence))
        file.flush()
        line("wrote")
    return f"attempt {call.attempt}"


@tool(resources=["account/{name}"], delivery="at_most_once", timeout=600)
def once(name: str) -> str:
    """At most once, in an empty sandbox."""
    return work(name)


@tool(resources=["account/{name}"], delivery="idempotent", timeout=600)
def again(name: str) -> str:
    """Again after a lost worker, in an empty sandbox."""
    return work(name)


@tool(delivery="at_most_once", timeout=600)
def once_here(name: str) -> str:
    """At most once, in the sandbox of the session."""
    return work(name)


@tool(delivery="idempotent", timeout=600)
def again_here(name: str) -> str:
    """Again after a lost worker, in the sandbox of the session."""
    return work(name)
'''

# The names of the tools: SERVER__TOOL. The servers run in sandboxes, or beside the workers.
ONCE = ("in__once", "in__once_here", "beside__once")
AGAIN = ("in__again", "in__again_here", "beside__again")


@dataclass(frozen=True)
class Line:
    what: str
    call: str
    attempt: int
    fence: int
    pid: int


class Fleet:
    """A coordinator that serves, with NATS, workers, and a server of tools beside them, each a process."""

    def __init__(self, at: Path) -> None:
        self.at, self.record, self.tools = at, at / "record", at / "tools"
        for directory in (self.record, self.tools):
            directory.mkdir()
        (self.tools / "my.py").write_text(f"RECORD = {str(self.record)!r}\n{TOOLS}")
        token = at / "tools.token"
        token.write_text("a token of the tools")
        beside = free_port()
        manifest = {"kind": "mcp", "name": "in", "command": sys.executable, "args": ["-m", "toolfleet", "serve", "{tools}/my.py"]}
        (self.tools / "in.yaml").write_text(json.dumps(manifest))
        manifest = {"kind": "mcp", "name": "beside", "url": f"http://127.0.0.1:{beside}/mcp", "headers": {"Authorization": "Bearer ${TOOLS_TOKEN}"}}
        (self.tools / "beside.yaml").write_text(json.dumps(manifest))
        nats, http = free_port(), free_port()
        self.url, self.nats = f"http://127.0.0.1:{http}", nats
        (at / "model.json").write_text('{"steps": [{"text": "None."}]}')
        self.processes: list[subprocess.Popen[bytes]] = []
        self.env = {**os.environ, "TOOLS_TOKEN": token.read_text(), "HOME": str(at)}
        self.beside = beside
        self.serve_tools()
        for header in ({}, {"Authorization": "Bearer another token of them"}):
            assert httpx.post(f"http://127.0.0.1:{beside}/mcp", json={}, headers=header).status_code == 401
        flags = ["--listen", f"127.0.0.1:{nats}", "--http", f"127.0.0.1:{http}", "--data", str(at / "data"), "--tools", str(self.tools), "--min-level", "none"]
        self.command = [COORDINATOR, "serve", "--model", f"script:{at / 'model.json'}", *flags]
        self.server = self.start(self.command)
        until(lambda: all((at / "data" / f).exists() for f in ("http.token", "nats/nats.token", "nats/calls.pub")))

    def serve_tools(self) -> None:
        """Starts the server of tools beside the workers."""
        address = f"127.0.0.1:{self.beside}"
        self.start([sys.executable, "-m", "toolfleet", "serve", str(self.tools / "my.py"), "--listen", address, "--token-file", str(self.at / "tools.token")])
        until(lambda: socket.socket().connect_ex(("127.0.0.1", self.beside)) == 0)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.at / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))
        return self.processes[-1]

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        data = self.at / "data"
        flags = ["--nats", f"nats://127.0.0.1:{self.nats}", "--creds", str(data / "nats/nats.token"), "--call-keys", str(data / "nats/calls.pub")]
        rest = ["--tools", str(self.tools), "--data", str(self.at / name), "--mcp-env", "TOOLS_TOKEN", "--allow-net", "all", "--slots", "16", "--lease", "3s"]
        # Without isolation, so that all tools write into one record, and the laws are the same.
        return self.start([str(ROOT / "bin" / "worker"), "--sandbox", "process", *flags, *rest])

    def lines(self, call: str, what: str = "begin") -> list[Line]:
        file = self.record / "lines"
        made = [Line(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in made if line.call == call and line.what == what]

    def go(self, name: str, attempt: int) -> None:
        (self.record / f"go-{name}-{attempt}").touch()

    def stop(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        yield made
    except BaseException:
        print((tmp_path / "log").read_text()[-4000:])
        raise
    finally:
        made.stop()


def sent(fleet: Fleet, client: Client) -> dict[str, Future]:
    """A call of each tool, all of which have begun; each has a resource, and a name, of its own."""
    until(lambda: {*ONCE, *AGAIN} <= {tool["name"] for tool in client.tools()})
    made = {tool: client.send(tool, {"name": tool}, id=tool, session_id=f"s-{tool}") for tool in (*ONCE, *AGAIN)}
    for tool in made:
        until(lambda: fleet.lines(tool))
    return made


def ended(call: Future) -> Result:
    return call.wait(timeout=300)


def holds(fleet: Fleet, tool: str, result: Result, lost: bool) -> None:
    """The laws: one result; its starts; fences that grow."""
    begun = fleet.lines(tool)
    assert [line.attempt for line in begun] == list(range(1, len(begun) + 1)), begun
    assert [line.fence for line in begun] == sorted({line.fence for line in begun}), begun
    if tool in ONCE:
        assert len(begun) == 1, begun
        assert result.status in (("outcome_unknown",) if lost else ("ok", "outcome_unknown")), result
    else:
        assert result.ok and result.value["structured"]["result"] == f"attempt {len(begun)}", result
        assert len(begun) == 2 or not lost, begun


def test_kill_9_of_the_worker(fleet: Fleet) -> None:
    worker = fleet.worker("w1")
    with Client(fleet.url, token_file=fleet.at / "data" / "http.token") as client:
        calls = sent(fleet, client)
        os.killpg(worker.pid, signal.SIGKILL)
        fleet.worker("w2")
        for tool in AGAIN:
            until(lambda: len(fleet.lines(tool)) == 2)
            fleet.go(tool, 2)
        for tool, call in calls.items():
            holds(fleet, tool, ended(call), lost=True)


def test_kill_9_of_the_tools(fleet: Fleet) -> None:
    """A call that may start again does so at once, in the same attempt: its worker still holds the lane."""
    fleet.worker("w1")
    with Client(fleet.url, token_file=fleet.at / "data" / "http.token") as client:
        calls = sent(fleet, client)
        for pid in {line.pid for tool in calls for line in fleet.lines(tool)}:
            os.kill(pid, signal.SIGKILL)
        fleet.serve_tools()
        for tool in AGAIN:
            fleet.go(tool, 1)
        for tool, call in calls.items():
            result, begun = ended(call), fleet.lines(tool)
            if tool in ONCE:
                assert (result.status, len(begun)) == ("outcome_unknown", 1), result
            elif result.ok or not tool.startswith("beside"):  # the server beside the worker may have come back too late
                assert result.ok and result.value["structured"]["result"] == "attempt 1", result
                assert [line.attempt for line in begun] == [1, 1], begun


def test_kill_9_of_the_server(fleet: Fleet) -> None:
    fleet.worker("w1")
    with Client(fleet.url, token_file=fleet.at / "data" / "http.token") as client:
        calls = sent(fleet, client)
        os.killpg(fleet.server.pid, signal.SIGKILL)
        fleet.server.wait()
        for tool in ONCE:
            fleet.go(tool, 1)  # they end while there is no server
        time.sleep(1)
        fleet.server = fleet.start(fleet.command)
        for tool in AGAIN:
            for attempt in range(1, 10):
                fleet.go(tool, attempt)
        for tool, call in calls.items():
            holds(fleet, tool, ended(call), lost=False)


def test_an_older_attempt_is_refused_by_the_fence(fleet: Fleet) -> None:
    worker = fleet.worker("w1")
    with Client(fleet.url, token_file=fleet.at / "data" / "http.token") as client:
        calls = sent(fleet, client)
        worker.send_signal(signal.SIGSTOP)  # its lease ends; what is in its sandboxes is ended, the server beside it runs on
        fleet.worker("w2")
        for tool in AGAIN:
            until(lambda: len(fleet.lines(tool)) == 2)
            fleet.go(tool, 2)
            holds(fleet, tool, ended(calls[tool]), lost=True)
            fleet.go(tool, 1)
        until(lambda: fleet.lines("beside__again", "refused"))
        assert [line.attempt for line in fleet.lines("beside__again", "refused")] == [1]
        for tool in ONCE:
            holds(fleet, tool, ended(calls[tool]), lost=True)
        for tool in AGAIN:
            assert [line.attempt for line in fleet.lines(tool, "wrote")] == [2]
