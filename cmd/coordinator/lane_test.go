package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestLaneScripts runs the operator verbs against a server with a fleet. Beside the commands of
// testscript they have
//
//	enqueue LANE CALL...  put calls, as a coordinator does
//	strand LANE CALL      append a call without a ready message
//	hold WORKER CALL...   start a worker whose calls run until they are cancelled, and wait for the start of these
//	ended CALL STATUS     wait for a call's result
func TestLaneScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/lane", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: setUpLanes,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"enqueue": func(ts *testscript.TestScript, _ bool, args []string) { rig(ts).enqueue(ts, args[0], args[1:]) },
			"strand":  func(ts *testscript.TestScript, _ bool, args []string) { rig(ts).strand(ts, args[0], args[1]) },
			"hold":    func(ts *testscript.TestScript, _ bool, args []string) { rig(ts).hold(ts, args[0], args[1:]) },
			"ended":   func(ts *testscript.TestScript, _ bool, args []string) { rig(ts).ended(ts, args[0], args[1]) },
		},
	})
}

// withUsers starts a server with a fleet, and returns the addresses of its users: all may do
// everything, looks may look at lanes, deaf may not ask who holds them.
func withUsers(t *testing.T) (url func(user string) string) {
	t.Helper()
	may := []string{"$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.>"}
	user := func(name string, publish ...string) *server.User {
		return &server.User{Username: name, Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}}}
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{user("all", ">"), user("looks", append(may, "tf.ask.>")...), user("deaf", may...)},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	url = func(user string) string { return "nats://" + user + ":x@" + s.Addr().String() }
	nc, err := natsio.Connect(t.Context(), url("all"), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	return url
}

// TestLaneRights runs the verbs as users who may do less than they need.
func TestLaneRights(t *testing.T) {
	t.Parallel()
	url := withUsers(t)
	testscript.Run(t, testscript.Params{
		Files: []string{"testdata/lane_rights.txtar"}, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("LOOKS", url("looks"))
			env.Setenv("DEAF", url("deaf"))
			return likeTheTests(env)
		},
	})
}

type rigKey struct{}

func rig(ts *testscript.TestScript) *laneRig {
	r, ok := ts.Value(rigKey{}).(*laneRig)
	if !ok {
		ts.Fatalf("the script has no fleet")
	}
	return r
}

// laneRig is the fleet of one script.
type laneRig struct {
	lane.DefaultHost

	nc        *nats.Conn
	js        jetstream.JetStream
	publisher *lane.Publisher
	started   chan protocol.CallID
	after     func(func())
}

const scriptWait = time.Minute

func setUpLanes(env *testscript.Env) error {
	server, err := embedded.Start(context.Background(), embedded.Options{Data: filepath.Join(env.WorkDir, ".data"), Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	env.Defer(server.Close)
	ctx := context.Background()
	r := &laneRig{started: make(chan protocol.CallID, 64), after: env.Defer}
	if r.nc, err = natsio.Connect(ctx, "", natsio.ConnectOptions{Options: server.Options()}); err != nil {
		return err
	}
	env.Defer(r.nc.Close)
	if r.js, err = jetstream.New(r.nc, jetstream.WithDefaultTimeout(time.Minute)); err == nil {
		err = natsio.Ensure(ctx, r.js, natsio.Topology{})
	}
	if err == nil {
		r.publisher, err = lane.NewPublisher(ctx, r.nc, protocol.DefaultFleet)
	}
	env.Values[rigKey{}] = r
	err = errors.Join(err, likeTheTests(env))
	env.Setenv("TOOLFLEET_NATS", server.URL())
	env.Setenv("TOOLFLEET_CREDS", server.CredentialFile())
	return err
}

func scriptCall(name, id string) *protocol.Call {
	return &protocol.Call{
		ID: protocol.CallID(id), SessionID: "s-1", Tool: "bash", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
	}
}

func (r *laneRig) enqueue(ts *testscript.TestScript, name string, ids []string) {
	for _, id := range ids {
		ts.Check(r.publisher.Enqueue(context.Background(), lane.Outgoing{Call: scriptCall(name, id)}))
	}
}

func (r *laneRig) strand(ts *testscript.TestScript, name, id string) {
	call := scriptCall(name, id)
	body, err := wire.EncodeCall(call)
	ts.Check(err)
	msg := nats.NewMsg(wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID))
	msg.Data = body
	msg.Header.Set(wire.HeaderLane, name)
	msg.Header.Set(wire.HeaderCall, id)
	msg.Header.Set(wire.HeaderSession, string(call.SessionID))
	_, err = r.js.PublishMsg(context.Background(), msg)
	ts.Check(err)
}

func (r *laneRig) hold(ts *testscript.TestScript, worker string, starting []string) {
	h, err := lane.NewHolder(context.Background(), r.nc, r, lane.Options{Worker: protocol.WorkerID(worker), Slots: 4})
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	r.after(func() {
		cancel()
		if err := <-done; err != nil {
			panic(err) // the script is over
		}
	})
	for _, id := range starting {
		select {
		case started := <-r.started:
			if string(started) != id {
				ts.Fatalf("call %s started, want %s", started, id)
			}
		case <-time.After(scriptWait):
			ts.Fatalf("call %s does not start", id)
		}
	}
}

// Execute implements lane.Executor: calls run until they are stopped.
func (r *laneRig) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	r.started <- run.Call.ID
	<-ctx.Done()
	status, fault, _ := lane.Interrupted(ctx)
	return wire.NewResult(run.Call, status, fault)
}

