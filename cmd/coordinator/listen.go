package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/oidc"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// endpointFlags say how clients connect over HTTP. The flag of the address is apart.
type endpointFlags struct {
	Tokens      string `placeholder:"FILE" help:"File of bearer tokens for clients over HTTP, a line each: NAME, a role (read, run or operate), TOKEN, and if the client has them its TENANT and expires=TIME. Default: the tokens of the fleet (coordinator token) and, on loopback, one token in a file that is named at the start."`
	TLSCert     string `name:"tls-cert" placeholder:"FILE" help:"Certificate (PEM) with which clients are served over TLS; needs the private key."`
	TLSKey      string `name:"tls-key" placeholder:"FILE" help:"Private key (PEM) of the certificate."`
	BehindProxy bool   `help:"The address is reached through a proxy that ends TLS: plain HTTP on an address other than loopback is allowed. The HTTP API then takes any host name on loopback."`
}

// endpoint is an address where clients connect over HTTP, as flags describe it.
type endpoint struct {
	address string // host:port, or unix:PATH for a socket
	flag    string // that of the address
	flags   string // what the other flags begin with: --http or --mcp
	endpointFlags
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// check checks the flags and reads the tokens. others says that clients may have tokens that are in
// no file.
func (e *endpoint) check(others bool) ([]access.Token, error) {
	loopback, err := e.isLoopback()
	switch {
	case err != nil:
		return nil, err
	case !loopback && e.Tokens == "" && !others:
		return nil, cli.Usagef("%s %s: other machines can reach this address: give %s-tokens, or listen on a loopback address", e.flag, e.address, e.flags)
	case (e.TLSCert == "") != (e.TLSKey == ""):
		return nil, cli.Usagef("%[1]s-tls-cert, %[1]s-tls-key: one needs the other", e.flags)
	case e.TLSCert == "" && !loopback && !e.BehindProxy:
		return nil, cli.Usagef("%s %s: other machines can reach this address, and tokens would be sent in plain text: give %[3]s-tls-cert, or %[3]s-behind-proxy if a proxy ends TLS", e.flag, e.address, e.flags)
	case e.Tokens == "":
		return nil, nil
	}
	return readTokens(e.flags+"-tokens", e.Tokens)
}

// isLoopback refuses an invalid address, and reports whether other machines cannot reach it.
func (e *endpoint) isLoopback() (bool, error) {
	if path, is := strings.CutPrefix(e.address, unixPrefix); is {
		if !filepath.IsAbs(path) {
			return false, cli.Usagef("%s %s: must be an absolute path as in unix:/run/user/1000/toolfleet.sock", e.flag, e.address)
		}
		return true, nil
	}
	host, _, err := net.SplitHostPort(e.address)
	if err != nil {
		return false, cli.Usagef("%s %s: must be an address as in 127.0.0.1:7080, or unix:PATH", e.flag, e.address)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback(), nil
}

// listening is an endpoint that listens.
type listening struct {
	listener net.Listener
	URL      string `json:"url"` // what clients connect to
	// Token is the file of the server's own token; "" if it has none.
	Token string `json:"token_file,omitempty"`
	// Pages is the address of the web pages; "" on a socket.
	Pages  string          `json:"pages,omitempty"`
	bearer string          // the server's own token
	access access.Verifier // nil lets each client in
	end    func()          // removes the socket
}

// sendingToken says to clients of a server with a token of its own which one to send.
func (l *listening) sendingToken() string {
	if l.Token == "" {
		return ""
	}
	return " for clients that send the token in " + l.Token + " (Authorization: Bearer TOKEN)"
}

// listen listens for clients with the tokens of a file, and for others. Without a file, a loopback
// address has a token of the server's own, which is stored in dir, because every user of this
// machine reaches a port. Only its owner can use a socket, and needs no token.
func (e *endpoint) listen(ctx context.Context, tokens []access.Token, others access.Any, dir string) (*listening, error) {
	l := &listening{URL: e.address, end: func() {}}
	path, isSocket := strings.CutPrefix(e.address, unixPrefix)
	var err error
	if isSocket {
		l.listener, err = listenUnix(ctx, path)
		l.end = func() { _ = os.Remove(path) }
	} else if l.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", e.address); err == nil {
		l.URL = "http://" + l.listener.Addr().String()
	}
	if err != nil {
		next := "choose another address; port 0 takes a free one"
		switch {
		case isSocket:
			next = "choose another path, in a directory of yours"
		case errors.Is(err, syscall.EADDRINUSE):
			next = "another program listens there: end it, or choose another address; port 0 takes a free one"
		}
		return nil, cli.Usagef("%s %s: cannot listen for clients: %v; %s", e.flag, e.address, err, next)
	}
	if e.TLSCert != "" {
		if l.listener, err = access.OverTLS(l.listener, e.TLSCert, e.TLSKey); err != nil {
			return nil, cli.Usagef("%s-tls-cert: %v", e.flags, err) // the listener is closed
		}
		l.URL = strings.Replace(l.URL, "http://", "https://", 1)
	}
	switch loopback, _ := e.isLoopback(); {
	case len(tokens) == 0 && isSocket:
		return l, nil
	case len(tokens) == 0 && loopback:
		l.Token = filepath.Join(dir, strings.Trim(e.flags, "-")+".token")
		if l.bearer, err = ownToken(l.Token); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: the server's own token: %w", e.flag, err), l.listener.Close())
		}
		tokens = []access.Token{access.OwnToken(l.bearer)}
	}
	l.access = append(access.Any{access.NewTokens(tokens...)}, others...)
	return l, nil
}

