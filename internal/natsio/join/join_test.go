package join

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func sample() Token {
	return Token{
		Addresses: []string{"192.0.2.7:4222", "[2001:db8::1]:4222"}, Authority: strings.Repeat("ab", 32), Secret: "id.secret",
		Role: RoleWorker, Fleet: "tf", Pool: "default", Keys: "PEM",
	}
}

func TestToken_IsReadAgain(t *testing.T) {
	t.Parallel()
	token := sample()
	read, err := Parse(token.String())
	require.NoError(t, err)
	require.Equal(t, token, read)
	require.Equal(t, "tls://worker:id.secret@192.0.2.7:4222,tls://worker:id.secret@[2001:db8::1]:4222", read.URL())
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token.String()+"\n"), 0o600))
	read, err = Parse(file)
	require.NoError(t, err)
	require.Equal(t, token, read)
	token.Authority = ""
	require.Contains(t, token.URL(), "nats://worker:")
}

// TestToken_FaultsAreNamed: no error has the secret in it.
func TestToken_FaultsAreNamed(t *testing.T) {
	t.Parallel()
	whole := sample().String()
	with := func(change func(*Token)) string {
		token := sample()
		change(&token)
		return token.String()
	}
	for text, want := range map[string]string{
		"":                                       "not a join token",
		"nowhere":                                "there is no such file",
		strings.Repeat("x", 5e3):                 "not a join token",
		whole[:len(whole)-7]:                     "was it copied whole?",
		whole + "!":                              "was it copied whole?",
		with(func(t *Token) { t.Fleet = "a b" }): "fleet",
		with(func(t *Token) { t.Pool = "a b" }):  "pool",
		with(func(t *Token) { t.Authority = "abcd" }): "fingerprint",
		with(func(t *Token) { t.Addresses = nil }):    "no address",
		with(func(t *Token) { t.Secret = "" }):        "no secret",
		prefix + strings.Repeat("e30", maxToken):      "was it copied whole?",
	} {
		_, err := Parse(text)
		require.ErrorIs(t, err, ErrToken, text)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "id.secret")
		require.Less(t, len(err.Error()), 400)
	}
	require.ErrorContains(t, sample().For(RoleCoordinator), "one of a worker")
	old := sample()
	old.Expires = time.Now().Add(-time.Second)
	require.ErrorContains(t, old.For(RoleWorker), "has expired")
	require.NoError(t, sample().For(RoleWorker))
}

// TestStore_HasDigestsAlone: what is stored lets no process in, and only its owner reads it.
func TestStore_HasDigestsAlone(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir()}
	list, err := s.List()
	require.NoError(t, err)
	require.Empty(t, list)
	one, secret, err := s.Add(t.Context(), Entry{Role: RoleWorker, Fleet: "tf", Pool: "default"})
	require.NoError(t, err)
	_, expired, err := s.Add(t.Context(), Entry{Role: RoleWorker, Fleet: "tf", Pool: "default", Expires: time.Now()})
	require.NoError(t, err)
	content, err := os.ReadFile(s.File())
	require.NoError(t, err)
	_, text, _ := strings.Cut(secret, ".")
	require.NotContains(t, string(content), text)
	list, err = s.List()
	require.NoError(t, err)
	require.Len(t, list, 2)
	found, known := Find(list, secret)
	require.True(t, known)
	require.Equal(t, one.ID, found.ID)
	for _, wrong := range []string{"", ".", one.ID, one.ID + ".", one.ID + "." + one.Digest, secret + "x", "x" + secret, one.Digest, expired} {
		_, known := Find(list, wrong)
		require.False(t, known, wrong)
	}
	require.ErrorIs(t, s.Remove(t.Context(), one.ID, "unknown"), ErrUnknown)
	list, err = s.List()
	require.NoError(t, err)
	require.Len(t, list, 2, "all or none")
	require.NoError(t, s.Remove(t.Context(), one.ID))
	list, err = s.List()
	require.NoError(t, err)
	_, known = Find(list, secret)
	require.False(t, known)
	private(t, s.Dir)
	require.NoError(t, os.WriteFile(s.File(), []byte("{"), 0o600))
	_, err = s.List()
	require.ErrorContains(t, err, s.File())
	_, _, err = s.Add(t.Context(), Entry{})
	require.ErrorContains(t, err, s.File(), "a damaged list is not replaced")
}

