package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

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
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
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

	claims := wire.ClaimsFilter(fleetName, protocol.DefaultPool)
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
	beat, err := wire.EncodeHeartbeat(&wire.Heartbeat{WorkerID: "hostile", LeaseMS: 60_000, Beat: 1})
	require.NoError(t, err)
	_, err = hostile.Publish(ctx, wire.HeartbeatSubject(fleetName, protocol.DefaultPool, "life"), beat)
	require.NoError(t, err)
	for n := 0; err == nil; n++ {
		lane := protocol.Lane(fmt.Sprint("sandbox/n", n))
		body, encoding := wire.EncodeClaim(&wire.Claim{Lane: lane, WorkerID: "hostile", Incarnation: "life", Token: "t", Ready: 1})
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
