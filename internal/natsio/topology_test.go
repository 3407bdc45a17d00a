package natsio_test

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const tf = protocol.DefaultFleet

// configuration is what the server has stored of a stream.
func configuration(t *testing.T, f *natsiotest.Fleet, name string) jetstream.StreamConfig {
	t.Helper()
	stream := mustStream(t, f.JS, name)
	return stream.CachedInfo().Config
}

func names(t *testing.T, f *natsiotest.Fleet) []string {
	t.Helper()
	lister := f.JS.StreamNames(t.Context())
	var out []string
	for name := range lister.Name() {
		out = append(out, name)
	}
	require.NoError(t, lister.Err())
	return out
}

func TestEnsure_MakesWhatAFleetNeeds(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{MaxCalls: 7, MaxBytes: 1 << 20, Storage: natsio.Storage{ResultAge: time.Hour}})
	require.ElementsMatch(t,
		[]string{"TF_CALLS", "TF_CLAIMS", "TF_RESULTS", "TF_SESSIONS", "TF_WORKSPACES", "OBJ_TF_BLOBS", "OBJ_TF_KEPT", "OBJ_TF_BODIES", "KV_TF_PLACES"},
		names(t, f))
	calls := configuration(t, f, wire.CallsStream(tf))
	require.Equal(t, jetstream.LimitsPolicy, calls.Retention)
	require.Equal(t, jetstream.DiscardNew, calls.Discard)
	require.Equal(t, jetstream.FileStorage, calls.Storage)
	require.EqualValues(t, 1, calls.MaxMsgsPerSubject)
	require.True(t, calls.DiscardNewPerSubject)
	require.True(t, calls.AllowDirect, "there is one server that can answer")
	require.True(t, configuration(t, f, wire.ResultsStream(tf)).AllowDirect)
	require.False(t, configuration(t, f, wire.SessionsStream(tf)).AllowDirect)
	require.EqualValues(t, 7, calls.MaxMsgs)
	require.EqualValues(t, 1<<20, calls.MaxBytes)
	require.Equal(t, time.Hour, configuration(t, f, wire.ResultsStream(tf)).MaxAge)
	require.Equal(t, time.Hour, configuration(t, f, "OBJ_TF_BLOBS").MaxAge)
	require.Zero(t, configuration(t, f, wire.SessionsStream(tf)).MaxAge, "journals are kept")
	require.Zero(t, configuration(t, f, "OBJ_TF_KEPT").MaxAge, "and what they name")
	require.EqualValues(t, -1, configuration(t, f, "OBJ_TF_KEPT").MaxBytes)
}

func TestEnsure_BoundsOfWhatIsKept(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{Storage: natsio.Storage{KeepAge: 24 * time.Hour, KeepBytes: 1 << 30}})
	kept := configuration(t, f, "OBJ_TF_KEPT")
	require.Equal(t, 24*time.Hour, kept.MaxAge)
	require.EqualValues(t, 1<<30, kept.MaxBytes)
	require.Equal(t, jetstream.DiscardNew, kept.Discard, "what is kept is not pushed out by something newer")
}

// bounded are the streams that workers fill.
var bounded = []string{"TF_RESULTS", "TF_WORKSPACES", "OBJ_TF_BLOBS", "OBJ_TF_KEPT", "OBJ_TF_BODIES", "KV_TF_PLACES"}

