"""An agent of the Claude Agent SDK whose commands run in a sandbox."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

TOOLS = ["bash", "read", "write"]


async def main() -> None:
    options = ClaudeAgentOptions(
        mcp_servers={"fleet": {"command": "coordinator", "args": ["mcp", "--workspace", "."]}},
        env={"MCP_CONNECTION_NONBLOCKING": "false"},  # the first request to the model waits for the tools
        tools=[],  # none of Claude Code's own tools, which run outside of a sandbox
        allowed_tools=[f"mcp__fleet__{name}" for name in TOOLS],
    )
    async for message in query(prompt="Which files are here? Count them.", options=options):
        if isinstance(message, ResultMessage):
            print(message.result)


asyncio.run(main())
