"""The client against a real coordinator http."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

import toolfleet
from toolfleet import AsyncClient, CallFailed, Client, Event, Invalid, NotFound, ToolfleetError, Unauthorized, Unreachable, types
from toolfleet._async import AsyncFuture
from toolfleet._common import Decoder, may_repeat, pause, problem_of

from conftest import COORDINATOR, ROOT, Server, model, until


def test_the_shortest_use(client: Client) -> None:
    assert client.call("bash", {"command": "echo hi"}).text == "hi\n"


def test_without_waiting_for_the_result(client: Client, workspace: Path) -> None:
    future = client.send("bash", {"command": "sleep 0.3; echo done > file"}, id="mine")
    assert future.call_id == "mine"
    assert client.send("bash", {"command": "sleep 0.3; echo done > file"}, id="mine").call_id == "mine"
    with pytest.raises(TimeoutError):
        client.send("bash", {"command": "sleep 60"}, id="long").wait(timeout=0.1)
    client.future(future.session_id, "long").cancel()
    assert future.result().ok
    assert (workspace / "file").read_text() == "done\n"
    assert client.future(future.session_id, "long").wait().status == "cancelled"


def test_many_calls_have_their_own_answers(client: Client) -> None:
    sent = client.send_many([{"tool": "bash", "arguments": {"command": f"echo {i}"}} for i in range(3)] + [{"tool": "nonsense"}])
    assert [future.result().text for future in sent[:3] if not isinstance(future, toolfleet.APIError)] == ["0\n", "1\n", "2\n"]
    assert isinstance(sent[3], toolfleet.APIError) and sent[3].code == "unknown_tool"


def test_a_call_that_fails_is_an_exception(client: Client) -> None:
    with pytest.raises(CallFailed) as failed:
        client.call("read", {"path": "missing"})
    assert failed.value.code == "not_found" and failed.value.result.status == "failed"
    assert client.call("read", {"path": "missing"}, check=False).status == "failed"


# Output is live only, so a command that is followed writes until its follower has seen it.
UNTIL_SEEN = "until [ -e seen ]; do echo tick; sleep 0.05; done"


def test_output_is_live(client: Client, workspace: Path) -> None:
    future = client.send("bash", {"command": f"{UNTIL_SEEN}; echo b >&2; printf '\\303\\205\\302\\205'"})
    pieces = []
    for piece in future.output():
        pieces.append(piece)
        (workspace / "seen").touch()
    assert b"".join(p.data for p in pieces if p.stream == "stderr") == b"b\n"
    out = b"".join(p.data for p in pieces if p.stream == "stdout")
    assert out.startswith(b"tick\n") and out.endswith(b"tick\n\xc3\x85\xc2\x85")


def test_errors_by_code(client: Client) -> None:
    with pytest.raises(NotFound):
        client.future("s", "none").state()
    with pytest.raises(NotFound):
        client.session("none").get()
    with pytest.raises(Invalid) as invalid:
        client.call("bash", {"command": "true"}, nonsense=1)  # type: ignore[call-arg]
    assert "nonsense" in invalid.value.errors[0]["location"]
    with pytest.raises(Unauthorized):
        Client(client.url, "a wrong token of some length").tools()
    with pytest.raises(ToolfleetError, match="must not be empty"):
        client.session("..").get()
    with pytest.raises(Unreachable):
        Client("http://127.0.0.1:1").tools()


def test_the_fleet_is_listed(client: Client) -> None:
    assert "bash" in [tool["name"] for tool in client.tools()]
    assert client.workers()[0]["pool"] == "default"
    assert client.pools() == ["default"]
    client.pause_lane("account/7")
    assert [lane["lane"] for lane in client.lanes()["lanes"]] == ["account/7"]
    client.resume_lane("account/7")
    client.set_limit(tenant="acme", weight=2)
    assert client.limits()[0]["weight"] == 2
    client.remove_limit(tenant="acme")
    assert client.limits() == [] and client.templates() == [] and client.questions() == []
    client.add_schedule(name="daily", cron="0 9 * * *", call={"tool": "bash", "arguments": {"command": "true"}})
    assert client.pause_schedule("daily")["paused"]
    assert not client.resume_schedule("daily")["paused"]
    assert client.schedules()["schedules"][0]["name"] == "daily"  # type: ignore[index]
    client.remove_schedule("daily")


def test_tokens(client: Client) -> None:
    made = client.add_token(name="ann", role="read")
    with Client(client.url, made["token"]) as ann:
        until(lambda: takes(ann))
        with pytest.raises(toolfleet.Forbidden):
            ann.call("bash", {"command": "true"})
        assert [(token["id"], token["name"]) for token in client.tokens()] == [(made["id"], "ann")]
        client.remove_token(made["id"])
        assert client.tokens() == []
        until(lambda: not takes(ann))


def takes(client: Client) -> bool:
    """Whether the server takes the client's token."""
    try:
        return bool(client.tools())
    except Unauthorized:
        return False


