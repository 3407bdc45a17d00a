package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// errLeftOut stands for the refusal of a list, which leaves out what may not be seen.
var errLeftOut = errors.New("left out")

// TestInterfaces_EveryCellRefusesTheWrongPrincipal tries each act that is judged at each interface
// with principals that may not do it: of another tenant, with too little a role, expired. Each is
// refused, and the refusal names the act, the object and what is needed; the owner, and the
// operator, are not refused. Interfaces that need keys or tokens are tried by the tests that are
// named here. A cell without a try fails the test.
func TestInterfaces_EveryCellRefusesTheWrongPrincipal(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		judge.InterfaceTools:     "TestInterfaces_TokensReachTheirOwn",
		judge.InterfaceResources: "TestInterfaces_TokensReachTheirOwn",
		judge.InterfaceTasks:     "TestInterfaces_TokensReachTheirOwn",
		judge.InterfaceHTTP:      "TestOperations_RefuseTheWrongToken",
		judge.InterfaceServe:     "TestTurn_IsOfWhoHasSignedIt",
		judge.InterfaceWorker:    "TestTenant_KeysReachTheirOwnSessions",
		judge.InterfaceApprove:   "TestAnswer_IsOfWhoMayGiveIt",
	}
	inClient := map[judge.On]bool{
		{Act: judge.Change, Kind: judge.Lane}: true, {Act: judge.Cancel, Kind: judge.Call}: true,
		{Act: judge.See, Kind: judge.Limit}: true, {Act: judge.See, Kind: judge.Worker}: true,
	}
	require.True(t, isTest(t, "../../pkg/fleet", "TestTenants_AClientReachesItsOwn"))
	require.True(t, isTest(t, "../access", "TestTokens_AreOfTheOperator"))
	require.True(t, isTest(t, "webhook", "TestStore_IsOfOneTenant"))
	r := newRig(t)
	cells := r.cells(t)
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme", Role: judge.RoleRun}
	bob, reader, expired := ann, ann, ann
	bob.Name, reader.Role, expired.Expires = "bob", judge.RoleRead, time.Now().Add(-time.Second)
	cid := judge.Principal{Known: judge.ByToken, Name: "cid", Tenant: "other", Role: judge.RoleOperate}
	tried := 0
	for _, way := range judge.Interfaces() {
		if test := elsewhere[way.Name]; test != "" {
			require.True(t, isTest(t, "..", test), test)
			continue
		}
		for _, on := range way.Judged {
			if inClient[on] || on.Kind == judge.Token || on.Kind == judge.Webhook {
				continue
			}
			try := cells[on]
			require.NotNil(t, try, "%s: %v", way.Name, on)
			refused := func(who judge.Principal, needs string) {
				t.Helper()
				tried++
				err := try(judge.With(t.Context(), who))
				if errors.Is(err, errLeftOut) {
					return
				}
				require.Error(t, err, "%s: %v by %s", way.Name, on, who)
				for _, part := range []string{string(on.Act) + " " + string(on.Kind), who.By(), needs} {
					require.ErrorContains(t, err, part, "%s: %v by %s", way.Name, on, who)
				}
			}
			refused(expired, "expired")
			switch {
			case on.Kind == judge.Limit:
				refused(cid, "operator of the fleet")
			case on == (judge.On{Act: judge.Make, Kind: judge.Call}):
				refused(cid, "tenant acme")
				require.NoError(t, MayCall(judge.With(t.Context(), cid), r.Fleet, &protocol.Call{SessionID: "other"}))
			case on != (judge.On{Act: judge.Make, Kind: judge.Template}): // which each tenant may make
				refused(cid, "tenant acme")
			}
			if on.Act != judge.See && on.Kind != judge.Limit {
				refused(reader, "role run")
			}
			if on.Kind != judge.Limit && (on.Act == judge.Cancel || on.Act == judge.Change || on.Act == judge.Remove) {
				refused(bob, "since it belongs to token:ann")
			}
			if on.Act != judge.Remove {
				for _, who := range []judge.Principal{ann, {}} {
					if on.Kind != judge.Limit || who == (judge.Principal{}) {
						require.NotErrorIs(t, try(judge.With(t.Context(), who)), judge.ErrRefused, "%s: %v by %s", way.Name, on, who)
					}
				}
			}
		}
	}
	require.Greater(t, tried, 60)
}

// A session of single calls has no owner in its journal: without a workspace, too, it is the
// operator's, in the default tenant.
func TestMay_JournalWithoutOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const s protocol.SessionID = "calls"
	mustAppend(t, r.Journal, s, 0, loop.Event{Type: loop.EventCallJudged})
	acme := judge.With(t.Context(), judge.Principal{Tenant: "acme"})
	for _, act := range []judge.Act{judge.See, judge.Use, judge.Remove} {
		require.ErrorContains(t, May(acme, r.Fleet, act, s), "tenant default")
		require.NoError(t, May(judge.With(t.Context(), judge.Principal{Tenant: judge.DefaultTenant}), r.Fleet, act, s))
		require.NoError(t, May(t.Context(), r.Fleet, act, s))
		require.NoError(t, May(acme, r.Fleet, act, "none"), "it does not exist")
	}
}

