//go:build linux

// Package quotatest gives tests file systems with project quotas.
package quotatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest"
)

// FileSystem is a file system that has project quotas.
type FileSystem struct {
	name string
	make []string // the program that makes one of a file, and its arguments
	size int64    // in bytes
}

// fileSystems are all that the kernel has. XFS takes at least 300 MiB.
func fileSystems() []FileSystem {
	return []FileSystem{
		{"ext4", []string{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", "-m", "0"}, 96 << 20},
		{"xfs", []string{"mkfs.xfs", "-q"}, 320 << 20},
	}
}

// Mount makes a file system in a file and mounts it with options, until the test ends. The test has
// to be root, and in a mount namespace of its own. Where that cannot be done the test is
// unsupported; a machine of test/vm can.
func (fs FileSystem) Mount(t *testing.T, options string) string {
	t.Helper()
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "disk")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, fs.size))
	require.NoError(t, os.Mkdir(dir, 0o755))
	run(t, fs.make[0], append(slices.Clone(fs.make[1:]), image)...)
	run(t, "mount", "-t", fs.name, "-o", "loop,"+options, image, dir) // umount lets go of the device
	t.Cleanup(func() {
		// It is in use until what was in it last has ended.
		require.Eventually(t, func() bool { return unix.Unmount(dir, 0) == nil }, time.Minute, time.Millisecond)
	})
	require.NoError(t, os.Chmod(dir, 0o755)) // ordinary users have to get in
	return dir
}

// OnEach runs a test as root, in arms as [escapetest.InArms] has them, for each file system.
func OnEach(t *testing.T, test func(t *testing.T, fs FileSystem)) {
	t.Helper()
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			return // only root sets quotas
		}
		for _, fs := range fileSystems() {
			t.Run(fs.name, func(t *testing.T) { test(t, fs) })
		}
	})
}

// OnDisk does the same with each file system mounted with quotas.
func OnDisk(t *testing.T, test func(t *testing.T, disk string)) {
	t.Helper()
	OnEach(t, func(t *testing.T, fs FileSystem) {
		t.Helper()
		test(t, fs.Mount(t, "prjquota"))
	})
}

// run runs a program; what it cannot do is not supported here.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if os.Getenv("TOOLFLEET_QUOTA") == "required" {
		require.NoError(t, err, "%s", said)
	}
	if err != nil {
		t.Skipf("UNSUPPORTED: %s: %v: %s", program, err, said)
	}
}