def test_webhooks(workspace: Path) -> None:
    took: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            took.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        at = f"127.0.0.1:{receiver.server_address[1]}"
        with Client.from_embedded(workspace, args=["--webhook-host", at, "--webhook-plain"]) as client:
            made = client.add_webhook(url=f"http://{at}/", events=["call.ended"])
            assert made["secret"] and client.test_webhook(made["webhook_id"])["delivered"]
            call = client.send("bash", {"command": "true"})
            call.result()
            until(lambda: any(call.call_id.encode() in body for body in took))
            assert [webhook["webhook_id"] for webhook in client.webhooks()] == [made["webhook_id"]]
            assert client.failed_events(made["webhook_id"]) == []
            assert client.resume_webhook(made["webhook_id"])["again"] == 0
            client.remove_webhook(made["webhook_id"])
            assert client.webhooks() == []
        receiver.shutdown()


def test_async(workspace: Path) -> None:
    async def main() -> None:
        async with await AsyncClient.from_embedded(workspace) as client:
            results = await asyncio.gather(*(client.call("bash", {"command": f"echo {i}"}) for i in range(5)))
            assert [r.text for r in results] == [f"{i}\n" for i in range(5)]
            future = await client.send("bash", {"command": UNTIL_SEEN})
            assert isinstance(future, AsyncFuture)
            seen = b""
            async for piece in future.output():
                seen += piece.data
                (workspace / "seen").touch()
            assert seen.startswith(b"tick\n")

    asyncio.run(main())


def test_a_session(workspace: Path, tmp_path: Path) -> None:
    told = model(tmp_path, {"tool_calls": [{"id": "c1", "name": "write", "arguments": {"path": "a", "content": "A"}}]}, {"text": "Written."}, {"text": "Again."})
    with Client.from_embedded(model=told) as client:
        session = client.new_session("Write a file.", id="s1")
        assert session.id == "s1" and session.turn is not None
        events = list(session.events(until_turn_ended=True))
        kinds = [e.type for e in events if isinstance(e, Event)]
        assert kinds[0] == "session_started" and kinds[-1] == "turn_ended", kinds
        assert session.turn.result().text == "Written."
        assert [f["path"] for f in session.files()] == ["a"]
        assert session.read_file("a") == b"A"
        assert "+A" in session.diff()
        assert session.changes()
        ids = [e.id for e in events if isinstance(e, Event) and e.id]
        rest = [e.id for e in session.events(last_event_id=ids[2], until_turn_ended=True) if isinstance(e, Event) and e.id]
        assert rest == ids[3:]
        assert session.send("Once more.").result().text == "Again."
        assert session.trace()["turn"] == 2
        assert [s["name"] for s in session.trace(1)["spans"] if s["kind"] == "call"] == ["write"]
        fork = session.fork("s2", turn=1)
        assert fork.read_file("a") == b"A"
        assert session.compare("s2") == ""
        client.import_session("s3", session.export())
        assert {s["session_id"] for s in client.sessions()["sessions"]} >= {"s1", "s2", "s3"}
        until(lambda: "s1" in [passage["session_id"] for passage in client.search("written")["passages"]])
        assert session.calls() == [] and session.cancel() == [] and session.effects() == []
        fork.remove()
        with pytest.raises(NotFound):
            fork.get()


