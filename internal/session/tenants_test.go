package session

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A tenant's key signs no call that touches a session of another tenant: its sandbox, its stored
// outputs, its workspace as the source of a merge, a directory that it has uploaded. A fork has the
// owner of its origin.
func TestTenant_KeysReachTheirOwnSessions(t *testing.T) {
	t.Parallel()
	var all []byte
	keyOf := func(tenant string) *signing.Signer {
		dir := t.TempDir()
		key, err := signing.Make(dir)
		require.NoError(t, err)
		body, err := os.ReadFile(filepath.Join(dir, signing.PublicFile))
		require.NoError(t, err)
		if tenant != "" {
			body = bytes.Replace(body, []byte("KEY-----\n"), []byte("KEY-----\nTenant: "+tenant+"\n\n"), 1)
		}
		all = append(all, body...)
		return key
	}
	acme, other, unbound := keyOf("acme"), keyOf("other"), keyOf("")
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, all, 0o600))
	keys, err := signing.Open(file)
	require.NoError(t, err)
	r := rigOf(t, worker.Options{Options: lane.Options{Keys: keys}})
	run := func(key *signing.Signer, tenant protocol.Tenant, session protocol.SessionID, sandbox string, payload protocol.Payload) *protocol.Result {
		t.Helper()
		d, err := calls.New(t.Context(), r.NC, r.Name, &calls.Options{Signer: key})
		require.NoError(t, err)
		result, err := d.Call(t.Context(), &protocol.Call{
			ID: wire.RandomCallID(), SessionID: session, Tenant: tenant, Tool: "test", Pool: protocol.DefaultPool,
			Resources: []protocol.Use{{Key: protocol.SandboxKey(sandbox), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: payload,
		})
		require.NoError(t, err)
		return result
	}
	refused := func(r *protocol.Result) {
		t.Helper()
		require.Equal(t, protocol.StatusRejected, r.Status)
		require.Equal(t, codes.NotSigned, r.Error.Code)
		require.Nil(t, r.Value)
	}
	command := protocol.CommandRun{Command: "echo secret >> f; seq 1 20000"}
	stored := run(acme, "acme", "a", "a", command)
	require.Equal(t, protocol.StatusOK, stored.Status)
	require.Equal(t, protocol.StatusOK, run(other, "other", "o", "o", command).Status)
	require.Equal(t, protocol.StatusOK, run(acme, "acme", "a", "a", command).Status, "also in its open sandbox")

	refused(run(other, "other", "a", "a", protocol.CommandRun{Command: "cat f"}))
	refused(run(other, "other", "o", "a", protocol.FilesRead{Path: "f"}))
	refused(run(other, "other", "a", "o", protocol.CommandRun{Command: "true"})) // its result would be the session's
	refused(run(other, "other", "a", "o", wire.ResultRead{CallID: stored.CallID}))
	refused(run(other, "other", "a", "a", wire.WorkspaceRemove{}))
	refused(run(other, "other", "o", "o", wire.WorkspaceMerge{From: "a"}))
	refused(run(other, "acme", "a", "a", command)) // of a tenant that it does not name
	require.Equal(t, protocol.StatusOK, run(acme, "acme", "a", "a", wire.WorkspaceFork{To: "fork"}).Status)
	refused(run(other, "other", "fork", "fork", protocol.CommandRun{Command: "cat f"}))
	require.Equal(t, protocol.StatusOK, run(acme, "acme", "fork", "fork", protocol.CommandRun{Command: "cat f"}).Status)
	require.Equal(t, protocol.StatusOK, run(acme, "acme", "a", "a", wire.WorkspaceExport{Upload: "directory"}).Status)
	refused(run(other, "other", "new", "new", wire.WorkspaceImport{Upload: "directory", Blob: "b"}))
	refused(run(other, "other", "o", "o", wire.WorkspaceExport{Upload: "directory"}))
	require.Equal(t, protocol.StatusOK, run(acme, "acme", "a", "a", wire.WorkspaceExport{Upload: "directory"}).Status)
	ownerless(t, r, "directory", "old") // of a version without owners
	refused(run(acme, "acme", "new", "new", wire.WorkspaceImport{Upload: "old", Blob: "b"}))
	refused(run(acme, "acme", "a", "a", wire.WorkspaceExport{Upload: "old"}))
	require.Equal(t, protocol.StatusOK, run(unbound, "acme", "a", "a", wire.WorkspaceExport{Upload: "old"}).Status, "the operator's key")
	refused(run(acme, "acme", "a", "a", wire.WorkspaceExport{Upload: "old"}))
	require.Equal(t, protocol.StatusOK, run(unbound, "", "a", "a", protocol.CommandRun{Command: "cat f"}).Status, "a key that is bound to no tenant")
	refused(run(other, "other", "a", "a", protocol.CommandRun{Command: "cat f"}))
}

// ownerless stores the last checkpoint of an upload as that of another one, without its owner.
func ownerless(t *testing.T, r *rig, from, to string) {
	t.Helper()
	js, err := jetstream.New(r.NC)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), wire.WorkspacesStream(r.Name))
	require.NoError(t, err)
	subject := func(name string) string { return wire.WorkspaceSubject(r.Name, workspace.UploadRef(name, 0).Lane) }
	last, err := stream.GetLastMsgForSubject(t.Context(), subject(from))
	require.NoError(t, err)
	var checkpoint map[string]any
	require.NoError(t, json.Unmarshal(last.Data, &checkpoint))
	require.Equal(t, "acme", checkpoint["owner"])
	delete(checkpoint, "owner")
	body, err := json.Marshal(checkpoint)
	require.NoError(t, err)
	last.Header.Del(jetstream.ExpectedLastSubjSeqHeader)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: subject(to), Header: last.Header, Data: body})
	require.NoError(t, err)
}
