package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type mcpCommand struct {
	Workspace string   `placeholder:"DIR" brief:"Working directory. Default: the current one." help:"Working directory of all clients. Without --nats it is used in place. With --nats clients work on a copy, and changes are copied back at the end. Default: as for run, but with --listen an empty workspace per client."`
	WholeHome bool     `help:"Allow --workspace to be the root directory or the home directory."`
	Session   string   `placeholder:"ID" help:"Session whose sandbox all clients use. Default: with --workspace or on stdio a new session, else one session per client."`
	Toolset   []string `default:"core" help:"Toolsets of the clients, separated by commas."`
	Listen    string   `placeholder:"ADDR" brief:"Serve over HTTP at ADDR, or unix:PATH. Default: stdio." help:"Address to serve clients on by streamable HTTP, as in 127.0.0.1:7080, or unix:PATH for a socket. Default: one client on stdin and stdout."`

	httpFlags   `group:"MCP over HTTP:"`
	issuerFlags `group:"MCP over HTTP:"`
	taskFlag    `group:"MCP over HTTP:"`
	approveFlag `group:"Policy:"`
	hookFlag    `group:"Policy:"`
	environment.SessionFlags
	environment.Flags
}

// httpFlags are about clients of the Model Context Protocol over HTTP.
type httpFlags struct {
	McpTokens   string   `placeholder:"FILE" brief:"File of bearer tokens for clients over HTTP." help:"File of bearer tokens for clients over HTTP, a line each: NAME, a role (read, run or operate), TOKEN, and if the client has them its TENANT and expires=TIME. Default: the tokens of the fleet (coordinator token) and, on loopback, one token in a file that is named at the start."`
	McpTLSCert  string   `name:"mcp-tls-cert" placeholder:"FILE" help:"Certificate (PEM) with which MCP is served over TLS; needs --mcp-tls-key."`
	McpTLSKey   string   `name:"mcp-tls-key" placeholder:"FILE" help:"Private key (PEM) of the certificate."`
	McpProxy    bool     `name:"mcp-behind-proxy" help:"The address is reached through a proxy that ends TLS: plain HTTP on an address other than loopback is allowed."`
	McpResource string   `placeholder:"URL" help:"URL of this server as clients over HTTP know it, for OAuth metadata."`
	McpAuth     []string `placeholder:"URL" sep:"," help:"Authorization servers that give out tokens, for OAuth metadata; needs --mcp-resource."`
}

// taskFlag is about calls that take long.
type taskFlag struct {
	McpTaskAfter time.Duration `default:"10s" help:"Time after which a call continues as a task, for MCP clients that support tasks; 0 means at once."`
	McpPatience  time.Duration `default:"50s" help:"Time after which the client gets an answer that says where the result will be, while the call continues; for MCP clients without tasks and progress. 0 means never."`
}

// approveFlag is about who approves calls of clients.
type approveFlag struct {
	McpClientApproves bool `brief:"Let MCP clients ask their own user for approval." help:"Let MCP clients that support elicitation ask their own user to approve their calls. The client answers for its user: a client that answers by itself approves its own calls. Default: with --nats coordinator approve answers, else such calls are refused."`
}

// badTaskAfter returns a usage error for negative times.
func (f taskFlag) badTaskAfter() error {
	if f.McpTaskAfter < 0 {
		return cli.Usagef("--mcp-task-after %s: must be 0 or more", f.McpTaskAfter)
	}
	if f.McpPatience < 0 {
		return cli.Usagef("--mcp-patience %s: must be 0 or more", f.McpPatience)
	}
	return nil
}

// options are those of a server for clients in a fleet; changed gets the sessions whose tools have
// changed.
func (f taskFlag) options(ctx context.Context, p program, env *environment.Environment, box *environment.Toolbox) (_ mcpserver.Options, changed environment.Changes, err error) {
	fl := env.Fleet
	o := mcpserver.Options{
		Version: p.Version, Fleet: mcpserver.Fleet{Name: fl.Name, At: fl.Conn, Dispatcher: fl.Dispatcher, Journal: fl.Journal, Signer: fl.Signer, Pool: env.Pool(), Ended: removed(fl, env.Pool())},
		Tasks: mcpserver.Tasks{TaskAfter: func(string) time.Duration { return f.McpTaskAfter }, Patience: f.McpPatience}, Tools: box.Table, Logger: fl.Logger,
	}
	if f.McpPatience == 0 {
		o.Patience = -1 // never
	}
	changed = make(environment.Changes, 1)
	o.ToolsChanged = changed.Notify
	o.Key, err = fl.Secret(ctx)
	return o, changed, err
}

