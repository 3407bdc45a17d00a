package protocol_test

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
		call, err := protocol.DecodeCall(body)
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
		result, err := protocol.DecodeResult(body)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrInvalidResult)
			return
		}
		require.Contains(t, protocol.Statuses(), result.Status)
		require.Equal(t, result.Status == protocol.StatusOK, result.Error == nil)
		requireStable(t, codecs["result"], result)
	})
}

func FuzzDecodePayload(f *testing.F) {
	seed(f, "payload")
	f.Fuzz(func(t *testing.T, body []byte) {
		payload, err := protocol.DecodePayload(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, payload.Kind())
		requireStable(t, codecs["payload"], payload)
	})
}

func FuzzDecodeValue(f *testing.F) {
	seed(f, "value")
	f.Fuzz(func(t *testing.T, body []byte) {
		value, err := protocol.DecodeValue(body)
		if err != nil {
			return
		}
		require.NotEmpty(t, value.ValueKind())
		requireStable(t, codecs["value"], value)
	})
}

func FuzzDecodeFrame(f *testing.F) {
	seed(f, "frame")
	f.Fuzz(func(t *testing.T, body []byte) {
		frame, err := protocol.DecodeFrame(body)
		if err == nil {
			requireStable(t, codecs["frame"], frame)
		}
	})
}

// FuzzBytes_KeepsEveryByte is the reason for the type.
func FuzzBytes_KeepsEveryByte(f *testing.F) {
	for _, content := range []string{
		"", "text", "a\x00b", "\xff\xfe", "<&>\u2028\u2029", "\ufffd", "Grüße", `<""""`, "\x7f\b\f", "\u2028\u2028",
	} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		body, err := json.Marshal(protocol.Bytes(content))
		require.NoError(t, err)
		var back protocol.Bytes
		require.NoError(t, json.Unmarshal(body, &back))
		require.Equal(t, string(content), string(back))
		// Twice as long at most, or base64: a third more.
		require.LessOrEqual(t, len(body), max(2*len(content)+len(`""`), (len(content)+2)/3*4+len(`{"base64":""}`)))
	})
}

// FuzzBytes_AcceptedIsStable feeds JSON that others wrote.
func FuzzBytes_AcceptedIsStable(f *testing.F) {
	for _, body := range []string{`"a"`, `{"base64":"/w=="}`, `{"base64":"YQ=="}`, `{}`, `null`, `{"base64":null}`, `[1]`, `"\ud800"`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var content protocol.Bytes
		if json.Unmarshal(body, &content) != nil {
			return
		}
		again, err := json.Marshal(content)
		require.NoError(t, err)
		var back protocol.Bytes
		require.NoError(t, json.Unmarshal(again, &back))
		require.Equal(t, string(content), string(back))
	})
}

func FuzzParseResourceKey(f *testing.F) {
	for _, key := range []string{"sandbox/s1/a", "a//b/./c", "a/b/../c", "a/b/c/..", "/a/b/", "a", "", "a/b\x00", "a/\xff", "..", "a/b/c/../../.."} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := protocol.ParseResourceKey(s)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrInvalidKey)
			require.Empty(t, key)
			return
		}
		requireCanonical(t, key)
		segments := strings.Split(s, "/")
		segments = drop(segments, "", ".")
		require.Equal(t, strings.Join(segments[:2], "/"), string(key.Lane()), `".." never leaves the lane`)
	})
}

func FuzzResourceKey_JoinNeverClimbs(f *testing.F) {
	f.Add("sandbox/s1", "a/b.txt")
	f.Add("sandbox/s1/sub", "../x")
	f.Add("sandbox/s1/sub", "a/../../x")
	f.Add("sandbox/s1", "/abs//./x")
	f.Add("sandbox/s1", strings.Repeat("long/", 400))
	f.Add("sandbox/s1", strings.Repeat("x", 2000))
	f.Fuzz(func(t *testing.T, base, relative string) {
		key, err := protocol.ParseResourceKey(base)
		if err != nil {
			t.Skip()
		}
		joined, err := key.Join(relative)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrInvalidKey)
			return
		}
		requireCanonical(t, joined)
		require.True(t, key.Contains(joined), "%q joined with %q is %q", key, relative, joined)
		require.Equal(t, key.Lane(), joined.Lane())

		rest := strings.TrimPrefix(strings.TrimPrefix(string(joined), string(key)), "/")
		again, err := key.Join(rest)
		require.NoError(t, err)
		require.Equal(t, joined, again)
	})
}

