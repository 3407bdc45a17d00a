// Package login lets a worker into servers of the Model Context Protocol that ask who comes
// (OAuth 2.1).
//
//	person ──► Ask: URL, browser, code ──► tokens ──► file of a Store (mode 0600)
//	                                                    │        ▲ renewed under the file's lock
//	call ──► Transport ◄── access token ────────────────┘        │
//	            │  expired, or the server answers 401 ───────────┘
//	            └─ none, refused, too few scopes: login_required, which says what to run
//
//	call ──► Machine: client credentials ──► access token, in memory
//
// The file is authoritative: it is read for every request, so a change by a person or another
// process counts at once. A login is bound to the name and the URL of its server; no other gets the
// token. Tokens are in the file and in headers of requests to the server, and nowhere else: errors
// name what an authorization server said by its code only.
package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/oauth2"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Store is a directory of logins.
type Store struct {
	// Dir has a file for each login; the first one makes it.
	Dir string
	// Advice says what a person does to log in to a server.
	Advice func(server string) string
}

// Login is a person's login at a server, if there was one. It is safe for concurrent use, also by
// several processes.
type Login struct {
	server, url string
	file        string
	advice      func(server string) string
}

// Of returns the login at the server of this name and URL. Both come from calls and are in the
// file's name only as a hash.
func (s Store) Of(server, url string) *Login {
	sum := sha256.Sum256([]byte(server + "\n" + url))
	return &Login{server: server, url: url, file: filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json"), advice: s.Advice}
}

// File is where the login is kept.
func (l *Login) File() string { return l.file }

// record is a login as its file has it.
type record struct {
	Server       string           `json:"server"`
	URL          string           `json:"url"`
	ClientID     string           `json:"client_id"`
	ClientSecret string           `json:"client_secret,omitempty"`
	TokenURL     string           `json:"token_url"`
	AuthStyle    oauth2.AuthStyle `json:"auth_style"`
	Token        *oauth2.Token    `json:"token"`
	// Lacking are scopes that refused calls needed; logins request them, too.
	Lacking []string `json:"lacking,omitempty"`
}

// read returns the record; nil without a login.
func (l *Login) read() (*record, error) {
	data, err := os.ReadFile(l.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // none is fine
	}
	r := &record{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && r.Token == nil {
		err = errors.New("has no token")
	}
	if err != nil {
		return nil, l.needed("its login %s cannot be read: %v", l.file, err)
	}
	return r, nil
}

// write replaces the record; the lock is held.
func (l *Login) write(r *record) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // that file is for secrets
	if err != nil {
		return err
	}
	return regular.ReplaceSynced(l.file, data)
}

// lockPeriod is how often a lock is tried that another one holds.
const lockPeriod = 10 * time.Millisecond

// lock waits until no other caller or process changes the login.
func (l *Login) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(l.file), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(l.file+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPeriod); err != nil {
		return nil, fmt.Errorf("lock the login %s: %w", l.file, err)
	}
	return func() { _ = lock.Close() }, nil
}

// needed is the error of a call that a person has to log in for.
func (l *Login) needed(format string, args ...any) error {
	return protocol.Errorf(codes.LoginRequired, "MCP server %s needs a login: %s; %s", l.server, fmt.Sprintf(format, args...), l.advice(l.server))
}
