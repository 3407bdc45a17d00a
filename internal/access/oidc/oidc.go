// Package oidc lets clients in with the tokens of an issuer (OpenID Connect): JSON Web Tokens that
// one of its keys has signed, for this audience, with claims that say which role and tenant a
// client has. Package github.com/coreos/go-oidc checks the tokens.
//
//	issuer ─ discovery, keys: once in some minutes, and for an unknown key ─┐
//	token ──► signature, issuer, audience, times ──► claims ──► role, tenant ─► [access.Grant]
//
// What is not known lets no client in: without keys that were read lately no token is checked, and
// a token without a role or a tenant that is allowed gives nothing.
package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options are what an issuer's tokens must be, and what they give.
type Options struct {
	// Issuer is the URL of the issuer, and Audience this fleet as the issuer names it.
	Issuer, Audience string
	// RoleClaim has a role, or a list of roles: then the greatest counts. Roles are the values that
	// give one; nil is each role by its name. A name with dots that is no claim is a path of
	// claims.
	RoleClaim string
	Roles     map[string]judge.Role
	// TenantClaim has the tenant; with "" all clients are of the tenant default.
	TenantClaim string
}

// ErrOptions is wrapped by the error of options that cannot be.
var ErrOptions = errors.New("invalid options of the issuer")

// check returns what is wrong with options.
func (o *Options) check() error {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !secure(u):
		return fmt.Errorf("%w: issuer %q: must be a URL as in https://accounts.example.com; http is for loopback addresses only", ErrOptions, o.Issuer)
	case o.Audience == "":
		return fmt.Errorf("%w: an audience is required: else a token that the issuer made for another service would be let in", ErrOptions)
	case o.RoleClaim == "":
		return fmt.Errorf("%w: a claim that has the role is required", ErrOptions)
	}
	for value, role := range o.Roles {
		if _, err := judge.ParseRole(string(role)); err != nil || value == "" {
			return fmt.Errorf("%w: %q gives role %q: must be a value of the claim, and read, run or operate", ErrOptions, value, role)
		}
	}
	return nil
}

// secure reports whether what a URL returns comes from its host.
func secure(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname())
}

const (
	// renewAfter is how old keys become before they are read again, and goodFor how long they count
	// while that fails: a key that the issuer has withdrawn counts no longer than that.
	renewAfter = 5 * time.Minute
	goodFor    = 15 * time.Minute
	// pauseFor is the least time between two requests to the issuer: clients without a token of it
	// cannot make this process ask more often.
	pauseFor = 5 * time.Second
	// askFor bounds a request to the issuer, and maxAnswer its answer in bytes.
	askFor    = 5 * time.Second
	maxAnswer = 1 << 20
	maxKeys   = 100
	// skew is by how much the clocks of the issuer and of this machine may differ.
	skew = time.Minute
	// maxToken bounds a token, in bytes.
	maxToken = 16 << 10
)

// algorithms are those of signatures that count: with a key that only the issuer has.
func algorithms() []string {
	return []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}
}

// Issuer is a [access.Verifier] of an issuer's tokens. It is safe for concurrent use.
type Issuer struct {
	options Options
	client  *http.Client
	now     func() time.Time

	turn   chan struct{} // has one element while a request to the issuer is under way
	mu     sync.Mutex
	keys   *oidc.StaticKeySet // nil before they are read
	read   time.Time          // when they were
	tried  time.Time          // when they were asked for last
	failed error              // of the last try
}

// New returns a verifier, which asks the issuer when it needs to. The error wraps [ErrOptions].
func New(o Options) (*Issuer, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: askFor, Transport: bounded{http.DefaultTransport}, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if to.URL.Host != via[0].URL.Host || to.URL.Scheme != via[0].URL.Scheme || len(via) > 3 {
			return fmt.Errorf("%s redirects to %s: only redirects on one host are followed, at most 3", via[0].URL, to.URL)
		}
		return nil
	}}
	return &Issuer{options: o, client: client, now: time.Now, turn: make(chan struct{}, 1)}, nil
}

