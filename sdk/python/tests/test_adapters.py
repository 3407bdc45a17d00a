"""The examples of adapters, which are those of their pages, against a scripted model."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from scripted import scripted

EXAMPLES = ROOT / "sdk" / "python" / "examples"
PAGES = ROOT / "docs" / "adapters"
COUNT = {"command": "ls | wc -l"}


@pytest.mark.parametrize(
    ("example", "page", "needs", "tool", "arguments", "says"),
    [
        ("openai_agents_example.py", "openai-agents.md", ["agents"], "bash", COUNT, r"3"),
        ("openai_sandbox_example.py", "openai-agents.md", ["agents.sandbox"], "exec_command", {"cmd": "find . -type f | wc -l"}, r".*Output:\n2"),
        ("langgraph_example.py", "langgraph.md", ["langgraph", "langchain_openai"], "bash", COUNT, r"3"),
        ("pydantic_ai_example.py", "pydantic-ai.md", ["pydantic_ai", "openai"], "bash", COUNT, r"3"),
        ("claude_agent_example.py", "claude-agent-sdk.md", ["claude_agent_sdk"], "mcp__fleet__bash", COUNT, r'\{"status":"ok".*"stdout":"3\\n".*'),
    ],
)
def test_example(example: str, page: str, needs: list[str], tool: str, arguments: dict[str, Any], says: str, workspace: Path, tmp_path: Path) -> None:
    code = (EXAMPLES / example).read_text()
    assert f"```python\n{code}```\n" in (PAGES / page).read_text(), f"docs/adapters/{page} has the example word for word"
    for name in needs:
        if importlib.util.find_spec(name.split(".")[0]) is None:
            pytest.skip(f"{name}: not installed")
    if page == "claude-agent-sdk.md" and not has_claude_code():
        pytest.skip("claude-agent-sdk brings no program of Claude Code for this machine, and PATH has none")
    for name in "abc":
        (workspace / name).touch()
    with scripted(tool, arguments) as model:
        env = {
            **os.environ,
            "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "none",
            "MCP_TIMEOUT": "120000",
            "MCP_CONNECT_TIMEOUT_MS": "120000",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        done = subprocess.run([sys.executable, EXAMPLES / example], cwd=workspace, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(f"The tool said: {says}", done.stdout.strip(), re.DOTALL), done.stdout
        offered = model.offered
    assert tool in offered
    if tool == "bash":
        assert set(offered) == {"bash", "read", "write"}
    if tool == "mcp__fleet__bash":
        assert "Bash" not in offered, "which runs outside of a sandbox"


def has_claude_code() -> bool:
    import claude_agent_sdk

    return (Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude").exists() or shutil.which("claude") is not None


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_what_a_page_installs_is_there(page: Path) -> None:
    project = (ROOT / "sdk" / "python" / "pyproject.toml").read_text()
    for extra in re.findall(r"toolfleet\[([a-z-]+)\]", page.read_text()):
        assert f"\n{extra} = [" in project