// ownToken reads the server's own token from a file, or generates it.
func ownToken(file string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return embedded.LoadToken(file)
}

// listenUnix listens on a socket that only its owner can connect to. It replaces one
// that no process listens on.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s exists, and is not a socket", path)
	}
	if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process", path), conn.Close())
	}
	own, err := os.MkdirTemp(filepath.Dir(path), ".listen-") // only its owner can open files in it
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(own)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(own, "s"))
	if err != nil {
		return nil, err
	}
	if l, is := listener.(*net.UnixListener); is { // which it always is
		l.SetUnlinkOnClose(false)
	}
	if err = os.Chmod(filepath.Join(own, "s"), 0o600); err == nil {
		err = os.Rename(filepath.Join(own, "s"), path)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// readTokens reads a file of tokens, which other users of this machine may not read.
func readTokens(flag, name string) ([]access.Token, error) {
	file, err := regular.Open(name)
	if err != nil {
		return nil, cli.Usagef("%s: %v", flag, err)
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0 {
		return nil, cli.Usagef("%s %s: its mode is %04o, so other users of this machine may use it: run chmod o= %[2]s", flag, name, info.Mode().Perm())
	}
	tokens, err := access.ReadTokens(file)
	if err != nil {
		return nil, cli.Usagef("%s %s: %v", flag, name, err)
	}
	return tokens, nil
}

// issuerFlags are about clients with tokens of an issuer.
type issuerFlags struct {
	OidcIssuer      string            `name:"oidc-issuer" placeholder:"URL" help:"Let clients over HTTP in with tokens of this issuer (OpenID Connect); needs --oidc-audience."`
	OidcAudience    string            `name:"oidc-audience" placeholder:"NAME" help:"Audience that tokens of the issuer must have: this fleet, as the issuer names it."`
	OidcRoleClaim   string            `name:"oidc-role-claim" default:"roles" placeholder:"CLAIM" help:"Claim that has the role, or a list of roles: then the greatest counts. It may be in another claim, as in realm_access.roles."`
	OidcRoles       map[string]string `name:"oidc-roles" placeholder:"VALUE=ROLE" mapsep:"," help:"Roles that values of the claim give, separated by commas, as in staff=run,admins=operate. Default: read, run and operate by their names."`
	OidcTenantClaim string            `name:"oidc-tenant-claim" placeholder:"CLAIM" help:"Claim that has the tenant. Default: all clients are of the tenant default."`
}

// issuer is the issuer of the flags; nil without one.
func (f *issuerFlags) issuer() (*oidc.Issuer, error) {
	if f.OidcIssuer == "" {
		if f.OidcAudience != "" || len(f.OidcRoles) > 0 || f.OidcTenantClaim != "" {
			return nil, cli.Usagef("--oidc-audience, --oidc-roles and --oidc-tenant-claim need --oidc-issuer")
		}
		return nil, nil //nolint:nilnil // none
	}
	o := oidc.Options{Issuer: f.OidcIssuer, Audience: f.OidcAudience, RoleClaim: f.OidcRoleClaim, TenantClaim: f.OidcTenantClaim}
	for value, role := range f.OidcRoles {
		if o.Roles == nil {
			o.Roles = map[string]judge.Role{}
		}
		o.Roles[value] = judge.Role(role)
	}
	issuer, err := oidc.New(o)
	if err != nil {
		return nil, cli.Usagef("--oidc-issuer: %v", err)
	}
	return issuer, nil
}

// interfaces are what the interfaces of a serving coordinator for programs share.
type interfaces struct {
	*service

	box    *environment.Toolbox
	rules  loop.Policy
	hooks  []loop.Hook
	others access.Any // knows clients whose tokens are in no file
}

// follow gives the tools of clients to set, now and when they change, until ctx ends.
func (i *interfaces) follow(ctx context.Context, c *serveCommand, box *environment.Toolbox, changed environment.Changes, clients string, set func(*tools.Table)) {
	list := func(ctx context.Context) error { return c.ListAside(ctx, i.env.Fleet, box, i.warn) }
	i.background.Go(func() {
		if err := list(ctx); err != nil && ctx.Err() == nil {
			i.warn(fmt.Sprintf("%s no tools of MCP servers: %v", clients, err))
		}
		set(box.Table)
		box.Follow(ctx, i.env.Fleet, changed, list, set, i.warn)
	})
}

// serveHTTP serves clients of the HTTP API, until ctx ends.
func (c *serveCommand) serveHTTP(ctx context.Context, i interfaces, tokens []access.Token) error {
	l, err := c.listen(ctx, tokens, i.others, i.env.Data)
	if err != nil {
		return err
	}
	announceHTTP(i.Stderr, l)
	i.keepIndexed(ctx)
	own := *i.box // clients of MCP, which begin later, follow changes with that one
	var table atomic.Pointer[tools.Table]
	table.Store(own.Table)
	i.follow(ctx, c, &own, nil, "the HTTP API has", table.Store)
	logger := i.env.Fleet.Logger
	site, err := c.site(ctx, l, i.env.Fleet, httpapi.Options{
		Client: i.env.Client, Table: table.Load, MinLevel: environment.MinLevelElsewhere, Policy: i.rules, Hooks: i.hooks, Version: i.Version, Logger: logger,
	}, &i.background)
	if err != nil {
		return err
	}
	i.background.Go(func() {
		if err := site.serve(ctx); err != nil {
			logger.ErrorContext(ctx, "the HTTP API is not served any more", slog.Any("error", err))
		}
	})
	return nil
}

// serveClients serves agents that bring their own model, until ctx ends.
func (c *serveCommand) serveClients(ctx context.Context, i interfaces, web mcpserver.HTTPOptions, tokens []access.Token, keys *signing.Keys) error {
	fl := i.env.Fleet
	options, changed, err := c.options(ctx, i.program, i.env, i.box)
	if err != nil {
		return err
	}
	options.Lasting = true
	options.Rules = mcpserver.Rules{
		Policy: i.rules, Hooks: i.hooks, MinLevel: environment.MinLevelElsewhere, Approve: approval.Waiter(fl.NC, fl.Name, keys), ClientApproves: c.McpClientApproves,
	}
	l, err := c.mcpFlags.endpoint("--mcp", c.Mcp).listen(ctx, tokens, i.others, i.env.Data)
	if err != nil {
		return err
	}
	announceMCP(i.Stderr, l)
	server := mcpserver.New(options)
	i.follow(ctx, c, i.box, changed, "clients get", server.SetTools)
	i.background.Go(func() {
		defer server.Close()
		if err := serveMCP(ctx, l, server, web); err != nil {
			fl.Logger.ErrorContext(ctx, "MCP is not served any more", slog.Any("error", err))
		}
	})
	return nil
}
