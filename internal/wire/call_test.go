package wire_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestWaitsByReason_HasEachOne: a wait that is measured is in traces and metrics, too.
func TestWaitsByReason_HasEachOne(t *testing.T) {
	t.Parallel()
	var waits protocol.Waits
	require.Nil(t, wire.WaitsByReason(&waits))
	want, of := map[string]float64{}, reflect.ValueOf(&waits).Elem()
	for i := range of.NumField() {
		if of.Field(i).Kind() == reflect.Float64 {
			of.Field(i).SetFloat(float64(i + 1))
			name, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ",")
			want[strings.TrimSuffix(name, "_ms")] = float64(i + 1)
		}
	}
	require.Equal(t, want, wire.WaitsByReason(&waits))
}

// TestWaits_HaveEachReason: a reason that is added is measured by results, or it is one that only
// others know.
func TestWaits_HaveEachReason(t *testing.T) {
	t.Parallel()
	measured := []report.Reason{
		report.ReasonPerson, report.ReasonModelLimit, report.ReasonFull, // by journals
		report.ReasonWorker, // of what waits now; a call that has ended had a worker
	}
	for _, p := range wire.Waits(&protocol.Waits{}, 1) {
		measured = append(measured, p.Reason)
	}
	var waits []report.Reason
	for _, r := range report.Reasons() {
		if r.Class() == report.ClassWait {
			waits = append(waits, r)
		}
	}
	require.ElementsMatch(t, waits, measured)
}

// A call that is made for no principal, by the form of the name, is refused by name.
// A reader has missed something if numbers of frames are left out, or if it came after the first
// frame that says more than that the attempt has started.
func TestFrames_Missed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts []int
		frames   []uint64
		missed   []bool
	}{
		"all of them":                   {[]int{1, 1, 1}, []uint64{1, 2, 3}, []bool{false, false, false}},
		"it waited first":               {[]int{1, 1, 1}, []uint64{0, 1, 2}, []bool{false, false, false}},
		"its start alone":               {[]int{1, 1}, []uint64{2, 3}, []bool{false, false}},
		"its first output":              {[]int{1, 1}, []uint64{3, 4}, []bool{true, false}},
		"one between":                   {[]int{1, 1, 1}, []uint64{1, 2, 4}, []bool{false, false, true}},
		"the next attempt from 1":       {[]int{1, 1, 2, 2}, []uint64{1, 7, 1, 2}, []bool{false, true, false, false}},
		"of the next attempt, two":      {[]int{1, 2}, []uint64{2, 4}, []bool{false, true}},
		"an older one that comes later": {[]int{1, 1, 1}, []uint64{3, 2, 4}, []bool{true, false, false}},
	} {
		var of wire.Frames
		var missed []bool
		for i, seq := range c.frames {
			missed = append(missed, of.Missed(&wire.Frame{Attempt: c.attempts[i], Seq: seq}))
		}
		require.Equal(t, c.missed, missed, name)
	}
}