// What workers fill has a share of the server, and journals have room beside it.
func TestEnsure_SharesOfTheServer(t *testing.T) {
	t.Parallel()
	const unit = 1 << 30
	for room, part := range map[int64]int64{49 * unit: 0, 14 * unit: 12 * unit} {
		f := roomy(t, room)
		topology := natsio.Topology{Fleet: tf, Bounded: true, Storage: natsio.Storage{StreamBytes: part}}
		require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
		sum := int64(0)
		for _, name := range bounded {
			share := configuration(t, f, name).MaxBytes
			require.Equal(t, topology.Share(name), share, "%s of %d", name, room)
			sum += share
		}
		want := cmp.Or(part, natsio.DefaultStreamBytes)
		require.LessOrEqual(t, sum, want)
		require.Greater(t, sum, want-unit/10)
		require.EqualValues(t, natsio.DefaultMaxBytes, configuration(t, f, wire.CallsStream(tf)).MaxBytes)
		require.EqualValues(t, -1, configuration(t, f, wire.SessionsStream(tf)).MaxBytes)
		require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{}))
		require.Equal(t, topology.Share("OBJ_TF_KEPT"), configuration(t, f, "OBJ_TF_KEPT").MaxBytes, "a stream keeps what it has")
	}
	require.EqualValues(t, 16*unit, natsio.Topology{Fleet: tf, Bounded: true}.Share("TF_RESULTS"))
	require.Zero(t, natsio.Topology{Fleet: tf}.Share("TF_RESULTS"))

	f := roomy(t, 100*unit)
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{}))
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: true}))
	require.EqualValues(t, -1, configuration(t, f, "OBJ_TF_KEPT").MaxBytes, "an upgrade changes no stream")

	f = roomy(t, 100*unit)
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: true, Storage: natsio.Storage{KeepBytes: unit, ResultBytes: 2 * unit}}))
	require.EqualValues(t, unit, configuration(t, f, "OBJ_TF_KEPT").MaxBytes)
	require.EqualValues(t, 2*unit, configuration(t, f, wire.ResultsStream(tf)).MaxBytes)
}

// A server with less room reserves what it can, and always that for calls and for what is made
// later. What was asked for is an error then.
func TestEnsure_AServerWithLessRoom(t *testing.T) {
	t.Parallel()
	const unit = 1 << 30
	f := roomy(t, 8*unit)
	var log bytes.Buffer
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	for name, size := range map[string]int64{"TF_RESULTS": -1, "TF_WORKSPACES": 2 * unit, "KV_TF_PLACES": unit, "OBJ_TF_BODIES": -1, "TF_CALLS": unit} {
		require.Equal(t, size, configuration(t, f, name).MaxBytes, name)
	}
	require.Contains(t, log.String(), "no room to reserve (max_file_store), so a stream that workers fill has no limit; --stream-size sets smaller ones")
	require.Contains(t, log.String(), "stream=TF_RESULTS")
	asked := natsio.Topology{Bounded: true, Storage: natsio.Storage{StreamBytes: 12 * unit}}
	f = roomy(t, 8*unit)
	require.ErrorContains(t, natsio.Ensure(t.Context(), f.JS, asked), "make room there, or store the server's data elsewhere; or choose a smaller --stream-size")
	require.Greater(t, configuration(t, f, "TF_CALLS").MaxBytes, int64(unit), "a process that fails, or is lost, has the room for what is made later")
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: true}))
	require.EqualValues(t, unit, configuration(t, f, "TF_CALLS").MaxBytes, "and the next one gives it back")

	for _, given := range []bool{true, false} {
		f = roomy(t, natsio.LeastRoom)
		require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: given}))
		require.EqualValues(t, natsio.LeastCallBytes, configuration(t, f, wire.CallsStream(tf)).MaxBytes)
		_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATER", MaxBytes: natsio.ChannelBytes + natsio.ScheduleBytes + natsio.LimitBytes})
		require.NoError(t, err, "there is room for what is made later")
		f = roomy(t, natsio.LeastRoom-1)
		require.ErrorContains(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Bounded: given}),
			"it reserves 180 MiB, and the server has less left: its limit for files (max_file_store)")
	}
}

// Processes that start together make each stream once, with its share.
func TestEnsure_SharesOfManyAtOnce(t *testing.T) {
	t.Parallel()
	f := roomy(t, 49<<30)
	topology := natsio.Topology{Fleet: tf, Bounded: true}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := natsio.Ensure(t.Context(), f.JS, topology); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, name := range bounded {
		require.Equal(t, topology.Share(name), configuration(t, f, name).MaxBytes, name)
	}
}

// A cluster knows late what its servers have left.
func TestEnsure_SharesOfACluster(t *testing.T) {
	t.Parallel()
	const room = 20 << 30
	c := natsiotest.NewRoomyCluster(t, room)
	topology := natsio.Topology{Fleet: "small", Storage: natsio.Storage{Replicas: 3, StreamBytes: 16 << 30}, Bounded: true}
	require.NoError(t, natsio.Ensure(t.Context(), c.JS, topology))
	for _, name := range bounded {
		name = strings.Replace(name, "TF", "SMALL", 1)
		stream := mustStream(t, c.JS, name)
		require.Equal(t, topology.Share(name), stream.CachedInfo().Config.MaxBytes, name)
	}
}

