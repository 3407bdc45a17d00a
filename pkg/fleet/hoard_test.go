package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// victims are a fleet with an honest worker, and somebody who has a worker's key.
type victims struct {
	t       *testing.T
	place   place
	fleet   *fleet.Client
	table   *tools.Table
	hostile *nats.Conn
}

func newVictims(t *testing.T) *victims {
	t.Helper()
	p, logger := deployed(t, accountsFile), slog.New(slog.DiscardHandler)
	makePool(t, p)
	f, err := fleet.Connect(t.Context(), p.options(logger))
	require.NoError(t, err)
	stop := startWorker(t, p, logger)
	t.Cleanup(func() {
		stop()
		require.NoError(t, f.Close())
	})
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	return &victims{t: t, place: p, fleet: f, table: table, hostile: p.connect(t, p.worker, nil)}
}

func (v *victims) call(ctx context.Context, session protocol.SessionID, command string) fleet.Result {
	v.t.Helper()
	outcome, err := v.fleet.Call(ctx, fleet.Call{Table: v.table, Session: session, Tool: "bash", Arguments: `{"command":"` + command + `"}`, MinLevel: "none"})
	require.NoError(v.t, err)
	return outcome
}

// publish publishes as a worker, and waits for the acknowledgement of a stream.
func (v *victims) publish(subject string, body []byte, err error) {
	v.t.Helper()
	require.NoError(v.t, err)
	answer, err := v.hostile.Request(subject, body, time.Minute)
	require.NoError(v.t, err)
	require.NotContains(v.t, string(answer.Data), "error")
}

// last reads the last message of a subject, as a worker; without one it is empty.
func (v *victims) last(stream, subject string) []byte {
	v.t.Helper()
	msg, err := v.hostile.Request("$JS.API.DIRECT.GET."+stream, []byte(`{"last_by_subj":"`+subject+`"}`), time.Minute)
	require.NoError(v.t, err)
	return msg.Data
}

// hoard claims a lane in the name of a worker with an endless lease.
func (v *victims) hoard(lane protocol.Lane) {
	v.t.Helper()
	beat, err := wire.EncodeHeartbeat(&wire.Heartbeat{WorkerID: "hoarder", LeaseMS: 1 << 62, Beat: 1})
	v.publish(wire.HeartbeatSubject(fleetName, protocol.DefaultPool, "life"), beat, err)
	claim, err := wire.EncodeClaim(&wire.Claim{Lane: lane, WorkerID: "hoarder", Incarnation: "life", Token: "t", Ready: 1})
	v.publish(wire.ClaimSubject(fleetName, protocol.DefaultPool, wire.HashLane(lane)), claim, err)
}

// TestHoard_OthersAreAnsweredAndToldWho: a lane that somebody claims and sits on has its calls
// answered in their time, and its operator sees who has it. Other lanes go on.
func TestHoard_OthersAreAnsweredAndToldWho(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	v.hoard("sandbox/victim")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // in which a busy machine takes it
	defer cancel()
	waits := v.call(ctx, victim, "true")
	require.Equal(t, protocol.StatusOutcomeUnknown, waits.Status)
	require.Contains(t, waits.Error.Message, "a request to cancel") // which a busy machine may not take in that time
	require.Equal(t, protocol.StatusOK, v.call(t.Context(), "other", "true").Status)

	o, err := operator.New(t.Context(), v.place.connect(t, v.place.pool, nil), fleetName)
	require.NoError(t, err)
	lanes, err := o.List(t.Context(), protocol.DefaultPool, 0)
	require.NoError(t, err)
	require.NotEmpty(t, lanes.Lanes)
	require.Equal(t, operator.StateLost, lanes.Lanes[0].State)
	require.EqualValues(t, "hoarder", lanes.Lanes[0].Holder)
}

// TestHoard_LeaseOfAnother: whoever has a worker's key ends the lease of another worker, in its
// name. What that one ran starts again, as after any lost lease, and its worker goes on.
func TestHoard_LeaseOfAnother(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	lane, ended, starts := protocol.Lane("sandbox/"+victim), make(chan fleet.Result, 1), filepath.Join(t.TempDir(), "starts")
	go func() {
		ended <- v.call(t.Context(), victim, "echo >>'"+starts+"'; [ $(wc -l <'"+starts+"') = 2 ] || sleep 100")
	}()
	var claim *wire.Claim
	for claim == nil { // nobody has it yet
		claim, _ = wire.DecodeClaim(v.last("TF_CLAIMS", wire.ClaimSubject(fleetName, protocol.DefaultPool, wire.HashLane(lane))))
	}
	require.Eventually(t, func() bool { _, err := os.Stat(starts); return err == nil }, time.Minute, time.Millisecond)
	beat, err := wire.EncodeHeartbeat(&wire.Heartbeat{WorkerID: claim.WorkerID, LeaseMS: 10_000, Beat: 1 << 40, Expired: true})
	v.publish(wire.HeartbeatSubject(fleetName, protocol.DefaultPool, claim.Incarnation), beat, err)
	outcome := <-ended
	require.Equal(t, protocol.StatusOK, outcome.Status, outcome.Text)
	require.Equal(t, claim.WorkerID, outcome.WorkerID, "it is the only one")
	require.Equal(t, 2, outcome.Attempt)
	require.Equal(t, protocol.StatusOK, v.call(t.Context(), victim, "true").Status)
}

