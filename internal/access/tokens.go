// Package access admits clients over HTTP by bearer tokens. Each token is a principal.
//
//	request ──► bearer ──► [Any] of: a file          [Tokens]
//	                                 the fleet       package stored
//	                                 an issuer       package oidc
//	                         │
//	                         └► [Grant]: a principal, until the token expires or is removed
package access

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Digest is what is known of a token: how long it takes to look for one says nothing about it.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a token.
func DigestOf(token string) Digest { return sha256.Sum256([]byte(token)) }

// Token lets a client in as a principal. Clients of one name and tenant share their keys.
type Token struct {
	judge.Principal

	Digest Digest
}

// Grant is what a token gives: a principal, until the token expires or is removed.
type Grant struct {
	judge.Principal

	// Live ends when the token is removed; nil if it never is.
	Live context.Context //nolint:containedctx // the time of the token, which is not that of a request
}

// Until returns a context that ends when the token expires or is removed: [ErrUnknown] is its cause
// then.
func (g Grant) Until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var stops []func() bool
	if g.Live != nil {
		stops = append(stops, context.AfterFunc(g.Live, func() { cancel(ErrUnknown) }))
	}
	if !g.Expires.IsZero() {
		stops = append(stops, time.AfterFunc(time.Until(g.Expires), func() { cancel(ErrUnknown) }).Stop)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// Verifier knows what a bearer token gives. The error wraps [ErrUnknown] for a token that it does
// not know; others are of a verifier that cannot answer now.
type Verifier interface {
	Verify(ctx context.Context, bearer string) (Grant, error)
}

// ErrUnknown means that a token is not known, has expired, or was removed.
var ErrUnknown = errors.New("the token is not known, has expired, or was removed")

// Tokens are those of a file. They never change.
type Tokens map[Digest]Token

// Servers name tokens by these texts, which are not the tokens themselves: [OfFleet] and the id of
// a token of the fleet, [OfFile] and a part of its digest's digest, or [OfIssuer] alone.
const (
	OfFleet  = "stored:"
	OfFile   = "file:"
	OfIssuer = "issuer"
)

// Has reports whether the file has a token with this name, which has not expired.
func (t Tokens) Has(token string) bool {
	for _, one := range t {
		if one.Token == token && token != "" {
			return one.Expires.IsZero() || time.Now().Before(one.Expires)
		}
	}
	return false
}

// NewTokens returns a verifier of tokens.
func NewTokens(list ...Token) Tokens {
	tokens := Tokens{}
	for _, token := range list {
		tokens[token.Digest] = token
	}
	return tokens
}

// Verify implements [Verifier].
func (t Tokens) Verify(_ context.Context, bearer string) (Grant, error) {
	token, known := t[DigestOf(bearer)]
	if !known || !token.Expires.IsZero() && !time.Now().Before(token.Expires) {
		return Grant{}, ErrUnknown
	}
	return Grant{Principal: token.Principal}, nil
}

// Any asks verifiers one after another, until one knows the token.
type Any []Verifier

// Verify implements [Verifier].
func (a Any) Verify(ctx context.Context, bearer string) (Grant, error) {
	err := ErrUnknown
	for _, verifier := range a {
		grant, failed := verifier.Verify(ctx, bearer)
		if failed == nil {
			return grant, nil
		}
		if err == ErrUnknown || !errors.Is(failed, ErrUnknown) { //nolint:errorlint // one with a reason is kept
			err = failed
		}
	}
	return Grant{}, err
}

// ErrTokens is wrapped by every error of [ReadTokens].
var ErrTokens = errors.New("invalid tokens")

// minToken is the least length of a token, in bytes.
const minToken = 16

// ReadTokens reads tokens, one a line: a name, a role ([judge.ParseRole]), the token and, if the
// client has them, its tenant and expires=TIME (RFC 3339), between spaces. Empty lines and those
// that begin with # are skipped. The error has every error, and no token.
func ReadTokens(r io.Reader) ([]Token, error) {
	var tokens []Token
	var errs []error
	names := map[Digest]string{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		token, err := readToken(fields)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: line %d: %w", ErrTokens, n, err))
			continue
		}
		if other, taken := names[token.Digest]; taken {
			errs = append(errs, fmt.Errorf("%w: line %d: the token of %q is that of %q, too: each line must have its own", ErrTokens, n, token.Name, other))
		}
		names[token.Digest] = token.Name
		tokens = append(tokens, token)
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrTokens, err))
	}
	if len(tokens) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w: there is none", ErrTokens))
	}
	return tokens, errors.Join(errs...)
}

// readToken reads the words of a line.
func readToken(fields []string) (Token, error) {
	token := Token{}
	if expires, has := strings.CutPrefix(fields[len(fields)-1], "expires="); has {
		at, err := time.Parse(time.RFC3339, expires)
		if err != nil {
			return token, fmt.Errorf("expires %q: must be a time such as 2030-01-31T00:00:00Z", expires)
		}
		token.Expires, fields = at, fields[:len(fields)-1]
	}
	if len(fields) != 3 && len(fields) != 4 {
		return token, fmt.Errorf("must have a name, a role and a token, and may have a tenant and expires=TIME, but has %d words", len(fields))
	}
	if len(fields[2]) < minToken {
		return token, fmt.Errorf("the token of %q has %d characters: must have at least %d", fields[0], len(fields[2]), minToken)
	}
	role, err := judge.ParseRole(fields[1])
	if err == nil && len(fields) == 4 {
		token.Tenant, err = protocol.ParseTenant(fields[3])
	}
	token.Known, token.Name, token.Role, token.Digest = judge.ByToken, fields[0], role, DigestOf(fields[2])
	known := sha256.Sum256(token.Digest[:])
	token.Token = OfFile + hex.EncodeToString(known[:8])
	return token, errors.Join(err, judge.CheckBy(token.By()))
}

// OwnToken is a token of the server's owner, the operator.
func OwnToken(token string) Token {
	return Token{Principal: judge.Principal{Name: "owner", Role: judge.RoleOperate}, Digest: DigestOf(token)}
}

// Require lets requests with a known token pass, in whose context the principal acts, until the
// token expires or is removed. refuse answers the others.
func Require(verifier Verifier, next http.Handler, refuse func(w http.ResponseWriter, status int, reason string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer, is := BearerOf(r)
		if !is {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "a token is required: Authorization: Bearer TOKEN")
			return
		}
		grant, err := verifier.Verify(r.Context(), bearer)
		switch {
		case errors.Is(err, ErrUnknown):
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			refuse(w, http.StatusUnauthorized, err.Error())
			return
		case err != nil:
			refuse(w, http.StatusServiceUnavailable, CannotCheck(err))
			return
		}
		ctx, end := grant.Until(judge.With(r.Context(), grant.Principal))
		defer end()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// CannotCheck says to a client that its token may be good, and why it is not known.
func CannotCheck(err error) string { return "the token cannot be checked now: " + err.Error() }

// BearerOf returns the token of a request.
func BearerOf(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "bearer") && strings.TrimSpace(token) != ""
}
