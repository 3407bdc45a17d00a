// Package join lets processes of other machines into a fleet whose server is inside a coordinator:
// the tokens that they get, the list of those tokens, and the certificates of the server. A token
// is all that another machine needs. The list has digests alone, so it lets no process in.
package join

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Role is what a token allows.
type Role string

// The roles.
const (
	RoleWorker      Role = "worker"      // takes the calls of one pool
	RoleCoordinator Role = "coordinator" // may do all, as the process that has the server
)

// User is the NATS user name of a role, which begins the inboxes of its processes.
func (r Role) User() string { return string(r) }

// poolUser begins the NATS user names of coordinators in the accounts of pools.
const poolUser = "pool_"

// PoolUser is the NATS user name of a coordinator in the account of a pool.
func PoolUser(pool protocol.Pool) string { return poolUser + string(pool) }

// PoolOfUser returns the pool of a [PoolUser].
func PoolOfUser(user string) (protocol.Pool, bool) {
	pool, is := strings.CutPrefix(user, poolUser)
	return protocol.Pool(pool), is
}

// Token is what another machine needs to reach a fleet.
type Token struct {
	Addresses []string `json:"addresses"`
	// Authority is the fingerprint of the server's authority; "" is a server without TLS.
	Authority string         `json:"authority,omitempty"`
	Secret    string         `json:"secret"` // id.text
	Role      Role           `json:"role"`
	Fleet     protocol.Fleet `json:"fleet"`
	Pool      protocol.Pool  `json:"pool,omitempty"` // of a worker
	// Pools are those with accounts of their own, for a coordinator.
	Pools   []protocol.Pool `json:"pools,omitempty"`
	Keys    string          `json:"keys,omitempty"` // PEM of the public keys whose calls are run
	Key     string          `json:"key,omitempty"`  // PEM of the private key that signs calls, for a coordinator
	Expires time.Time       `json:"expires,omitzero"`
}

// prefix begins the text of a token, and says its version.
const prefix = "tfjoin1_"

// maxToken bounds the text of a token, in bytes.
const maxToken = 16 << 10

// ErrToken is wrapped by the errors of [Parse].
var ErrToken = errors.New("not a join token: coordinator join-token add prints one, which begins with " + prefix)

// String is the text of the token, which is a secret.
func (t Token) String() string {
	body, _ := json.Marshal(t) //nolint:gosec // the text is the secret; texts and a time always can be
	return prefix + base64.RawURLEncoding.EncodeToString(body)
}

// Parse reads the text of a token, or a file that has it. Errors do not quote the token.
func Parse(text string) (t Token, err error) {
	if text = strings.TrimSpace(text); !strings.HasPrefix(text, prefix) {
		content, err := regular.Read(text, maxToken)
		switch {
		case errors.Is(err, os.ErrNotExist) || len(text) > 1024:
			return t, fmt.Errorf("%w; there is no such file, too", ErrToken)
		case err != nil:
			return t, fmt.Errorf("%w: %w", ErrToken, err)
		}
		text = strings.TrimSpace(string(content))
	}
	encoded, is := strings.CutPrefix(text, prefix)
	if !is {
		return t, ErrToken
	}
	body, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(text) > maxToken || json.Unmarshal(body, &t) != nil {
		return Token{}, fmt.Errorf("%w: it is damaged: was it copied whole?", ErrToken)
	}
	return t, t.check()
}

// check finds out whether a token has what a process needs.
func (t Token) check() error {
	_, fault := protocol.ParseFleet(string(t.Fleet))
	if t.Role == RoleWorker && fault == nil {
		_, fault = protocol.ParsePool(string(t.Pool))
	}
	if authority, err := hex.DecodeString(t.Authority); fault == nil && (err != nil || t.Authority != "" && len(authority) != sha256.Size) {
		fault = errors.New("the fingerprint of the authority is none")
	}
	for _, pool := range t.Pools {
		if _, err := protocol.ParsePool(string(pool)); err != nil {
			fault = err
		}
	}
	if fault == nil && (len(t.Addresses) == 0 || t.Secret == "") {
		fault = errors.New("it has no address or no secret")
	}
	if fault != nil {
		return fmt.Errorf("%w: %w", ErrToken, fault)
	}
	return nil
}

// URL is the servers, with the user and the secret.
func (t Token) URL() string { return t.urlOf(t.Role.User()) }

// PoolURL is the URL of a coordinator in the account of a pool.
func (t Token) PoolURL(pool protocol.Pool) string { return t.urlOf(PoolUser(pool)) }

func (t Token) urlOf(user string) string {
	scheme, urls := "tls", make([]string, 0, len(t.Addresses))
	if t.Authority == "" {
		scheme = "nats"
	}
	for _, address := range t.Addresses {
		urls = append(urls, (&url.URL{Scheme: scheme, User: url.UserPassword(user, t.Secret), Host: address}).String())
	}
	return strings.Join(urls, ",")
}

// For returns an error for a token of another role, or one that has expired by the clock of this
// machine.
func (t Token) For(roles ...Role) error {
	if !slices.Contains(roles, t.Role) {
		return fmt.Errorf("the token is one of a %s: coordinator join-token add --role %s makes one", t.Role, roles[0])
	}
	if !t.Expires.IsZero() && !time.Now().Before(t.Expires) {
		return fmt.Errorf("the token has expired (%s): coordinator join-token add makes a new one", t.Expires.Format(time.RFC3339))
	}
	return nil
}

// newSecret makes the id of an entry, and the secret that proves it.
func newSecret() (id, secret string) {
	id = strings.ToLower(rand.Text()[:8])
	return id, id + "." + rand.Text()
}

// digestOf is what is stored of a secret: it has 130 random bits, so that none is found by trying.
func digestOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
