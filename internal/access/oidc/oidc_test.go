package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuing is an issuer in this process, and a verifier of its tokens with a clock of its own.
type issuing struct {
	*Issuer

	t     *testing.T
	keys  oidctest.Server
	other atomic.Pointer[http.Handler] // answers instead
	asked atomic.Int64
	url   string
	clock atomic.Int64 // how far the clock of the verifier is ahead
}

func newIssuer(t *testing.T, change func(*Options)) *issuing {
	t.Helper()
	i := &issuing{t: t}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		if other := i.other.Load(); other != nil {
			(*other).ServeHTTP(w, r)
			return
		}
		i.keys.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections) //nolint:errcheck,forcetypeassert // it is
	i.keys.SetIssuer(web.URL)
	i.url = web.URL
	o := Options{Issuer: web.URL, Audience: "fleet", RoleClaim: "roles", TenantClaim: "tenant"}
	if change != nil {
		change(&o)
	}
	var err error
	i.Issuer, err = New(o)
	require.NoError(t, err)
	i.now = func() time.Time { return time.Now().Add(time.Duration(i.clock.Load())) }
	return i
}

// later lets time pass for the verifier.
func (i *issuing) later(d time.Duration) { i.clock.Add(int64(d)) }

// key makes a key that the issuer publishes.
func (i *issuing) key(id string) *rsa.PrivateKey {
	i.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(i.t, err)
	i.keys.PublicKeys = append(i.keys.PublicKeys, oidctest.PublicKey{PublicKey: key.Public(), KeyID: id, Algorithm: "RS256"})
	return key
}

type claims map[string]any

// claims are those of a good token, with others instead.
func (i *issuing) claims(with claims) string {
	i.t.Helper()
	all := claims{"iss": i.url, "aud": "fleet", "sub": "ann", "exp": i.now().Add(time.Hour).Unix(), "roles": []string{"run"}, "tenant": "acme"}
	maps.Copy(all, with)
	maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
	body, err := json.Marshal(all)
	require.NoError(i.t, err)
	return string(body)
}

func (i *issuing) verify(token string) (access.Grant, error) { return i.Verify(i.t.Context(), token) }

// refuses checks that a token is not let in, with a reason.
func (i *issuing) refuses(token, reason string) {
	i.t.Helper()
	grant, err := i.verify(token)
	require.ErrorIs(i.t, err, access.ErrUnknown)
	require.ErrorContains(i.t, err, reason)
	require.Zero(i.t, grant)
}

// Law: a token of the issuer gives a role and a tenant by its claims; what is wrong with it, or not
// known, gives nothing.
func TestIssuer_ClaimsGiveRoleAndTenant(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, nil)
	key := i.key("a")
	sign := func(with claims) string { return oidctest.SignIDToken(key, "a", "RS256", i.claims(with)) }
	grant, err := i.verify(sign(nil))
	require.NoError(t, err)
	require.Equal(t, "token:oidc:ann", grant.By())
	require.Equal(t, judge.RoleRun, grant.Role)
	require.EqualValues(t, "acme", grant.Tenant)
	require.WithinDuration(t, time.Now().Add(time.Hour+skew), grant.Expires, 2*time.Second)
	grant, err = i.verify(sign(claims{"roles": []string{"read", "staff", "operate", "run"}, "tenant": "other", "aud": []string{"x", "fleet"}}))
	require.NoError(t, err)
	require.Equal(t, judge.RoleOperate, grant.Role, "the greatest counts")
	require.EqualValues(t, "other", grant.Tenant)
	grant, err = i.verify(sign(claims{"roles": "read"}))
	require.NoError(t, err)
	require.Equal(t, judge.RoleRead, grant.Role)

	for reason, with := range map[string]claims{
		"gives no role":             {"roles": nil},
		"roles gives no role":       {"roles": []string{"admin", "OPERATE", ""}},
		"claim roles gives":         {"roles": []any{"run", 1}},
		"its claim roles":           {"roles": map[string]string{"run": "run"}},
		"tenant has 0 tenants":      {"tenant": nil},
		"tenant has 2 tenants":      {"tenant": []string{"acme", "other"}},
		"claim tenant has 0":        {"tenant": 7},
		`tenant "*"`:                {"tenant": "*"},
		`tenant ""`:                 {"tenant": ""},
		"it has no subject":         {"sub": nil},
		"its subject (sub): by":     {"sub": "a\x1b[2J"},
		"spaces and control":        {"sub": strings.Repeat("n", 300)},
		`expected audience "fleet"`: {"aud": "another"},
		"got []":                    {"aud": nil},
		"token is expired":          {"exp": i.now().Add(-skew - time.Second).Unix()},
		"Token Expiry":              {"exp": nil},
		"before the nbf":            {"nbf": i.now().Add(time.Hour).Unix()},
		"issued by a different":     {"iss": "https://evil.example.com"},
		"different provider":        {"iss": i.url + "/"},
	} {
		i.refuses(sign(with), reason)
	}
	_, err = i.verify(sign(claims{"exp": i.now().Add(-skew / 2).Unix()}))
	require.NoError(t, err, "the clocks of two machines differ")
	require.LessOrEqual(t, i.asked.Load(), int64(4), "the issuer was not asked for each of them")
}

