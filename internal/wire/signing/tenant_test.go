package signing_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A key of a tenant signs no calls of others, and the refusal has both names. A key without a
// tenant signs all.
func TestKeys_AKeyOfATenant(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	signer, err := signing.Make(dir)
	require.NoError(t, err)
	public := filepath.Join(dir, signing.PublicFile)
	body, err := os.ReadFile(public)
	require.NoError(t, err)
	check := func(call string) *protocol.Error {
		keys, err := signing.Open(public)
		require.NoError(t, err)
		now := time.Now()
		value, err := signer.Sign("tf", []byte(call), now)
		require.NoError(t, err)
		return check(keys, "tf", value, []byte(call), now)
	}
	require.Nil(t, check(`{"tenant":"other"}`))
	of := func(tenant string) []byte {
		return bytes.Replace(body, []byte("KEY-----\n"), []byte("KEY-----\nTenant: "+tenant+"\n\n"), 1)
	}
	require.NoError(t, os.WriteFile(public, of("acme"), 0o600))
	require.Nil(t, check(`{"tenant":"acme"}`))
	for call, named := range map[string]string{`{"tenant":"other"}`: "other", `{}`: "default"} {
		fault := check(call)
		require.NotNil(t, fault, call)
		require.Equal(t, codes.NotSigned, fault.Code)
		require.Equal(t, "the call is signed with a key of tenant acme: make call: not allowed for key:"+signer.ID()+" of tenant acme; it needs a principal of tenant "+named+", to which it belongs; it was not run", fault.Message)
	}
	require.NoError(t, os.WriteFile(public, of("ACME"), 0o600))
	_, err = signing.Open(public)
	require.ErrorContains(t, err, `key 1: invalid name: tenant "ACME"`)
}

// check is the error of [signing.Keys.Check].
func check(keys *signing.Keys, fleet protocol.Fleet, value string, body []byte, stored time.Time) *protocol.Error {
	_, fault := keys.Check(fleet, value, body, stored)
	return fault
}
