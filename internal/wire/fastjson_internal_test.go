package wire

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func usualCall() *protocol.Call {
	at := time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC)
	return &protocol.Call{
		ID: "c-1", SessionID: "s-1", ToolCallID: "t", Tool: "bash", Turn: 1, Step: 20, Index: 300, Pool: "default",
		Resources: []protocol.Use{{Key: "sandbox/a", Access: protocol.Exclusive}, {Key: "sandbox/a/b", Access: protocol.Shared}},
		Delivery:  protocol.AtMostOnce, MaxAttempts: 3, MinLevel: "full", IssuedAt: at, QueueTimeout: 1, RunTimeout: 20, Deadline: at,
		Again: true, Payload: protocol.CommandRun{Command: `echo "Grüße", \ <&>`},
	}
}

func usualResult() *protocol.Result {
	return &protocol.Result{
		CallID: "c-1", SessionID: "s-1", Status: protocol.StatusOK, WorkerID: "w-1", Attempt: 2, Level: "full",
		QueueMS: 12.5, LaneMS: 0.125, RunMS: 1e20,
		FinishedAt: time.Date(2026, 3, 14, 15, 9, 26, 0, time.FixedZone("", 3600)), Value: TurnRunResult{Text: `,"value":{}`, Steps: 1},
	}
}

// jsonOf writes with encoding/json alone.
func jsonOf(t *testing.T, v any) string {
	t.Helper()
	var body []byte
	var err error
	switch v := v.(type) {
	case *protocol.Call:
		var payload json.RawMessage
		payload, err = EncodePayload(v.Payload)
		require.NoError(t, err)
		body, err = json.Marshal(&wireCall{Type: typeCall, Version: Version, callFields: callFields(*v), Payload: payload})
	case *protocol.Result:
		var value json.RawMessage
		if v.Value != nil {
			value, err = EncodeValue(v.Value)
			require.NoError(t, err)
		}
		body, err = json.Marshal(&wireResult{Type: typeResult, Version: Version, resultFields: resultFields(*v), Value: value})
	}
	require.NoError(t, err)
	return string(body)
}

// What is usual needs no JSON decoder, and every body is what encoding/json writes.
func TestPlain_IsWhatJSONWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []*protocol.Call{usualCall(), {ID: "c", Resources: []protocol.Use{{Access: protocol.Exclusive}}, Payload: Noop{}}} {
		body, err := EncodeCall(c)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, c), string(body))
		require.Equal(t, c, readPlainCall(body))
	}
	unnamed := &protocol.Call{ID: "c", Resources: []protocol.Use{{}}, Payload: Noop{}}
	body, err := EncodeCall(unnamed)
	require.NoError(t, err)
	require.Equal(t, jsonOf(t, unnamed), string(body))
	require.Equal(t, protocol.Exclusive, readPlainCall(body).Resources[0].Access)
	for _, r := range []*protocol.Result{usualResult(), {CallID: "c"}} {
		body, err := EncodeResult(r)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, r), string(body))
		again, err := EncodeResult(readPlainResult(body))
		require.NoError(t, err)
		require.Equal(t, string(body), string(again))
	}
	odd := []func(*protocol.Call, *protocol.Result){
		func(c *protocol.Call, r *protocol.Result) { c.Tool, r.Level = "a\"b", "ü" },
		func(c *protocol.Call, r *protocol.Result) { c.Tool, r.Level = "a<b", "a\\b" },
		func(c *protocol.Call, r *protocol.Result) { c.Resources, r.QueueMS = nil, 1e-7 },
		func(c *protocol.Call, r *protocol.Result) { c.Resources, r.QueueMS = []protocol.Use{}, 1e21 },
		func(c *protocol.Call, r *protocol.Result) { c.RunTimeout, r.RunMS = -1, -1.5 },
		func(c *protocol.Call, r *protocol.Result) { c.MaxAttempts, r.Attempt = math.MinInt, math.MaxInt },
		func(c *protocol.Call, r *protocol.Result) { c.Deadline, r.Kept = time.Time{}, &protocol.Kept{Lines: 1} },
	}
	for _, change := range odd {
		c, r := usualCall(), usualResult()
		change(c, r)
		body, err := EncodeCall(c)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, c), string(body))
		body, err = EncodeResult(r)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, r), string(body))
	}
}

// Each field that is set is in the body. A new field needs a line in fastjson.go.
func TestPlain_ForgetsNoField(t *testing.T) {
	t.Parallel()
	require.Equal(t, plainCall, fieldsOf[protocol.Call](), "a new field: see callFieldsOf")
	require.Equal(t, plainResult, fieldsOf[protocol.Result](), "a new field: see resultFieldsOf")
	for i := range reflect.TypeFor[protocol.Call]().NumField() {
		c := usualCall()
		fill(reflect.ValueOf(c).Elem().Field(i))
		body, err := EncodeCall(c)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, c), string(body), reflect.TypeFor[protocol.Call]().Field(i).Name)
	}
	for i := range reflect.TypeFor[protocol.Result]().NumField() {
		r := usualResult()
		fill(reflect.ValueOf(r).Elem().Field(i))
		body, err := EncodeResult(r)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, r), string(body), reflect.TypeFor[protocol.Result]().Field(i).Name)
	}
	for i := range reflect.TypeFor[protocol.Waits]().NumField() {
		r := usualResult()
		fill(reflect.ValueOf(&r.Waits).Elem().Field(i))
		body, err := EncodeResult(r)
		require.NoError(t, err)
		require.Equal(t, jsonOf(t, r), string(body), reflect.TypeFor[protocol.Waits]().Field(i).Name)
		require.Equal(t, r.Waits, readPlainResult(body).Waits)
	}
}

// fill sets what is empty.
func fill(v reflect.Value) {
	if !v.IsZero() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Struct:
		if _, is := reflect.TypeAssert[time.Time](v); is {
			v.Set(reflect.ValueOf(time.Unix(1e9, 0).UTC()))
			return
		}
		for _, field := range v.Fields() {
			fill(field)
		}
	}
}

// Changed bodies are read as a JSON decoder reads them, or left to one.
func TestPlain_ReadsAsJSONDoes(t *testing.T) {
	t.Parallel()
	call, err := EncodeCall(usualCall())
	require.NoError(t, err)
	result, err := EncodeResult(usualResult())
	require.NoError(t, err)
	for _, piece := range []string{"", `"`, `,`, `{`, `}`, `]`, `\`, " ", "0", "-", "1", ".", "e", "null", "\x00", "\xff", `,"id":"x"`} {
		for i := range len(call) {
			for _, cut := range []int{0, 1} {
				changed := append(append(append([]byte{}, call[:i]...), piece...), call[i+cut:]...)
				if c := readPlainCall(changed); c != nil {
					var w wireCall
					require.NoError(t, unmarshal(changed, &w), "%s", changed)
					want := protocol.Call(w.callFields)
					want.Payload, err = decodePayload(w.Payload)
					require.NoError(t, err)
					require.Equal(t, &want, c, "%s", changed)
				}
			}
		}
		for i := range len(result) {
			for _, cut := range []int{0, 1} {
				changed := append(append(append([]byte{}, result[:i]...), piece...), result[i+cut:]...)
				if r := readPlainResult(changed); r != nil {
					var w wireResult
					require.NoError(t, unmarshal(changed, &w), "%s", changed)
					want := protocol.Result(w.resultFields)
					want.Value, err = decodeValue(w.Value)
					require.NoError(t, err)
					require.Equal(t, jsonOf(t, &want), jsonOf(t, r), "%s", changed)
				}
			}
		}
	}
}