func TestIssuer_ValuesOfTheClaimGiveRoles(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, func(o *Options) {
		o.RoleClaim, o.Roles, o.TenantClaim = "realm_access.roles", map[string]judge.Role{"staff": judge.RoleRead, "admins": judge.RoleOperate}, ""
	})
	key := i.key("a")
	sign := func(claim any) string {
		return oidctest.SignIDToken(key, "a", "RS256", i.claims(claims{"realm_access": map[string]any{"roles": claim}}))
	}
	grant, err := i.verify(sign([]string{"staff", "admins"}))
	require.NoError(t, err)
	require.Equal(t, judge.RoleOperate, grant.Role)
	require.Equal(t, judge.DefaultTenant, grant.Tenant, "no claim of a token names another one")
	i.refuses(sign([]string{"operate", "run"}), "realm_access.roles gives no role")
	i.refuses(sign(nil), "gives no role")
}

// What only looks like a token of the issuer lets no client in.
func TestIssuer_OnlyItsSignaturesCount(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, nil)
	key := i.key("a")
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	good := oidctest.SignIDToken(key, "a", "RS256", i.claims(nil))
	_, err = i.verify(good)
	require.NoError(t, err)
	parts := strings.Split(good, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	for name, secret := range map[string][]byte{"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "DER": der, "modulus": key.N.Bytes()} {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: secret}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
		require.NoError(t, err)
		signed, err := signer.Sign([]byte(i.claims(nil)))
		require.NoError(t, err)
		compact, err := signed.CompactSerialize()
		require.NoError(t, err)
		_, err = i.verify(compact)
		require.ErrorIs(t, err, access.ErrUnknown, "HS256 with the public key as %s", name)
	}
	embedding, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: stranger},
		(&jose.SignerOptions{EmbedJWK: true}).WithHeader("jku", "https://evil.example.com/keys"))
	require.NoError(t, err)
	embedded, err := embedding.Sign([]byte(i.claims(nil)))
	require.NoError(t, err)
	withKey, err := embedded.CompactSerialize()
	require.NoError(t, err)
	for name, token := range map[string]string{
		"a stranger's key":     oidctest.SignIDToken(stranger, "a", "RS256", i.claims(nil)),
		"a key in the token":   withKey,
		"alg none":             encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg None":             encode(`{"alg":"None"}`) + "." + parts[1] + ".",
		"no signature":         parts[0] + "." + parts[1] + ".",
		"other claims":         parts[0] + "." + encode(i.claims(claims{"roles": "operate"})) + "." + parts[2],
		"nothing":              "..",
		"no token":             "a.b.c",
		"too long":             good + strings.Repeat("A", maxToken),
		"four parts":           good + ".x",
		"an unknown extension": encode(`{"alg":"RS256","crit":["exp"],"kid":"a"}`) + "." + parts[1] + "." + parts[2],
	} {
		_, err := i.verify(token)
		require.ErrorIs(t, err, access.ErrUnknown, name)
	}
	require.LessOrEqual(t, i.asked.Load(), int64(4), "they do not make this process ask the issuer")
}

