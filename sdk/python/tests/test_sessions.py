"""Sessions beyond the first turn, and the lanes of the fleet, against a real coordinator http."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import toolfleet
from toolfleet import CallFailed, Client, Event, NotFound, Session

from conftest import Server, model, until

def calls(name: str, arguments: dict[str, Any], id: str = "c1") -> dict[str, object]:
    """A reply of a model with one call."""
    return {"tool_calls": [{"id": id, "name": name, "arguments": arguments}]}


def stored(session: Session) -> list[dict[str, Any]]:
    """The events of a session."""
    return [json.loads(line) for line in session.export().splitlines()]


def write(path: str, content: str) -> dict[str, object]:
    return calls("write", {"path": path, "content": content})


def test_a_question_of_a_call_is_answered(tmp_path: Path) -> None:
    asks = calls("ask_user", {"question": "Which colour?", "choices": ["red", "blue"]})
    with Client.from_embedded(model=model(tmp_path, asks, {"text": "One."}, asks, {"text": "None."})) as client:
        session = client.new_session("Ask me.", toolsets=["ask"])
        asked = until(client.questions)[0]
        assert asked["session_id"] == session.id and asked["question"]["message"] == "Which colour?"
        with pytest.raises(toolfleet.Invalid):
            session.answer(asked["call_id"], {"answer": "green"})
        session.answer(asked["call_id"], {"answer": "blue"}, question=asked["question"]["id"])
        assert session.turn is not None and session.turn.result().text == "One."
        turn = session.send("Again.", toolsets=["ask"])
        session.answer(until(client.questions)[0]["call_id"], action="decline")
        assert turn.result().text == "None."
        said = [e["content"] for e in stored(session) if e["type"] == "tool_result"]
    assert "blue" in said[0] and "declined" in said[1]


def test_a_fork_is_merged_and_files_are_restored(tmp_path: Path) -> None:
    steps = [write("a", "A"), {"text": "One."}, write("b", "B"), {"text": "Two."}]
    with Client.from_embedded(model=model(tmp_path, *steps)) as client:
        session = client.new_session("Write a.")
        assert session.turn is not None
        session.turn.result()
        first = (session.changes()[0]["calls"])[0]
        fork = session.fork()
        fork.send("Write b.").result()
        merged = session.merge(fork.id)
        assert merged["written"] == ["b"] and merged["answer"] == "Two." and "conflicts" not in merged
        assert session.read_file("b") == b"B"
        client.call("write", {"path": "a", "content": "changed"}, session_id=session.id)
        assert session.read_file("a") == b"changed" and session.read_file("a", at=first) == b"A"
        assert session.restore(first)["written"] == 1
        assert session.read_file("a") == b"A"
        with pytest.raises(NotFound):
            session.read_file("b")
        with pytest.raises(NotFound):
            session.restore("none")


SHOP = '''
import os
import signal

from toolfleet import tool


@tool(resources=["account/{id}"], delivery="at_most_once", revert={"tool": "unpay", "arguments": {"id": "{id}", "paid": "{result.paid}"}})
def pay(id: str, cents: int) -> dict[str, str]:
    """Pay."""
    print_line(f"pay {id}")
    return {"paid": f"p{cents}"}


@tool(resources=["account/{id}"], delivery="at_most_once")
def unpay(id: str, paid: str) -> str:
    """Undo a payment."""
    print_line(f"unpay {id} {paid}")
    return "undone"


@tool(resources=["account/{id}"], delivery="at_most_once")
def vanish(id: str) -> str:
    """Is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


def print_line(line: str) -> None:
    with open(RECORD, "a") as file:
        file.write(line + "\\n")
