//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testLife(t *testing.T, s suite) {
	s.run(t, map[string]func(*testing.T, *box){
		"close kills what runs, and is idempotent":  lifeClose,
		"nothing works after close":                 lifeClosed,
		"close keeps workspace and scratch":         lifeKeeps,
		"reset kills what runs and empties scratch": lifeReset,
		"reset removes what is hard to remove":      lifeResetHard,
		"reset removes very many files":             lifeResetMany,
		"reset lets new commands wait":              lifeResetWait,
	})
}

func lifeClose(t *testing.T, b *box) {
	w := b.newWitness(t)
	cmd := shell(survivor(survivors["double fork"]) + `; trap "" TERM; echo up; while :; do sleep 1; done`)
	up := make(chan struct{}, 10)
	cmd.Live = func(sandbox.Stream, []byte) { up <- struct{}{} }
	done := b.async(t.Context(), t, cmd)
	receive(t, up)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := b.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	w.requireDead(t)
	require.Equal(t, sandbox.ReasonCancelled, receive(t, done).Reason)
	require.NoError(t, b.Close())
}

func lifeClosed(t *testing.T, b *box) {
	b.put(t, "file", "x", 0o644)
	require.NoError(t, b.Close())
	_, err := b.Exec(t.Context(), shell("true"))
	require.ErrorIs(t, err, sandbox.ErrClosed)
	require.ErrorIs(t, b.Reset(t.Context()), sandbox.ErrClosed)
	_, err = b.FS().Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.FS().Stat(t.Context(), protocol.FilesExists{Path: "file"})
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.FS().Write(t.Context(), protocol.FilesWrite{Path: "file"})
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.FS().List(t.Context(), protocol.FilesList{})
	require.ErrorIs(t, err, sandbox.ErrClosed)
	_, err = b.FS().Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 0)
	require.ErrorIs(t, err, sandbox.ErrClosed)
}

func lifeKeeps(t *testing.T, b *box) {
	b.sh(t, `echo w >file; echo s >"$HOME/file"`)
	require.NoError(t, b.Close())
	require.FileExists(t, b.host("file"))
	require.True(t, b.scratchHas(t, "file"))
}

// scratchHas reports whether a file of that name is anywhere in the scratch directory.
func (b *box) scratchHas(t *testing.T, name string) bool {
	t.Helper()
	found := false
	require.NoError(t, filepath.WalkDir(b.scratch, func(_ string, entry os.DirEntry, err error) error {
		found = found || err == nil && entry.Name() == name
		return err
	}))
	return found
}

func lifeReset(t *testing.T, b *box) {
	w := b.newWitness(t)
	cmd := shell(`echo w >file; echo s >"$HOME/file"; echo s >"$TMPDIR/file"; exec 3>fifo; echo up >&3; sleep 1000`)
	done := b.async(t.Context(), t, cmd)
	require.Equal(t, "up\n", w.line(t))
	require.NoError(t, b.Reset(t.Context()))
	w.requireDead(t)
	require.Equal(t, sandbox.ReasonCancelled, receive(t, done).Reason)
	require.False(t, b.scratchHas(t, "file"))
	require.Equal(t, "w\n", b.sh(t, `cat file; [ -d "$HOME" ] && [ -d "$TMPDIR" ] && ls -A "$HOME" "$TMPDIR" | grep file`+"; true"))
}

func lifeResetHard(t *testing.T, b *box) {
	b.sh(t, `cd "$TMPDIR"; mkdir -p a/b/c locked/sub; echo x >a/b/c/x; chmod 000 a/b/c a/b a locked
		ln -s / root; ln -s "$TMPDIR" loop; mkfifo fifo`)
	b.sh(t, `cd "$HOME"; `+
		`i=0; while [ $i -lt 40 ]; do p=a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a
		mkdir -p $p && cd $p || exit 1; i=$((i+1)); done`)
	require.NoError(t, b.Reset(t.Context()))
	entries, err := os.ReadDir(b.scratch)
	require.NoError(t, err)
	for _, entry := range entries {
		below, err := os.ReadDir(filepath.Join(b.scratch, entry.Name()))
		require.NoError(t, err)
		require.Empty(t, below)
	}
	require.DirExists(t, "/etc")
}

// lifeResetMany leaves as many files as a build does.
func lifeResetMany(t *testing.T, b *box) {
	b.sh(t, `cd "$HOME" && mkdir 1 2 3 4 && seq 500 | sed 's,.*,1/& 2/& 3/& 4/&,' | xargs touch && cp -r 1 "$TMPDIR"`)
	require.NoError(t, b.Reset(t.Context()))
	require.Equal(t, "0\n", b.sh(t, `ls -A "$HOME" "$TMPDIR" | grep -v : | grep -c .; true`))
}

func lifeResetWait(t *testing.T, b *box) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				result, err := b.Exec(t.Context(), shell("echo $TMPDIR; echo x >$TMPDIR/x"))
				switch {
				case err != nil:
					t.Errorf("Exec: %v", err)
				case result.Reason == sandbox.ReasonExited && result.ExitCode != 0:
					t.Errorf("scratch is not there: %s", result.Stderr.Data)
				case result.Reason != sandbox.ReasonExited && result.Reason != sandbox.ReasonCancelled:
					t.Errorf("reason %s", result.Reason)
				}
			}
		})
	}
	for range 5 {
		require.NoError(t, b.Reset(t.Context()))
	}
	wg.Wait()
}