// A new key counts at once, and a withdrawn one soon no more.
func TestIssuer_KeysAreRotated(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, nil)
	first := i.key("a")
	old := oidctest.SignIDToken(first, "a", "RS256", i.claims(nil))
	_, err := i.verify(old)
	require.NoError(t, err)
	second, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i.keys.PublicKeys = append(i.keys.PublicKeys, oidctest.PublicKey{PublicKey: second.Public(), KeyID: "b", Algorithm: "ES256"})
	i.keys.PublicKeys = i.keys.PublicKeys[1:]
	token := oidctest.SignIDToken(second, "b", "ES256", i.claims(nil))
	i.refuses(token, "verify signature")
	i.later(pauseFor)
	_, err = i.verify(token)
	require.NoError(t, err)
	i.refuses(old, "verify signature")

	third := i.key("c")
	i.keys.PublicKeys = i.keys.PublicKeys[1:]
	_, err = i.verify(token)
	require.NoError(t, err, "the key was read lately")
	i.later(renewAfter + time.Second)
	i.refuses(token, "verify signature")
	_, err = i.verify(oidctest.SignIDToken(third, "c", "RS256", i.claims(nil)))
	require.NoError(t, err)
	var asking sync.WaitGroup
	i.later(renewAfter + time.Second)
	before := i.asked.Load()
	for range 50 {
		asking.Go(func() { _, _ = i.verify(oidctest.SignIDToken(first, "a", "RS256", i.claims(nil))) })
	}
	asking.Wait()
	require.LessOrEqual(t, i.asked.Load()-before, int64(2), "however many clients there are")
}

// An issuer that does not answer, or not as it must, lets no client in: the error names it.
func TestIssuer_WithoutAnswersNoClientIsLetIn(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	t.Cleanup(elsewhere.Close)
	answer := func(f http.HandlerFunc) *http.Handler { h := http.Handler(f); return &h }
	i := newIssuer(t, nil)
	key := i.key("a")
	metadata := func(w http.ResponseWriter, r *http.Request, issuer, keys string) bool {
		if strings.HasSuffix(r.URL.Path, "openid-configuration") {
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": issuer, "jwks_uri": keys})
			return true
		}
		return false
	}
	for reason, handler := range map[string]http.HandlerFunc{
		"500":                      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"only redirects on one":    func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"at most 3":                func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"did not match the issuer": func(w http.ResponseWriter, r *http.Request) { metadata(w, r, elsewhere.URL, i.url+"/keys") },
		"must be an https URL":     func(w http.ResponseWriter, r *http.Request) { metadata(w, r, i.url, "http://192.0.2.1/keys") },
		"404": func(w http.ResponseWriter, r *http.Request) {
			if !metadata(w, r, i.url, i.url+"/keys") {
				w.WriteHeader(404)
			}
		},
		"has 0 keys": func(w http.ResponseWriter, r *http.Request) {
			if !metadata(w, r, i.url, i.url+"/keys") {
				_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0","alg":"HS256"},{"kty":"new"}]}`))
			}
		},
		"unexpected EOF": func(w http.ResponseWriter, r *http.Request) {
			if !metadata(w, r, i.url, i.url+"/keys") {
				_, _ = w.Write([]byte(`{"keys":["` + strings.Repeat("x", 2*maxAnswer)))
			}
		},
	} {
		i.other.Store(answer(handler))
		i.later(pauseFor + time.Second)
		_, err := i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
		require.EqualError(t, err, "the issuer "+i.url+" does not answer as it must", reason)
		require.ErrorContains(t, i.failed, reason)
		require.NotErrorIs(t, err, access.ErrUnknown, "the token may be good")
	}
	i.other.Store(nil)
	_, err := i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
	require.Error(t, err, "it was asked a moment ago")
	i.later(pauseFor + time.Second)
	_, err = i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
	require.NoError(t, err)
	i.other.Store(answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	i.later(renewAfter + time.Second)
	_, err = i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
	require.NoError(t, err, "keys that were read lately count for some minutes")
	i.later(goodFor)
	_, err = i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
	require.ErrorContains(t, err, "does not answer as it must")
	require.ErrorContains(t, i.failed, "503")
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Watch(ctx, slog.New(slog.DiscardHandler)) })
	i.other.Store(nil)
	i.later(pauseFor + time.Second)
	require.Eventually(t, func() bool {
		_, err := i.verify(oidctest.SignIDToken(key, "a", "RS256", i.claims(nil)))
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	stop()
	running.Wait()
}

func TestNew_RefusesWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	for text, o := range map[string]Options{
		`issuer ""`:                          {Audience: "a", RoleClaim: "r"},
		"must be a URL as in https":          {Issuer: "http://accounts.example.com", Audience: "a", RoleClaim: "r"},
		`issuer "https://a.example.com?x=1"`: {Issuer: "https://a.example.com?x=1", Audience: "a", RoleClaim: "r"},
		"an audience is required":            {Issuer: "https://a.example.com", RoleClaim: "r"},
		"a claim that has the role":          {Issuer: "https://a.example.com", Audience: "a"},
		`"staff" gives role "admin"`:         {Issuer: "https://a.example.com", Audience: "a", RoleClaim: "r", Roles: map[string]judge.Role{"staff": "admin"}},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, text)
	}
}
