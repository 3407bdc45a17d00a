package background_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

type rig struct {
	*background.Processes

	t    *testing.T
	box  sandbox.Sandbox
	file string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	box, err := process.New(nil).Open(t.Context(), isolation.Spec{
		ID: "test", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "processes.json")
	r := &rig{Processes: background.New(file), t: t, box: box, file: file}
	t.Cleanup(r.end)
	return r
}

// end closes the sandbox, as the worker does.
func (r *rig) end() {
	require.NoError(r.t, r.box.Close())
	r.Wait()
}

func (r *rig) start(handle, script string) wire.ProcessReadResult {
	r.t.Helper()
	got, err := r.Start(r.t.Context(), r.box, command(handle, script), time.Millisecond)
	require.NoError(r.t, err)
	return got
}

func command(handle, script string) background.Command {
	return background.Command{
		Handle: handle, Text: script, Lifetime: time.Minute, Written: spool.New(os.TempDir()),
		StoreFull: func(*spool.Spool) (protocol.CallID, error) { return "", errors.New("nothing is kept here") },
		Cmd:       sandbox.Cmd{Argv: []string{"sh", "-c", script}, Limits: sandbox.Limits{Grace: 100 * time.Millisecond}},
	}
}

// until reads a process until it wrote what ends with want.
func (r *rig) until(handle, want string) wire.ProcessReadResult {
	r.t.Helper()
	var got wire.ProcessReadResult
	require.Eventually(r.t, func() bool {
		var err error
		got, err = r.Read(r.t.Context(), wire.ProcessRead{Process: handle, Offset: -1000, Wait: 1000})
		require.NoError(r.t, err)
		return strings.HasSuffix(string(got.Content), want)
	}, patience, time.Millisecond)
	return got
}

func TestProcesses_LiveBesideOtherCommandsAndAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sh := func(script string) {
		result, err := r.box.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script}})
		require.NoError(t, err)
		require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
	}
	sh("mkfifo go")
	require.Equal(t, "running", r.start("p-1", "echo ready; read x <go; echo $x >&2; sleep 300").Reason)
	require.Equal(t, 1, r.Running())
	r.until("p-1", "ready\n")
	sh("echo set >go")
	got := r.until("p-1", "ready\nset\n")
	require.Equal(t, got.Offset+int64(len(got.Content)), got.NextOffset)
	require.Equal(t, "running", got.Reason)
}

func TestProcesses_OneThatFailsAtOnceIsToldAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got, err := r.Start(t.Context(), r.box, command("p-1", "echo no >&2; exit 3"), patience)
	require.NoError(t, err)
	require.Equal(t, []any{"exited", 3, "no\n"}, []any{got.Reason, got.ExitCode, string(got.Content)})
	require.Zero(t, r.Running())
	c := command("p-2", "")
	c.Argv = []string{"no-such-program"}
	_, err = r.Start(t.Context(), r.box, c, patience)
	var fault *protocol.Error
	require.ErrorAs(t, err, &fault)
	require.Len(t, r.List().Processes, 1, "what could not be started never was")
}

func TestProcesses_AreKilledWithAllThatTheyStarted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("p-1", `trap "" TERM; (trap "" TERM; sleep 300) & echo up; wait`)
	r.until("p-1", "up\n")
	got, err := r.Kill(t.Context(), "p-1")
	require.NoError(t, err)
	require.Equal(t, []string{"cancelled", "SIGKILL"}, []string{got.Reason, got.Signal})
	require.Zero(t, r.Running())
	again, err := r.Kill(t.Context(), "p-1")
	require.NoError(t, err, "killing what is dead is fine")
	require.Equal(t, got, again)
}

func TestProcesses_EndWithTheirLifeTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := command("p-1", "sleep 300")
	c.Lifetime = 200 * time.Millisecond
	got, err := r.Start(t.Context(), r.box, c, patience)
	require.NoError(t, err)
	require.Equal(t, "timeout", got.Reason)
}

func TestProcesses_ACancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Start(ctx, r.box, command("p-1", "sleep 300"), patience)
	require.NoError(t, err)
	require.Zero(t, r.Running())
}

