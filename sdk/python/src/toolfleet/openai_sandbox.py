"""Sandboxes of a fleet for sandbox agents of the OpenAI Agents SDK (pip install toolfleet[openai-agents]).

    run = SandboxRunConfig(client=FleetSandboxClient(client))
    await Runner.run(SandboxAgent(...), "...", run_config=RunConfig(sandbox=run))
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shlex
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

import anyio
from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate, allocate_pty_process_id
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.token_truncation import formatted_truncate_text_with_token_count

from . import _adapter
from . import types as t
from ._async import AsyncClient, AsyncFuture, AsyncSession
from ._common import Result
from ._errors import APIError, NotFound, ToolfleetError

# A snapshot begins with it: the rest names the session that has the files.
_MAGIC = b"TOOLFLEET_SNAPSHOT_V1\n"

# How long a command may run that the SDK sets no bound for, in seconds.
_LONGEST = 3600

# How much one command writes into a file: its base64 must fit into an argument of a program.
_PIECE = 64 << 10

# How much of a file is read by one command: less than what a result has of the output.
_READ = 64 << 10

# How much of what a command writes waits for the agent's next update: the last of it.
_UNREAD = 1 << 20


class FleetSandboxClientOptions(BaseSandboxClientOptions):
    """What the calls of a sandbox need."""

    type: Literal["toolfleet"] = "toolfleet"
    pool: str | None = None
    """Pool of workers."""
    min_level: Literal["none", "paths", "full", "kernel"] | None = None
    """Minimum sandbox level."""
    exposed_ports: tuple[int, ...] = ()
    """Ports that the agent may ask for. The fleet resolves none: they are refused by name."""


class FleetSandboxSessionState(SandboxSessionState):
    """Names the session of the fleet that has the files."""

    type: Literal["toolfleet"] = "toolfleet"
    fleet_session: str
    pool: str | None = None
    min_level: Literal["none", "paths", "full", "kernel"] | None = None


class FleetSandboxSession(BaseSandboxSession):
    """A sandbox is a session of the fleet: each command is a call, and the files are stored after it."""

    state: FleetSandboxSessionState

    def __init__(self, client: AsyncClient, state: FleetSandboxSessionState) -> None:
        self._client, self.state, self._running = client, state, False
        self._started: dict[int, _Started] = {}

    @property
    def _session(self) -> AsyncSession:
        return self._client.session(self.state.fleet_session)

    async def _after_start(self) -> None:
        self._running = True

    async def _after_shutdown(self) -> None:
        self._running = False

    async def running(self) -> bool:
        return self._running

    # Commands

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        try:
            arguments = await self._arguments(command, timeout)
            result = await _adapter.ended(self._client, "bash", arguments, **self._options(self.state.fleet_session))
        except ToolfleetError as error:
            raise _not_run(command, error) from error
        return _ran(command, timeout, result)

    async def _arguments(self, command: Sequence[str | Path], timeout: float | None) -> dict[str, Any]:
        """Arguments of bash."""
        made: dict[str, Any] = {"command": shlex.join(str(part) for part in command)}
        made["timeout"] = _LONGEST if timeout is None else min(timeout, _LONGEST)
        if env := await self.state.manifest.environment.resolve():
            made["env"] = env
        return made

    def _options(self, session: str) -> t.CallRequest:
        options: t.CallRequest = {"session_id": session}
        if self.state.pool is not None:
            options["pool"] = self.state.pool
        if self.state.min_level is not None:
            options["min_level"] = self.state.min_level
        return options

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: str | User | None) -> list[str]:
        if user is not None:
            _refuse("a sandbox of the fleet has one user: user must be None", "exec")
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    # Commands that run for longer than the agent waits at once: it asks again by their number

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        if tty:
            _refuse("a command of the fleet's sandboxes has no terminal: tty must be false", "exec")
        wanted = self._prepare_exec_command(*command, shell=shell, user=user)
        try:
            future = await self._client.send("bash", await self._arguments(wanted, timeout), **self._options(self.state.fleet_session))
        except ToolfleetError as error:
            raise _not_run(wanted, error) from error
        number = allocate_pty_process_id(set(self._started))
        self._started[number] = _Started(wanted, future)
        try:
            return await self._update(number, 10.0 if yield_time_s is None else yield_time_s, max_output_tokens)
        except asyncio.CancelledError:
            await self._cancel(number)
            raise

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        self._resolve_pty_session_entry(pty_processes=self._started, session_id=session_id)
        if chars:
            raise RuntimeError("stdin is not available for this process")
        return await self._update(session_id, 5.0 if yield_time_s is None else max(5.0, yield_time_s), max_output_tokens)

    async def pty_terminate_all(self) -> None:
        for number in list(self._started):
            await self._cancel(number)

    async def _cancel(self, number: int) -> None:
        started = self._started.pop(number)
        started.ending.cancel()
        with anyio.move_on_after(5, shield=True), suppress(ToolfleetError):
            await started.future.cancel()

    async def _update(self, number: int, seconds: float, tokens: int | None) -> PtyExecUpdate:
        """What a command has written since the last update, and how it ended."""
        started = self._started[number]
        await asyncio.wait({started.ending}, timeout=max(0.0, seconds))
        ended: ExecResult | None = None
        output = started.unread()
        if started.ending.done():
            del self._started[number]
            try:
                result = started.ending.result()
            except ToolfleetError as error:
                raise _not_run(started.command, error) from error
            ended = _ran(started.command, None, result)
            if not started.seen:  # live output can have gaps, the result has none
                combined = result.value.get("combined")
                output = ended.stdout + ended.stderr if combined is None else _output(combined)
        started.seen = True
        text, count = formatted_truncate_text_with_token_count(output.decode(errors="replace"), tokens)
        return PtyExecUpdate(None if ended else number, text.encode(), ended.exit_code if ended else None, count)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        raise ExposedPortUnavailableError(
            port=port,
            exposed_ports=self.state.exposed_ports,
            reason="backend_unavailable",
            context={"backend": "toolfleet", "detail": "ports of a fleet's sandboxes are published by its operator, with --publish"},
        )

    # Files

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        target = await self._validate_path_access(path)
        root = self._workspace_root_path()
        try:
            if target.is_relative_to(root):
                return io.BytesIO(await self._session.read_file(target.relative_to(root).as_posix()))
        except NotFound:  # also a link
            pass
        except APIError as error:
            raise WorkspaceArchiveReadError(path=target, context={"code": error.code}, cause=error) from error
        read = b""
        while True:
            part = f"tail -c +{len(read) + 1} -- {shlex.quote(target.as_posix())} | head -c {_READ}"
            done = await self.exec("sh", "-c", f"[ -f {shlex.quote(target.as_posix())} ] && {part}", shell=False)
            if not done.ok():
                raise WorkspaceReadNotFoundError(path=target)
            read += done.stdout
            if len(done.stdout) < _READ:
                return io.BytesIO(read)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        payload = data.read()
        if isinstance(payload, str):
            payload = payload.encode()
        if not isinstance(payload, (bytes, bytearray)):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(payload).__name__)
        target = (await self._validate_path_access(path, for_write=True)).as_posix()
        part = f"{target}.{uuid.uuid4().hex}.part"  # others see the whole file or the old one
        await self._shell(target, f'mkdir -p -- "$(dirname -- {shlex.quote(target)})" && : >{shlex.quote(part)}')
        for start in range(0, len(payload), _PIECE):
            text = base64.b64encode(payload[start : start + _PIECE]).decode()
            await self._shell(target, f"base64 -d >>{shlex.quote(part)} <<'END'\n{text}\nEND")
        await self._shell(target, f"mv -T -- {shlex.quote(part)} {shlex.quote(target)}")

    async def _shell(self, path: str, script: str) -> None:
        """Runs a script that writes to a path."""
        done = await self.exec("sh", "-c", script, shell=False)
        if not done.ok():
            raise WorkspaceArchiveWriteError(path=Path(path), context={"stderr": done.stderr.decode(errors="replace")})

    # Snapshots: a fork of the session, which shares the contents of the files

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return False

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        try:
            snapshot = await self._session.fork()
            if skipped := sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths()):
                command = shlex.join(["rm", "-rf", "--", *skipped])
                (await _adapter.ended(self._client, "bash", {"command": command}, **self._options(snapshot.id))).check()
        except ToolfleetError as error:
            raise WorkspaceArchiveReadError(path=root, context={"code": error.code}, cause=error) from error
        return io.BytesIO(_MAGIC + json.dumps({"session_id": snapshot.id}).encode())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        archive = data.read()
        if not archive.startswith(_MAGIC):
            await self._extract_tar_archive(archive_path=root / "snapshot.tar", destination_root=root, data=io.BytesIO(archive))
            return
        replaced = self._session
        try:
            made = await self._client.session(json.loads(archive[len(_MAGIC) :])["session_id"]).fork()
            self.state.fleet_session = made.id
            await replaced.remove(force=True)
        except NotFound as error:
            if self.state.fleet_session == replaced.id:
                raise WorkspaceArchiveWriteError(path=root, context={"reason": "snapshot_removed"}, cause=error) from error
        except ToolfleetError as error:
            raise WorkspaceArchiveWriteError(path=root, context={"code": error.code}, cause=error) from error


class _Started:
    """A command that was started, and is followed."""

    def __init__(self, command: Sequence[str], future: AsyncFuture) -> None:
        self.command, self.future = command, future
        self._output, self._lost = bytearray(), 0
        self.seen = False  # whether the agent has got an update
        self.ending = asyncio.ensure_future(self._follow())

    async def _follow(self) -> Result:
        async for piece in self.future.output():
            self._output += piece.data
            if len(self._output) > 2 * _UNREAD:
                self._lost += len(self._output) - _UNREAD
                del self._output[:-_UNREAD]
        return await self.future.wait()

    def unread(self) -> bytes:
        """What it has written since the last time, and how much before that did not fit."""
        lost = f"[{self._lost} bytes left out]\n".encode() if self._lost else b""
        output = lost + bytes(self._output)
        self._output.clear()
        self._lost = 0
        return output


class FleetSandboxClient(BaseSandboxClient[FleetSandboxClientOptions | None]):
    """Makes sandboxes on a fleet.

    A snapshot is a fork of the sandbox's session, which stays until it is removed.
    """

    backend_id = "toolfleet"
    supports_default_options = True

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: FleetSandboxClientOptions | None = None,
    ) -> SandboxSession:
        options = options or FleetSandboxClientOptions()
        if manifest and (manifest.users or manifest.groups):
            _refuse("a sandbox of the fleet has one user: the manifest must have no users and groups", "start")
        id = uuid.uuid4()
        state = FleetSandboxSessionState(
            session_id=id,
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(snapshot, str(id)),
            exposed_ports=options.exposed_ports,
            fleet_session=id.hex,
            pool=options.pool,
            min_level=options.min_level,
        )
        inner = FleetSandboxSession(self._client, state)
        await self._at_root(inner)
        return self._wrap_session(inner)

    async def _at_root(self, session: FleetSandboxSession) -> None:
        """Makes the workspace, whose directory is the root of the manifest, if that has the default."""
        at = (await session.exec("pwd", shell=False)).stdout.decode().removesuffix("\n")
        manifest = session.state.manifest
        if manifest.root != at and manifest.root != Manifest().root:
            _refuse(f"the root of the manifest is {manifest.root!r}, must be {at!r}", "start")
        session.state.manifest = manifest.model_copy(update={"root": at})

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if not isinstance(inner, FleetSandboxSession):
            raise TypeError("FleetSandboxClient.delete needs a session that it made")
        try:
            await inner._session.remove(force=True)
        except NotFound:
            pass
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, FleetSandboxSessionState):
            raise TypeError(f"FleetSandboxClient.resume needs the state of its sandbox, not of {state.type!r}")
        state.assert_path_grants_rebound()
        inner = FleetSandboxSession(self._client, state)
        try:
            await inner._session.files()
            inner._set_start_state_preserved(True)
        except NotFound:
            state.fleet_session, state.workspace_root_ready = uuid.uuid4().hex, False
            await self._at_root(inner)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, FleetSandboxSessionState)


def _output(written: str | dict[str, str]) -> bytes:
    """What a command wrote: a text, or base64 of what is none."""
    return written.encode() if isinstance(written, str) else base64.b64decode(written["base64"])


def _ran(command: Sequence[str | Path], timeout: float | None, result: Result) -> ExecResult:
    """How a command ended."""
    if result.status == "timeout":
        raise ExecTimeoutError(command=command, timeout_s=timeout)
    if not result.ok:
        code = result.error["code"] if result.error else result.status
        raise ExecTransportError(command=command, context={"status": result.status, "code": code}, message=result.text)
    ran = result.value
    return ExecResult(stdout=_output(ran["stdout"]), stderr=_output(ran["stderr"]), exit_code=ran["exit_code"])


def _not_run(command: Sequence[str | Path], error: ToolfleetError) -> ExecTransportError:
    return ExecTransportError(command=command, context={"code": error.code}, cause=error, message=str(error))


def _refuse(message: str, op: Literal["exec", "start"]) -> NoReturn:
    raise ConfigurationError(message=message, error_code=ErrorCode.SANDBOX_CONFIG_INVALID, op=op, context={"backend": "toolfleet"})
