package signing_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMake_KeepsItsKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := signing.Make(dir)
	require.NoError(t, err)
	again, err := signing.Make(dir)
	require.NoError(t, err)
	require.Equal(t, first, again)
	info, err := os.Stat(filepath.Join(dir, signing.PrivateFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.Equal(t, filepath.Join(dir, signing.PrivateFile), signing.Beside(filepath.Join(dir, "nats.token")))
	require.Empty(t, signing.Beside(filepath.Join(t.TempDir(), "nats.token")))
	require.Empty(t, signing.Beside(""))
}

// The keys of openssl are those that the documents tell to make.
func TestLoad_KeysOfOpenssl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("NOT TESTED: openssl is not installed (apt install openssl)")
	}
	private, public := filepath.Join(t.TempDir(), "calls.key"), filepath.Join(t.TempDir(), "calls.pub")
	for _, args := range [][]string{
		{"genpkey", "-algorithm", "ed25519", "-out", private},
		{"pkey", "-in", private, "-pubout", "-out", public},
	} {
		out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	signer, err := signing.Load(private)
	require.NoError(t, err)
	keys, err := signing.Open(public)
	require.NoError(t, err)
	now := time.Now()
	value, err := signer.Sign("tf", []byte("body"), now)
	require.NoError(t, err)
	require.Nil(t, check(keys, "tf", value, []byte("body"), now))
	require.Equal(t, codes.NotSigned, check(keys, "tf", value, []byte("other"), now).Code)
}

// Whoever signs at once gets a signature that counts, shared or not.
func TestSign_ManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	signer, err := signing.Make(dir)
	require.NoError(t, err)
	keys, err := signing.Open(filepath.Join(dir, signing.PublicFile))
	require.NoError(t, err)
	now := time.Now()
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			value, err := signer.Sign("tf", fmt.Append(nil, i), now)
			if err != nil {
				t.Errorf("sign: %v", err)
			}
			if fault := check(keys, "tf", value, fmt.Append(nil, i), now); fault != nil {
				t.Errorf("check: %v", fault)
			}
		})
	}
	group.Wait()
}

func TestFiles_FaultsAreTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := signing.Make(dir)
	require.NoError(t, err)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(other)
	require.NoError(t, err)
	public, err := x509.MarshalPKIXPublicKey(&other.PublicKey)
	require.NoError(t, err)
	file := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "key.pem")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	block := func(kind string, der []byte) string {
		return file(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	key, err := os.ReadFile(filepath.Join(dir, signing.PrivateFile))
	require.NoError(t, err)
	for name, c := range map[string]struct{ file, says string }{
		"missing":      {filepath.Join(dir, "none"), "no such file"},
		"no PEM":       {file([]byte("x")), `has no block "PRIVATE KEY"`},
		"public":       {filepath.Join(dir, signing.PublicFile), `has a block "PUBLIC KEY": must be "PRIVATE KEY"`},
		"RSA":          {block("PRIVATE KEY", private), "must be of Ed25519"},
		"no key":       {block("PRIVATE KEY", []byte("x")), "asn1"},
		"two":          {file(append(key, key...)), "has 2 private keys: must be 1"},
		"a large file": {file(make([]byte, 1<<17)), "is larger than 64 KiB"},
	} {
		t.Run("private/"+name, func(t *testing.T) {
			t.Parallel()
			_, err := signing.Load(c.file)
			require.ErrorContains(t, err, c.says)
		})
	}
	for name, c := range map[string]struct{ file, says string }{
		"missing": {filepath.Join(dir, "none"), "no such file"},
		"private": {filepath.Join(dir, signing.PrivateFile), `has a block "PRIVATE KEY": must be "PUBLIC KEY"`},
		"RSA":     {block("PUBLIC KEY", public), "key 1 is of type"},
		"no key":  {block("PUBLIC KEY", []byte("x")), "key 1"},
	} {
		t.Run("public/"+name, func(t *testing.T) {
			t.Parallel()
			_, err := signing.Open(c.file)
			require.ErrorContains(t, err, c.says)
		})
	}
}

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
		require.Equal(t, "the call is signed with a key of tenant acme: make call: not allowed for key:"+signer.ID()+
			" of tenant acme; it needs a principal of tenant "+named+", to which it belongs; it was not run", fault.Message)
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