// Release implements lane.Executor.
func (r *laneRig) Release(protocol.Lane) {}

func (r *laneRig) ended(ts *testscript.TestScript, id, status string) {
	var result *protocol.Result
	for deadline := time.Now().Add(scriptWait); result == nil; {
		var err error
		result, err = r.publisher.Result(context.Background(), "s-1", protocol.CallID(id))
		ts.Check(err)
		if time.Now().After(deadline) {
			ts.Fatalf("call %s has no result", id)
		}
	}
	if string(result.Status) != status {
		ts.Fatalf("call %s ended %s, want %s", id, result.Status, status)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{
		0: "-", 7: "7.0 ms", 999: "999 ms", 1234: "1.2 s", 12_345: "12.3 s", 3_600_000: "1 h 0 min",
	} {
		require.Equal(t, want, age(ms))
	}
}

// If the user of a command lacks rights, the error names these rights. It does not say that the
// fleet does not answer.
func TestCommands_TellOfMissingRights(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "all", Password: "p"}, {Username: "looks", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"$JS.API.STREAM.INFO.*"}},
		}}},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), "nats://all:p@"+s.Addr().String(), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	for _, test := range []struct {
		args  []string
		lacks string
	}{
		{[]string{"session", "ls"}, "publish on $JS.API.STREAM.MSG.GET.TF_SESSIONS"},
		{[]string{"session", "show", "s"}, "publish on $JS.API.STREAM.MSG.GET.OBJ_TF_KEPT"},
		{[]string{"session", "rm", "s"}, "publish on tf.call.default.rights.rights"},
		{[]string{"session", "rm", "s"}, "publish on $JS.API.STREAM.PURGE.TF_SESSIONS"},
		{[]string{"workers"}, "publish on tf.who.default"},
		{[]string{"approve", "s", "c"}, "publish on tf.approval.rights.rights"},
		{[]string{"submit", "go"}, "publish on tf.call.session.rights.rights"},
	} {
		stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		require.NoError(t, err)
		code := run(cli.Program{
			Name: "coordinator", Args: append(test.args, "--nats", "nats://looks:p@"+s.Addr().String()),
			Stdin: os.Stdin, Stdout: stderr, Stderr: stderr, Getenv: func(string) string { return "" },
		})
		require.NoError(t, stderr.Close())
		text, err := os.ReadFile(stderr.Name())
		require.NoError(t, err)
		require.Equal(t, cli.ExitFailed, code, "%v: %s", test.args, text)
		require.Regexp(t, `(?m)^coordinator: the NATS user has too few rights: it may not `, string(text), test.args)
		require.Contains(t, string(text), test.lacks, test.args)
	}
}

// workers sums up why calls wait.
func TestWorkers_SayWhyCallsWait(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printWaits(&out, &report.LaneList{LeftOut: 7, Lanes: []report.Lane{
		{WaitsFor: "limit account/*: rate 60/min", Waiting: 2},
		{WaitsFor: "a slot: no worker has claimed the lane", Waiting: 3},
		{WaitsFor: "its time", Delayed: 1},
		{WaitsFor: "limit account/*: rate 60/min", Waiting: 4},
		{Waiting: 1},
	}})
	require.Equal(t, `6 calls in 2 lanes waiting for: limit account/*: rate 60/min
3 calls in 1 lane waiting for: a slot: no worker has claimed the lane
1 call in 1 lane waiting for: its time
7 more lanes: lane ls --limit N shows them
`, out.String())
}
