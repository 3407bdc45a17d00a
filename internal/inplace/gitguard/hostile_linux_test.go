package gitguard_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

// TestGuard_RefusesDirectoriesThatItCannotList: git uses a repository in a directory that can be
// entered, and a command can make its own one so again.
func TestGuard_RefusesDirectoriesThatItCannotList(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]os.FileMode{".git": 0o311, "sub": 0o311, "closed": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread() // the thread ends with the test
			dir := workspace(t, commit+"git init -q sub; mkdir closed")
			require.NoError(t, os.Chmod(filepath.Join(dir, name), mode))
			t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, name), 0o755) })
			if os.Geteuid() == 0 { // who lists everything
				for above := filepath.Dir(dir); above != os.TempDir(); above = filepath.Dir(above) {
					require.NoError(t, os.Chmod(above, 0o755))
				}
				run(t, dir, "chown -R 65534:65534 .")
				require.NoError(t, unix.Setfsuid(65534))
				defer func() { _ = unix.Setfsuid(0) }()
			}
			_, err := gitguard.Protected(t.Context(), dir)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "chmod u+rwx it")
			_, err = gitguard.Look(t.Context(), dir)
			require.ErrorContains(t, err, "chmod u+rwx it")
		})
	}
}

// TestAside_WhatACommandHasClosed: a command takes the rights to read directories and settings of
// its repositories. What git would run is set aside all the same.
func TestAside_WhatACommandHasClosed(t *testing.T) {
	for name, closes := range map[string]string{
		"not listed":             "chmod 0311 lib/.git lib",
		"not entered":            "chmod 0600 lib/.git",
		"neither":                "chmod 0 lib/.git; chmod 0 lib",
		"not changed":            "chmod 0555 lib/.git lib/.git/hooks",
		"hooks":                  "chmod 0311 lib/.git/hooks",
		"settings":               "chmod 0 lib/.git/config",
		"the directory":          "chmod 0311 lib/.git; chmod 0311 .",
		"in a closed one":        "mkdir -p a/b; mv lib a/b; ln -s a/b/lib lib; chmod 0311 a/b/lib/.git a/b a",
		"its objects":            "chmod 0 lib/.git/objects lib/.git/refs",
		"a repository of a file": "mv lib/.git store; echo gitdir: ../store > lib/.git; chmod 0311 store",
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // the thread ends with the test
			state := t.TempDir()
			t.Setenv("XDG_STATE_HOME", state)
			dir := workspace(t, "true")
			aside, err := gitguard.NewAside(t.Context(), dir)
			require.NoError(t, err)
			marker := filepath.Join(state, "ran")
			run(t, dir, "git init -q lib; git -C lib config core.fsmonitor 'touch "+marker+";false'; printf '#!/bin/sh\ntouch "+
				marker+"\n' > lib/.git/hooks/post-index-change; chmod +x lib/.git/hooks/post-index-change")
			defer func() { run(t, dir, "chmod -R u+rwx .") }()
			run(t, dir, closes)
			if os.Geteuid() == 0 { // who lists everything
				for above := filepath.Dir(dir); above != os.TempDir(); above = filepath.Dir(above) {
					require.NoError(t, os.Chmod(above, 0o755))
				}
				run(t, dir, "chown -R 65534:65534 . "+state+"; chmod 755 "+filepath.Dir(state))
				require.NoError(t, unix.Setfsuid(65534))
				defer func() { _ = unix.Setfsuid(0) }()
			}
			moved, err := aside.Close(t.Context())
			require.NoError(t, err)
			require.Len(t, moved, 2, moved)
			require.Contains(t, moved[0], "config: core.fsmonitor")
			require.Contains(t, moved[1], "hooks/post-index-change")
			_ = unix.Setfsuid(os.Geteuid())
			run(t, dir, "git -C lib -c safe.directory='*' status")
			require.NoFileExists(t, marker)
		})
	}
}
