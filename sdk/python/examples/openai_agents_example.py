"""An agent of the OpenAI Agents SDK whose commands run in a sandbox."""

import asyncio

from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

from toolfleet import AsyncClient
from toolfleet.openai_agents import fleet_tools


async def main() -> None:
    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    async with await AsyncClient.from_embedded(workspace=".") as client:
        agent = Agent(name="Worker", instructions="Use the tools.", tools=await fleet_tools(client, only=["bash", "read", "write"]))
        result = await Runner.run(agent, "Which files are here? Count them.")
        print(result.final_output)


asyncio.run(main())
