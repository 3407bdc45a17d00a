"""A scripted model over HTTP: one call of a tool, then an answer with what the tool returned."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Model(ThreadingHTTPServer):
    """Speaks chat completions and responses of OpenAI, and messages of Anthropic."""

    daemon_threads = True

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tool, self.arguments = tool, arguments
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[dict[str, Any]] = []
        """Those that offered the tool."""

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The tools of the first request, by name."""
        named = [tool.get("function", tool) for tool in self.requests[0]["tools"]]
        return {tool.get("name", tool.get("type")): tool for tool in named}


@contextmanager
def scripted(tool: str, arguments: dict[str, Any]) -> Iterator[Model]:
    with Model(tool, arguments) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        if self.server.tool in json.dumps(request.get("tools") or []):
            self.server.requests.append(request)
        if path.endswith("/chat/completions"):
            self._send(self._chat(request["messages"][-1]))
        elif path.endswith("/responses"):
            self._send(self._responses(request["input"][-1]))
        elif path.endswith("/messages"):
            self._messages(request)
        else:
            self._send({"error": {"type": "not_found_error", "message": path}}, 404)

    def do_GET(self) -> None:
        self._send({}, 404)

    do_HEAD = do_GET

    def _send(self, body: Any, status: int = 200) -> None:
        self._write(json.dumps(body).encode(), "application/json", status)

    def _write(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _chat(self, last: dict[str, Any]) -> Any:
        if last["role"] == "tool":
            message: dict[str, Any] = {"role": "assistant", "content": f"The tool said: {last['content']}"}
        else:
            call = {"name": self.server.tool, "arguments": json.dumps(self.server.arguments)}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "r", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}

    def _responses(self, last: dict[str, Any]) -> Any:
        if last.get("type") == "function_call_output":
            text = f"The tool said: {last['output']}"
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
        else:
            item = {"type": "function_call", "id": "f", "call_id": "c1", "name": self.server.tool, "arguments": json.dumps(self.server.arguments), "status": "completed"}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
        rest = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "status": "completed"}
        return {"id": "r", "object": "response", "created_at": 1, "model": "gpt-5", "output": [item], "usage": usage, **rest}

    def _messages(self, request: dict[str, Any]) -> None:
        said = request["messages"][-1]["content"]
        results = [block for block in said if block.get("type") == "tool_result"] if isinstance(said, list) else []
        reason = "end_turn"
        if results:
            content = results[0]["content"]
            text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            block: dict[str, Any] = {"type": "text", "text": f"The tool said: {text}"}
        elif self.server.tool in json.dumps(request.get("tools") or []):
            block, reason = {"type": "tool_use", "id": "toolu_1", "name": self.server.tool, "input": self.server.arguments}, "tool_use"
        else:  # a request of the agent's own, such as for a title
            block = {"type": "text", "text": "None."}
        message = {"id": "m", "type": "message", "role": "assistant", "model": request["model"], "content": [block], "stop_reason": reason, "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": 1}
        if not request.get("stream"):
            self._send({**message, "usage": usage})
            return
        if block["type"] == "text":
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        self._write("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode(), "text/event-stream")

    def log_message(self, format: str, *args: object) -> None:
        pass
