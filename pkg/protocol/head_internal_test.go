package protocol

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// callAsJSON reads a call with the JSON decoder alone.
func callAsJSON(t *testing.T, body []byte) *Call {
	t.Helper()
	var wire wireCall
	require.NoError(t, unmarshal(body, &wire))
	require.Equal(t, typeCall, wire.Type)
	c := Call(wire.callFields)
	var err error
	c.Payload, err = decodePayload(wire.Payload)
	require.NoError(t, err)
	return &c
}

// resultAsJSON reads a result with the JSON decoder alone.
func resultAsJSON(t *testing.T, body []byte) *Result {
	t.Helper()
	var wire wireResult
	require.NoError(t, unmarshal(body, &wire))
	require.Equal(t, typeResult, wire.Type)
	r := Result(wire.resultFields)
	if wire.Value != nil {
		var err error
		r.Value, err = decodeValue(wire.Value)
		require.NoError(t, err)
	}
	return &r
}

func plainCall() *Call {
	at := time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC)
	return &Call{
		ID: "c-1", SessionID: "s-1", ToolCallID: "t", Tool: "bash", Turn: 1, Step: 20, Index: 300, Pool: DefaultPool,
		Resources: []Use{{Key: "sandbox/a", Access: Exclusive}, {Key: "sandbox/a/b", Access: Shared}},
		Delivery:  AtMostOnce, MaxAttempts: 3, MinLevel: "full", IssuedAt: at, QueueTimeout: 1, RunTimeout: -1, Deadline: at, Again: true,
		Payload: CommandRun{Command: `echo "Grüße", \ <&>`},
	}
}

func plainResult() *Result {
	return &Result{
		CallID: "c-1", SessionID: "s-1", Status: StatusOK, WorkerID: "w-1", Attempt: 2, Level: "full", QueueMS: 12.5, LaneMS: 0.125, RunMS: 1e20,
		FinishedAt: time.Date(2026, 3, 14, 15, 9, 26, 0, time.FixedZone("", 3600)), Value: TurnRunResult{Text: `,"value":{}`, Steps: 1},
	}
}

// TestRead_MostBodies makes sure that the usual bodies need no JSON decoder.
func TestRead_MostBodies(t *testing.T) {
	t.Parallel()
	for _, c := range []*Call{plainCall(), {ID: "c", Payload: Noop{}}} {
		body, err := EncodeCall(c)
		require.NoError(t, err)
		if len(c.Resources) == 0 {
			require.Nil(t, readCall(body), "null is no list")
			continue
		}
		require.Equal(t, callAsJSON(t, body), readCall(body))
		require.Equal(t, c, readCall(body))
	}
	for _, r := range []*Result{plainResult(), {CallID: "c"}} {
		body, err := EncodeResult(r)
		require.NoError(t, err)
		require.NotNil(t, readResult(body))
		require.Equal(t, resultAsJSON(t, body), readResult(body))
	}
}

// TestRead_WhatIsDifferent changes bodies: each is read as a JSON decoder would, or left to one.
func TestRead_WhatIsDifferent(t *testing.T) {
	t.Parallel()
	body, err := EncodeCall(plainCall())
	require.NoError(t, err)
	for _, change := range [][2]string{
		{`"version":1`, `"version":2`},
		{`"type":"call"`, `"type":"result"`},
		{`{"type"`, ` {"type"`},
		{`"id":"c-1"`, `"id":"c\u002d1"`},
		{`"id":"c-1",`, `"id":"c-1","id":"c-2",`},
		{`"turn":1`, `"turn":01`},
		{`"turn":1`, `"turn":+1`},
		{`"turn":1`, `"turn":1.0`},
		{`"turn":1`, `"turn": 1`},
		{`"turn":1`, `"turn":1e0`},
		{`"turn":1`, `"turn":null`},
		{`"turn":1`, `"later":{},"turn":1`},
		{`"turn":1`, `"turn":9223372036854775808`},
		{`"again":true`, `"again":false`},
		{`"again":true`, `"again":true,"later":0`},
		{`"key":"sandbox/a",`, `"key":"sandbox/a","later":0,`},
		{`}],`, `},],`},
		{`}],`, `}]],`},
		{`}]`, `}}]`},
		{`}],"del`, `}"del`},
		{`.535897Z`, `,535897Z`},
		{`14T15`, `14t15`},
		{`"payload":{`, `"payload": {`},
		{`"payload":{`, `"payload":null,"payload":{`},
		{`"payload"`, `"Payload"`},
		{`"command_run"`, `"later"`},
		{`"command_run"`, `"command_run","type":"noop"`},
		{`"}}`, `"}} `},
		{`"}}`, `"}}}`},
		{`"}}`, `"}`},
		{`"}}`, `"},"id":"c-2"}`},
		{`"bash"`, `"b` + "\x01" + `ash"`},
	} {
		changed := strings.Replace(string(body), change[0], change[1], 1)
		require.NotEqual(t, string(body), changed, change[0])
		if c := readCall([]byte(changed)); c != nil {
			require.Equal(t, callAsJSON(t, []byte(changed)), c, changed)
		}
	}
	body, err = EncodeResult(plainResult())
	require.NoError(t, err)
	for _, number := range []string{"-1", "1e2", "01", "1.", ".5", "1_0", "0x1", "Inf", "NaN", "null", "", "1 ", "1.5.5", "1.e", `"1"`} {
		require.Nil(t, readResult([]byte(strings.Replace(string(body), "12.5", number, 1))), number)
	}
}

// FuzzRead checks that what is read without a JSON decoder is read as that would.
func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"call", "result"} {
		files, err := filepath.Glob(filepath.Join("testdata", "v1", pattern, "*.json"))
		require.NoError(f, err)
		require.NotEmpty(f, files)
		for _, file := range files {
			body, err := os.ReadFile(file)
			require.NoError(f, err)
			body, err = compact(body)
			require.NoError(f, err)
			f.Add(body)
		}
	}
	call, err := EncodeCall(plainCall())
	require.NoError(f, err)
	f.Add(call)
	result, err := EncodeResult(plainResult())
	require.NoError(f, err)
	f.Add(result)
	f.Fuzz(func(t *testing.T, body []byte) {
		if c := readCall(body); c != nil {
			require.Equal(t, callAsJSON(t, body), c)
		}
		if r := readResult(body); r != nil {
			require.Equal(t, resultAsJSON(t, body), r)
		}
	})
}