// cells make objects of the principal token:ann of tenant acme, and return how each act on them is
// tried.
func (r *rig) cells(t *testing.T) map[judge.On]func(context.Context) error {
	t.Helper()
	const s protocol.SessionID = "s"
	acme := wire.WithOwner(t.Context(), judge.Owner{Tenant: "acme", By: "token:ann"})
	_, err := r.Journal.Append(acme, s, 0,
		loop.Event{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Tenant: "acme"}, NoteFields: loop.NoteFields{By: "token:ann"}},
		loop.Event{Type: loop.EventTurnStarted, Turn: 1}, loop.Event{Type: loop.EventTurnEnded, Turn: 1, Status: "answered"})
	require.NoError(t, err)
	for _, id := range []protocol.SessionID{s, "w"} {
		require.Nil(t, r.call(acme, t, id, protocol.CommandRun{Command: "echo x > f"}).Error)
	}
	files := mustOpenFiles(t, r, "")
	js, err := jetstream.New(r.NC)
	require.NoError(t, err)
	schedules, err := schedule.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	turn := func(by protocol.CallID, name string) schedule.Schedule {
		call := serve.NewCall(s, wire.TurnRun{Prompt: "p"}, 0)
		call.Tenant, call.By = "acme", "token:ann"
		return schedule.Schedule{Name: name, Cron: "@daily", Call: call, KeepSession: true, Trigger: schedule.Trigger{By: by}, Secret: "secret"}
	}
	_, err = schedules.Add(acme, turn("", "daily"))
	require.NoError(t, err)
	require.NoError(t, schedules.AddTrigger(acme, turn("c", "trigger")))
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	none := func(string, bool) bool { return false }
	reader, err := NewReader(t.Context(), r.Fleet)
	require.NoError(t, err)
	require.NoError(t, store.TemplateFrom(acme, "template", root, none))
	rules, err := limits.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	channels, err := channel.Open(t.Context(), js, r.Name)
	require.NoError(t, err)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(&scripted.Model{}, r.Dispatcher, r.Journal, table, &loop.Options{})
	require.NoError(t, err)
	ledger := loop.NewLedger(r.Journal)
	forks := 0
	next := func() protocol.SessionID { forks++; return protocol.SessionID("fork-" + strings.Repeat("x", forks)) }
	return map[judge.On]func(context.Context) error{
		{Act: judge.See, Kind: judge.Session}: func(ctx context.Context) error {
			ids, err := reader.IDs(ctx)
			if err != nil {
				return err
			}
			_, err = Load(ctx, r.Fleet, s)
			stop, outputs := Output(ctx, r.Fleet, s, func(*wire.Frame) {})
			if outputs == nil {
				stop()
			}
			for _, other := range []error{outputs, MayFollow(ctx, r.Fleet, s), leftOut(len(ids), nil)} {
				require.Equal(t, err == nil, other == nil, other)
			}
			return err
		},
		{Act: judge.Make, Kind: judge.Call}: func(ctx context.Context) error {
			return MayCall(ctx, r.Fleet, &protocol.Call{ID: "c", SessionID: s, Tenant: "acme"})
		},
		{Act: judge.Use, Kind: judge.Session}: func(ctx context.Context) error {
			if _, err := Fork(ctx, r.Journal, s, At{}, next()); err != nil {
				return err
			}
			call := protocol.Call{ID: "c", SessionID: s, Payload: protocol.CommandRun{Command: "true"}}
			if denied := loop.JudgeCall(ctx, &call, &loop.SingleOptions{Ledger: ledger}); denied != nil {
				return denied
			}
			box := []protocol.Use{{Key: protocol.SandboxKey(string(s))}}
			if err := MayCall(ctx, r.Fleet, &protocol.Call{SessionID: next(), Resources: box}); err != nil {
				return err
			}
			if _, err := runner.Run(ctx, s, loop.Input{}); !errors.Is(err, loop.ErrNoInput) {
				return err
			}
			return nil
		},
		{Act: judge.Cancel, Kind: judge.Session}: func(ctx context.Context) error { _, err := Cancel(ctx, r.Fleet, s); return err },
		{Act: judge.Change, Kind: judge.Session}: func(ctx context.Context) error {
			_, err := Restore(ctx, r.Fleet, s, "", "none")
			return err
		},
		{Act: judge.Remove, Kind: judge.Session}: func(ctx context.Context) error {
			_, err := Remove(ctx, r.Fleet, s, Options{Force: true})
			return err
		},
		{Act: judge.See, Kind: judge.Workspace}: func(ctx context.Context) error { _, err := files.List(ctx, "w", ""); return err },
		{Act: judge.Use, Kind: judge.Workspace}: func(ctx context.Context) error {
			_, err := files.Fork(ctx, r.Journal, "w", At{}, next())
			return err
		},
		{Act: judge.See, Kind: judge.Schedule}: func(ctx context.Context) error {
			list, err := schedules.List(ctx)
			return leftOut(len(list), err)
		},
		{Act: judge.Make, Kind: judge.Schedule}: func(ctx context.Context) error {
			_, err := schedules.Add(ctx, turn("", string(next())))
			return err
		},
		{Act: judge.Change, Kind: judge.Schedule}: func(ctx context.Context) error {
			_, err := schedules.Pause(ctx, "daily", true)
			return err
		},
		{Act: judge.Remove, Kind: judge.Schedule}: func(ctx context.Context) error { return schedules.Remove(ctx, "daily") },
		{Act: judge.Make, Kind: judge.Trigger}:    func(ctx context.Context) error { return schedules.AddTrigger(ctx, turn("c", "trigger")) },
		{Act: judge.See, Kind: judge.Trigger}: func(ctx context.Context) error {
			list, err := schedules.List(ctx)
			return leftOut(len(list), err)
		},
		{Act: judge.Change, Kind: judge.Trigger}: func(ctx context.Context) error {
			_, err := schedules.Pause(ctx, "trigger", true)
			return err
		},
		{Act: judge.Remove, Kind: judge.Trigger}: func(ctx context.Context) error { return schedules.Remove(ctx, "trigger") },
		{Act: judge.See, Kind: judge.Template}: func(ctx context.Context) error {
			list, err := store.Templates(ctx)
			return leftOut(len(list), err)
		},
		{Act: judge.Make, Kind: judge.Template}: func(ctx context.Context) error {
			return store.TemplateFrom(ctx, "t"+string(next()), root, none)
		},
		{Act: judge.Use, Kind: judge.Template}: func(ctx context.Context) error {
			return store.FromTemplate(ctx, "template", sandboxLane(next()))
		},
		{Act: judge.Remove, Kind: judge.Template}: func(ctx context.Context) error { return store.RemoveTemplate(ctx, "template") },
		{Act: judge.Change, Kind: judge.Limit}: func(ctx context.Context) error {
			return rules.Set(ctx, limits.Rule{Tenant: "acme", Weight: 2})
		},
		{Act: judge.See, Kind: judge.Channel}: func(ctx context.Context) error {
			_, err := channels.Read(ctx, "acme.c", ports.ChannelRead{Reader: s, Limit: 1})
			return err
		},
		{Act: judge.Use, Kind: judge.Channel}: func(ctx context.Context) error {
			return channels.Send(ctx, "acme.c", ports.ChannelMessage{From: s, Call: wire.RandomCallID(), Text: "x"})
		},
	}
}

