package wire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	require.Equal(t, "tf.ready.default.*.*.*", wire.TicketsFilter("tf", "default", wire.AnyFlow()))
}
