package fleet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
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

// The log has a call of this API, which no journal has, for the principals of its tenant. Each
// principal finds one call by its id.
func TestClient_Calls(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{Data: t.TempDir()})
	t.Cleanup(func() { _ = client.Close() })
	_, err := client.StartWorker(t.Context(),
		worker.Options{Driver: "none", Handlers: []worker.Handler{worker.Handle("greet", func(_ context.Context, _ *worker.Call, name string) (string, error) {
			if name == "" {
				return "", errors.New("nobody is there")
			}
			return "hello " + name, nil
		})}})
	require.NoError(t, err)
	ann := judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleRun, Tenant: "acme"})
	eve := judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "eve", Role: judge.RoleOperate, Tenant: "other"})
	for _, name := range []string{"world", ""} {
		_, err := client.Call(ann, fleet.Call{
			Handler: "greet", Args: name, Session: "shared", ID: protocol.CallID("greets" + name), Resources: []protocol.Use{{Key: "guest/list"}},
		})
		require.NoError(t, err)
	}
	log, err := client.Calls(ann, fleet.CallQuery{})
	require.NoError(t, err)
	require.Len(t, log.Calls, 2)
	require.Equal(t, protocol.StatusFailed, log.Calls[0].Status)
	call, err := client.LoggedCall(ann, protocol.CallRef{ID: "greetsworld"})
	require.NoError(t, err)
	require.Equal(t, log.Calls[1], call)
	require.Equal(t, "greet", call.Tool)
	require.JSONEq(t, `{"arguments": "world"}`, call.Input)
	require.Equal(t, "hello world", call.Output)
	require.Equal(t, "default/guest/list", call.Lane)
	require.Equal(t, "token:ann", call.Owner)
	require.Equal(t, 1, call.Attempt)
	require.NotEmpty(t, call.WorkerID)
	require.WithinRange(t, call.StartedAt, call.AcceptedAt.Add(-time.Second), call.FinishedAt)
	rates, err := client.CallRates(ann, fleet.CallQuery{}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int{rates.Buckets[0].Calls, rates.Buckets[0].Failed})

	log, err = client.Calls(eve, fleet.CallQuery{Tenant: "acme"})
	require.NoError(t, err)
	require.Empty(t, log.Calls)
	_, err = client.LoggedCall(eve, protocol.CallRef{SessionID: "shared", ID: "greetsworld"})
	require.ErrorIs(t, err, fleet.ErrNotFound)
	rates, err = client.CallRates(eve, fleet.CallQuery{}, time.Hour)
	require.NoError(t, err)
	require.Zero(t, rates.Buckets[0].Calls)
	found, err := client.Sessions("").Search(eve, fleet.Search{Words: "hello"})
	require.NoError(t, err)
	require.Empty(t, found.Passages, "no session's journal has it")
	_, err = client.Calls(ann, fleet.CallQuery{Limit: -1})
	require.ErrorIs(t, err, fleet.ErrInvalid)
}