// roomy is a server with so much room for files.
func roomy(t *testing.T, room int64) *natsiotest.Fleet {
	t.Helper()
	s := natsiotest.Serve(t, natsiotest.Alone(t, fmt.Sprintf("max_file_store: %d", room), ""))
	require.True(t, s.ReadyForConnections(time.Minute))
	nc, err := natsio.Connect(t.Context(), s.ClientURL(), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	return &natsiotest.Fleet{Name: tf, NC: nc, JS: js}
}

// Claims are refused beyond their bound, and none is dropped for another. Fleets from before have
// claims without a bound.
func TestEnsure_ClaimsAreRefusedAndNotDropped(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{MaxClaims: 3})
	put := func(subject string) error {
		_, err := f.JS.Publish(t.Context(), subject, []byte("{}"))
		return err
	}
	for _, subject := range []string{"tf.claim.default.a", "tf.claim.default.b", "tf.heartbeat.default.l"} {
		require.NoError(t, put(subject))
	}
	require.ErrorContains(t, put("tf.claim.default.c"), "maximum messages exceeded")
	for range 100 {
		require.NoError(t, put("tf.heartbeat.default.l"), "renewed in its place")
	}
	stream := mustStream(t, f.JS, wire.ClaimsStream(tf))
	for _, subject := range []string{"tf.claim.default.a", "tf.claim.default.b"} {
		_, err := stream.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err)
	}
	_, err := f.JS.Publish(t.Context(), "tf.claim.default.a", make([]byte, 64<<10))
	require.ErrorContains(t, err, "message size exceeds maximum")

	before := configuration(t, f, wire.ClaimsStream(tf))
	before.Discard, before.MaxMsgs, before.MaxMsgSize = jetstream.DiscardOld, -1, -1
	require.NoError(t, f.JS.DeleteStream(t.Context(), wire.ClaimsStream(tf)))
	_, err = f.JS.CreateStream(t.Context(), before)
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{}))
	require.Equal(t, jetstream.DiscardOld, configuration(t, f, wire.ClaimsStream(tf)).Discard, "an upgrade changes no stream")
	before.MaxMsgs = 10
	_, err = f.JS.UpdateStream(t.Context(), before)
	require.NoError(t, err)
	require.ErrorContains(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{}), "max_msgs (with discard old) is 10, must be -1")
}

func TestEnsure_IsIdempotentAndKeepsSizes(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{MaxCalls: 7})
	before := configuration(t, f, wire.CallsStream(tf))
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{MaxCalls: 8}))
	require.Equal(t, before, configuration(t, f, wire.CallsStream(tf)), "sizes are the operator's to change")
}

// How long results are kept, and how much of them, is edited when it is asked for, and left alone
// when not.
func TestEnsure_ResultsAreBoundedAsAskedFor(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var log bytes.Buffer
	ensure := func(age time.Duration, size int64) (results, blobs jetstream.StreamConfig) {
		require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{
			Storage: natsio.Storage{ResultAge: age, ResultBytes: size}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}))
		return configuration(t, f, wire.ResultsStream(tf)), configuration(t, f, natsio.ObjectStream(wire.BlobsBucket(tf)))
	}
	results, blobs := ensure(0, 0)
	require.Equal(t, natsio.DefaultResultAge, results.MaxAge)
	require.Equal(t, natsio.DefaultResultAge, blobs.MaxAge)
	require.EqualValues(t, -1, results.MaxBytes)
	require.Empty(t, log.String())

	results, blobs = ensure(time.Minute, 1<<30)
	require.Equal(t, time.Minute, results.MaxAge)
	require.Equal(t, time.Minute, blobs.MaxAge, "what is beside them goes with them")
	require.EqualValues(t, 1<<30, results.MaxBytes)
	require.EqualValues(t, -1, blobs.MaxBytes)
	require.Equal(t, 2, strings.Count(log.String(), "retention of results was changed"), log.String())
	require.Contains(t, log.String(), "stream=TF_RESULTS age_before=168h0m0s age=1m0s bytes_before=-1 bytes=1073741824")

	log.Reset()
	again, _ := ensure(0, 0)
	require.Equal(t, results, again, "nobody asks for anything else")
	again, _ = ensure(time.Minute, 0)
	require.Equal(t, results, again)
	require.Empty(t, log.String())
	results, _ = ensure(0, 1<<20)
	require.Equal(t, time.Minute, results.MaxAge)
	require.EqualValues(t, 1<<20, results.MaxBytes)
}

