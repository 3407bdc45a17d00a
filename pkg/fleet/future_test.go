package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// shell is a call of a command in a sandbox.
func shell(sandbox, command string) fleet.Call {
	return fleet.Call{Sandbox: sandbox, Payload: protocol.CommandRun{Command: command}}
}

func TestGo_KeepsTheOrderOfALaneAndReturnsAtOnce(t *testing.T) {
	t.Parallel()
	client := started(t)
	var futures []*fleet.Future
	for i := range 20 {
		futures = append(futures, client.Go(t.Context(), shell("box", fmt.Sprintf("echo %d >> log", i))))
	}
	for _, f := range futures {
		result := mustWait(t, f)
		require.Equal(t, protocol.StatusOK, result.Status, result.Text)
		require.Equal(t, protocol.CallRef{SessionID: result.SessionID, ID: result.CallID}, f.Ref())
	}
	result, err := client.Go(t.Context(), fleet.Call{Sandbox: "box", Tool: "bash", Arguments: `{"command":"cat log | tr '\n' ' '"}`}).Wait(t.Context())
	require.NoError(t, err)
	require.Contains(t, result.Text, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19", "its text is that of its tool")

	f := client.Go(t.Context(), fleet.Call{})
	<-f.Done()
	_, err = f.Wait(t.Context())
	require.ErrorIs(t, err, protocol.ErrInvalidCall)
	require.NoError(t, f.Cancel(t.Context()))
	for range f.Output(t.Context()) {
		t.Error("a call that was not sent has no output")
	}
}

// A future is cancelled by its own method, and by the end of its context; waiting ends with another
// context, and changes nothing.
func TestFuture_Cancel(t *testing.T) {
	t.Parallel()
	client := started(t)
	ctx, cancel := context.WithCancel(t.Context())
	long := "echo up; sleep 600"
	both := []*fleet.Future{client.Go(t.Context(), shell("a", long)), client.Go(ctx, shell("b", long))}
	behind := client.Go(t.Context(), shell("a", "echo next"))
	for _, f := range both {
		for range f.Output(t.Context()) {
			break // it runs
		}
	}
	short, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	_, err := both[0].Wait(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, both[0].Cancel(t.Context()))
	cancel()
	for _, f := range both {
		result := mustWait(t, f)
		require.Equal(t, protocol.StatusCancelled, result.Status, result.Text)
	}
	result := mustWait(t, behind)
	require.Equal(t, protocol.StatusOK, result.Status)
}

// A call continues without the process that sent it; any other follows it, running or ended.
func TestAttach_FromAnotherClient(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	connect := func() *fleet.Client {
		client := mustConnect(t, fleet.Options{URL: server.ClientURL()})
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	none := func(c fleet.Call) fleet.Call {
		c.MinLevel = "none"
		return c
	}
	first, second, host := connect(), connect(), connect()
	ref, err := first.Submit(t.Context(), none(shell("a", "for i in $(seq 200); do echo line $i; sleep 0.02; [ -e stop ] && exit 3; done")))
	require.NoError(t, err)
	read, err := protocol.ParseCallRef(ref.String())
	require.NoError(t, err)
	require.Equal(t, ref, read)
	abandoned := first.Go(t.Context(), none(shell("b", "echo done; exit 4")))
	waits, err := second.Attach(t.Context(), ref) // no worker has it yet
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := second.Attach(t.Context(), abandoned.Ref())
		return err == nil
	}, time.Minute, 5*time.Millisecond, "it is being sent")
	require.NoError(t, first.Close())
	_, err = abandoned.Wait(t.Context())
	require.ErrorIs(t, err, fleet.ErrClosed)
	mustStart(t, host, worker.Options{Driver: "process"})

	var lines strings.Builder
	for piece := range waits.Output(t.Context()) {
		require.Equal(t, "stdout", piece.Stream)
		if lines.Write(piece.Data); strings.Count(lines.String(), "\n") > 3 {
			break
		}
	}
	require.Contains(t, lines.String(), "line")
	runs, err := host.Attach(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, runs.Cancel(t.Context()))
	for _, f := range []*fleet.Future{waits, runs} {
		result := mustWait(t, f)
		require.Equal(t, protocol.StatusCancelled, result.Status)
	}
	for range 2 { // a stored result is read as often as one likes
		f, err := second.Attach(t.Context(), abandoned.Ref())
		require.NoError(t, err)
		result := mustWait(t, f)
		require.Contains(t, result.Text, `"exit_code":4`)
	}
	_, err = second.Attach(t.Context(), protocol.CallRef{SessionID: "a", ID: "never"})
	require.ErrorIs(t, err, fleet.ErrNotFound)
	_, err = second.Attach(t.Context(), protocol.CallRef{SessionID: "a"})
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}

