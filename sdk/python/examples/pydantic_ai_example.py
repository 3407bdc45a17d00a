"""An agent of Pydantic AI whose commands run in a sandbox."""

import asyncio

from pydantic_ai import Agent

from toolfleet import AsyncClient
from toolfleet.pydantic_ai import FleetToolset


async def main() -> None:
    async with await AsyncClient.from_embedded(workspace=".") as client:
        agent = Agent("openai-chat:gpt-5", toolsets=[FleetToolset(client, only=["bash", "read", "write"])])
        result = await agent.run("Which files are here? Count them.")
        print(result.output)


asyncio.run(main())
