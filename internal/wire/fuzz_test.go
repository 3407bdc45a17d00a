package wire_test

import (
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// seed adds the golden bodies of one family.
func seed(f *testing.F, family string) {
	f.Helper()
	for name, body := range goldenFiles(f) {
		if path.Dir(name) == family {
			f.Add(body)
		}
	}
	f.Add([]byte(`null`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"type":1}`))
}

// requireStable checks that a body that was accepted is written, read and written
// again without a change after the first writing.
func requireStable(t *testing.T, c codec, decoded any) {
	t.Helper()
	first := c.encode(t, decoded)
	again, err := c.decode(first)
	require.NoError(t, err)
	require.Equal(t, string(first), string(c.encode(t, again)))
}

func FuzzDecodeCall(f *testing.F) {
	seed(f, "call")
	f.Add([]byte(`{"type":"call","id":"c","session_id":"s","payload":{"type":""}}`))
	f.Add([]byte(`{"type":"call","run_timeout_ms":9223372036854775807,"payload":{"type":"noop"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		call, err := wire.DecodeCall(body)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrInvalidCall)
			return
		}
		require.NoError(t, call.Validate())
		require.NotEmpty(t, call.Lane())
		require.Positive(t, call.Attempts())
		require.Positive(t, call.RunFor())
		require.GreaterOrEqual(t, call.LifeTime(), protocol.Millis(0).Duration())
		requireStable(t, codecs["call"], call)
	})
}

func FuzzDecodeResult(f *testing.F) {
	seed(f, "result")
	f.Add([]byte(`{"type":"result","call_id":"c","status":"ok","value":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		result, err := wire.DecodeResult(body)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrInvalidResult)
			return
		}
		require.Contains(t, wire.Statuses(), result.Status)
		require.Equal(t, result.Status == protocol.StatusOK, result.Error == nil)
		requireStable(t, codecs["result"], result)
	})
}

func FuzzDecodePayload(f *testing.F) {
	seed(f, "payload")
	f.Fuzz(func(t *testing.T, body []byte) {
		payload, err := wire.DecodePayload(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, wire.KindOf(payload))
		requireStable(t, codecs["payload"], payload)
	})
}

func FuzzDecodeValue(f *testing.F) {
	seed(f, "value")
	f.Fuzz(func(t *testing.T, body []byte) {
		value, err := wire.DecodeValue(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, wire.ValueKindOf(value))
		requireStable(t, codecs["value"], value)
	})
}

func FuzzDecodeFrame(f *testing.F) {
	seed(f, "frame")
	f.Fuzz(func(t *testing.T, body []byte) {
		frame, err := wire.Decode[wire.Frame](body)
		if err == nil {
			requireStable(t, codecs["frame"], frame)
		}
	})
}

func FuzzParseMailboxSubject(f *testing.F) {
	const fleet = protocol.DefaultFleet
	lane := wire.HashLane(protocol.Lane("sandbox/s1"))
	f.Add("c-1", 1, uint64(7), wire.CallSubject(fleet, "default", lane, "c-1"))
	f.Add("floor", 3, uint64(0), "tf.call.p.l.floor.12")
	f.Add("start1", 2, uint64(1), "tf.call.p.l.c.start0")
	f.Add("cancel", 9, uint64(1), "tf.call.p.l.c.start-1")
	f.Fuzz(func(t *testing.T, id string, start int, epoch uint64, anything string) {
		requireKnowsWhatItSays(t, wire.ParseMailboxSubject(fleet, anything))

		call, err := protocol.ParseCallID(id)
		if err != nil || start < 1 {
			t.Skip()
		}
		requireMailboxInverse(t, fleet, "default", lane, call, start, epoch)
	})
}

// requireKnowsWhatItSays checks that an entry has the fields of its kind and no others.
func requireKnowsWhatItSays(t *testing.T, entry wire.MailboxEntry) {
	t.Helper()
	switch entry.Kind {
	case wire.EntryCall, wire.EntryCancel:
		require.Zero(t, entry.Start)
	case wire.EntryStart:
		require.Positive(t, entry.Start)
	default:
		require.Equal(t, wire.MailboxEntry{Kind: entry.Kind}, entry)
	}
}

func requireMailboxInverse(
	t *testing.T, fleet protocol.Fleet, pool protocol.Pool, lane wire.LaneHash, call protocol.CallID, start int, epoch uint64,
) {
	t.Helper()
	require.Equal(t, wire.MailboxEntry{Kind: wire.EntryCall, CallID: call},
		wire.ParseMailboxSubject(fleet, wire.CallSubject(fleet, pool, lane, call)))
	require.Equal(t, wire.MailboxEntry{Kind: wire.EntryCancel, CallID: call},
		wire.ParseMailboxSubject(fleet, wire.CancelSubject(fleet, pool, lane, call)))
	require.Equal(t, wire.MailboxEntry{Kind: wire.EntryStart, CallID: call, Start: start},
		wire.ParseMailboxSubject(fleet, wire.StartSubject(fleet, pool, lane, call, start)))
	require.Equal(t, wire.MailboxEntry{Kind: wire.EntryFloor},
		wire.ParseMailboxSubject(fleet, wire.FloorSubject(fleet, pool, lane, epoch)))
}