// Who follows a call from its start misses nothing of what it writes; who comes later gets what is
// written from then on, and knows that there was more.
func TestOutput_TellsALateReader(t *testing.T) {
	t.Parallel()
	client := started(t)
	f := client.Go(t.Context(), shell("box", "for i in $(seq 60000); do echo line $i; sleep 0.02; done"))
	first := func(f *fleet.Future) (gaps []bool) {
		for piece := range f.Output(t.Context()) {
			if gaps = append(gaps, piece.Gap); len(gaps) == 2 {
				break
			}
		}
		return gaps
	}
	require.Equal(t, []bool{false, false}, first(f))
	late, err := client.Attach(t.Context(), f.Ref())
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, first(late))

	var gaps []bool
	for p, err := range client.Sessions("").Events(t.Context(), f.Ref().SessionID, "") {
		require.NoError(t, err)
		if p.Output != nil {
			gaps = append(gaps, p.Output.Gap)
		}
		if len(gaps) == 2 {
			break
		}
	}
	require.Equal(t, []bool{true, false}, gaps)
	pieces := make(chan bool, 1<<10)
	stop, err := client.Sessions("").Output(t.Context(), f.Ref().SessionID, func(_ protocol.CallID, piece fleet.Output) {
		select {
		case pieces <- piece.Gap:
		default:
		}
	})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, []bool{<-pieces, <-pieces})
	stop()
	require.NoError(t, f.Cancel(t.Context()))
	require.Equal(t, protocol.StatusCancelled, mustWait(t, f).Status)
}

// A call of another process that never used futures is found, too: while it is the ready message of
// its lane, and while it runs.
func TestAttach_ACallThatWasNotSentForThat(t *testing.T) {
	t.Parallel()
	client := started(t)
	call := shell("box", "echo up; sleep 600")
	call.ID = "mine"
	ended := make(chan fleet.Result, 1)
	go func() {
		result, err := client.Call(context.WithoutCancel(t.Context()), call)
		if err != nil {
			t.Error(err)
		}
		ended <- result
	}()
	var f *fleet.Future
	require.Eventually(t, func() (found bool) {
		var err error
		f, err = client.Attach(t.Context(), protocol.CallRef{SessionID: "box", ID: "mine"})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, f.Cancel(t.Context()))
	require.Equal(t, protocol.StatusCancelled, (<-ended).Status)
	result := mustWait(t, f)
	require.Equal(t, protocol.StatusCancelled, result.Status)
}

// Each way in which a client ends has one outcome.
func TestFuture_OfAClosedClientOrALostServer(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Close()
	lost := lossLogger{make(chan struct{})}
	client := mustConnect(t, fleet.Options{URL: server.URL(), Creds: server.CredentialFile(), Logger: slog.New(lost)})
	waits := client.Go(t.Context(), shell("a", "true")) // there is no worker
	require.Eventually(t, func() bool {
		_, err := client.Attach(t.Context(), waits.Ref())
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	server.Close()
	<-lost.told
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	result, err := client.Go(ctx, shell("a", "true")).Wait(t.Context())
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, protocol.StatusRejected, result.Status)
	_, err = client.Submit(ctx, shell("a", "true"))
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.NoError(t, client.Close())
	_, err = waits.Wait(t.Context())
	require.ErrorIs(t, err, fleet.ErrClosed)
	for _, err := range []error{
		second(client.Call(t.Context(), shell("a", "true"))), second(client.Go(t.Context(), shell("a", "true")).Wait(t.Context())),
		second(client.Submit(t.Context(), shell("a", "true"))),
	} {
		require.ErrorIs(t, err, fleet.ErrClosed)
		require.ErrorIs(t, err, fleet.ErrNotSent)
	}
}

func second[T any](_ T, err error) error { return err }

// TestGo_ManyFutures: what is in flight costs little memory, and no goroutines.
func TestGo_ManyFutures(t *testing.T) { //nolint:paralleltest // it counts goroutines
	const (
		count = 10_000
		ended = 300 // how many are waited for; all take half a minute
	)
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	type number struct {
		N int `json:"n"`
	}
	table, err := tools.NewTable(tools.NewRemote[number]("count", "Count.", tools.Remote{Kind: "count", Resources: []tools.Resource{}}))
	require.NoError(t, err)
	call := func(i int) fleet.Call {
		return fleet.Call{
			Table: table, Tool: "count", Arguments: fmt.Sprintf(`{"n":%d}`, i),
			Session: protocol.SessionID(fmt.Sprintf("s%d", i%1000)), Delivery: protocol.Idempotent,
		}
	}
	before, heap := runtime.NumGoroutine(), heapBytes()
	futures := make([]*fleet.Future, count)
	most := 0
	for i := range futures {
		futures[i] = client.Go(t.Context(), call(i))
		most = max(most, runtime.NumGoroutine()-before)
	}
	require.Less(t, most, count/100, "goroutines while they are sent")
	require.Less(t, (heapBytes()-heap)/count, int64(16<<10), "bytes for each, with an embedded server")
	var ran atomic.Int64
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "none", Slots: 64, Handlers: []worker.Handler{
		worker.Handle("count", func(_ context.Context, _ *worker.Call, n number) (int, error) {
			ran.Add(1)
			return n.N, nil
		}),
	}})
	require.NoError(t, err)
	for i, f := range futures[:ended] {
		result := mustWait(t, f)
		require.Equal(t, fmt.Sprint(i), result.Text)
	}
	require.GreaterOrEqual(t, ran.Load(), int64(ended))
}