func TestDecodeCall_RefusesAMalformedPrincipal(t *testing.T) {
	t.Parallel()
	call := protocol.Call{
		ID: "c", SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		Resources: []protocol.Use{{Key: "a/b", Access: protocol.Exclusive}},
	}
	for by, valid := range map[string]bool{"token:ann": true, "ann": false, ":ann": false, "operator:": false, "token:a b": false} {
		call.By = by
		body, err := wire.EncodeCall(&call)
		require.NoError(t, err)
		decoded, err := wire.DecodeCall(body)
		if valid {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, protocol.ErrInvalidCall)
		require.ErrorContains(t, err, fmt.Sprintf("by %q: must be", by))
		require.Equal(t, call.ID, decoded.ID, "its sender gets the refusal")
	}
}

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
	body, err := wire.Encode(&claim)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"claim","version":1,"lane":"sandbox/a","worker_id":"w","life":"life",`+
		`"token":"token","ready":17,"interrupted":true}`, string(body))
	read, err := wire.Decode[wire.Claim](body)
	require.NoError(t, err)
	require.Equal(t, &claim, read)
	for _, body := range []string{``, `{}`, `{"type":"heartbeat","version":1,"lease_ms":1}`} {
		_, err := wire.Decode[wire.Claim]([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidBody, body)
	}
}

func TestHeartbeat_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	beat := wire.Heartbeat{WorkerID: "w", LeaseMS: 10_000, Beat: 3, Origin: "here#1", Expired: true}
	body, err := wire.Encode(&beat)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"heartbeat","version":1,"worker_id":"w","lease_ms":10000,"beat":3,`+
		`"origin":"here#1","expired":true}`, string(body))
	read, err := wire.Decode[wire.Heartbeat](body)
	require.NoError(t, err)
	require.Equal(t, &beat, read)
	for _, body := range []string{``, `{"type":"claim","version":1}`, `{"type":"heartbeat","version":1,"lease_ms":0}`} {
		_, err := wire.Decode[wire.Heartbeat]([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidBody, body)
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

// TestNewCallID_IsPinned: a coordinator of another version must derive the same id.
func TestNewCallID_IsPinned(t *testing.T) {
	t.Parallel()
	require.Equal(t, protocol.CallID("a2f6e6c0-6bb8-5946-aa7e-e26845185431"), wire.NewCallID(sampleSession, "", 1, 2, 0))
	require.Equal(t, protocol.CallID("84c47e83-6b15-861b-b7ac-f0559940e327"), wire.NewCallID(sampleSession, "QX3PRZ5Y7MBD2KJ4WTFUHG6CVE", 1, 2, 0))
	seen := map[protocol.CallID]bool{}
	for _, seed := range []string{"", wire.NewSeed(), wire.NewSeed()} {
		for _, session := range []protocol.SessionID{"a", "b"} {
			for place := range 1000 {
				id := wire.NewCallID(session, seed, 1+place/100, 1+place/10%10, place%10)
				require.NotContains(t, seen, id)
				seen[id] = true
			}
		}
	}
}

func TestNewWorkerID(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ host, want string }{
		"plain":             {"node-1", `^node-1-[0-9a-f]{8}$`},
		"dots are left out": {"node1.example.com", `^node1examplecom-[0-9a-f]{8}$`},
		"long":              {strings.Repeat("h", 100), `^h{32}-[0-9a-f]{8}$`},
		"nothing safe":      {"...", `^-[0-9a-f]{8}$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Regexp(t, c.want, string(wire.NewWorkerID(c.host)))
		})
	}
	first, second := wire.NewWorkerID("h"), wire.NewWorkerID("h")
	require.NotEqual(t, first, second, "two starts on one host")
}

func TestHashLane(t *testing.T) {
	t.Parallel()
	// The hash is part of every subject: a change would strand what is stored.
	require.Equal(t, wire.LaneHash("yadlfuccpu5pvp2sjr26so6fj4"), wire.HashLane(protocol.Lane("sandbox/s1")))
	require.Len(t, string(wire.HashLane(protocol.Lane(""))), 26)
	require.Regexp(t, `^[a-z2-7]{26}$`, string(wire.HashLane(protocol.Lane("sandbox/s2"))))
	require.NotEqual(t, wire.HashLane(protocol.Lane("a/b")), wire.HashLane(protocol.Lane("a/c")))
}

func TestRandomCallID_IsACallID(t *testing.T) {
	t.Parallel()
	_, err := protocol.ParseCallID(string(wire.RandomCallID()))
	require.NoError(t, err)
}

func TestParseUserKind(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "crm_lookup_2", strings.Repeat("k", wire.MaxKindLength)} {
		kind, err := wire.ParseUserKind(good)
		require.NoError(t, err)
		require.EqualValues(t, good, kind)
	}
	for name, bad := range map[string]string{
		"empty": "", "upper case": "Lookup", "dash": "crm-lookup", "quote": `a"b`, "too long": strings.Repeat("k", wire.MaxKindLength+1),
		"a payload of ours": "files_read", "the stand-in of large payloads": "stored",
	} {
		_, err := wire.ParseUserKind(bad)
		require.ErrorIs(t, err, wire.ErrInvalidKind, name)
	}
}

func TestUserPayload_ComesBackWithItsArguments(t *testing.T) {
	t.Parallel()
	arguments := json.RawMessage(`{"type":"mine","version":"too","n":12345678901234567890}`)
	payload, err := wire.NewUserPayload("crm_lookup", arguments)
	require.NoError(t, err)
	body, err := wire.EncodePayload(payload)
	require.NoError(t, err)
	decoded, err := wire.DecodePayload(body)
	require.NoError(t, err)
	require.Equal(t, payload, decoded)
	got, err := payload.Arguments()
	require.NoError(t, err)
	require.Equal(t, arguments, got)

	_, err = wire.NewUserPayload("crm_lookup", json.RawMessage(`{`))
	require.Error(t, err, "what is not JSON")
	_, err = protocol.UnknownPayload{Name: "x", Raw: json.RawMessage(`[]`)}.Arguments()
	require.Error(t, err)
}

func TestUserValue_ComesBackWithItsOutput(t *testing.T) {
	t.Parallel()
	value, err := wire.NewUserValue("crm_lookup", json.RawMessage(`[1,"two"]`))
	require.NoError(t, err)
	body, err := wire.EncodeValue(value)
	require.NoError(t, err)
	decoded, err := wire.DecodeValue(body)
	require.NoError(t, err)
	require.Equal(t, value, decoded)
	output, err := value.Output()
	require.NoError(t, err)
	require.JSONEq(t, `[1,"two"]`, string(output))
	_, err = protocol.UnknownValue{Name: "x", Raw: json.RawMessage(`1`)}.Output()
	require.Error(t, err)
}

// A flow is the same in headers and in subjects. Those without a share are of the first one.
func TestFlow_HeaderAndSubject(t *testing.T) {
	t.Parallel()
	shares := map[uint8]bool{}
	for i := range 200 {
		for _, priority := range []protocol.Priority{protocol.Interactive, protocol.Normal, protocol.Batch, ""} {
			flow := wire.FlowOf(&protocol.Call{Tenant: "acme", Priority: priority, SessionID: protocol.SessionID(fmt.Sprint("s", i))})
			require.Equal(t, flow, wire.FlowOfHeader(flow.Header()))
			of, ok := wire.FlowOfSubject(wire.TicketSubject("tf", "default", "hash", flow))
			require.True(t, ok)
			require.Equal(t, flow, of)
			shares[flow.Share] = true
		}
	}
	require.Len(t, shares, wire.Shares)
	require.Equal(t, wire.Flow{Tenant: "acme", Priority: protocol.Batch}, wire.FlowOfHeader("acme/batch"))
	require.Equal(t, wire.Flow{}, wire.FlowOf(&protocol.Call{SessionID: "s1"}))
	require.Equal(t, wire.Flow{}, wire.FlowOf(&protocol.Call{Tenant: wire.DefaultTenant, SessionID: "s1"}))
	require.Zero(t, wire.FlowOfHeader("acme/normal_99").Share)
	require.Equal(t, "tf.ready.default.*.*.*", wire.TicketSubject("tf", "default", "*", wire.AnyFlow()))
}

func TestApproval_ComesBack(t *testing.T) {
	t.Parallel()
	for _, approval := range []protocol.Approval{{}, {Granted: true, By: "ada", Note: "<fine>"}} {
		body, err := wire.Encode(&approval)
		require.NoError(t, err)
		decoded, err := wire.Decode[protocol.Approval](body)
		require.NoError(t, err)
		require.Equal(t, &approval, decoded)
	}
	for _, body := range []string{"", "{}", `{"type":"call","granted":true}`, `{"type":"approval","granted":"yes"}`} {
		_, err := wire.Decode[protocol.Approval]([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidBody, body)
	}
}

func TestQuestion_WhatIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", `{"type":"answer","id":"1"}`, `{"type":"question"}`, `{"type":"question","id":1}`} {
		_, err := wire.Decode[protocol.Question]([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidBody, body)
	}
	for _, body := range []string{"", "{}", `{"type":"question","action":"accept"}`, `{"type":"answer"}`, `{"type":"answer","action":"yes"}`} {
		_, err := wire.Decode[protocol.Answer]([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidBody, body)
	}
}

func TestAuthor_IsWhatGitCanHaveInACommit(t *testing.T) {
	t.Parallel()
	require.NoError(t, wire.ValidateAuthor(protocol.Author{}))
	require.NoError(t, wire.ValidateAuthor(protocol.Author{Name: "Ada Lovelace", Email: "ada@example.com"}))
	for _, bad := range []string{"a\nGIT_SSH=evil", "<a>", strings.Repeat("x", 257), "\x1b[2J"} {
		require.ErrorContains(t, wire.ValidateAuthor(protocol.Author{Name: bad}), "author.name")
		require.ErrorContains(t, wire.ValidateAuthor(protocol.Author{Email: bad}), "author.email")
	}
}

func TestAuthor_CommandsKnowIt(t *testing.T) {
	t.Parallel()
	ada := protocol.Author{Name: "Ada", Email: "ada@example.com"}
	want := map[string]string{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com", "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com"}
	require.Equal(t, protocol.CommandRun{Command: "x", Env: want}, wire.WithAuthor(protocol.CommandRun{Command: "x"}, ada))
	require.Equal(t, protocol.CodeRun{Code: "x", Env: want}, wire.WithAuthor(protocol.CodeRun{Code: "x"}, ada))
	own := map[string]string{"GIT_AUTHOR_NAME": "Eve", "X": "y"}
	got, is := wire.WithAuthor(protocol.CommandRun{Env: own}, ada).(protocol.CommandRun)
	require.True(t, is)
	require.Equal(t, "Eve", got.Env["GIT_AUTHOR_NAME"], "what the call says counts more")
	require.Equal(t, "Ada", got.Env["GIT_COMMITTER_NAME"])
	require.Len(t, own, 2, "which is not changed")
	require.Equal(t, wire.Noop{}, wire.WithAuthor(wire.Noop{}, ada))
	require.Equal(t, protocol.CommandRun{}, wire.WithAuthor(protocol.CommandRun{}, protocol.Author{}))
}