// removed removes sessions that nothing uses.
func removed(fl *fleet.Fleet, pool protocol.Pool) func(context.Context, protocol.SessionID) error {
	return func(ctx context.Context, id protocol.SessionID) error {
		_, err := session.Remove(ctx, fl, id, session.Options{Pool: pool})
		return err
	}
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// clients checks the flags for an address and reads the tokens. others says that clients may have
// tokens that are in no file.
func (f *httpFlags) clients(flag, address string, others bool) (o mcpserver.HTTPOptions, tokens []access.Token, err error) {
	if address == "" {
		if f.McpTokens != "" || f.McpTLSCert != "" || f.McpTLSKey != "" || f.McpProxy || f.McpResource != "" || len(f.McpAuth) > 0 {
			return o, nil, cli.Usagef("--mcp-tokens, --mcp-tls-cert, --mcp-tls-key, --mcp-behind-proxy, --mcp-resource and --mcp-auth are for clients over HTTP: they need %s", flag)
		}
		return o, nil, nil
	}
	loopback, err := checkAddress(flag, address)
	if err == nil && !loopback && f.McpTokens == "" && !others {
		err = cli.Usagef("%s %s: other machines can reach this address: give --mcp-tokens, or listen on a loopback address", flag, address)
	}
	if err == nil {
		err = checkTLS(flag, address, "--mcp", f.McpTLSCert, f.McpTLSKey, loopback || f.McpProxy)
	}
	if err != nil {
		return o, nil, err
	}
	for _, given := range append([]string{f.McpResource}, f.McpAuth...) {
		if u, err := url.Parse(given); given != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
			return o, nil, cli.Usagef("--mcp-resource, --mcp-auth: %q is not an http or https URL", cli.RedactURL(given))
		}
	}
	if (f.McpResource == "") != (len(f.McpAuth) == 0) {
		return o, nil, cli.Usagef("--mcp-resource and --mcp-auth: one needs the other")
	}
	o.Resource, o.AuthorizationServers = f.McpResource, f.McpAuth
	if f.McpTokens == "" {
		return o, nil, nil
	}
	tokens, err = readTokens("--mcp-tokens", f.McpTokens)
	return o, tokens, err
}

// checkTLS refuses plain text where it may not be, and half a pair of files. flags begins the names
// of the flags.
func checkTLS(flag, address, flags, cert, key string, mayBePlain bool) error {
	switch {
	case (cert == "") != (key == ""):
		return cli.Usagef("%[1]s-tls-cert, %[1]s-tls-key: one needs the other", flags)
	case cert == "" && !mayBePlain:
		return cli.Usagef("%s %s: other machines can reach this address, and tokens would be sent in plain text: give %[3]s-tls-cert, or %[3]s-behind-proxy if a proxy ends TLS", flag, address, flags)
	}
	return nil
}

// overTLS has a listener at a URL speak TLS, if there is a certificate.
func overTLS(listener net.Listener, url, flags, cert, key string) (net.Listener, string, error) {
	if cert == "" {
		return listener, url, nil
	}
	over, err := access.OverTLS(listener, cert, key)
	if err != nil {
		return nil, "", cli.Usagef("%s-tls-cert: %v", flags, err) // the listener is closed
	}
	return over, strings.Replace(url, "http://", "https://", 1), nil
}