func heapBytes() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// As long as a result is stored, it can be read with what the fleet's streams know about its call.
func TestAttach_AStoredResultHasWhatTheStreamsKnow(t *testing.T) {
	t.Parallel()
	client := started(t)
	write := client.Go(t.Context(), shell("box", "echo a > a"))
	read := client.Go(t.Context(), fleet.Call{Sandbox: "box", Tool: "read", Arguments: `{"path":"a"}`, After: []protocol.CallRef{write.Ref()}})
	requireOK(t, write, read)
	ended := func(f *fleet.Future) protocol.Result {
		f, err := client.Attach(t.Context(), f.Ref())
		require.NoError(t, err)
		result := mustWait(t, f)
		require.Positive(t, result.Epoch)
		require.Equal(t, 1, result.Attempt)
		require.NotEmpty(t, result.WorkerID)
		return result.Result
	}
	wrote, has := ended(write), ended(read)
	require.Positive(t, wrote.Sequence)
	require.Greater(t, has.Sequence, wrote.Sequence)
	require.Positive(t, wrote.Checkpoint)
	require.Zero(t, has.Checkpoint, "it changed nothing")
}

// A call has ended before it is attached: nothing has to be cancelled, and the client continues.
func TestAttach_CancelOfACallThatHasEnded(t *testing.T) {
	t.Parallel()
	client := started(t)
	result := mustCall(t, client, shell("box", "true"))
	for range 2 {
		attached, err := client.Attach(t.Context(), result.Ref())
		require.NoError(t, err)
		require.NoError(t, attached.Cancel(t.Context()))
		requireOK(t, attached)
	}
}

// Law: a call has one result for all that wait for it, which is made once.
func TestFuture_AllWhoWaitGetOneResult(t *testing.T) {
	t.Parallel()
	client := started(t)
	var made atomic.Int32
	tool := tools.Tool{
		Definition: tools.Definition{Name: "note", Description: "Note.", Schema: []byte(`{"type":"object"}`)},
		Revert: &tools.Revert{Tool: "note", Func: func(json.RawMessage, *protocol.Result) json.RawMessage {
			made.Add(1)
			return nil
		}},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: protocol.CommandRun{Command: "echo noted"}, Delivery: protocol.AtMostOnce}, nil
		},
	}
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	f := client.Go(t.Context(), fleet.Call{Table: table, Session: "s", Tool: "note"})
	attached := make(chan *fleet.Future, 1)
	go func() {
		<-f.Done()
		other, err := client.Attach(t.Context(), f.Ref())
		if err != nil {
			t.Error(err)
		}
		attached <- other
	}()
	var group errgroup.Group
	for i := range 8 {
		group.Go(func() error {
			ctx, cancel := context.WithCancel(t.Context())
			if i == 0 {
				<-f.Done()
				cancel() // takes nothing from the others
			}
			defer cancel()
			result, err := f.Wait(ctx)
			if err != nil || result.Status != protocol.StatusOK || !strings.Contains(result.Text, "noted") {
				return fmt.Errorf("%w: %s", err, result.Text)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, int32(1), made.Load())
	requireOK(t, <-attached)
}
