package fleet_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/fleet"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// onDisk runs the calling test again in a process with mounts of its own. There it returns a
// directory that is a disk with room for a fleet, here "".
func onDisk(t *testing.T) (disk string) {
	t.Helper()
	const arm = "TOOLFLEET_DISK"
	if disk := os.Getenv(arm); disk != "" {
		require.NoError(t, unix.Mount("none", disk, "tmpfs", 0, "size=8g")) // of which next to nothing is used
		return disk
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = []string{arm + "=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && err != nil {
		t.Skipf("UNSUPPORTED: no process here has users and mounts of its own: %v", err)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return ""
}

// fill leaves no room on a disk, and returns what makes room again.
func fill(t *testing.T, disk string) (empty func()) {
	t.Helper()
	var usage unix.Statfs_t
	require.NoError(t, unix.Statfs(disk, &usage))
	used := (usage.Blocks - usage.Bfree) * uint64(usage.Bsize)
	require.NoError(t, unix.Mount("none", disk, "tmpfs", unix.MS_REMOUNT, "size="+strconv.FormatUint(used+64<<10, 10)))
	filler, err := os.Create(filepath.Join(disk, "filler"))
	require.NoError(t, err)
	defer func() { require.NoError(t, filler.Close()) }()
	for err == nil {
		_, err = filler.Write(make([]byte, 4<<10))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return func() {
		require.NoError(t, os.Remove(filler.Name()))
		require.NoError(t, unix.Mount("none", disk, "tmpfs", unix.MS_REMOUNT, "size=8g"))
	}
}

// TestFleet_AServerOnAFullDiskEnds: it refuses all that follows a failed write without an answer,
// so it ends with the reason. The next one has what was stored.
func TestFleet_AServerOnAFullDiskEnds(t *testing.T) {
	t.Parallel()
	disk := onDisk(t)
	if disk == "" {
		return
	}
	options, f := public.Options{Data: filepath.Join(disk, "data")}, (*fleet.Fleet)(nil)
	options.Opened = func(opened *fleet.Fleet) { f = opened }
	client, err := public.Connect(t.Context(), options)
	require.NoError(t, err)
	failed := make(chan error, 1)
	f.Server.WhenFailed(func(err error) { failed <- err })
	session, more := protocol.NewSessionID(), loop.Event{Type: loop.EventModelReply, Turn: 1, Text: "more"}
	last, err := f.Journal.Append(t.Context(), session, 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
	require.NoError(t, err)

	empty := fill(t, disk)
	stored := 1
	for ; err == nil; stored++ {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if next, appendErr := f.Journal.Append(ctx, session, last, more); appendErr == nil {
			last = next
		} else {
			err = appendErr
		}
		cancel()
	}
	require.ErrorContains(t, <-failed, "the disk of "+filepath.Join(disk, "data", fleet.ServerDir)+" (--data) is full: make room there, then start again")
	require.NoError(t, client.Close())
	empty()
	client, err = public.Connect(t.Context(), options)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	history, err := f.Journal.Load(t.Context(), session)
	require.NoError(t, err)
	require.Equal(t, loop.EventTurnStarted, history.Events[0].Type)
	require.GreaterOrEqual(t, len(history.Events), stored-1, "what was stored is there")
	_, err = f.Journal.Append(t.Context(), session, history.Last, more)
	require.NoError(t, err)
}