// TestFlood_OfReadyMessages: whoever has a worker's key calls workers to lanes in which nothing
// waits. Calls run beside that.
func TestFlood_OfReadyMessages(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	for n := range 500 {
		lane := protocol.Lane(fmt.Sprint("sandbox/n", n))
		ready := nats.NewMsg(wire.ReadySubject(fleetName, protocol.DefaultPool, wire.HashLane(lane)))
		if n < 250 { // else it is malformed
			ready.Header.Set(wire.HeaderLane, wire.LaneHeader(lane))
		}
		require.NoError(t, v.hostile.PublishMsg(ready))
	}
	require.NoError(t, v.hostile.Flush())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.Equal(t, protocol.StatusOK, v.call(ctx, victim, "true").Status)
}

// TestFlood_OfQuestions: whoever has a worker's key asks much in the name of a call of an MCP
// server. A person is told, and what the call asks itself is answered.
func TestFlood_OfQuestions(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	made, problems, err := v.fleet.ServerTools(t.Context(), victim, []mcp.Server{
		{MCPServer: toolservertest.Program("test"), Only: []string{"form"}, MinLevel: "none"},
	}, nil)
	require.NoError(t, err)
	require.Empty(t, problems)
	table, err := tools.NewTable(made...)
	require.NoError(t, err)
	junk, answered := 0, make(chan struct{})
	outcome, err := v.fleet.Call(t.Context(), fleet.Call{Table: table, Session: victim, Tool: "test__form", MinLevel: "none", Observe: func(e loop.Event) {
		switch {
		case e.Type != loop.EventQuestionAsked:
		case e.Question.Message == "junk":
			junk++
		default:
			go func() {
				defer close(answered)
				sessions, own := v.fleet.Sessions(""), e.Question.ID
				err := sessions.Answer(t.Context(), e.SessionID, e.CallID, protocol.Answer{Question: own, Action: protocol.ActionWait})
				for n := 0; n < 5000 && err == nil; n++ {
					var body []byte
					if body, err = wire.EncodeQuestion(protocol.Question{ID: fmt.Sprint(n), Message: "junk"}); err == nil {
						err = v.hostile.Publish(wire.QuestionSubject(fleetName, protocol.DefaultPool, victim, e.CallID), body)
					}
				}
				answer := protocol.Answer{Question: own, Action: protocol.ActionAccept, Content: json.RawMessage(`{"name":"Bob"}`)}
				if err := errors.Join(err, v.hostile.Flush(), sessions.Answer(t.Context(), e.SessionID, e.CallID, answer)); err != nil {
					t.Error(err)
				}
			}()
		}
	}})
	require.NoError(t, err)
	require.Contains(t, outcome.Text, `"name":"Bob"`)
	<-answered // its confirmation comes behind the junk, and maybe behind the result
	require.NotZero(t, junk)
}

// TestFlood_OfWordsAboutACall: whoever has a worker's key says much about a call of its pool. It
// ends with its own result.
func TestFlood_OfWordsAboutACall(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			ready, id := wire.ReadySubject(fleetName, protocol.DefaultPool, wire.HashLane(protocol.Lane("sandbox/"+victim))), protocol.CallID("")
			for id == "" { // the call is not there yet
				msg, err := v.hostile.Request("$JS.API.DIRECT.GET.TF_CALLS", []byte(`{"last_by_subj":"`+ready+`"}`), time.Minute)
				if err != nil {
					return err
				}
				id = protocol.CallID(msg.Header.Get(wire.HeaderCall))
			}
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return v.hostile.Flush()
				default:
				}
				for _, kind := range []wire.FrameKind{wire.FrameStarted, wire.FrameStdout} {
					body, err := wire.EncodeFrame(&wire.Frame{CallID: id, Seq: n + 1, Kind: kind, WorkerID: "hostile", Attempt: 1, Data: []byte(`"junk"`)})
					if err != nil {
						return err
					}
					if err := v.hostile.Publish(wire.OutputSubject(fleetName, victim, id), body); err != nil {
						return err
					}
				}
				if err := v.hostile.Publish(wire.QuestionSubject(fleetName, protocol.DefaultPool, victim, id), []byte(fmt.Sprint(n))); err != nil {
					return err
				}
			}
		}()
	}()
	outcome := v.call(t.Context(), victim, "echo own; sleep 1")
	close(stop)
	require.NoError(t, <-ended)
	require.Equal(t, protocol.StatusOK, outcome.Status)
	require.Contains(t, outcome.Text, "own")
	require.NotContains(t, outcome.Text, "junk")
	require.NotEqual(t, protocol.WorkerID("hostile"), outcome.WorkerID)
}