// leftOut is the error of a list that has n objects of token:ann.
func leftOut(n int, err error) error {
	if err == nil && n == 0 {
		return errLeftOut
	}
	return err
}

// isTest reports whether there is a test of a name below a folder.
func isTest(t *testing.T, folder, name string) (found bool) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		body, err := os.ReadFile(path)
		found = found || strings.Contains(string(body), "func "+name+"(")
		return err
	}))
	return found
}

// What a session makes, and what is made of it, has its owner; an export has none.
func TestOwners_AreSetWhenAnObjectIsMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cells(t)
	owner := func(id protocol.SessionID) judge.Owner {
		t.Helper()
		history := mustLoad(t, r.Journal, id)
		return judge.Owner{Tenant: history.Tenant(), By: history.By()}
	}
	anns, bobs := judge.Owner{Tenant: "acme", By: "token:ann"}, judge.Owner{Tenant: "acme", By: "token:bob"}
	require.Equal(t, anns, owner("s"))
	bob := wire.WithOwner(t.Context(), bobs)
	_, err := Fork(bob, r.Journal, "s", At{}, "fork")
	require.NoError(t, err)
	require.Equal(t, bobs, owner("fork"), "the tenant is that of the origin")
	history := mustLoad(t, r.Journal, "s")
	_, err = Import(t.Context(), r.Journal, history.Events, "import")
	require.NoError(t, err)
	require.Equal(t, judge.Owner{Tenant: "default"}, owner("import"), "an export cannot say whose it is")
	owned, _, err := workspace.OwnerOf(t.Context(), r.NC, r.Name, sandboxHash("s"))
	require.NoError(t, err)
	require.Equal(t, anns, owned)
	reader, err := NewReader(t.Context(), r.Fleet)
	require.NoError(t, err)
	list, _, err := reader.List(wire.WithOwner(t.Context(), judge.Owner{Tenant: "other"}), 10)
	require.NoError(t, err)
	require.Empty(t, list, "of other tenants")
	reader.Workspaces = true
	list, more, err := reader.List(bob, 1)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, 2, more, "of s, fork and w; import is of another tenant")
	ids, err := reader.IDs(bob)
	require.NoError(t, err)
	require.ElementsMatch(t, []protocol.SessionID{"s", "fork"}, ids)
}

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
