package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
			require.ErrorIs(t, err, protocol.ErrInvalidName)
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
			require.ErrorIs(t, err, protocol.ErrInvalidName)
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
