"""Sandboxes of the OpenAI Agents SDK on a real fleet."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolfleet import AsyncClient

pytest.importorskip("agents.sandbox", reason="openai-agents is not installed")

from agents.sandbox import Manifest
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.sandbox.types import User

from toolfleet import openai_sandbox
from toolfleet.openai_sandbox import FleetSandboxClient, FleetSandboxClientOptions, FleetSandboxSession, FleetSandboxSessionState


def run(body: Callable[[AsyncClient, FleetSandboxClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await AsyncClient.from_embedded() as client:
            await body(client, FleetSandboxClient(client))

    asyncio.run(main())


def test_output_that_no_update_asks_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 32 << 10
    monkeypatch.setattr(openai_sandbox, "_UNREAD", bound)

    async def body(_: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        async with await sandboxes.create() as sandbox:
            inner = sandbox._inner
            assert isinstance(inner, FleetSandboxSession)
            update = await sandbox.pty_exec_start("yes", yield_time_s=0.1)
            assert update.process_id is not None
            started = inner._started[update.process_id]
            for _ in range(1200):
                if started._lost > 8 * bound:
                    break
                await asyncio.sleep(0.05)
            assert started._lost > 8 * bound and len(started._output) <= 2 * bound
            update = await sandbox.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=0.1)
            assert update.output.startswith(b"[") and b" bytes left out]" in update.output[:40]
            await sandbox.pty_terminate_all()

    run(body)


def test_commands_and_files() -> None:
    async def body(client: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        manifest = Manifest(entries={"src": Dir(children={"a.py": File(content=b"print(1)\n")})}, environment={"value": {"WHO": "me"}})
        async with await sandboxes.create(manifest=manifest) as sandbox:
            assert sandbox.state.manifest.root == "/workspace" and await sandbox.running()
            ran = await sandbox.exec("cat src/a.py; echo $WHO; printf '\\377\\0' >&2; exit 3")
            assert (ran.stdout, ran.stderr, ran.exit_code) == (b"print(1)\nme\n", b"\xff\x00", 3)
            big = bytes(range(256)) * 1000
            for content in (b"", b"text\n", big):
                await sandbox.write(Path("made/here/it is"), io.BytesIO(content))
                assert (await sandbox.read(Path("/workspace/made/here/it is"))).read() == content
            assert await sandbox.read_bounded(Path("made/here/it is"), max_bytes=5) == big[:5]
            await sandbox.exec("ln -s 'made/here/it is' link")
            assert (await sandbox.read(Path("link"))).read() == big, "a link is followed by a command"
            assert sorted(entry.path.rsplit("/", 1)[-1] for entry in await sandbox.ls("/workspace")) == ["link", "made", "src"]
            await sandbox.mkdir("deep/er", parents=True)
            await sandbox.mv("src/a.py", "deep/er/b.py")
            await sandbox.apply_patch({"type": "update_file", "path": "deep/er/b.py", "diff": "@@\n-print(1)\n+print(2)\n"})
            assert (await sandbox.read(Path("deep/er/b.py"))).read() == b"print(2)\n"
            await sandbox.rm("deep", recursive=True)
            for missing in ("deep/er/b.py", "none"):
                with pytest.raises(WorkspaceReadNotFoundError):
                    await sandbox.read(Path(missing))
            with pytest.raises(InvalidManifestPathError):
                await sandbox.read(Path("../etc/passwd"))
            with pytest.raises(ExecTimeoutError):
                await sandbox.exec("sleep 60", timeout=0.5)
            await sandboxes.delete(sandbox)
            with pytest.raises(ConfigurationError, match="one user"):
                await sandbox.exec("id", user=User(name="root"))
        assert [s for s in (await client.sessions())["sessions"]] == []

    run(body)


def test_a_command_that_the_agent_gives_up_is_cancelled() -> None:
    async def body(client: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        async with await sandboxes.create() as sandbox:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.exec("sleep 600"), 1)
            assert (await asyncio.wait_for(sandbox.exec("echo free"), 60)).stdout == b"free\n"

    run(body)


def test_a_long_command_is_asked_again() -> None:
    async def body(client: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        async with await sandboxes.create() as sandbox:
            assert sandbox.supports_pty()
            ended = await sandbox.pty_exec_start("echo out; echo err >&2; exit 3", yield_time_s=60)
            assert ended.process_id is None and ended.exit_code == 3 and sorted(ended.output.split()) == [b"err", b"out"]
            started = await sandbox.pty_exec_start("echo begin; sleep 4; echo end", yield_time_s=2)
            assert started.process_id is not None and started.exit_code is None
            seen, update = started.output, started
            while update.process_id is not None:
                update = await sandbox.pty_write_stdin(session_id=started.process_id, chars="")
                seen += update.output
            assert update.exit_code == 0 and seen.endswith(b"end\n")
            with pytest.raises(PtySessionNotFoundError):
                await sandbox.pty_write_stdin(session_id=started.process_id, chars="")
            with pytest.raises(ConfigurationError, match="terminal"):
                await sandbox.pty_exec_start("python3", tty=True)
            endless = await sandbox.pty_exec_start("sleep 600", yield_time_s=0.2)
            assert endless.process_id is not None
            with pytest.raises(RuntimeError, match="stdin"):
                await sandbox.pty_write_stdin(session_id=endless.process_id, chars="x")
            await sandbox.pty_terminate_all()
            assert (await asyncio.wait_for(sandbox.exec("echo free"), 60)).stdout == b"free\n"

    run(body)


def test_what_a_fleet_has_not_is_refused_by_name() -> None:
    async def body(client: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        options = FleetSandboxClientOptions(exposed_ports=(8080,))
        async with await sandboxes.create(options=options) as sandbox:
            with pytest.raises(ExposedPortUnavailableError) as refused:
                await sandbox.resolve_exposed_port(8080)
            assert "--publish" in str(refused.value.context)
            with pytest.raises(ExposedPortUnavailableError):
                await sandbox.resolve_exposed_port(8081)
        with pytest.raises(ConfigurationError, match="must be '/workspace'"):
            await sandboxes.create(manifest=Manifest(root="/elsewhere"))
        with pytest.raises(ConfigurationError, match="no users"):
            await sandboxes.create(manifest=Manifest(users=[User(name="u")]))
        with pytest.raises(ExecTransportError, match="not a pool"):
            await sandboxes.create(options=FleetSandboxClientOptions(pool="not a pool"))

    run(body)


def test_snapshots_and_resume(tmp_path: Path) -> None:
    async def body(client: AsyncClient, sandboxes: FleetSandboxClient) -> None:
        manifest = Manifest(entries={"kept": File(content=b"kept\n"), "passing": File(content=b"passing\n", ephemeral=True)})
        snapshot = LocalSnapshotSpec(base_path=tmp_path)
        sandbox = await sandboxes.create(manifest=manifest, snapshot=snapshot)
        async with sandbox:
            await sandbox.write(Path("made"), io.BytesIO(b"made\n"))
            first: Any = sandboxes.serialize_session_state(sandbox.state)
        saved: Any = sandboxes.serialize_session_state(sandbox.state)

        async def listed(of: Any) -> tuple[list[str], str]:
            state = sandboxes.deserialize_session_state(of)
            resumed = await sandboxes.resume(state)
            async with resumed:
                assert isinstance(resumed.state, FleetSandboxSessionState)
                return sorted(entry.path.rsplit("/", 1)[-1] for entry in await resumed.ls(".")), resumed.state.fleet_session

        # Without a snapshot of its own state it is the same sandbox.
        assert (await listed({**first, "snapshot": {"type": "noop", "id": "x"}})) == (["kept", "made", "passing"], first["fleet_session"])
        # The sandbox is removed, and made again of the snapshot.
        await sandboxes.delete(sandbox)
        names, at = await listed(saved)
        assert names == ["kept", "made", "passing"] and at != saved["fleet_session"]

        # A snapshot can begin another one, and a tar of others too.
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            member = tarfile.TarInfo("of/others")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"tar"))
        async with await sandboxes.create() as other:
            await other.hydrate_workspace(io.BytesIO(tar.getvalue()))
            assert (await other.read(Path("of/others"))).read() == b"tar"

    run(body)
