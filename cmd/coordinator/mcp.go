package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
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

	mcpFlags    `group:"MCP over HTTP:"`
	issuerFlags `group:"MCP over HTTP:"`
	taskFlag    `group:"MCP over HTTP:"`
	approveFlag `group:"Policy:"`
	hookFlag    `group:"Policy:"`
	environment.SessionFlags
	environment.Flags
}

// mcpFlags are about clients of the Model Context Protocol over HTTP.
type mcpFlags struct {
	McpAt       endpointFlags `embed:"" prefix:"mcp-"`
	McpResource string        `placeholder:"URL" help:"URL of this server as clients over HTTP know it, for OAuth metadata."`
	McpAuth     []string      `placeholder:"URL" sep:"," help:"Authorization servers that give out tokens, for OAuth metadata; needs --mcp-resource."`
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
func (f taskFlag) options(
	ctx context.Context, p program, env *environment.Environment, box *environment.Toolbox,
) (_ mcpserver.Options, changed environment.Changes, err error) {
	fl := env.Fleet
	o := mcpserver.Options{
		Version: p.Version, Fleet: mcpserver.Fleet{
			Name: fl.Name, At: fl.Conn, Dispatcher: fl.Dispatcher, Journal: fl.Journal, Signer: fl.Signer, Pool: env.Pool(), Ended: removed(fl, env.Pool()),
		},
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

// clients checks the flags for an address and reads the tokens. others says that clients may have
// tokens that are in no file.
func (f *mcpFlags) clients(flag, address string, others bool) (o mcpserver.HTTPOptions, tokens []access.Token, err error) {
	if address == "" {
		if f.McpAt != (endpointFlags{}) || f.McpResource != "" || len(f.McpAuth) > 0 {
			return o, nil, cli.Usagef("--mcp-tokens, --mcp-tls-cert, --mcp-tls-key, --mcp-behind-proxy, --mcp-resource and --mcp-auth are for clients over HTTP: they need %s",
				flag)
		}
		return o, nil, nil
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
	tokens, err = f.endpoint(flag, address).check(others)
	return o, tokens, err
}

// endpoint is where clients connect.
func (f *mcpFlags) endpoint(flag, address string) *endpoint {
	return &endpoint{address, flag, "--mcp", f.McpAt}
}

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
		var l *listening
		if l, err = c.endpoint("--listen", c.Listen).listen(ctx, given, clientsOf(followCtx, env.Fleet, issuer, &following), tokens); err == nil {
			announceMCP(p.Stderr, l)
			err = serveMCP(ctx, l, server, web)
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

// announceMCP says where clients connect.
func announceMCP(to io.Writer, l *listening) {
	url, isSocket := strings.CutPrefix(l.URL, unixPrefix)
	if !isSocket {
		url += "/mcp"
	}
	_, _ = fmt.Fprintf(to, "coordinator: MCP is at %s%s\n", url, l.sendingToken())
}

// serveMCP serves clients until ctx ends.
func serveMCP(ctx context.Context, l *listening, server *mcpserver.Server, o mcpserver.HTTPOptions) error {
	defer l.end()
	o.Access = l.access
	return server.Serve(ctx, l.listener, o)
}
