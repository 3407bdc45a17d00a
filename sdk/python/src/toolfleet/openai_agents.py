"""Tools of a fleet for the OpenAI Agents SDK (pip install toolfleet[openai-agents])."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agents import FunctionTool
from agents.tool_context import ToolContext

from . import _adapter
from . import types as t
from ._async import AsyncClient

if TYPE_CHECKING:
    from typing_extensions import Unpack


async def fleet_tools(client: AsyncClient, only: Sequence[str] | None = None, **options: Unpack[t.CallRequest]) -> list[FunctionTool]:
    """The tools of a fleet, or those that ``only`` names. ``options`` are those of each call, such as ``session_id``."""

    def made(info: t.ToolInfo) -> FunctionTool:
        async def invoke(_: ToolContext[Any], arguments: str) -> str:
            return await _adapter.run(client, info["name"], json.loads(arguments or "{}"), **options)

        return FunctionTool(info["name"], info["description"], info["parameters"], invoke, strict_json_schema=False)

    return [made(info) for info in await _adapter.chosen(client, only)]
