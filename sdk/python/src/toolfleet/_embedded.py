"""A server of one's own: coordinator http as a child process."""

from __future__ import annotations

import collections
import json
import os
import queue
import shutil
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ._errors import ToolfleetError, Unreachable

# Names the program, where it is not in PATH.
PROGRAM_VARIABLE = "TOOLFLEET_COORDINATOR"

# In which time the child must have ended after its stdin was closed, in seconds.
END_TIMEOUT = 15.0


class Embedded:
    """A running coordinator http. It ends when its stdin is closed, and so with this process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, timeout: float) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,  # ^C of a terminal is for this program, which then ends the child
            )
        except OSError as error:
            raise ToolfleetError(f"{command[0]}: {error}") from error
        self.last_words: collections.deque[str] = collections.deque(maxlen=20)
        self.close = weakref.finalize(self, _end, self.process)  # also when the interpreter ends
        threading.Thread(target=_drain, args=(self.process.stderr, self.last_words), daemon=True).start()
        lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_first_line, args=(self.process.stdout, lines), daemon=True).start()
        try:
            line: bytes | None = lines.get(timeout=timeout)
        except queue.Empty:
            line = None
        if not line:
            self.close()
            why = f"said nothing within {timeout:g} s" if line is None else f"ended with {self.process.returncode}"
            raise Unreachable({"code": "unreachable", "detail": "\n".join([f"{' '.join(command)}: {why}", *self.last_words])})
        said = json.loads(line)
        self.url: str = said["url"]
        self.token: str | None = Path(said["token_file"]).read_text().strip() if said.get("token_file") else None


def _first_line(out: IO[bytes], into: queue.Queue[bytes]) -> None:
    into.put(out.readline())
    for _ in out:  # it writes one line, but must never wait for a reader
        pass


def _drain(out: IO[bytes], into: collections.deque[str]) -> None:
    for line in out:
        into.append(line.decode(errors="replace").rstrip())


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_of(
    workspace: str | os.PathLike[str] | None,
    model: str | Sequence[str] | None,
    data: str | os.PathLike[str] | None,
    toolsets: Sequence[str] | None,
    coordinator: str | os.PathLike[str] | None,
    args: Sequence[str],
) -> list[str]:
    """The command of a server of one's own."""
    wanted = os.fspath(coordinator) if coordinator is not None else os.environ.get(PROGRAM_VARIABLE, "coordinator")
    program = shutil.which(wanted)
    if program is None:
        raise ToolfleetError(f"{wanted}: no such program: put coordinator into PATH, or set {PROGRAM_VARIABLE} or coordinator=")
    command = [program, "http", "--until-stdin-closes"]
    if workspace is not None:
        command += ["--workspace", os.fspath(workspace)]
    for name in [model] if isinstance(model, str) else model or []:
        command += ["--model", name]
    if data is not None:
        command += ["--data", os.fspath(data)]
    if toolsets is not None:
        command += ["--toolset", ",".join(toolsets)]
    return [*command, *args]
