"""Tools in Python: functions that a fleet runs, by the Model Context Protocol.

    from toolfleet import tool

    @tool(resources=["account/{id}"], delivery="at_most_once", timeout=60)
    def refund(id: str, cents: int) -> str:
        "Pay money back."
        ...

``toolfleet serve my_tools.py`` serves the functions of a file on stdio, for the --mcp-config of a
coordinator, or a manifest of kind mcp; with --listen over HTTP, for workers next to it. It needs ``pip install toolfleet[mcp]``.
"""

from __future__ import annotations

import contextvars
import functools
import hmac
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ._errors import ToolfleetError

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context, MCPServer

F = TypeVar("F", bound=Callable[..., Any])

# Keys of _meta that the fleet knows: how a tool is used, and which call runs.
META_TOOL, META_CALL = "toolfleet/tool", "toolfleet/call"

_MARK = "__toolfleet_tool__"


@dataclass(frozen=True)
class Tool:
    """What the decorator says of a function."""

    name: str
    description: str
    title: str | None
    rule: dict[str, Any]
    read_only: bool
    idempotent: bool


@dataclass(frozen=True)
class Call:
    """The call that runs a tool."""

    session_id: str
    """"" outside of a fleet, as are the other fields."""
    call_id: str
    """The same in every attempt: a key for what must happen once."""
    attempt: int
    """Starts of the call, from 1."""
    fence: int
    """Grows with each holder of the call's lane. A resource that stores the greatest one can refuse a call that continues after its lease."""
    _context: Any = field(repr=False, default=None)

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, which those who follow the call see."""
        if self._context is not None:
            await self._context.report_progress(done, total, message)

    def progress_now(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """As progress, from a function without async."""
        if self._context is not None:
            from anyio import from_thread

            from_thread.run(functools.partial(self._context.report_progress, done, total, message))


_running: contextvars.ContextVar[Call | None] = contextvars.ContextVar("toolfleet_call", default=None)


def current_call() -> Call:
    """The call that runs this function."""
    return _running.get() or Call("", "", 1, 0)


def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    resources: Sequence[str | dict[str, str]] | None = None,
    delivery: Literal["rollback", "idempotent", "at_most_once"] | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    revert: dict[str, Any] | None = None,
) -> Callable[[F], F]:
    """Makes a tool of a function, which can be called as before.

    ``resources`` are keys as ``"account/{id}"``: calls whose keys overlap run one after another, in
    the whole fleet; ``{"key": ..., "access": "shared"}`` is for calls that may overlap. Without
    resources a call has the workspace of its session; with keys of another lane it runs in an empty
    sandbox. ``delivery`` is what may happen after a lost worker. ``timeout`` is in seconds.
    ``revert`` names the tool that undoes a call.

    The name, the description and the types are those of the function, if nothing else is given.
    """
    rule: dict[str, Any] = {}
    if resources is not None:
        rule["resources"] = [{"key": r} if isinstance(r, str) else dict(r) for r in resources]
    if delivery is not None:
        rule["delivery"] = delivery
    if timeout is not None:
        if timeout <= 0:
            raise ToolfleetError(f"timeout {timeout}: must be more than 0 seconds")
        rule["timeout"] = f"{timeout:f}s"
    if revert is not None:
        rule["revert"] = revert

    def mark(function: F) -> F:
        text = description or inspect.getdoc(function) or ""
        if not text:
            raise ToolfleetError(f"tool {name or function.__name__}: needs a description or a docstring, which the model reads")
        made = Tool(name or function.__name__, text, title, rule, read_only, delivery == "idempotent")
        setattr(function, _MARK, made)
        return function

    return mark


def server(name: str, functions: Sequence[Callable[..., Any]]) -> MCPServer[Any]:
    """An MCP server of decorated functions."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise ToolfleetError("tools need the MCP SDK: pip install 'toolfleet[mcp]'") from error
    made: MCPServer[Any] = MCPServer(name, log_level="WARNING")
    for function in functions:
        of: Tool = getattr(function, _MARK)
        made.add_tool(
            _within_call(function),
            name=of.name,
            title=of.title,
            description=of.description,
            annotations=ToolAnnotations(read_only_hint=of.read_only, idempotent_hint=of.idempotent),
            meta={META_TOOL: of.rule} if of.rule else None,
        )
    return made


def _within_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with one more parameter, which the SDK fills in and current_call reads."""
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError

    def begin(context: Context[Any, Any]) -> None:
        known: dict[str, Any] = dict(context.request_context.meta or {})
        meta = known.get(META_CALL) or {}
        _running.set(
            Call(meta.get("session_id", ""), meta.get("call_id", ""), meta.get("attempt", 1), meta.get("fence", 0), context)
        )

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run(*args: Any, toolfleet_context: Context[Any, Any], **kwargs: Any) -> Any:
            begin(toolfleet_context)
            try:
                return await function(*args, **kwargs)
            except Exception as error:  # the model reads what went wrong
                raise ToolError(f"{type(error).__name__}: {error}") from error

    else:

        @functools.wraps(function)
        def run(*args: Any, toolfleet_context: Context[Any, Any], **kwargs: Any) -> Any:
            begin(toolfleet_context)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                raise ToolError(f"{type(error).__name__}: {error}") from error

    signature = inspect.signature(function, eval_str=True)
    extra = inspect.Parameter("toolfleet_context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    parameters = sorted([*signature.parameters.values(), extra], key=lambda p: p.kind)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        run.__annotations__["return"] = signature.return_annotation
    del run.__wrapped__
    return run


def load(file: str | Path) -> list[Callable[..., Any]]:
    """The decorated functions of a file, in their order."""
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ToolfleetError(f"{file}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    functions = [value for value in vars(module).values() if hasattr(value, _MARK)]
    if not functions:
        raise ToolfleetError(f"{file}: has no function with @tool(...)")
    return functions


def serve(file: str | Path, listen: str | None = None, token_file: str | Path | None = None) -> None:
    """Serves the tools of a file on stdio, until stdin is closed, or over HTTP at an address, for workers next to it.

    The requests need the token of the file.
    """
    made = server(Path(file).stem, load(file))
    if listen is None:
        if token_file is not None:
            raise ToolfleetError("--token-file: needs --listen")
        made.run("stdio")
        return
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    token = Path(token_file).read_text().strip() if token_file is not None else ""
    if not host or not port.isdigit():
        raise ToolfleetError(f"--listen {listen}: must be HOST:PORT")
    if len(token) < 16:
        raise ToolfleetError("--listen: needs --token-file, a file with a token of 16 characters or more")
    import uvicorn

    app = made.streamable_http_app(host=host)
    print(f"http://{listen}/mcp", flush=True)
    uvicorn.run(_with_token(app, token), host=host, port=int(port), log_level="warning")


def _with_token(app: Any, token: str) -> Any:
    """The application for requests with a token."""
    wanted = f"Bearer {token}".encode()

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, wanted):
                await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
                await send({"type": "http.response.body"})
                return
        await app(scope, receive, send)

    return checked
