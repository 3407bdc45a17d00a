package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestDecodeCall_ReturnsWhatCanBeAnswered: a call that cannot run still gets its result.
func TestDecodeCall_ReturnsWhatCanBeAnswered(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"malformed payload": `{"type":"call","id":"c","session_id":"s","payload":{"type":"noop","work_ms":"x"}}`,
		"no payload":        `{"type":"call","id":"c","session_id":"s"}`,
		"null payload":      `{"type":"call","id":"c","session_id":"s","payload":null}`,
		"no resources":      `{"type":"call","id":"c","session_id":"s","payload":{"type":"noop"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, err := wire.DecodeCall([]byte(body))
			require.ErrorIs(t, err, protocol.ErrInvalidCall)
			require.NotNil(t, call)
			require.Equal(t, protocol.CallID("c"), call.ID)
			require.Equal(t, protocol.SessionID("s"), call.SessionID)
		})
	}
	for name, body := range map[string]string{
		"not JSON": `{`, "another type": `{"type":"result"}`, "no type": `{}`, "an array": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, err := wire.DecodeCall([]byte(body))
			require.ErrorIs(t, err, protocol.ErrInvalidCall)
			require.Nil(t, call)
		})
	}
}

func TestEncode_RefusesNil(t *testing.T) {
	t.Parallel()
	_, err := wire.EncodeCall(&protocol.Call{ID: "c-7"})
	require.ErrorContains(t, err, "c-7")
	_, err = wire.EncodePayload(nil)
	require.Error(t, err)
	_, err = wire.EncodeValue(nil)
	require.Error(t, err)
}

func TestUnknownPayload_KeepsItsBytesButSpaces(t *testing.T) {
	t.Parallel()
	body := `{ "version": 9, "type":"x_ray" , "n": 1.000 }`
	payload, err := wire.DecodePayload([]byte(body))
	require.NoError(t, err)
	require.Equal(t, protocol.Kind("x_ray"), wire.KindOf(payload))
	want, again := strings.ReplaceAll(body, " ", ""), must(wire.EncodePayload(payload))(t)
	require.Equal(t, []byte(want), []byte(again))
}

func TestDecodePayload_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, says string }{
		"no type":           {`{"path":"a"}`, "type"},
		"empty type":        {`{"type":""}`, "type"},
		"null":              {`null`, "type"},
		"not an object":     {`"noop"`, ""},
		"nothing":           {``, ""},
		"a field's type":    {`{"type":"files_read","offset":"3"}`, "files_read"},
		"content of null":   {`{"type":"files_write","content":null}`, "base64"},
		"content of {}":     {`{"type":"files_write","content":{}}`, "base64"},
		"malformed base64":  {`{"type":"files_write","content":{"base64":"%"}}`, "files_write"},
		"content is a list": {`{"type":"files_write","content":[1]}`, "files_write"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := wire.DecodePayload([]byte(c.body))
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestDecodeResult_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, says string }{
		"not JSON":            {`{`, ""},
		"another type":        {`{"type":"call"}`, `"call"`},
		"no call id":          {`{"type":"result","status":"ok"}`, "call id"},
		"no status":           {`{"type":"result","call_id":"c"}`, `status ""`},
		"an unknown status":   {`{"type":"result","call_id":"c","status":"done"}`, `"done"`},
		"ok with an error":    {`{"type":"result","call_id":"c","status":"ok","error":{"code":"internal"}}`, "ok"},
		"failed without one":  {`{"type":"result","call_id":"c","status":"failed"}`, "failed"},
		"value without type":  {`{"type":"result","call_id":"c","status":"ok","value":{}}`, "value"},
		"malformed value":     {`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_list","total":"x"}}`, "files_list"},
		"value of wrong kind": {`{"type":"result","call_id":"c","status":"ok","value":7}`, "value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := wire.DecodeResult([]byte(c.body))
			require.ErrorIs(t, err, wire.ErrInvalidResult)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestDecodeResult_NullIsAbsent: workers in other languages write null for nothing.
func TestDecodeResult_NullIsAbsent(t *testing.T) {
	t.Parallel()
	result, err := wire.DecodeResult([]byte(`{"type":"result","call_id":"c","status":"ok","error":null,"value":null}`))
	require.NoError(t, err)
	require.Nil(t, result.Error)
	require.Nil(t, result.Value)
}

// A kind is read at a glance, but what follows it counts all the same.
func TestDecode_RefusesWhatIsNoJSON(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"type":"mine"`, `{"type":"mine"} and more`, `{"type":"mine","arguments":}`, `{"type":"noop"`} {
		_, err := wire.DecodePayload([]byte(body))
		require.Error(t, err, body)
		_, err = wire.DecodeValue([]byte(body))
		require.Error(t, err, body)
	}
}

func TestClaim_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	claim := wire.Claim{
		Lane: "sandbox/a", WorkerID: "w", Incarnation: "life", Token: "token", Ready: 17, Interrupted: true,
	}
	body, err := wire.EncodeClaim(&claim)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"claim","version":1,"lane":"sandbox/a","worker_id":"w","life":"life",`+
		`"token":"token","ready":17,"interrupted":true}`, string(body))
	read, err := wire.DecodeClaim(body)
	require.NoError(t, err)
	require.Equal(t, &claim, read)
	for _, body := range []string{``, `{}`, `{"type":"heartbeat","version":1,"lease_ms":1}`} {
		_, err := wire.DecodeClaim([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidClaim, body)
	}
}

func TestHeartbeat_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	beat := wire.Heartbeat{WorkerID: "w", LeaseMS: 10_000, Beat: 3, Origin: "here#1", Expired: true}
	body, err := wire.EncodeHeartbeat(&beat)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"heartbeat","version":1,"worker_id":"w","lease_ms":10000,"beat":3,`+
		`"origin":"here#1","expired":true}`, string(body))
	read, err := wire.DecodeHeartbeat(body)
	require.NoError(t, err)
	require.Equal(t, &beat, read)
	for _, body := range []string{``, `{"type":"claim","version":1}`, `{"type":"heartbeat","version":1,"lease_ms":0}`} {
		_, err := wire.DecodeHeartbeat([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidClaim, body)
	}
}

func TestLimits_ValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, wire.ValidateLimits(protocol.Limits{}))
	require.NoError(t, wire.ValidateLimits(protocol.Limits{
		Wall: 60_000, CPU: 30_000, Memory: 1 << 30, Processes: 64, OpenFiles: 256, FileSize: 1 << 28, Disk: 2 << 30, Output: 64 << 10,
	}))
	err := wire.ValidateLimits(protocol.Limits{
		Wall: -1, CPU: 1 << 60, Memory: 1000, Processes: -5, OpenFiles: 7, FileSize: -1, Disk: -1, Output: 9 << 20,
	})
	for _, fault := range []string{
		"limits.wall_ms -1: must be 0 (the worker's own) or 1 to 604800000", "limits.cpu_ms 1152921504606846976: ",
		"limits.memory_bytes 1000: must be 0 (the worker's own) or 1048576 to ", "limits.processes -5: ", "limits.open_files 7: ",
		"limits.file_size_bytes -1: ", "limits.disk_bytes -1: ", "limits.output_bytes 9437184: must be 0 (the worker's own) or 1024 to 1048576",
	} {
		require.ErrorContains(t, err, fault)
	}
}