func TestProcesses_OutputIsKeptFromItsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got, err := r.Start(t.Context(), r.box, command("p-1", "seq 1 200000"), patience)
	require.NoError(t, err)
	require.Equal(t, "exited", got.Reason)
	require.EqualValues(t, 1_288_895, got.Bytes)
	require.Equal(t, got.Bytes-background.KeepBytes, got.Offset, "what is older is gone")
	require.Equal(t, got.Offset, got.Dropped)
	var all strings.Builder
	for at := got.Offset; ; {
		next, err := r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Offset: at, Limit: 10_000})
		require.NoError(t, err)
		require.Equal(t, at, next.Offset)
		if len(next.Content) == 0 {
			break
		}
		all.Write(next.Content)
		at = next.NextOffset
	}
	require.Equal(t, background.KeepBytes, all.Len())
	require.True(t, strings.HasSuffix(all.String(), "\n199999\n200000\n"))
	tail, err := r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Offset: -7})
	require.NoError(t, err)
	require.Equal(t, "200000\n", string(tail.Content))
}

// All that a living process wrote is read, whatever it wrote; when it has ended, that is kept.
func TestProcesses_AllOfTheOutputIsReadAndKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := command("p-1", "seq 1 200000; echo up; until test -e go; do sleep 0.01; done")
	var kept []byte
	c.StoreFull = func(written *spool.Spool) (protocol.CallID, error) {
		var err error
		kept, err = io.ReadAll(written.Reader(sandbox.Stdout, sandbox.Stderr))
		return "c-1", err
	}
	_, err := r.Start(t.Context(), r.box, c, time.Millisecond)
	require.NoError(t, err)
	living := r.until("p-1", "up\n")
	require.Zero(t, living.Dropped)
	var all bytes.Buffer
	for at := int64(0); ; {
		next, err := r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Offset: at, Limit: 40_000})
		require.NoError(t, err)
		require.Equal(t, at, next.Offset)
		if len(next.Content) == 0 {
			break
		}
		all.Write(next.Content)
		at = next.NextOffset
	}
	require.EqualValues(t, living.Bytes, all.Len())
	require.True(t, strings.HasPrefix(all.String(), "1\n2\n3\n"))
	require.Empty(t, living.Kept)
	result, err := r.box.Exec(t.Context(), sandbox.Cmd{Argv: []string{"touch", "go"}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode)
	ended, err := r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Offset: living.Bytes, Wait: protocol.MillisOf(patience)})
	require.NoError(t, err)
	require.Equal(t, []any{"exited", protocol.CallID("c-1")}, []any{ended.Reason, ended.Kept})
	require.Equal(t, living.Bytes-background.KeepBytes, ended.Dropped, "here")
	require.Equal(t, all.Bytes(), kept)
}

func TestProcesses_AWaitEndsWithNewsOrWithTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("p-1", "while [ ! -e go ]; do sleep 0.01; done; printf news; sleep 0.2")
	done := make(chan wire.ProcessReadResult, 1)
	go func() {
		got, err := r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Wait: 60_000})
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	_, err := r.box.FS().Write(t.Context(), protocol.FilesWrite{Path: "go"})
	require.NoError(t, err)
	got := <-done
	require.Equal(t, "news", string(got.Content))
	got, err = r.Read(t.Context(), wire.ProcessRead{Process: "p-1", Offset: got.NextOffset, Wait: 60_000})
	require.NoError(t, err)
	require.Equal(t, "exited", got.Reason)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.start("p-2", "sleep 300")
	_, err = r.Read(ctx, wire.ProcessRead{Process: "p-2", Wait: 60_000})
	require.ErrorIs(t, err, context.Canceled)
}

func TestProcesses_ThereIsALimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range background.MaxRunning {
		r.start(string(rune('a'+i)), "sleep 300")
	}
	_, err := r.Start(t.Context(), r.box, command("one more", "true"), patience)
	var refusal *protocol.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, protocol.CodeLimitReached, refusal.Code)
	_, err = r.Kill(t.Context(), "a")
	require.NoError(t, err)
	r.start("one more", "true")
}

func TestProcesses_EndsAreRememberedBeyondTheSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range background.MaxEnded + 3 {
		_, err := r.Start(t.Context(), r.box, command(string(rune('a'+i)), "echo "+string(rune('a'+i))), patience)
		require.NoError(t, err)
		r.Wait()
	}
	r.start("lives", "echo still; sleep 300")
	r.until("lives", "still\n")
	r.end()
	next := background.New(r.file)
	list := next.List().Processes
	require.Len(t, list, background.MaxEnded)
	require.Equal(t, "lives", list[len(list)-1].Process)
	require.Equal(t, "cancelled", list[len(list)-1].Reason)
	got, err := next.Read(t.Context(), wire.ProcessRead{Process: "s", Wait: 60_000})
	require.NoError(t, err)
	require.Equal(t, []any{"exited", 0, "s\n", int64(2)}, []any{got.Reason, got.ExitCode, string(got.Content), got.Bytes})
	_, err = next.Kill(t.Context(), "s")
	require.NoError(t, err)
	_, err = next.Read(t.Context(), wire.ProcessRead{Process: "a"})
	var refusal *protocol.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, protocol.CodeNotFound, refusal.Code)
	require.Contains(t, refusal.Message, "there is: e, f")
}