// bounded bounds answers.
type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxAnswer), answer.Body} // one that is cut is no JSON
	}
	return answer, err
}

// Watch reads the keys again when they are old, so that no client waits for that, until ctx ends.
// The log says what is wrong.
func (i *Issuer) Watch(ctx context.Context, logger *slog.Logger) {
	for failing := false; ; {
		_, _ = i.current(ctx, nil)
		i.mu.Lock()
		err := i.failed
		i.mu.Unlock()
		if err != nil && !failing && ctx.Err() == nil {
			logger.WarnContext(ctx, "the keys of the issuer cannot be read: soon its tokens let no client in", slog.String("issuer", i.options.Issuer), slog.Any("error", err))
		}
		failing = err != nil
		if !pause.For(ctx, pauseFor) {
			return
		}
	}
}

// Verify implements [access.Verifier].
func (i *Issuer) Verify(ctx context.Context, bearer string) (access.Grant, error) {
	if strings.Count(bearer, ".") != 2 || len(bearer) > maxToken {
		return access.Grant{}, access.ErrUnknown // it is no token of an issuer
	}
	keys, err := i.current(ctx, nil)
	if err != nil {
		return access.Grant{}, err
	}
	token, signed, err := i.check(ctx, bearer, keys)
	if !signed && err != nil { // by a new key?
		if again, failed := i.current(ctx, keys); failed != nil {
			return access.Grant{}, failed
		} else if again != keys {
			token, _, err = i.check(ctx, bearer, again)
		}
	}
	if err != nil {
		return access.Grant{}, fmt.Errorf("%w: %.500w", access.ErrUnknown, err)
	}
	who, err := i.principal(token)
	if err != nil {
		return access.Grant{}, fmt.Errorf("%w: %w", access.ErrUnknown, err)
	}
	return access.Grant{Principal: who}, nil
}

// noted is a set of keys that notes whether one of them has signed a token.
type noted struct {
	*oidc.StaticKeySet

	signed bool
}

// VerifySignature implements [oidc.KeySet].
func (n *noted) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := n.StaticKeySet.VerifySignature(ctx, token)
	n.signed = err == nil
	return payload, err
}

// check checks a token, and reports whether one of the keys has signed it.
func (i *Issuer) check(ctx context.Context, bearer string, keys *oidc.StaticKeySet) (token *oidc.IDToken, signed bool, err error) {
	set := &noted{StaticKeySet: keys}
	config := &oidc.Config{ClientID: i.options.Audience, SupportedSigningAlgs: algorithms(), Now: func() time.Time { return i.now().Add(-skew) }}
	token, err = oidc.NewVerifier(i.options.Issuer, set, config).Verify(ctx, bearer)
	return token, set.signed, err
}

// principal is who has a token, by its claims.
func (i *Issuer) principal(token *oidc.IDToken) (who judge.Principal, err error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return who, err
	}
	who = judge.Principal{Known: judge.ByToken, Name: "oidc:" + token.Subject, Token: access.OfIssuer, Expires: token.Expiry.Add(skew)}
	if token.Subject == "" {
		return who, errors.New("it has no subject (sub)")
	}
	if err := judge.CheckBy(who.By()); err != nil {
		return who, fmt.Errorf("its subject (sub): %w", err)
	}
	for _, value := range values(claimOf(claims, i.options.RoleClaim)) {
		role, known := i.options.Roles[value]
		if parsed, err := judge.ParseRole(value); i.options.Roles == nil && err == nil {
			role, known = parsed, true
		}
		if known && (who.Role == "" || slices.Index(judge.Roles(), role) > slices.Index(judge.Roles(), who.Role)) {
			who.Role = role
		}
	}
	if who.Role == "" {
		return who, fmt.Errorf("its claim %s gives no role", i.options.RoleClaim)
	}
	if i.options.TenantClaim == "" {
		who.Tenant = judge.DefaultTenant
		return who, nil
	}
	tenants := values(claimOf(claims, i.options.TenantClaim))
	if len(tenants) != 1 {
		return who, fmt.Errorf("its claim %s has %d tenants: must have one", i.options.TenantClaim, len(tenants))
	}
	who.Tenant, err = protocol.ParseTenant(tenants[0])
	return who, err
}

