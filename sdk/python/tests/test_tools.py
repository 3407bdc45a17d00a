"""Tools in Python, which a real fleet runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolfleet
from toolfleet import CallFailed, Client, ToolfleetError, tool, tools

pytest.importorskip("mcp", reason="toolfleet[mcp] is not installed")

TOOLS = '''
from __future__ import annotations

import asyncio
import os
import signal
import time

from toolfleet import tool
from toolfleet.tools import current_call

running = 0


@tool(resources=["account/{id}"], delivery="at_most_once", timeout=60)
async def refund(id: str, cents: int) -> dict[str, int]:
    """Pay money back."""
    global running
    running += 1
    most = running
    await asyncio.sleep(0.1)
    running -= 1
    return {"cents": cents, "most": most}


@tool(resources=["account/{id}"], delivery="at_most_once", timeout=0.3)
async def slow(id: str) -> str:
    """Takes too long."""
    await asyncio.sleep(60)
    return "late"


@tool(read_only=True)
def which() -> dict[str, object]:
    """Says which call it is."""
    call = current_call()
    while not os.path.exists("seen"):
        call.progress_now(1, 2, "half of it")
        time.sleep(0.1)
    return {"call_id": call.call_id, "session_id": call.session_id, "attempt": call.attempt, "fence": call.fence}


@tool()
def write(text: str) -> str:
    """Writes a file of the workspace."""
    with open("written", "w") as file:
        file.write(text)
    return "written"


@tool(description="Fails.")
def fail() -> str:
    raise ValueError("no such account")


@tool(resources=["account/{id}"], delivery="at_most_once")
def die(id: str) -> str:
    """Is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


@tool(resources=["account/{id}"], delivery="idempotent")
def die_once(id: str) -> str:
    """Is killed the first time."""
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second life"


@tool(resources=["account/{id}"], delivery="at_most_once")
async def wait(id: str) -> str:
    """Waits until it is cancelled."""
    while True:
        await current_call().progress(0, None, "waits")
        await asyncio.sleep(0.1)
'''


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    at = tmp_path_factory.mktemp("tools")
    (at / "my_tools.py").write_text(TOOLS)
    workspace = at / "workspace"
    workspace.mkdir()
    config = {"mcpServers": {"my": {"command": sys.executable, "args": ["-m", "toolfleet", "serve", str(at / "my_tools.py")]}}}
    (at / "mcp.json").write_text(json.dumps(config))
    args = ["--mcp-config", str(at / "mcp.json"), "--mount", str(at / "my_tools.py"), "--mount", sys.prefix]
    package = Path(toolfleet.__file__).parent.parent
    if not package.is_relative_to(sys.prefix):
        args += ["--mount", str(package)]
    with Client.from_embedded(workspace, data=at / "data", args=args) as client:
        assert client._embedded
        assert "my__refund" in [t["name"] for t in client.tools()], client._embedded.last_words
        yield client, workspace


def test_calls_on_one_resource_run_one_after_another(fleet: tuple[Client, Path]) -> None:
    client, _ = fleet
    sent = [client.send("my__refund", {"id": "7", "cents": n}) for n in range(5)]
    for n, future in enumerate(sent):
        assert future.result().value["structured"] == {"cents": n, "most": 1}


def test_a_tool_knows_its_call(fleet: tuple[Client, Path]) -> None:
    client, workspace = fleet
    future = client.send("my__which", {}, id="my-key")
    output = b""
    for piece in future.output():
        output += piece.data
        (workspace / "seen").touch()
    said = future.result().value["structured"]
    assert said["call_id"] == "my-key" and said["session_id"] == future.session_id and said["attempt"] == 1 and said["fence"] > 0
    assert b"half of it" in output


def test_a_tool_has_the_workspace(fleet: tuple[Client, Path]) -> None:
    client, workspace = fleet
    assert client.call("my__write", {"text": "by a tool"}).text == "written"
    assert (workspace / "written").read_text() == "by a tool"


def test_failures_and_bounds(fleet: tuple[Client, Path]) -> None:
    client, _ = fleet
    with pytest.raises(CallFailed, match="ValueError: no such account") as failed:
        client.call("my__fail")
    assert failed.value.code == "tool_failed"
    assert client.call("my__slow", {"id": "slow"}, check=False).status == "timeout"
    with pytest.raises(toolfleet.APIError, match="cents: must be integer"):
        client.call("my__refund", {"id": "7", "cents": "many"})


def test_kill_9_of_a_server(fleet: tuple[Client, Path]) -> None:
    client, _ = fleet
    assert client.call("my__die", {"id": "8"}, check=False).status == "outcome_unknown"
    assert client.call("my__die_once", {"id": "9"}).text == "second life"
    assert client.call("my__refund", {"id": "8", "cents": 1}).ok


def test_cancel(fleet: tuple[Client, Path]) -> None:
    client, _ = fleet
    future = client.send("my__wait", {"id": "10"})
    for piece in future.output():
        if b"waits" in piece.data:
            break
    future.cancel()
    assert future.wait(timeout=60).status == "cancelled"


def test_decorator() -> None:
    @tool(resources=["a/{x}", {"key": "a/{x}/b", "access": "shared"}], delivery="idempotent", timeout=1.5)
    def f(x: int) -> int:
        """Doc."""
        return 2 * x

    assert f(2) == 4, "the function is as it was"
    listed = asyncio.run(tools.server("s", [f]).list_tools())
    assert listed[0].meta == {
        "toolfleet/tool": {"resources": [{"key": "a/{x}"}, {"key": "a/{x}/b", "access": "shared"}], "delivery": "idempotent", "timeout": "1.500000s"}
    }
    assert list(listed[0].input_schema["properties"]) == ["x"]
    with pytest.raises(ToolfleetError, match="needs a description"):
        tool()(lambda: None)
    with pytest.raises(ToolfleetError, match="more than 0"):
        tool(timeout=0)
    assert tools.current_call().call_id == "", "outside of a fleet"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from toolfleet.__main__ import main

    assert main(["serve", str(tmp_path / "none.py")]) == 2
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert main(["serve", str(tmp_path / "empty.py")]) == 2
    (tmp_path / "good.py").write_text(TOOLS)
    (tmp_path / "token").write_text("short\n")
    assert main(["serve", str(tmp_path / "good.py"), "--listen", "127.0.0.1:0"]) == 2
    assert main(["serve", str(tmp_path / "good.py"), "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token")]) == 2
    assert main(["serve", str(tmp_path / "good.py"), "--listen", "8700"]) == 2
    assert main(["serve", str(tmp_path / "good.py"), "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "missing")]) == 2
    assert main(["serve", str(tmp_path / "good.py"), "--token-file", str(tmp_path / "token")]) == 2
    said = capsys.readouterr().err
    for line in ("none.py: is no Python file", "has no function with @tool", "needs --token-file", "--listen 8700: must be HOST:PORT", "missing", "--token-file: needs --listen"):
        assert line in said
