package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A client that acts for the token of one tenant finds nothing of another tenant, by no method, and
// its calls do not reach it. What is not there and what is hidden read alike.
func TestTenants_AClientReachesItsOwn(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	of := func(tenant protocol.Tenant, name string, role judge.Role) context.Context {
		return judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: name, Tenant: tenant, Role: role})
	}
	ann, eve := of("acme", "ann", judge.RoleRun), of("other", "eve", judge.RoleOperate)
	command := func(sandbox, text string) fleet.Call {
		return fleet.Call{Sandbox: sandbox, Payload: protocol.CommandRun{Command: text}}
	}
	made, err := client.Call(ann, command("s", "echo secret > f"))
	require.NoError(t, err)
	require.NoError(t, made.Err())
	log, err := client.Sessions("").Log(ann, "s")
	require.NoError(t, err)
	require.Equal(t, judge.Owner{Tenant: "acme", By: "token:ann"}, judge.OwnerOf(log), "a single call begins a session of its principal")
	operators, err := client.Call(t.Context(), command("box", "echo secret > f"))
	require.NoError(t, err)
	_, err = client.Schedules().Add(ann, fleet.Schedule{Name: "daily", Cron: "@daily"}, fleet.Turn{Session: "s", Prompt: "p"})
	require.NoError(t, err)
	pushed := fleet.Copy{}
	sessions, schedules, lanes := client.Sessions(""), client.Schedules(), client.Lanes("")
	hidden := map[string]func(context.Context, protocol.SessionID, protocol.CallRef) error{
		"attach": func(ctx context.Context, _ protocol.SessionID, ref protocol.CallRef) error {
			_, err := client.Attach(ctx, ref)
			return err
		},
		"call": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := client.Call(ctx, fleet.Call{Session: id, Payload: protocol.CommandRun{Command: "cat f"}})
			return err
		},
		"sandbox": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			call := command(string(id), "cat f")
			call.Session = "e"
			_, err := client.Call(ctx, call)
			return err
		},
		"resource": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			call := command("e", "cat f")
			call.Resources = []protocol.Use{{Key: protocol.SandboxKey(string(id)), Access: protocol.Exclusive}}
			_, err := client.Submit(ctx, call)
			return err
		},
		"after": func(ctx context.Context, _ protocol.SessionID, ref protocol.CallRef) error {
			call := command("e", "true")
			call.After = []protocol.CallRef{ref}
			_, err := client.Call(ctx, call)
			return err
		},
		"stream": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := client.Stream(string(id), "a").Go(ctx, fleet.Call{Payload: protocol.CommandRun{Command: "cat f"}}).Wait(ctx)
			return err
		},
		"turn": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Submit(ctx, fleet.Turn{Session: id, Prompt: "p"})
			return err
		},
		"output": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Output(ctx, id, func(protocol.CallID, fleet.Output) {})
			return err
		},
		"trace": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Trace(ctx, id, 0)
			return err
		},
		"show": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Show(ctx, id)
			return err
		},
		"follow": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Follow(ctx, id, nil, nil)
			return err
		},
		"file": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.ReadFile(ctx, id, "f", "")
			return err
		},
		"fork": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Fork(ctx, id, fleet.At{}, protocol.NewSessionID())
			return err
		},
		"pull": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Pull(ctx, id, t.TempDir(), pushed)
			return err
		},
		"remove": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := sessions.Remove(ctx, id, true)
			return err
		},
		"template": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			return client.Templates().CreateFromSession(ctx, "t-"+string(id), id)
		},
		"schedule": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, err := schedules.Add(ctx, fleet.Schedule{Name: "mine", Cron: "@daily"}, fleet.Turn{Session: id, Prompt: "p"})
			return err
		},
		"server tools": func(ctx context.Context, id protocol.SessionID, _ protocol.CallRef) error {
			_, _, err := client.ServerTools(ctx, id, nil, nil)
			return err
		},
	}
	for name, try := range hidden {
		for _, it := range []struct {
			id  protocol.SessionID
			ref protocol.CallRef
		}{{"s", made.Ref()}, {"box", operators.Ref()}} {
			err := try(eve, it.id, it.ref)
			require.ErrorIs(t, err, fleet.ErrNotFound, "%s of %s", name, it.id)
			require.NotContains(t, err.Error(), "acme", name)
			require.NotContains(t, err.Error(), "default", name)
		}
	}
	_, err = schedules.Ref(eve, "daily", time.Time{})
	require.ErrorIs(t, err, fleet.ErrNotFound)
	require.ErrorContains(t, err, "there is no such schedule")
	_, err = client.Call(eve, fleet.Call{Tenant: "acme", Payload: protocol.CommandRun{Command: "true"}})
	require.ErrorIs(t, err, judge.ErrRefused, "calls for another tenant use its quotas")
	_, err = sessions.Submit(eve, fleet.Turn{Tenant: "acme", Prompt: "p"})
	require.ErrorIs(t, err, judge.ErrRefused)
	for _, err := range []error{
		errOf(lanes.List(eve, 0)), errOf(lanes.Show(eve, "sandbox/s", 0)),
		errOf(lanes.Pause(eve, "sandbox/s")), errOf(lanes.CancelRunning(eve, "sandbox/s")),
	} {
		require.ErrorIs(t, err, judge.ErrRefused)
		require.ErrorContains(t, err, "the operator of the fleet")
	}
	ids, err := sessions.IDs(eve)
	require.NoError(t, err)
	require.NotContains(t, ids, protocol.SessionID("s"))
	list, more, err := sessions.List(eve, 1)
	require.NoError(t, err)
	require.Zero(t, more)
	require.Empty(t, list)
	page, more, err := schedules.Page(eve, "", 1)
	require.NoError(t, err)
	require.Zero(t, more)
	require.Empty(t, page)

	list, _, err = sessions.List(ann, 0)
	require.NoError(t, err)
	require.Equal(t, []protocol.SessionID{"s"}, idsOf(list))
	attached, err := client.Attach(ann, made.Ref())
	require.NoError(t, err)
	result, err := attached.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, result.Err())
	result, err = client.Call(ann, command("s", "cat f"))
	require.NoError(t, err)
	require.Contains(t, result.Text, "secret")

	long := client.Go(ann, command("s", "sleep 600"))
	_, err = client.Submit(ann, command("s", "true")) // behind it, so that it is stored
	require.NoError(t, err)
	reader, err := client.Attach(of("acme", "bob", judge.RoleRead), long.Ref())
	require.NoError(t, err, "one of the tenant may follow it")
	require.ErrorContains(t, reader.Cancel(of("acme", "bob", judge.RoleRead)), "role operate, and not read, since it belongs to token:ann")
	require.NoError(t, long.Cancel(ann))
	result, err = long.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.StatusCancelled, result.Status)
}

