"""Client of a toolfleet: sessions, calls, events and files, over HTTP.

    from toolfleet import Client

    with Client.from_embedded(workspace=".") as client:
        print(client.call("bash", {"command": "echo hi"}).text)

Tools of your own are in toolfleet.tools, which needs toolfleet[mcp].
"""

from ._async import AsyncClient, AsyncFuture, AsyncSession
from ._common import Event, Lost, Message, Output, Result
from ._errors import (
    APIError,
    Busy,
    CallFailed,
    Exists,
    Forbidden,
    Invalid,
    NotFound,
    PolicyDenied,
    QuotaExceeded,
    ToolfleetError,
    Unauthorized,
    Unreachable,
)
from ._sync import Client, Future, Session
from .tools import tool

__version__ = "0.1.0"

__all__ = [
    "APIError",
    "AsyncClient",
    "AsyncFuture",
    "AsyncSession",
    "Busy",
    "CallFailed",
    "Client",
    "Event",
    "Exists",
    "Forbidden",
    "Future",
    "Invalid",
    "Lost",
    "Message",
    "NotFound",
    "Output",
    "PolicyDenied",
    "QuotaExceeded",
    "Result",
    "Session",
    "ToolfleetError",
    "Unauthorized",
    "Unreachable",
    "tool",
]
