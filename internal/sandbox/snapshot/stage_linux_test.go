package snapshot_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// hooked calls a function before each body that is fetched.
type hooked struct {
	snapshot.Bodies

	before func()
}

func (h hooked) Get(ctx context.Context, name string) ([]byte, error) {
	h.before()
	return h.Bodies.Get(ctx, name)
}

// TestSync_WhatIsStagedGoesWhateverWasPutBesideIt: a command that runs meanwhile makes a tree in
// there that is deeper than files may be open.
func TestSync_WhatIsStagedGoesWhateverWasPutBesideIt(t *testing.T) { //nolint:paralleltest // it has a limit of the process
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 300, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	base, theirs := tree{"f": {body: "1"}}, tree{"f": {body: string(large())}, "g": {body: string(large())}}
	manifest, next := saved(t, newRoot(t, base), nil).manifest, saved(t, newRoot(t, theirs), nil)
	root := newRoot(t, base)
	var mu sync.Mutex // bodies are fetched side by side
	met := false
	_, err := snapshot.Sync(t.Context(), root, manifest, next.tree, hooked{next.bodies, func() {
		mu.Lock()
		defer mu.Unlock()
		names, err := os.ReadDir(root.Name())
		require.NoError(t, err)
		for _, name := range names {
			if name.IsDir() && !met {
				met = true
				nest(t, root, name.Name(), 1000)
			}
		}
	}}, nil)
	require.NoError(t, err)
	require.True(t, met, "nothing was staged")
	require.Equal(t, theirs.filled(), content(t, root))
}

// nest makes directories in each other.
func nest(t *testing.T, root *os.Root, name string, levels int) {
	t.Helper()
	at, err := root.Open(name)
	require.NoError(t, err)
	for range levels {
		require.NoError(t, unix.Mkdirat(int(at.Fd()), "d", 0o700))
		next, err := unix.Openat(int(at.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, at.Close())
		at = os.NewFile(uintptr(next), "d")
	}
	require.NoError(t, at.Close())
}
