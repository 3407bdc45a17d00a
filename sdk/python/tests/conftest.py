"""Servers for tests: coordinator http of this repository."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from toolfleet import Client

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
COORDINATOR = os.environ.setdefault("TOOLFLEET_COORDINATOR", str(ROOT / "bin" / "coordinator"))


def pytest_sessionstart() -> None:
    if not Path(COORDINATOR).exists():
        raise pytest.UsageError(f"{COORDINATOR}: missing: run make build, or make sdk-python")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What servers keep is of this test only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def until(find: Callable[[], T]) -> T:
    """What find returns once that is something."""
    for _ in range(1200):
        if found := find():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing came within a minute")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """A coordinator http at a port of its own, which can be killed and started again."""

    def __init__(self, workspace: Path, data: Path, *args: str) -> None:
        self.command = [COORDINATOR, "http", "--until-stdin-closes", "--workspace", str(workspace), "--data", str(data), "--http", f"127.0.0.1:{free_port()}", *args]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"{self.command}: ended with {self.process.wait()}"
        said = json.loads(line)
        self.url, self.token_file = said["url"], said["token_file"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def client(workspace: Path) -> Iterator[Client]:
    with Client.from_embedded(workspace) as made:
        yield made


def model(tmp_path: Path, *steps: dict[str, object]) -> str:
    """A model that replies with these steps, in order."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps({"steps": steps}))
    return f"script:{file}"
