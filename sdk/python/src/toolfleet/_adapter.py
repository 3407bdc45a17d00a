"""What adapters for agents of others share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from . import types as t
from ._async import AsyncClient
from ._common import Result
from ._errors import APIError, ToolfleetError

if TYPE_CHECKING:
    from typing_extensions import Unpack


async def chosen(client: AsyncClient, only: Sequence[str] | None) -> list[t.ToolInfo]:
    """The tools of the fleet, or those that are named."""
    known = {info["name"]: info for info in await client.tools()}
    for name in only or ():
        if name not in known:
            raise ToolfleetError(f"only: there is no tool {name!r}. The tools are: {', '.join(known)}")
    return list(known.values()) if only is None else [known[name] for name in only]


async def ended(client: AsyncClient, tool: str, arguments: Mapping[str, Any], /, **options: Unpack[t.CallRequest]) -> Result:
    """Calls a tool, and waits for its end. A call that the agent gives up is cancelled."""
    future = await client.send(tool, arguments, **options)
    try:
        return await future.wait()
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(5, shield=True):
            await future.cancel()
        raise


async def run(client: AsyncClient, tool: str, arguments: Mapping[str, Any], /, **options: Unpack[t.CallRequest]) -> str:
    """Calls a tool for a model: the text is what it reads, also of a failure or of wrong arguments."""
    try:
        return (await ended(client, tool, arguments, **options)).text
    except APIError as error:
        if error.status not in (403, 422):
            raise
        return str(error)
