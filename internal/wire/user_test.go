package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
