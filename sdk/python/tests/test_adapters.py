"""The examples of adapters, against a scripted model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class Model(ThreadingHTTPServer):
    """The chat completions of OpenAI: one call of bash, then an answer with what the tool returned."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        last = request["messages"][-1]
        if last["role"] == "tool":
            message: dict[str, Any] = {"role": "assistant", "content": f"The tool said: {last['content']}"}
        else:
            call = {"name": "bash", "arguments": json.dumps({"command": "ls | wc -l"})}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps({"id": "r", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Model]:
    with Model() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("example", "needs"),
    [
        ("openai_agents_example.py", ["agents"]),
        ("langgraph_example.py", ["langgraph", "langchain_openai"]),
        ("pydantic_ai_example.py", ["pydantic_ai", "openai"]),
    ],
)
def test_example(example: str, needs: list[str], scripted: Model, workspace: Path) -> None:
    if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    for name in "abc":
        (workspace / name).touch()
    env = {**os.environ, "OPENAI_BASE_URL": f"http://127.0.0.1:{scripted.server_address[1]}/v1", "OPENAI_API_KEY": "none"}
    done = subprocess.run([sys.executable, EXAMPLES / example], cwd=workspace, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The tool said: 3", done.stdout
    offered = {tool["function"]["name"]: tool["function"] for tool in scripted.requests[0]["tools"]}
    assert set(offered) == {"bash", "read", "write"}
    assert "command" in offered["bash"]["parameters"]["properties"]
