package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// victims are a fleet with an honest worker, and somebody who has a worker's key.
type victims struct {
	t       *testing.T
	place   place
	fleet   *fleet.Fleet
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

func (v *victims) call(ctx context.Context, session protocol.SessionID, command string) fleet.Outcome {
	v.t.Helper()
	outcome, err := v.fleet.Call(ctx, v.table, session, "bash", `{"command":"`+command+`"}`, &loop.SingleOptions{MinLevel: "none"})
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

// hoard claims a lane in the name of a worker with an endless lease.
func (v *victims) hoard(lane protocol.Lane) {
	v.t.Helper()
	beat, err := protocol.EncodeHeartbeat(&protocol.Heartbeat{WorkerID: "hoarder", LeaseMS: 1 << 62, Beat: 1})
	v.publish(fleetName.HeartbeatSubject(protocol.DefaultPool, "life"), beat, err)
	claim, err := protocol.EncodeClaim(&protocol.Claim{Lane: lane, WorkerID: "hoarder", Life: "life", Token: "t", Ready: 1})
	v.publish(fleetName.ClaimSubject(protocol.DefaultPool, lane.Hash()), claim, err)
}

// TestHoard_OthersAreAnsweredAndToldWho: a lane that somebody claims and sits on has its calls
// answered in their time, and its operator sees who has it. Other lanes go on.
func TestHoard_OthersAreAnsweredAndToldWho(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	v.hoard("sandbox/victim")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
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

// TestFlood_OfWordsAboutACall: whoever has a worker's key says much about a call of its pool. It
// ends with its own result.
func TestFlood_OfWordsAboutACall(t *testing.T) {
	t.Parallel()
	v := newVictims(t)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			ready, id := fleetName.ReadySubject(protocol.DefaultPool, protocol.Lane("sandbox/"+victim).Hash()), protocol.CallID("")
			for id == "" { // the call is not there yet
				msg, err := v.hostile.Request("$JS.API.DIRECT.GET.TF_CALLS", []byte(`{"last_by_subj":"`+ready+`"}`), time.Minute)
				if err != nil {
					return err
				}
				id = protocol.CallID(msg.Header.Get(protocol.HeaderCall))
			}
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return v.hostile.Flush()
				default:
				}
				for _, kind := range []protocol.FrameKind{protocol.FrameStarted, protocol.FrameStdout} {
					body, err := protocol.EncodeFrame(&protocol.Frame{CallID: id, Seq: n + 1, Kind: kind, WorkerID: "hostile", Attempt: 1, Data: []byte(`"junk"`)})
					if err != nil {
						return err
					}
					if err := v.hostile.Publish(fleetName.OutputSubject(victim, id), body); err != nil {
						return err
					}
				}
				if err := v.hostile.Publish(fleetName.QuestionSubject(protocol.DefaultPool, victim, id), []byte(fmt.Sprint(n))); err != nil {
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
	require.NotEqual(t, protocol.WorkerID("hostile"), outcome.Result.WorkerID)
}
