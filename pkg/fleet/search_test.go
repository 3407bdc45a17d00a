package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Sessions are searched as they were imported, each principal finds those of its tenant, and a
// session that is removed leaves the files of the index.
func TestSessions_Search(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	client, err := fleet.Connect(t.Context(), fleet.Options{Data: data})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	dir := filepath.Join(data, "index")
	sessions := client.Sessions("")
	ann := judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleOperate, Tenant: "acme"})
	eve := judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "eve", Role: judge.RoleOperate, Tenant: "other"})
	said := []loop.Event{
		{Type: loop.EventSessionStarted},
		{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "Where is the Plughxyzzy?"}},
		{Type: loop.EventTurnEnded, Turn: 1, Status: string(loop.OutcomeAnswered)},
	}
	_, err = sessions.Import(ann, said, "of-ann")
	require.NoError(t, err)
	_, err = os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist, "only a search makes an index")

	found, err := sessions.Search(ann, fleet.Search{Words: "plughxyzzy"})
	require.NoError(t, err)
	require.Len(t, found.Passages, 1)
	require.EqualValues(t, "of-ann", found.Passages[0].SessionID)
	found, err = sessions.Search(eve, fleet.Search{Words: "plughxyzzy"})
	require.NoError(t, err)
	require.Empty(t, found.Passages)
	found, err = sessions.Search(t.Context(), fleet.Search{Words: "plughxyzzy"})
	require.NoError(t, err)
	require.Len(t, found.Passages, 1, "the operator")
	_, err = sessions.Search(ann, fleet.Search{Words: `"`})
	require.ErrorIs(t, err, fleet.ErrInvalid)

	removed, err := sessions.Remove(ann, "of-ann", true)
	require.NoError(t, err, removed)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range append(files, dir) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s: other users may not read it", name)
		if info.IsDir() {
			continue
		}
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, strings.ToLower(string(content)), "plughxyzzy", name)
	}
	require.Empty(t, mustSearch(t, sessions, "plughxyzzy"))
	require.NoError(t, client.Close())
	_, err = sessions.Search(t.Context(), fleet.Search{Words: "x"})
	require.ErrorIs(t, err, fleet.ErrClosed)
}

func mustSearch(t *testing.T, sessions fleet.Sessions, words string) (ids []protocol.SessionID) {
	t.Helper()
	found, err := sessions.Search(t.Context(), fleet.Search{Words: words})
	require.NoError(t, err)
	for _, p := range found.Passages {
		ids = append(ids, p.SessionID)
	}
	return ids
}