// startTTY starts a program with a terminal.
func (r *rig) startTTY(handle, script string) wire.ProcessReadResult {
	r.t.Helper()
	if runtime.GOOS != "linux" {
		r.t.Skip("terminals are for Linux")
	}
	c := command(handle, script)
	c.TTY = true
	got, err := r.Start(r.t.Context(), r.box, c, time.Millisecond)
	require.NoError(r.t, err)
	return got
}

func (r *rig) send(handle, input string) string {
	r.t.Helper()
	got, err := r.Send(r.t.Context(), wire.ProcessSend{Process: handle, Input: protocol.Bytes(input), Wait: 60_000})
	require.NoError(r.t, err)
	return string(got.Content)
}

// TestSend_ToAProgramThatIsTalkedTo: a REPL keeps its state, is interrupted, and ends.
func TestSend_ToAProgramThatIsTalkedTo(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("UNSUPPORTED: no python3")
	}
	r := newRig(t)
	started := r.startTTY("p-1", "exec python3 -q")
	require.True(t, started.TTY)
	r.until("p-1", ">>> ")
	require.Contains(t, r.send("p-1", "x = 6 * 7\r"), ">>> ")
	answer := r.send("p-1", "x\r")
	require.Contains(t, answer, "\n42\r\n>>> ")
	require.NotContains(t, answer, "6 * 7", "what it wrote since")
	r.send("p-1", "import time; print('up', flush=True); time.sleep(300)\r")
	r.until("p-1", "up\r\n")
	r.send("p-1", "\x03")
	r.until("p-1", "KeyboardInterrupt\r\n>>> ")
	got, err := r.Send(t.Context(), wire.ProcessSend{Process: "p-1", Input: protocol.Bytes("exit(3)\r"), Wait: 60_000})
	require.NoError(t, err)
	require.Equal(t, []any{"exited", 3}, []any{got.Reason, got.ExitCode})
}

func TestSend_WhereItCannot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startTTY("deaf", "stty raw -echo; echo ready; exec sleep 300")
	r.until("deaf", "ready\n")
	r.startTTY("over", "true")
	_, err := r.Read(t.Context(), wire.ProcessRead{Process: "over", Offset: 100, Wait: 60_000})
	require.NoError(t, err)
	r.start("pipes", "sleep 300")
	for name, test := range map[string]struct {
		req  wire.ProcessSend
		code protocol.Code
		says string
	}{
		"no terminal": {wire.ProcessSend{Process: "pipes", Input: protocol.Bytes("x")}, protocol.CodeInvalidArguments, "has no terminal"},
		"ended":       {wire.ProcessSend{Process: "over", Input: protocol.Bytes("x")}, protocol.CodeInvalidArguments, "has ended: nothing was typed"},
		"nothing":     {wire.ProcessSend{Process: "deaf"}, protocol.CodeInvalidArguments, "must be 1 to 65536"},
		"too much":    {wire.ProcessSend{Process: "deaf", Input: make(protocol.Bytes, wire.MaxInput+1)}, protocol.CodeInvalidArguments, "must be 1 to 65536"},
		"nobody":      {wire.ProcessSend{Process: "p-9", Input: protocol.Bytes("x")}, protocol.CodeNotFound, "there is: deaf, over, pipes"},
	} {
		_, err := r.Send(t.Context(), test.req)
		var refusal *protocol.Error
		require.ErrorAs(t, err, &refusal, name)
		require.Equal(t, test.code, refusal.Code, name)
		require.Contains(t, refusal.Message, test.says, name)
	}
	much := wire.ProcessSend{Process: "deaf", Input: make(protocol.Bytes, wire.MaxInput), Wait: 1}
	for err = nil; err == nil; {
		_, err = r.Send(t.Context(), much)
	}
	require.ErrorContains(t, err, "reads nothing of what was typed before")
}

// A command without isolation can put anything in the place of the file.
func TestProcesses_WhatIsNoFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "processes.json")
	require.NoError(t, os.Symlink("/dev/zero", file))
	require.Empty(t, background.New(file).List().Processes)
}
