"""docs/python.md, word for word: its files and its commands in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, free_port

WHEEL = os.environ.get("TOOLFLEET_WHEEL")
PYTHON = "/usr/bin/python3"


def script(text: str) -> str:
    """The blocks of a page as one script: a block that begins with a file's name makes the file."""
    out = ["set -euo pipefail; set -m", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        if kind == "sh":
            out.append(body)
        elif named := re.match(r"# (\S+)\n", body):
            out.append(f"cat >{named[1]} <<'END_OF_FILE'\n{body}END_OF_FILE")
    return "\n".join(out)


@pytest.mark.skipif(WHEEL is None, reason="TOOLFLEET_WHEEL names no wheel: run make sdk-python")
def test_fifteen_minutes(tmp_path: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 10))"], capture_output=True).returncode != 0:
        pytest.skip(f"{PYTHON}: is missing, older than 3.10, or without venv: the page is not tested")
    page = (ROOT / "docs" / "python.md").read_text()
    nats, http = free_port(), free_port()
    text = script(page.split("## The client")[0]).replace("4222", str(nats)).replace("7070", str(http))
    env = {**os.environ, "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}", "PIP_FIND_LINKS": str(Path(WHEEL or "").parent), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env.pop("TOOLFLEET_COORDINATOR", None)
    folder = tmp_path / "shop"
    folder.mkdir()
    child = subprocess.Popen(["bash", "-c", text], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = child.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        said, _ = child.communicate(timeout=60)
    assert child.returncode == 0, said
    for line in (r"^hi$", r"250 cents paid back to account 7", r"^100 cents paid back to account 7$", r"^a call ended: ok$", r"^The money is paid back\.$"):
        assert re.search(line, said, re.M), f"{line}\n{said}"