func TestEnsure_TellsThatAStreamWasMissing(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, f.JS.DeleteStream(t.Context(), wire.ResultsStream(tf)))
	var log bytes.Buffer
	topology := natsio.Topology{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
	require.Contains(t, log.String(), "stream=TF_RESULTS")
	log.Reset()
	topology.Fleet = "new"
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
	require.Empty(t, log.String(), "one that is new has none")
}

// Sequences of a stream that was deleted are not given again: others have stored them, as epochs
// and positions. Those of a new fleet begin at 1.
func TestEnsure_SequencesDoNotBeginAgain(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for stream, subject := range map[string]string{
		wire.ClaimsStream(tf): wire.ClaimSubject(tf, "p", "l"), wire.WorkspacesStream(tf): wire.WorkspaceSubject(tf, "l"),
		wire.SessionsStream(tf): wire.EventSubject(tf, "s"), wire.CallsStream(tf): wire.CallSubject(tf, "p", "l", "c"),
	} {
		publish := func() uint64 {
			ack, err := f.JS.Publish(t.Context(), subject, nil)
			require.NoError(t, err)
			return ack.Sequence
		}
		last := publish()
		require.EqualValues(t, 1, last)
		for range 2 {
			require.NoError(t, f.JS.DeleteStream(t.Context(), stream))
			require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{}))
			next := publish()
			require.Greater(t, next, last)
			last = next
		}
	}
}