// checkAddress refuses an invalid address, and says whether other machines cannot reach it.
func checkAddress(flag, address string) (loopback bool, err error) {
	if path, is := strings.CutPrefix(address, unixPrefix); is {
		if !filepath.IsAbs(path) {
			return false, cli.Usagef("%s %s: must be an absolute path as in unix:/run/user/1000/toolfleet.sock", flag, address)
		}
		return true, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, cli.Usagef("%s %s: must be an address as in 127.0.0.1:7080, or unix:PATH", flag, address)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback(), nil
}

// tokenFile is the file of the token that is generated if none is given.
const tokenFile = "mcp.token"

func (c *mcpCommand) run(ctx context.Context, p program) (err error) {
	issuer, err := c.issuer()
	if err != nil {
		return err
	}
	web, given, err := c.clients("--listen", c.Listen, c.Nats != "" || issuer != nil)
	if err = errors.Join(err, c.badTaskAfter()); err != nil {
		return err
	}
	session, workspace, err := c.place(ctx, p)
	if err != nil {
		return err
	}
	box, judge, err := environment.OpenTools(&c.Flags, &c.SessionFlags, session, c.Toolset, p.warn)
	if err != nil {
		return err
	}
	hooks, err := c.hooks(workspace)
	if err != nil {
		return err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	tokens := c.Data // with a directory of the session each run would have another token
	if tokens == "" {
		if tokens, err = cli.StateDir(""); err != nil {
			return err
		}
	}
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: p.logger(), Client: "coordinator mcp"}, Flags: &c.Flags, Session: &c.SessionFlags,
		ID: session, Workspace: workspace, Warn: show.warn, Alert: show.alert, Busy: show.busy,
	})
	if err != nil {
		return err
	}
	defer func() { env.Close(err) }()
	if err := env.Begin(ctx, false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bringBack(context.WithoutCancel(ctx), env.Copy, show)) }()
	list := func(ctx context.Context) error {
		if !c.shared() && c.Nats != "" {
			return c.ListAside(ctx, env.Fleet, box, show.warn)
		}
		return box.List(ctx, env.Fleet, session, show.warn)
	}
	if err := list(ctx); err != nil {
		return err
	}
	options, changed, err := c.options(ctx, p, env, box)
	if err != nil {
		return err
	}
	options.Rules = c.rules(env.Fleet, show)
	options.Policy, options.Hooks = judge, hooks
	if options.Lasting = c.Nats != ""; c.shared() {
		options.Session = session
	}
	server := mcpserver.New(options)
	defer server.Close()
	var following sync.WaitGroup
	defer following.Wait()
	followCtx, end := context.WithCancel(ctx)
	defer end()
	following.Go(func() { box.Follow(followCtx, env.Fleet, changed, list, server.SetTools, p.warn) })
	if c.Listen != "" {
		var serve func() error
		if serve, err = c.listenMCP(ctx, server, c.Listen, web, given, clientsOf(followCtx, env.Fleet, issuer, &following), tokens, p); err == nil {
			err = serve()
		}
	} else {
		if isTerminal(p) {
			p.warn("an agent starts this command and speaks MCP with it on stdin and stdout (docs/mcp.md); Ctrl-C ends it")
		}
		err = server.Run(ctx, mcpserver.Stdio(p.Stdin, p.Stdout))
	}
	if ctx.Err() != nil {
		err = nil // a signal is how it ends
	}
	env.Git.Alert(env.Git.Findings(ctx))
	return err
}

// shared reports whether all clients use one session; else each has its own.
func (c *mcpCommand) shared() bool { return c.Listen == "" || c.Session != "" || c.Workspace != "" }

// place checks the session and the workspace that the clients use.
func (c *mcpCommand) place(ctx context.Context, p program) (session protocol.SessionID, workspace string, err error) {
	if session, err = findSession(ctx, p, &c.FleetFlags, &c.Session); err != nil {
		return "", "", err
	}
	if c.shared() {
		if c.Workspace, err = c.ReportWorkspace(c.Workspace, c.Session, p.warn); err != nil {
			return "", "", err
		}
	}
	workspace, err = environment.UseWorkspace(c.Workspace, c.WholeHome, nil)
	return session, workspace, err
}

// rules say which calls run. In a fleet other commands can answer the questions about them.
func (c *mcpCommand) rules(fl *fleet.Fleet, show view) mcpserver.Rules {
	r := mcpserver.Rules{Guard: c.FileGuard(), MinLevel: c.DefaultMinLevel(), ClientApproves: c.McpClientApproves}
	if c.Nats != "" {
		flags := c.Reach()
		r.Approve = announced(show.warn, flags, approval.Waiter(fl.NC, fl.Name, fl.Keys()))
		r.Ask = func(call *protocol.Call, q *protocol.Question) {
			show.warn(prompt.WaitsForAnswer(&report.Question{SessionID: call.SessionID, CallID: call.ID, Tool: call.Tool, Question: q, Lane: string(call.Pool)}, flags))
		}
	}
	return r
}

// listenMCP listens for clients and returns a function that serves them until ctx ends. Every user
// of this machine reaches a port, so if there is no token one is generated and stored in dir; only
// its owner can use a socket.
func (f *httpFlags) listenMCP(
	ctx context.Context, server *mcpserver.Server, address string, o mcpserver.HTTPOptions, tokens []access.Token, others access.Any, dir string, p program,
) (serve func() error, err error) {
	listener, at, end, err := listenAt(ctx, address)
	if err != nil {
		return nil, cli.Usagef("cannot listen for MCP clients: %v", err)
	}
	if listener, at, err = overTLS(listener, at, "--mcp", f.McpTLSCert, f.McpTLSKey); err != nil {
		return nil, err
	}
	if path, isSocket := strings.CutPrefix(at, unixPrefix); isSocket {
		at = path
	} else {
		at += "/mcp"
	}
	file := ""
	if o.Access, file, err = withOwn(tokens, others, address, filepath.Join(dir, tokenFile)); err != nil {
		return nil, errors.Join(fmt.Errorf("token for MCP clients: %w", err), listener.Close())
	}
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: MCP is at %s%s\n", at, sendingToken(file))
	return func() error {
		defer end()
		return server.Serve(ctx, listener, o)
	}, nil
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
	own, err := os.MkdirTemp(filepath.Dir(path), ".mcp-") // only its owner can open files in it
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
