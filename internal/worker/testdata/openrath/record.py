"""Records what OpenRath answers to calls.json: pip install openrath==2.0.0; python record.py >answers.json

The calls run one after another in one directory, by the functions of its session loop.
"""

import asyncio
import json
import logging
import pathlib
import subprocess
import tempfile
import types

from rath._async.aloop import _adispatch_round, _SyncExecutorAsyncAdapter
from rath.backend import BackendSandboxSpec
from rath.backend.local import LocalBackend
from rath.flow.tool import global_system_tools
from rath.llm import RathLLMToolCallFunction, RathLLMToolCallPart
from rath.llm.tool_args import parse_tool_arguments

logging.disable(logging.CRITICAL)


class Executor:
    def dispatch_tool(self, session, tool, arguments):
        return tool(session, arguments)


async def main():
    here = pathlib.Path(__file__).parent
    calls = json.loads((here / "calls.json").read_text())
    with tempfile.TemporaryDirectory() as workspace:
        workspace = str(pathlib.Path(workspace).resolve())
        subprocess.run(["sh", "-c", calls["setup"]], cwd=workspace, check=True)
        backend = LocalBackend()
        sandbox = await backend._aopen(BackendSandboxSpec(working_dir=workspace))
        dispatch = lambda call: asyncio.run(backend._adispatch(sandbox, call))
        session = types.SimpleNamespace(require_sandbox=lambda: types.SimpleNamespace(dispatch=dispatch))
        answers = {}
        for name, tool, raw in calls["calls"]:
            parsed, failed = parse_tool_arguments(raw)
            call = RathLLMToolCallPart(id="1", type="function", function=RathLLMToolCallFunction(
                name=tool, arguments=raw, arguments_parsed=parsed, arguments_parse_error=failed))
            rows = []
            await _adispatch_round(session, rows, (call,), dict(global_system_tools()), _SyncExecutorAsyncAdapter(Executor()), None)
            answer = json.loads(rows[0].payload["content"].replace(workspace + "/", ""))
            for key in ("elapsed_ms", "message", "detail"):  # they differ from run to run
                answer.pop(key, None)
            answers[name] = answer
        print(json.dumps(answers, indent=1, ensure_ascii=False))


asyncio.run(main())
