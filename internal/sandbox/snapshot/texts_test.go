package snapshot_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// threeMerged merges the changes of a fork into a directory, base being what both were.
func threeMerged(tb testing.TB, base, fork, local tree) (tree, snapshot.Changes) {
	tb.Helper()
	was, is := saved(tb, newRoot(tb, base), nil), saved(tb, newRoot(tb, fork), nil)
	maps.Copy(is.bodies.bodies, was.bodies.bodies)
	root := newRoot(tb, local)
	changes, err := snapshot.Merge(tb.Context(), root, was.tree, is.tree, is.bodies, nil)
	require.NoError(tb, err)
	changes.Base = nil
	return content(tb, root), changes
}

// TestMerge_Table: nothing of either side is lost, and each conflict is named.
func TestMerge_Table(t *testing.T) {
	t.Parallel()
	const theirs = ".toolfleet-theirs"
	for name, c := range map[string]struct {
		base, fork, local, want tree
		changes                 snapshot.Changes
	}{
		"lines apart": {
			base: tree{"f": {body: "1\n2\n3\n4\n"}}, fork: tree{"f": {body: "1\n2\n3\nfour\n"}}, local: tree{"f": {body: "one\n2\n3\n4\n"}},
			want:    tree{"f": {body: "one\n2\n3\nfour\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"the same line": {
			base: tree{"f": {body: "1\n2\n"}}, fork: tree{"f": {body: "one\n2\n"}}, local: tree{"f": {body: "eins\n2\n"}},
			want:    tree{"f": {body: "eins\n2\n"}, "f" + theirs: {body: "one\n2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"neighbouring lines": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "1\ntwo\n3\n"}}, local: tree{"f": {body: "one\n2\n3\n"}},
			want:    tree{"f": {body: "one\n2\n3\n"}, "f" + theirs: {body: "1\ntwo\n3\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"both insert at one point": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "1\nfork\n"}}, local: tree{"f": {body: "1\nlocal\n"}},
			want:    tree{"f": {body: "1\nlocal\n"}, "f" + theirs: {body: "1\nfork\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"the same change and one more": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "one\n2\nthree\n"}}, local: tree{"f": {body: "one\n2\n3\n"}},
			want:    tree{"f": {body: "one\n2\nthree\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"CRLF lines apart": {
			base: tree{"f": {body: "1\r\n2\r\n3\r\n"}}, fork: tree{"f": {body: "1\r\n2\r\nthree\r\n"}}, local: tree{"f": {body: "one\r\n2\r\n3\r\n"}},
			want:    tree{"f": {body: "one\r\n2\r\nthree\r\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"CRLF of all lines against an edit": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "1\n2\nthree\n"}}, local: tree{"f": {body: "1\r\n2\r\n3\r\n"}},
			want:    tree{"f": {body: "1\r\n2\r\n3\r\n"}, "f" + theirs: {body: "1\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"rename against edit": {
			base: tree{"old": {body: "1\n2\n3\n"}}, fork: tree{"old": {body: "1\n2\nthree\n"}}, local: tree{"new": {body: "1\n2\n3\n"}},
			want:    tree{"new": {body: "1\n2\n3\n"}, "old" + theirs: {body: "1\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"old"}, Theirs: []string{"old" + theirs}},
		},
		"edit against rename": {
			base: tree{"old": {body: "1\n2\n3\n"}}, fork: tree{"new": {body: "1\n2\n3\n"}}, local: tree{"old": {body: "one\n2\n3\n"}},
			want:    tree{"old": {body: "one\n2\n3\n"}, "new": {body: "1\n2\n3\n"}},
			changes: snapshot.Changes{Written: []string{"new"}, Conflicts: []string{"old"}},
		},
		"delete against edit": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "one\n"}}, local: tree{},
			want:    tree{"f" + theirs: {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"edit against delete": {
			base: tree{"f": {body: "1\n"}}, fork: tree{}, local: tree{"f": {body: "one\n"}},
			want:    tree{"f": {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}},
		},
		"mode against edit": {
			base: tree{"f": {body: "1\n"}, "g": {body: "1\n"}}, fork: tree{"f": {body: "one\n"}, "g": {body: "1\n", mode: 0o755}},
			local:   tree{"f": {body: "1\n", mode: 0o755}, "g": {body: "one\n"}},
			want:    tree{"f": {body: "one\n", mode: 0o755}, "g": {body: "one\n", mode: 0o755}},
			changes: snapshot.Changes{Written: []string{"f", "g"}, Merged: []string{"f", "g"}},
		},
		"mode against mode": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "1\n", mode: 0o755}}, local: tree{"f": {body: "1\n", mode: 0o600}},
			want:    tree{"f": {body: "1\n", mode: 0o600}, "f" + theirs: {body: "1\n", mode: 0o755}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"binary": {
			base: tree{"f": {body: "\x00\n2\n3\n"}}, fork: tree{"f": {body: "\x00\n2\nthree\n"}}, local: tree{"f": {body: "\x00one\n2\n3\n"}},
			want:    tree{"f": {body: "\x00one\n2\n3\n"}, "f" + theirs: {body: "\x00\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"both added": {
			fork: tree{"f": {body: "1\n"}, "same": {body: "2\n"}}, local: tree{"f": {body: "one\n"}, "same": {body: "2\n"}},
			want:    tree{"f": {body: "one\n"}, "f" + theirs: {body: "1\n"}, "same": {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"directory against file": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {body: "one\n"}}, local: tree{"x": {dir: true}, "x/a": {body: "2\n"}},
			want:    tree{"x": {dir: true}, "x/a": {body: "2\n"}, "x" + theirs: {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x"}, Theirs: []string{"x" + theirs}},
		},
		"file against directory": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {dir: true}, "x/a": {body: "2\n"}}, local: tree{"x": {body: "one\n"}},
			want:    tree{"x": {body: "one\n"}, "x-a" + theirs: {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x", "x/a"}, Theirs: []string{"x-a" + theirs}},
		},
		"link against edit": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {link: "y"}}, local: tree{"x": {body: "one\n"}},
			want:    tree{"x": {body: "one\n"}, "x" + theirs: {link: "y"}},
			changes: snapshot.Changes{Conflicts: []string{"x"}, Theirs: []string{"x" + theirs}},
		},
		"long name": { // which is not cut inside a character
			base: tree{}, fork: tree{"x" + strings.Repeat("é", 127): {body: "2\n"}}, local: tree{"x" + strings.Repeat("é", 127): {body: "1\n"}},
			want:    tree{"x" + strings.Repeat("é", 127): {body: "1\n"}, "x" + strings.Repeat("é", 118) + theirs: {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x" + strings.Repeat("é", 127)}, Theirs: []string{"x" + strings.Repeat("é", 118) + theirs}},
		},
		"removed directory against a new file in it": {
			base: tree{"d": {dir: true}, "d/a": {body: "1\n"}}, fork: tree{"d": {dir: true}, "d/a": {body: "1\n"}, "d/b": {body: "2\n"}}, local: tree{},
			want:    tree{"d": {dir: true}, "d/b": {body: "2\n"}},
			changes: snapshot.Changes{Written: []string{"d", "d/b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, changes := threeMerged(t, c.base, c.fork, c.local)
			require.Equal(t, c.want.filled(), got)
			require.Equal(t, c.changes, changes)
			// A merge that is made once more, as after a lost worker, changes nothing.
			again, changes := threeMerged(t, c.base, c.fork, got)
			require.Equal(t, got, again)
			require.Empty(t, changes.Removed)
		})
	}
}