// Calls that name no session are in one of their tenant: which tenant calls first says nothing of
// the others.
func TestTenants_CallsWithoutASession(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	sessions := map[protocol.SessionID]bool{}
	for _, who := range []judge.Principal{
		{},
		{Known: judge.ByToken, Name: "ann", Tenant: "acme"},
		{Known: judge.ByToken, Name: "eve", Tenant: "other"},
		{Known: judge.ByToken, Name: "dan"},
		{Known: judge.ByToken, Name: "bob", Tenant: "acme"},
	} {
		ctx := judge.With(t.Context(), who)
		result, err := client.Call(ctx, fleet.Call{Payload: protocol.CommandRun{Command: "true"}})
		require.NoError(t, err, who)
		require.NoError(t, result.Err(), who)
		ref, err := client.Submit(ctx, fleet.Call{Payload: protocol.CommandRun{Command: "true"}})
		require.NoError(t, err, who)
		require.Equal(t, result.SessionID, ref.SessionID)
		_, err = client.Attach(ctx, ref)
		require.NoError(t, err, who)
		sessions[ref.SessionID] = true
	}
	require.Len(t, sessions, 4, "one for the operator, and one for each tenant")
}

// What a principal reads of a session ends when another tenant makes one of its name, also if it
// says that it has read more than there is.
func TestTenants_EventsOfASessionThatIsMadeLater(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	of := func(tenant protocol.Tenant, name string) context.Context {
		return judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: name, Tenant: tenant})
	}
	ann, eve, dan := of("acme", "ann"), of("other", "eve"), of("", "dan")
	sessions := client.Sessions("")
	run := func(ctx context.Context, id protocol.SessionID) {
		t.Helper()
		result, err := client.Call(ctx, fleet.Call{Session: id, Payload: protocol.CommandRun{Command: "echo secret"}})
		require.NoError(t, err)
		require.NoError(t, result.Err())
	}
	type read struct {
		passed []fleet.Passed
		err    error
	}
	follow := func(ctx context.Context, id protocol.SessionID, after string) <-chan read {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		ended := make(chan read, 1)
		go func() {
			defer cancel()
			var all read
			for p, err := range sessions.Events(ctx, id, after) {
				if all.err = err; p.Event != nil || p.Output != nil || p.Lost {
					all.passed = append(all.passed, p)
				}
			}
			ended <- all
		}()
		return ended
	}
	none := follow(dan, "none", "")
	time.Sleep(time.Second)
	run(ann, "none")
	run(ann, "none")
	read1 := <-none
	require.Empty(t, read1.passed)
	require.ErrorIs(t, read1.err, fleet.ErrNotFound)

	run(eve, "again")
	forged := follow(eve, "again", "999999999-0")
	time.Sleep(time.Second)
	_, err = sessions.Remove(eve, "again", true)
	require.NoError(t, err)
	run(ann, "again")
	run(ann, "again")
	read2 := <-forged
	require.Empty(t, read2.passed)
	require.ErrorIs(t, read2.err, fleet.ErrInvalid)
	require.ErrorContains(t, read2.err, "999999999-0")

	long := client.Go(t.Context(), fleet.Call{Session: "operators", Payload: protocol.CommandRun{Command: "while sleep 0.1; do echo x; done"}})
	for p, err := range sessions.Events(dan, "operators", "") { // which has no journal
		require.NoError(t, err)
		if p.Output != nil {
			break
		}
	}
	require.NoError(t, long.Cancel(t.Context()))

	for who, id := range map[*context.Context]protocol.SessionID{&eve: "none", &dan: "again"} {
		all := <-follow(*who, id, "")
		require.ErrorIs(t, all.err, fleet.ErrNotFound)
		require.NotContains(t, all.err.Error(), "acme")
	}
}

func errOf[T any](_ T, err error) error { return err }

func idsOf(list []report.Session) (ids []protocol.SessionID) {
	for i := range list {
		ids = append(ids, list[i].SessionID)
	}
	return ids
}