// private requires files that only their owner may use.
func private(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), entry.Name())
	}
}

// TestAuthority_IsKeptAndRenewed: a fingerprint is good over restarts, and after each certificate
// has been renewed.
func TestAuthority_IsKeptAndRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := OpenAuthority(dir, []string{"192.0.2.7", "host.example"})
	require.NoError(t, err)
	private(t, dir)
	again, err := OpenAuthority(dir, nil)
	require.NoError(t, err)
	require.Equal(t, a.Fingerprint(), again.Fingerprint())
	kept, err := FingerprintIn(dir)
	require.NoError(t, err)
	require.Equal(t, a.Fingerprint(), kept)

	first, err := a.certificate()
	require.NoError(t, err)
	same, err := a.certificate()
	require.NoError(t, err)
	require.Same(t, first, same)
	at := time.Now()
	a.now = func() time.Time { return at }
	for range 60 { // fifteen years
		at = at.AddDate(0, 3, 0)
		served, err := a.certificate()
		require.NoError(t, err)
		require.NotEqual(t, first.Leaf.SerialNumber, served.Leaf.SerialNumber)
		root, err := x509.ParseCertificate(served.Certificate[1])
		require.NoError(t, err)
		roots := x509.NewCertPool()
		roots.AddCert(root)
		for _, name := range []string{"192.0.2.7", "host.example", serverName} {
			_, err = served.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: at.Add(renewBefore - day)})
			require.NoError(t, err, "%s at %s", name, at)
		}
		require.Equal(t, a.Fingerprint(), fingerprint(root.PublicKey))
	}
	content, err := os.ReadFile(a.File())
	require.NoError(t, err)
	block, _ := pem.Decode(content)
	root, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.True(t, root.NotAfter.After(at), "clients with --tls-ca have the renewed one")

	require.NoError(t, os.Remove(a.File())) // a process has ended between the two files
	again, err = OpenAuthority(dir, nil)
	require.NoError(t, err)
	require.Equal(t, kept, again.Fingerprint())
	other, err := OpenAuthority(t.TempDir(), nil)
	require.NoError(t, err)
	require.NoError(t, os.Rename(other.File(), a.File()))
	_, err = OpenAuthority(dir, nil)
	require.ErrorContains(t, err, "is not the certificate of")
}

// TestTrust_KnowsOneAuthority: others are refused, also one that shows the certificate of the
// authority without its key, or that is the authority itself.
func TestTrust_KnowsOneAuthority(t *testing.T) {
	t.Parallel()
	mine, err := OpenAuthority(t.TempDir(), nil)
	require.NoError(t, err)
	other, err := OpenAuthority(t.TempDir(), nil)
	require.NoError(t, err)
	copied := other.Config()
	served, err := other.certificate()
	require.NoError(t, err)
	forged := *served
	forged.Certificate = [][]byte{served.Certificate[0], mine.root.Raw}
	copied.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &forged, nil }
	mineOld, err := OpenAuthority(t.TempDir(), nil)
	require.NoError(t, err)
	mineOld.now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
	for name, test := range map[string]struct {
		server *tls.Config
		trusts string
		want   string
	}{
		"its own":   {mine.Config(), mine.Fingerprint(), ""},
		"another":   {other.Config(), mine.Fingerprint(), ErrAuthority.Error()},
		"forged":    {copied, mine.Fingerprint(), "x509: certificate signed by unknown authority"},
		"of a year": {mineOld.Config(), mineOld.Fingerprint(), "expired"},
	} {
		err := handshake(t, test.server, Trust(test.trusts))
		if test.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, test.want, name)
		}
	}
}

func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(far, server).HandshakeContext(t.Context())
		_ = far.Close()
	}()
	err := tls.Client(near, client).HandshakeContext(t.Context())
	_ = near.Close()
	<-done
	return err
}
