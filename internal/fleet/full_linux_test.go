package fleet_test

import (
	"context"
	"log/slog"
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

// TestFleet_GoesOnWhenItsDiskHasRoomAgain: a server refuses all that follows a failed write without
// an answer, so it is started again.
func TestFleet_GoesOnWhenItsDiskHasRoomAgain(t *testing.T) {
	t.Parallel()
	disk := onDisk(t)
	if disk == "" {
		return
	}
	f, err := fleet.Connect(t.Context(), fleet.Options{Name: "tf", Embedded: fleet.Embedded{Data: filepath.Join(disk, "data")}, Client: "test", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer f.Close()
	session, more := protocol.NewSessionID(), loop.Event{Type: loop.EventModelReply, Turn: 1, Text: "more"}
	last, err := f.Journal.Append(t.Context(), session, 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
	require.NoError(t, err)

	empty := fill(t, disk)
	for err == nil {
		var next uint64
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if next, err = f.Journal.Append(ctx, session, last, more); err == nil {
			last = next
		}
		cancel()
	}
	require.ErrorContains(t, err, "look whether the disk of its JetStream directory is full")
	empty()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := f.Journal.Append(ctx, session, last, more)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	history, err := f.Journal.Load(t.Context(), session)
	require.NoError(t, err)
	require.Equal(t, loop.EventTurnStarted, history.Events[0].Type)
}
