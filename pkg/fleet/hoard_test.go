package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
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
	f := mustConnect(t, p.options(logger))
	stop := startWorker(t, p, logger)
	t.Cleanup(func() {
		stop()
		require.NoError(t, f.Close())
	})
	table := table(t)
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
	beat, err := wire.Encode(&wire.Heartbeat{WorkerID: "hoarder", LeaseMS: 1 << 62, Beat: 1})
	v.publish(wire.HeartbeatSubject(fleetName, protocol.DefaultPool, "life"), beat, err)
	claim, err := wire.Encode(&wire.Claim{Lane: lane, WorkerID: "hoarder", Incarnation: "life", Token: "t", Ready: 1})
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
		claim, _ = wire.Decode[wire.Claim](v.last("TF_CLAIMS", wire.ClaimSubject(fleetName, protocol.DefaultPool, wire.HashLane(lane))))
	}
	require.Eventually(t, func() bool { _, err := os.Stat(starts); return err == nil }, time.Minute, time.Millisecond)
	beat, err := wire.Encode(&wire.Heartbeat{WorkerID: claim.WorkerID, LeaseMS: 10_000, Beat: 1 << 40, Expired: true})
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
					if body, err = wire.Encode(&protocol.Question{ID: fmt.Sprint(n), Message: "junk"}); err == nil {
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
					body, err := wire.Encode(&wire.Frame{CallID: id, Seq: n + 1, Kind: kind, WorkerID: "hostile", Attempt: 1, Data: []byte(`"junk"`)})
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

// small starts a server with little room and the accounts of deploy/nats, and makes a fleet there.
func small(t *testing.T) place {
	t.Helper()
	p := permitted(t, "max_file_store: 100MB")
	require.NoError(t, natsio.Ensure(t.Context(), p.js(t, p.coordinator), natsio.Topology{MaxBytes: 8 << 20}))
	pool := p.js(t, p.pool)
	require.NoError(t, natsio.Ensure(t.Context(), pool, natsio.Topology{Bounded: true, MaxBytes: 8 << 20, MaxClaims: 200, Storage: natsio.Storage{StreamBytes: 47 << 20}}))
	require.NoError(t, natsio.MakePool(t.Context(), pool, fleetName, protocol.DefaultPool))
	return p
}

func (p place) js(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(p.connect(t, url, nil), jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	return js
}

// lines are what a logger writes, as far as there is room for it.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// TestFlood_TakesNothingOfOthers: whoever has a worker's key fills what workers fill, each stream
// to its bound. Others' calls run or end with a word about it, and their sessions go on.
func TestFlood_TakesNothingOfOthers(t *testing.T) {
	t.Parallel()
	said := make(lines, 10_000)
	p, logger := small(t), slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	owner, hostile := p.js(t, p.pool), p.js(t, p.worker)
	f, err := fleet.Connect(ctx, p.options(logger))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	defer startWorker(t, p, logger)()
	table := table(t)
	call := func(tool, arguments string) fleet.Result {
		outcome, err := f.Call(ctx, fleet.Call{Table: table, Session: protocol.NewSessionID(), Tool: tool, Arguments: arguments, MinLevel: "none"})
		require.NoError(t, err)
		return outcome
	}
	junk := make([]byte, 256<<10)
	flood := func(stream, subject string, size int) {
		t.Helper()
		s, err := owner.Stream(ctx, stream)
		require.NoError(t, err)
		config, refused := s.CachedInfo().Config, error(nil)
		most := config.MaxBytes/int64(size) + 2
		if config.MaxBytes <= 0 {
			most = config.MaxMsgs + 2
		}
		for ; size > 0; size, most = size/256, 256+2 {
			refused = nil
			at := func(n int64) string { return strings.Replace(subject, "%", fmt.Sprint(size, "-", n), 1) }
			for n := range most { // most of it unanswered, which is faster
				require.NoError(t, hostile.Conn().Publish(at(-n), junk[:size]))
			}
			for n := int64(1); n <= most && refused == nil; n++ {
				_, refused = hostile.Publish(ctx, at(n), junk[:size])
			}
			if stream == wire.ResultsStream(fleetName) { // of which the oldest go
				break
			}
			require.ErrorContains(t, refused, "maximum", stream)
		}
		info, err := s.Info(ctx)
		require.NoError(t, err)
		if config.MaxBytes > 0 {
			require.LessOrEqual(t, info.State.Bytes, uint64(config.MaxBytes), stream)
			require.Greater(t, info.State.Bytes, uint64(config.MaxBytes)*8/10, stream)
		}
	}
	purge := func(stream string, of ...jetstream.StreamPurgeOpt) {
		s, err := owner.Stream(ctx, stream)
		require.NoError(t, err)
		require.NoError(t, s.Purge(ctx, of...))
	}
	for stream, subject := range map[string]string{
		"TF_RESULTS": "tf.result.junk.%", "TF_WORKSPACES": "tf.workspace.%",
		"OBJ_TF_BLOBS": "$O.TF_BLOBS.C.%", "OBJ_TF_KEPT": "$O.TF_KEPT.C.%", "OBJ_TF_BODIES": "$O.TF_BODIES.C.%",
	} {
		flood(stream, subject, len(junk))
	}
	full := call("bash", `{"command":"true"}`)
	require.Equal(t, protocol.StatusFailed, full.Status)
	require.Equal(t, protocol.CodeWorkspaceUnavailable, full.Error.Code)
	require.Contains(t, full.Error.Message, "the fleet has no room for the workspace")
	purge("TF_WORKSPACES")
	purge("OBJ_TF_BODIES")
	require.Equal(t, protocol.StatusOK, call("bash", `{"command":"true"}`).Status)
	require.Contains(t, call("bash", `{"command":"seq 1 60000"}`).Text, "the rest is not stored")
	full = call("write", `{"path":"large","content":"`+strings.Repeat("x", 3<<20)+`"}`)
	require.Equal(t, protocol.StatusRejected, full.Status)
	require.Equal(t, protocol.CodeFleetFull, full.Error.Code)
	_, err = p.js(t, p.coordinator).Publish(ctx, wire.EventSubject(fleetName, victim), junk)
	require.NoError(t, err, "journals have room")

	flood(wire.CallsStream(fleetName), "tf.call.default.junk.%", 64<<10)
	full = call("bash", `{"command":"true"}`)
	require.Equal(t, protocol.StatusRejected, full.Status)
	require.Equal(t, protocol.CodeFleetFull, full.Error.Code)
	purge(wire.CallsStream(fleetName))

	claims := wire.ClaimSubject(fleetName, protocol.DefaultPool, ">")
	require.Eventually(t, func() bool { // else there is room as soon as a lane is let go
		s, err := owner.Stream(ctx, wire.ClaimsStream(fleetName))
		require.NoError(t, err)
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(claims))
		return err == nil && len(info.State.Subjects) == 0
	}, time.Minute, 10*time.Millisecond)
	flood(wire.ClaimsStream(fleetName), "tf.claim.default.%", 100)
	waiting := make(chan fleet.Result)
	go func() {
		outcome, err := f.Call(ctx, fleet.Call{Table: table, Session: protocol.NewSessionID(), Tool: "bash", Arguments: `{"command":"true"}`, MinLevel: "none"})
		if err != nil {
			t.Error(err)
		}
		waiting <- outcome
	}()
	for line := ""; !strings.Contains(line, "lane cannot be claimed") || !strings.Contains(line, "queue is full"); {
		select {
		case line = <-said:
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
	purge(wire.ClaimsStream(fleetName), jetstream.WithPurgeSubject(claims))
	require.Equal(t, protocol.StatusOK, (<-waiting).Status, "it waits for room")
	purge(wire.ClaimsStream(fleetName))
	beat, err := wire.Encode(&wire.Heartbeat{WorkerID: "hostile", LeaseMS: 60_000, Beat: 1})
	require.NoError(t, err)
	_, err = hostile.Publish(ctx, wire.HeartbeatSubject(fleetName, protocol.DefaultPool, "life"), beat)
	require.NoError(t, err)
	for n := 0; err == nil; n++ {
		lane := protocol.Lane(fmt.Sprint("sandbox/n", n))
		body, encoding := wire.Encode(&wire.Claim{Lane: lane, WorkerID: "hostile", Incarnation: "life", Token: "t", Ready: 1})
		require.NoError(t, encoding)
		_, err = hostile.Publish(ctx, wire.ClaimSubject(fleetName, protocol.DefaultPool, wire.HashLane(lane)), body)
	}
	require.ErrorContains(t, err, "maximum messages exceeded")
	soon, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	waits, err := f.Call(soon, fleet.Call{Table: table, Session: protocol.NewSessionID(), Tool: "bash", Arguments: `{"command":"true"}`, MinLevel: "none"})
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOutcomeUnknown, waits.Status)
	require.Contains(t, waits.Error.Message, "a request to cancel", "nobody can claim its lane")
}