func TestEnsure_WarnsOfFewerReplicas(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var log bytes.Buffer
	topology := natsio.Topology{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
	require.Empty(t, log.String())
	topology.Replicas = 3
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
	require.Equal(t, 5, strings.Count(log.String(), "replicas=1 asked=3"), log.String())
	require.Contains(t, log.String(), "stream=TF_CALLS")
}

// Of servers that are several one may be killed, and forgets what it has handed out.
func TestEnsure_WarnsOfOneReplicaInACluster(t *testing.T) {
	t.Parallel()
	c := natsiotest.NewCluster(t)
	var log bytes.Buffer
	topology := natsio.Topology{Fleet: fleetOf(t), Storage: natsio.Storage{Replicas: 3}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, natsio.Ensure(t.Context(), c.JS, topology))
	require.Empty(t, log.String())
	topology.Fleet, topology.Replicas = fleetOf(t)+"-alone", 1
	require.NoError(t, natsio.Ensure(t.Context(), c.JS, topology))
	require.Equal(t, 5, strings.Count(log.String(), "has one replica although there are several servers"), log.String())
}

// Whoever only uses a fleet does not make one by a wrong name.
func TestCheck_MakesNothing(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	before := names(t, f)
	require.NoError(t, natsio.Check(t.Context(), f.JS, natsio.Topology{}))
	err := natsio.Check(t.Context(), f.JS, natsio.Topology{Fleet: "other"})
	require.ErrorIs(t, err, natsio.ErrNoFleet)
	require.ErrorContains(t, err, "OTHER_CALLS")
	require.Equal(t, before, names(t, f))

	config := configuration(t, f, wire.CallsStream(tf))
	config.DenyDelete = true
	require.NoError(t, f.JS.DeleteStream(t.Context(), wire.CallsStream(tf)))
	_, err = f.JS.CreateStream(t.Context(), config)
	require.NoError(t, err)
	require.ErrorIs(t, natsio.Check(t.Context(), f.JS, natsio.Topology{}), natsio.ErrTopology)
}

func TestEnsure_ManyAtOnce(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() { // sizes differ: whoever is first decides
			err := natsio.Ensure(t.Context(), f.JS, natsio.Topology{
				Fleet: "many", MaxCalls: int64(100 + i), Storage: natsio.Storage{ResultAge: time.Duration(i+1) * time.Hour},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Len(t, names(t, f), 18)
}

func TestEnsure_NamesEveryDifferenceAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for name, test := range map[string]struct {
		stream string
		change func(*jetstream.StreamConfig)
		want   []string
	}{
		"retention": {"_CALLS", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, []string{"retention is WorkQueue, must be Limits"}},
		"discard": {"_CALLS", func(c *jetstream.StreamConfig) {
			c.Discard, c.DiscardNewPerSubject = jetstream.DiscardOld, false
		}, []string{"discard is DiscardOld, must be DiscardNew", "discard_new_per_subject is false, must be true"}},
		"max per subject of calls":   {"_CALLS", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }, []string{"max_msgs_per_subject is 2, must be 1"}},
		"max per subject of results": {"_RESULTS", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 0 }, []string{"max_msgs_per_subject is -1, must be 1"}},
		"max per subject of journals": {
			"_SESSIONS", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, []string{"max_msgs_per_subject is 5, must be -1"},
		},
		"calls are not told": {"_CALLS", func(c *jetstream.StreamConfig) { c.RePublish = nil }, []string{"republish is <nil>, must be"}},
		"no republish":       {"_RESULTS", func(c *jetstream.StreamConfig) { c.RePublish = nil }, []string{"republish is <nil>, must be"}},
		"republish elsewhere": {"_RESULTS", func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: c.RePublish.Source, Destination: "elsewhere.>"}
		}, []string{"republish is", "elsewhere"}},
		"subjects":                     {"_CALLS", func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:1] }, []string{"subjects is", "must be"}},
		"direct reads":                 {"_SESSIONS", func(c *jetstream.StreamConfig) { c.AllowDirect = true }, []string{"allow_direct is true, must be false"}},
		"storage":                      {"_SESSIONS", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, []string{"storage is Memory, must be File"}},
		"calls that age":               {"_CALLS", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, []string{"max_age is 1h0m0s, must be 0s"}},
		"calls that cannot be removed": {"_CALLS", func(c *jetstream.StreamConfig) { c.DenyDelete = true }, []string{"deny_delete is true, must be false"}},
		"two at once": {"_CALLS", func(c *jetstream.StreamConfig) {
			c.Storage, c.MaxMsgsPerSubject = jetstream.MemoryStorage, 2
		}, []string{"storage is Memory", "max_msgs_per_subject is 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fleet := fleetOf(t)
			topology := natsio.Topology{Fleet: fleet, MaxBytes: 1 << 20} // the server reserves it, for each
			require.NoError(t, natsio.Ensure(t.Context(), f.JS, topology))
			stream := streamOf(fleet, test.stream)
			changed := configuration(t, f, stream)
			require.NoError(t, f.JS.DeleteStream(t.Context(), stream))
			test.change(&changed)
			_, err := f.JS.CreateStream(t.Context(), changed)
			require.NoError(t, err)
			before := configuration(t, f, stream)

			err = natsio.Ensure(t.Context(), f.JS, topology)
			require.ErrorIs(t, err, natsio.ErrTopology)
			require.ErrorContains(t, err, stream)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, before, configuration(t, f, stream))
		})
	}
}

// fleetOf is a fleet name for each test.
func fleetOf(t *testing.T) protocol.Fleet {
	t.Helper()
	return protocol.Fleet("f-" + string(wire.HashLane(protocol.Lane(t.Name()))))
}

func streamOf(fleet protocol.Fleet, suffix string) string {
	for _, name := range []string{wire.CallsStream(fleet), wire.ResultsStream(fleet), wire.SessionsStream(fleet)} {
		if len(name) > len(suffix) && name[len(name)-len(suffix):] == suffix {
			return name
		}
	}
	return ""
}

func TestEnsure_ReplicasThatAServerCannotKeep(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	err := natsio.Ensure(t.Context(), f.JS, natsio.Topology{Fleet: fleetOf(t), Storage: natsio.Storage{Replicas: 3}})
	require.ErrorContains(t, err, "3 replicas need a cluster of at least that many servers: name one with --nats, or use --replicas 1")

	cluster := natsiotest.NewCluster(t)
	err = natsio.Ensure(t.Context(), cluster.JS, natsio.Topology{Fleet: fleetOf(t), Storage: natsio.Storage{Replicas: 5}})
	require.ErrorContains(t, err, "5 replicas need a cluster of at least that many servers")
}

