"""Tools of a fleet for LangChain and LangGraph (pip install toolfleet[langchain])."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.tools import StructuredTool

from . import _adapter
from . import types as t
from ._async import AsyncClient

if TYPE_CHECKING:
    from typing_extensions import Unpack


async def fleet_tools(client: AsyncClient, only: Sequence[str] | None = None, **options: Unpack[t.CallRequest]) -> list[StructuredTool]:
    """The tools of a fleet, or those that ``only`` names, for agents that are invoked with ``ainvoke``.

    ``options`` are those of each call, such as ``session_id``.
    """

    def made(info: t.ToolInfo) -> StructuredTool:
        async def run(**arguments: Any) -> str:
            return await _adapter.run(client, info["name"], arguments, **options)

        return StructuredTool.from_function(
            coroutine=run, name=info["name"], description=info["description"], args_schema=info["parameters"], infer_schema=False
        )

    return [made(info) for info in await _adapter.chosen(client, only)]