// FuzzUse_ConflictsBySegments compares with the definition and checks symmetry.
func FuzzUse_ConflictsBySegments(f *testing.F) {
	f.Add("a/b", "a/bc", true, false)
	f.Add("a/b/c", "a/b", false, true)
	f.Add("a/b", "a/b", false, false)
	f.Fuzz(func(t *testing.T, s1, s2 string, exclusive1, exclusive2 bool) {
		key1, err1 := protocol.ParseResourceKey(s1)
		key2, err2 := protocol.ParseResourceKey(s2)
		if err1 != nil || err2 != nil {
			t.Skip()
		}
		requireConflictByDefinition(t, use(key1, exclusive1), use(key2, exclusive2))
	})
}

func FuzzParseMailboxSubject(f *testing.F) {
	const fleet = protocol.DefaultFleet
	lane := protocol.Lane("sandbox/s1").Hash()
	f.Add("c-1", 1, uint64(7), fleet.CallSubject("default", lane, "c-1"))
	f.Add("floor", 3, uint64(0), "tf.call.p.l.floor.12")
	f.Add("start1", 2, uint64(1), "tf.call.p.l.c.start0")
	f.Add("cancel", 9, uint64(1), "tf.call.p.l.c.start-1")
	f.Fuzz(func(t *testing.T, id string, start int, epoch uint64, anything string) {
		requireKnowsWhatItSays(t, fleet.ParseMailboxSubject(anything))

		call, err := protocol.ParseCallID(id)
		if err != nil || start < 1 {
			t.Skip()
		}
		requireMailboxInverse(t, fleet, "default", lane, call, start, epoch)
	})
}

// requireKnowsWhatItSays checks that an entry has the fields of its kind and no others.
func requireKnowsWhatItSays(t *testing.T, entry protocol.MailboxEntry) {
	t.Helper()
	switch entry.Kind {
	case protocol.EntryCall, protocol.EntryCancel:
		require.Zero(t, entry.Start)
	case protocol.EntryStart:
		require.Positive(t, entry.Start)
	default:
		require.Equal(t, protocol.MailboxEntry{Kind: entry.Kind}, entry)
	}
}

func requireMailboxInverse(
	t *testing.T, fleet protocol.Fleet, pool protocol.Pool, lane protocol.LaneHash, call protocol.CallID, start int, epoch uint64,
) {
	t.Helper()
	require.Equal(t, protocol.MailboxEntry{Kind: protocol.EntryCall, CallID: call},
		fleet.ParseMailboxSubject(fleet.CallSubject(pool, lane, call)))
	require.Equal(t, protocol.MailboxEntry{Kind: protocol.EntryCancel, CallID: call},
		fleet.ParseMailboxSubject(fleet.CancelSubject(pool, lane, call)))
	require.Equal(t, protocol.MailboxEntry{Kind: protocol.EntryStart, CallID: call, Start: start},
		fleet.ParseMailboxSubject(fleet.StartSubject(pool, lane, call, start)))
	require.Equal(t, protocol.MailboxEntry{Kind: protocol.EntryFloor},
		fleet.ParseMailboxSubject(fleet.FloorSubject(pool, lane, epoch)))
}

// A kind is read at a glance, but what follows it counts all the same.
func TestDecode_RefusesWhatIsNoJSON(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"type":"mine"`, `{"type":"mine"} and more`, `{"type":"mine","arguments":}`, `{"type":"noop"`} {
		_, err := protocol.DecodePayload([]byte(body))
		require.Error(t, err, body)
		_, err = protocol.DecodeValue([]byte(body))
		require.Error(t, err, body)
	}
}