// claimOf is a claim, or one in others: as realm_access.roles.
func claimOf(claims map[string]any, name string) any {
	if claim, is := claims[name]; is {
		return claim
	}
	for i, r := range name {
		if inner, is := claims[name[:i]].(map[string]any); r == '.' && is {
			return claimOf(inner, name[i+1:])
		}
	}
	return nil
}

// values are the texts of a claim; none if it has anything else.
func values(claim any) (all []string) {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		for _, value := range claim {
			text, is := value.(string)
			if !is {
				return nil
			}
			all = append(all, text)
		}
	}
	return all
}

// current returns the keys of the issuer, which are read again if they are old, or if they are
// those that a caller cannot use.
func (i *Issuer) current(ctx context.Context, unfit *oidc.StaticKeySet) (*oidc.StaticKeySet, error) {
	keys, err, enough := i.state(unfit)
	if enough {
		return keys, err
	}
	if err == nil && keys != unfit { // old, but good: one request renews them, and no other one waits
		select {
		case i.turn <- struct{}{}:
		default:
			return keys, nil
		}
	} else {
		select {
		case i.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-i.turn }()
	if keys, err, enough := i.state(unfit); enough { // they were read meanwhile
		return keys, err
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*askFor) // others wait for it
	defer cancel()
	keys, err = i.ask(asking)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tried, i.failed = i.now(), err
	if err == nil {
		i.keys, i.read = keys, i.tried
	}
	return i.usable()
}

// state returns the keys, and whether that is enough: the issuer need not, or may not, be asked.
func (i *Issuer) state(unfit *oidc.StaticKeySet) (keys *oidc.StaticKeySet, err error, enough bool) { //nolint:revive // the error is not of this function
	i.mu.Lock()
	defer i.mu.Unlock()
	keys, err = i.usable()
	needed := err != nil || keys == unfit || i.now().Sub(i.read) > renewAfter
	return keys, err, !needed || !i.tried.IsZero() && i.now().Sub(i.tried) < pauseFor
}

// usable returns the keys that were read lately. What is wrong with the issuer is in the log, and
// not for clients that have no token.
func (i *Issuer) usable() (*oidc.StaticKeySet, error) {
	if i.keys != nil && i.now().Sub(i.read) < goodFor {
		return i.keys, nil
	}
	return nil, fmt.Errorf("the issuer %s does not answer as it must", i.options.Issuer)
}

// ask reads the keys from the issuer.
func (i *Issuer) ask(ctx context.Context) (*oidc.StaticKeySet, error) {
	ctx = oidc.ClientContext(ctx, i.client)
	provider, err := oidc.NewProvider(ctx, i.options.Issuer)
	if err != nil {
		return nil, err
	}
	var at struct {
		Keys string `json:"jwks_uri"`
	}
	if err := provider.Claims(&at); err != nil {
		return nil, err
	}
	u, err := url.Parse(at.Keys)
	if err != nil || u.Host == "" || !secure(u) || u.Scheme != "https" && strings.HasPrefix(i.options.Issuer, "https:") {
		return nil, fmt.Errorf("jwks_uri %.500q: must be an https URL", at.Keys)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.Keys, nil)
	if err != nil {
		return nil, err
	}
	answer, err := i.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", at.Keys, answer.Status)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&set); err != nil {
		return nil, fmt.Errorf("%s: %w", at.Keys, err)
	}
	keys := &oidc.StaticKeySet{}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.Valid() || !key.IsPublic() || key.Use == "enc" {
			continue // of a kind that is not known here, or for another use
		}
		keys.PublicKeys = append(keys.PublicKeys, key.Key)
	}
	if len(keys.PublicKeys) == 0 || len(keys.PublicKeys) > maxKeys {
		return nil, fmt.Errorf("%s: has %d keys for signatures: must have 1 to %d", at.Keys, len(keys.PublicKeys), maxKeys)
	}
	return keys, nil
}