func TestEnsurePool(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	_, lease, err := natsio.EnsurePool(t.Context(), f.JS, tf, "first", 0)
	require.NoError(t, err)
	require.Equal(t, natsio.DefaultAckWait, lease)

	_, lease, err = natsio.EnsurePool(t.Context(), f.JS, tf, "second", 3*time.Second)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, lease)
	_, lease, err = natsio.EnsurePool(t.Context(), f.JS, tf, "second", 0)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, lease, "0 takes what is there")

	_, _, err = natsio.EnsurePool(t.Context(), f.JS, tf, "second", 4*time.Second)
	require.ErrorIs(t, err, natsio.ErrTopology)
	require.ErrorContains(t, err, "lease is 3s, not 4s")
	_, lease, err = natsio.EnsurePool(t.Context(), f.JS, tf, "second", 3*time.Second)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, lease, "nothing was changed")

	_, _, err = natsio.EnsurePool(t.Context(), f.JS, tf, "third", 2*time.Hour)
	require.ErrorContains(t, err, "lease is 2h0m0s, must be at most 1h0m0s")

	_, _, err = natsio.EnsurePool(t.Context(), f.JS, "nobody", "first", 0)
	require.ErrorContains(t, err, "NOBODY_CALLS")
}

func TestEnsurePool_ManyAtOnce(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var group sync.WaitGroup
	var mu sync.Mutex
	accepted := map[time.Duration]int{}
	for i := range 8 {
		asked := time.Duration(i%2+2) * time.Second
		group.Go(func() {
			_, lease, err := natsio.EnsurePool(t.Context(), f.JS, tf, "pool", asked)
			if err == nil {
				mu.Lock()
				accepted[lease]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	require.Len(t, accepted, 1, "one lease won")
	for _, n := range accepted {
		require.Equal(t, 4, n)
	}
}

func TestEnsurePool_ConsumerThatWouldLoseLanes(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	_, err := f.JS.CreateConsumer(t.Context(), wire.CallsStream(tf), jetstream.ConsumerConfig{
		Durable: wire.ReadyConsumer("pool"), FilterSubject: wire.ReadySubject(tf, "pool", "*"),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxDeliver: 3, MaxAckPending: 10,
	})
	require.NoError(t, err)
	_, _, err = natsio.EnsurePool(t.Context(), f.JS, tf, "pool", 0)
	require.ErrorIs(t, err, natsio.ErrTopology)
	require.ErrorContains(t, err, "max_deliver is 3, must be -1")
	require.ErrorContains(t, err, "max_ack_pending is 10")
}

func TestFleets_OfOneAccountDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	const other = protocol.Fleet("other")
	require.NoError(t, natsio.Ensure(t.Context(), f.JS, natsio.Topology{Fleet: other}))
	lane := wire.HashLane(protocol.Lane("sandbox/one"))
	for _, subject := range []string{
		wire.CallSubject(tf, "default", lane, "c"), wire.ReadySubject(tf, "default", lane), wire.ResultSubject(tf, "s", "c"), wire.EventSubject(tf, "s"),
	} {
		_, err := f.JS.Publish(t.Context(), subject, nil)
		require.NoError(t, err)
	}
	for name, want := range map[string]uint64{
		wire.CallsStream(tf): 2, wire.ResultsStream(tf): 1, wire.SessionsStream(tf): 1,
		wire.CallsStream(other): 0, wire.ResultsStream(other): 0, wire.SessionsStream(other): 0,
	} {
		stream := mustStream(t, f.JS, name)
		require.Equal(t, want, stream.CachedInfo().State.Msgs, name)
	}
	mine, _, err := natsio.EnsurePool(t.Context(), f.JS, tf, "default", 0)
	require.NoError(t, err)
	theirs, _, err := natsio.EnsurePool(t.Context(), f.JS, other, "default", 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, mine.CachedInfo().NumPending)
	require.Zero(t, theirs.CachedInfo().NumPending)
}
