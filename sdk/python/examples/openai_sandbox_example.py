"""A sandbox agent of the OpenAI Agents SDK whose sandbox is on a fleet."""

import asyncio

from agents import RunConfig, Runner, set_tracing_disabled
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File

from toolfleet import AsyncClient
from toolfleet.openai_sandbox import FleetSandboxClient


async def main() -> None:
    set_tracing_disabled(True)
    async with await AsyncClient.from_embedded() as client:
        agent = SandboxAgent(
            name="Worker",
            model="gpt-5",
            instructions="Answer from the files.",
            default_manifest=Manifest(entries={"a": File(content=b"one\n"), "b/c": File(content=b"two\n")}),
        )
        config = RunConfig(sandbox=SandboxRunConfig(client=FleetSandboxClient(client)))
        result = await Runner.run(agent, "How many files are here?", run_config=config)
        print(result.final_output)


asyncio.run(main())