'''


def serving(tmp_path: Path, text: str) -> list[str]:
    """Flags of a server whose sandboxes offer the tools of a text, which may write into RECORD."""
    record = tmp_path / "record"
    record.mkdir()
    (tmp_path / "my_tools.py").write_text(f"RECORD = {str(record / 'lines')!r}\n{text}")
    config = {"mcpServers": {"my": {"command": sys.executable, "args": ["-m", "toolfleet", "serve", str(tmp_path / "my_tools.py")]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    args = ["--mcp-config", str(tmp_path / "mcp.json"), "--mount", str(tmp_path / "my_tools.py"), "--mount", f"{record}:rw", "--mount", sys.prefix]
    package = Path(toolfleet.__file__).parent.parent
    return args if package.is_relative_to(sys.prefix) else [*args, "--mount", str(package)]


def test_effects_are_undone_and_unknown_outcomes_resolved(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="toolfleet[mcp] is not installed")
    steps = [calls("my__pay", {"id": "7", "cents": 3}), calls("my__vanish", {"id": "7"}), {"text": "Who knows."}, {"text": "I see."}]
    with Client.from_embedded(model=model(tmp_path, *steps), args=serving(tmp_path, SHOP)) as client:
        session = client.new_session("Pay.")
        assert session.turn is not None
        session.turn.result()
        unknown = session.get()["unknown"]
        assert [u["tool"] for u in unknown] == ["my__vanish"]
        session.resolve(unknown[0]["call_id"], happened=False)
        assert not session.get().get("unknown")
        effects = session.effects()
        assert [e["tool"] for e in effects] == ["my__pay"], effects
        undone = [e["tool"] for e in session.revert(turn=1)]
        assert undone == []
        assert any(e.get("reverted") for e in session.revert())
        assert (tmp_path / "record" / "lines").read_text().splitlines() == ["pay 7", "unpay 7 p3"]
        assert session.send("What happened?").result().text == "I see."


def test_a_session_is_compacted(tmp_path: Path) -> None:
    turns: list[dict[str, object]] = [{"text": f"{n}. " + "words " * 200} for n in range(4)]
    with Client.from_embedded(model=model(tmp_path, *turns, {"text": "On."})) as client:
        session = client.new_session("Begin.")
        assert session.turn is not None
        session.turn.result()
        for _ in range(3):
            session.send("Continue.").result()
        assert session.compact() == {"compacted": True}
        assert session.send("And now?").result().ok
        assert "conversation_compacted" in [e["type"] for e in stored(session)]


def test_calls_of_a_lane_are_skipped_and_killed() -> None:
    with Client.from_embedded() as client:
        runs, waits = (client.send("bash", {"command": "sleep 600"}, id=id, session_id="s") for id in ("runs", "waits"))
        lane = "sandbox/s"
        until(lambda: any(shown["running"] and shown["waiting"] for shown in client.lanes()["lanes"]))
        assert [call["call_id"] for call in client.lane(lane)["running"]] == ["runs"]
        assert client.wake_lane(lane) == {"missing": False}
        client.skip_call(lane, "waits")
        assert [call["call_id"] for call in client.kill_lane(lane)["calls"]] == ["runs"]
        assert [runs.wait().status, waits.wait().status] == ["cancelled", "cancelled"]
        with pytest.raises(NotFound):
            client.skip_call(lane, "none")


def test_templates(tmp_path: Path) -> None:
    with Client.from_embedded(model=model(tmp_path, write("a", "A"), {"text": "One."})) as client:
        session = client.new_session("Write a.")
        assert session.turn is not None
        session.turn.result()
        client.add_template("started", session.id)
        assert [template["name"] for template in client.templates()] == ["started"]
        with pytest.raises(toolfleet.Exists):
            client.add_template("started", session.id)
        client.remove_template("started")
        assert client.templates() == []
        with pytest.raises(NotFound):
            client.remove_template("started")


def drained(server: Server) -> None:
    """Ends a server by SIGTERM, which ends its streams with draining, and starts it again."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0
    server.start()


def test_a_session_is_followed_after_its_server_drained(tmp_path: Path, workspace: Path) -> None:
    steps = [calls("bash", {"command": f"until [ -e go{n} ]; do echo tick; sleep 0.1; done"}, f"c{n}") for n in range(2)]
    server = Server(workspace, tmp_path / "data", "--model", model(tmp_path, *steps, {"text": "All."}))
    with Client(server.url, token_file=server.token_file) as client:
        session = client.new_session("Go on.")
        seen: list[Event] = []
        for message in session.events(output=True):
            if isinstance(message, toolfleet.Output):
                (workspace / "go0").touch()
            if not isinstance(message, Event) or not message.id:
                continue
            seen.append(message)
            if message.type == "tool_result" and not (workspace / "go1").exists():
                drained(server)
                (workspace / "go1").touch()
            if message.type == "turn_ended":
                break
        assert [e.id for e in seen] == [e.id for e in session.events(until_turn_ended=True) if isinstance(e, Event) and e.id]
        assert session.turn is not None and session.turn.result().text == "All."
    server.kill()


def test_a_call_is_followed_after_its_server_drained(tmp_path: Path, workspace: Path) -> None:
    server = Server(workspace, tmp_path / "data")
    with Client(server.url, token_file=server.token_file) as client:
        call = client.send("bash", {"command": "until [ -e go ]; do echo tick; sleep 0.1; done; echo end"}, delivery="idempotent")
        seen: list[toolfleet.Output] = []
        follower = threading.Thread(target=lambda: seen.extend(call.output()))
        ends: list[str] = []
        waiter = threading.Thread(target=lambda: ends.append(call.wait().status))
        follower.start()
        waiter.start()
        until(lambda: seen)
        drained(server)
        (workspace / "go").touch()
        follower.join(120)
        waiter.join(120)
        assert not follower.is_alive() and ends and ends[0] in ("ok", "outcome_unknown")
    server.kill()


def test_files_are_written_and_removed_as_calls_and_archives_go_in_and_out() -> None:
    with Client.from_embedded() as client:
        session = client.session("s")
        data = bytes(range(256)) * 40
        assert session.write_file("d/a b", data, mode="0755", id="mine").call_id == "mine"
        assert session.read_file("d/a b") == data
        digest = hashlib.sha256(data).hexdigest()
        with pytest.raises(CallFailed):
            session.write_file("d/a b", b"new", new=True)
        with pytest.raises(CallFailed) as changed:
            session.write_file("d/a b", b"new", replaces=hashlib.sha256(b"other").hexdigest())
        assert changed.value.code == "file_changed"
        session.write_file("d/a b", b"new", replaces=digest)
        copy = client.session("copy")
        for format in ("tar", "tar.gz", "tar.zst"):
            copy.unpack(session.archive(format=format), path=format)  # type: ignore[arg-type]
            assert copy.read_file(f"{format}/d/a b") == b"new"
        copy.unpack(session.archive(at="mine"))
        assert copy.read_file("d/a b") == data
        session.remove_file("d/a b")
        with pytest.raises(NotFound):
            session.read_file("d/a b")