def test_a_structured_answer(workspace: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    replies = [{"text": text} for text in ("seven", '{"n": 7}', "no", "no", "no")]
    with Client.from_embedded(model=model(tmp_path, *replies)) as client:
        session = client.new_session("How many?", answer_schema=schema)
        assert session.turn is not None
        assert session.turn.result().value["answer"] == {"n": 7}
        failed = session.send("Again.", answer_schema=schema).wait()
        assert failed.error is not None and failed.error["code"] == "answer_invalid"


def test_an_approval(workspace: Path, tmp_path: Path) -> None:
    call = {"tool_calls": [{"id": "c1", "name": "bash", "arguments": {"command": "echo approved > file"}}]}
    with Client.from_embedded(workspace, model=model(tmp_path, call, {"text": "Done."}), args=["--ask-for", "bash"]) as client:
        session = client.new_session("Run it.")
        while not (questions := client.questions()):
            time.sleep(0.05)
        assert questions[0]["session_id"] == session.id and questions[0]["tool"] == "bash"
        session.approve(questions[0]["call_id"], note="go on")
        assert session.turn is not None and session.turn.result().text == "Done."
    assert (workspace / "file").read_text() == "approved\n"


def test_a_stream_continues_after_kill_9_of_the_server(workspace: Path, tmp_path: Path) -> None:
    calls = [{"tool_calls": [{"id": f"c{i}", "name": "bash", "arguments": {"command": f"sleep 0.2; echo {i}"}}]} for i in range(12)]
    server = Server(workspace, tmp_path / "data", "--model", model(tmp_path, *calls, {"text": "All."}))
    with Client(server.url, token_file=server.token_file) as client:
        session = client.new_session("Count.")
        seen: list[Event] = []

        def kill() -> None:
            server.kill()
            time.sleep(0.5)
            server.start()

        killer = threading.Thread(target=kill)
        for message in session.events():
            if not isinstance(message, Event) or not message.id:
                continue
            seen.append(message)
            if len([e for e in seen if e.type == "tool_result"]) == 4 and not killer.ident:
                killer.start()
            if message.type == "turn_ended":
                break
        killer.join()
        whole = [e.id for e in session.events(until_turn_ended=True) if isinstance(e, Event) and e.id]
        assert [e.id for e in seen] == whole
        assert session.turn is not None and session.turn.result().text == "All."
    server.kill()


def test_any_retry_after_of_a_proxy_is_read() -> None:
    for said, least, most in (("2", 2.0, 2.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.0)):
        error = problem_of(httpx.Response(503, headers={"Retry-After": said}, text="away"))
        assert error.retry_after is not None and least <= error.retry_after <= most
    for said in (b"", b"soon", b"1.5", b"-1", b"\xb2", b"Wed, 99 Oct 2015 07:28:00 GMT", b"9" * 400):
        error = problem_of(httpx.Response(503, headers=[(b"Retry-After", said)], text="away"))
        assert error.code == "unreachable" and may_repeat(error) and pause(0, error) <= 5


def test_a_wait_survives_kill_9_of_the_server(workspace: Path, tmp_path: Path) -> None:
    server = Server(workspace, tmp_path / "data")
    with Client(server.url, token_file=server.token_file) as client:
        future = client.send("bash", {"command": "sleep 1; echo end"}, delivery="idempotent")
        killer = threading.Thread(target=lambda: (time.sleep(0.3), server.kill(), server.start()))
        killer.start()
        assert future.wait().status in ("ok", "outcome_unknown")
        killer.join()
    server.kill()


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(pid: int) -> bool:
    for _ in range(600):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


@needs_proc
def test_the_server_ends_with_the_client(workspace: Path) -> None:
    with Client.from_embedded(workspace) as client:
        assert client._embedded
        pid = client._embedded.process.pid
        assert alive(pid)
    assert not alive(pid)


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_the_server_ends_with_the_program(workspace: Path, how: signal.Signals | None) -> None:
    program = f"from toolfleet import Client\nc = Client.from_embedded({str(workspace)!r})\nprint(c._embedded.process.pid, flush=True)\n"
    program += "import time\ntime.sleep(3600)\n" if how else ""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout
    pid = int(child.stdout.readline())
    if how:
        assert alive(pid)
        child.send_signal(how)
    child.wait()
    assert ended(pid)


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no such|not exist|missing"):
        Client.from_embedded(tmp_path / "missing")
    with pytest.raises(ToolfleetError, match="TOOLFLEET_COORDINATOR"):
        Client.from_embedded(coordinator=tmp_path / "none")


def test_a_socket(workspace: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    process = subprocess.Popen([COORDINATOR, "http", "--until-stdin-closes", "--http", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout and process.stdin
    process.stdout.readline()
    with Client(address) as client:
        assert client.call("bash", {"command": "echo hi"}).text == "hi\n"
    process.stdin.close()
    assert process.wait() == 0


def test_a_busy_server_is_asked_again_and_makes_nothing_twice() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) == 1:
            raise httpx.ReadError("cut")
        if len(keys) == 2:
            return httpx.Response(429, json={"code": "busy", "status": 429, "detail": "later"}, headers={"Retry-After": "0"})
        return httpx.Response(202, json={"session_id": "s", "call_id": keys[-1], "state": "accepted"})

    with Client("http://test", transport=httpx.MockTransport(answer)) as client:
        client.send("bash", {"command": "true"})
    assert len(keys) == 3 and len(set(keys)) == 1


def test_a_request_without_a_key_is_sent_once() -> None:
    sent = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal sent
        sent += 1
        raise httpx.ReadError("cut")

    with Client("http://test", transport=httpx.MockTransport(answer)) as client, pytest.raises(Unreachable):
        client.session("s").merge("t")
    assert sent == 1


def test_a_stream_that_never_comes_back_ends() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Client("http://test", reconnect=0.5, transport=httpx.MockTransport(answer)) as client, pytest.raises(Unreachable):
        list(client.session("s").events())


def test_decoder_splits_at_line_breaks_of_the_format_only() -> None:
    text = 'retry: 1000\n\n: \n\nevent: event\r\nid: 7\r\ndata: {"a": "\u2028\x85"}\r\n\r\nevent: lost\ndata: {}\n\nevent: cut'.encode()
    for size in (1, 3, len(text)):
        decoder = Decoder()
        made = [m for i in range(0, len(text), size) for m in decoder.feed(text[i : i + size])]
        assert made == [("event", "7", {"a": "\u2028\x85"}), ("lost", "", {})]


def test_what_is_made_is_current() -> None:
    subprocess.run([sys.executable, "scripts/generate.py", "--check"], check=True, cwd=ROOT / "sdk" / "python")


def test_every_operation_has_a_method() -> None:
    source = inspect.getsource(toolfleet._async)
    used = set(re.findall(r'_(?:ask|stream|changed)\(\s*"([a-z-]+)"', source))
    assert used == set(types.OPERATIONS)


def test_sync_and_async_have_the_same_methods() -> None:
    def face(of: type) -> set[str]:
        return {name.replace("aclose", "close") for name in vars(of) if not name.startswith("_")}

    assert face(Client) == face(AsyncClient)
