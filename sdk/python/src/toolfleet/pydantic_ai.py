"""Tools of a fleet for Pydantic AI (pip install toolfleet[pydantic-ai])."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from . import _adapter
from . import types as t
from ._async import AsyncClient

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The fleet checks the arguments, and says what is wrong with them.
_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class FleetToolset(AbstractToolset[Any]):
    """The tools of a fleet, or those that ``only`` names. ``options`` are those of each call, such as ``session_id``."""

    def __init__(self, client: AsyncClient, only: Sequence[str] | None = None, **options: Unpack[t.CallRequest]) -> None:
        self._client, self._only, self._options = client, only, options

    @property
    def id(self) -> str | None:
        return "toolfleet"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            info["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(name=info["name"], description=info["description"], parameters_json_schema=info["parameters"]),
                max_retries=1,
                args_validator=_ARGUMENTS,
            )
            for info in await _adapter.chosen(self._client, self._only)
        }

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> str:
        return await _adapter.run(self._client, name, tool_args, **self._options)
