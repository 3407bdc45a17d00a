package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type mcpCommand struct {
	Workspace string   `placeholder:"DIR" help:"Directory to work on, for every client. Without --nats it is used in place; with --nats a copy is worked on and what changed comes back at the end."`
	WholeHome bool     `help:"Allow --workspace to be the root directory or the home directory."`
	Session   string   `placeholder:"ID" help:"Session whose sandbox every client uses. Default: with --workspace or on stdio a new one, else one of each client."`
	Toolset   []string `default:"core" help:"Toolsets of the clients, separated by commas."`
	Listen    string   `placeholder:"ADDR" help:"Address to serve clients on by streamable HTTP, as in 127.0.0.1:7080. Default: one client on stdin and stdout."`

	httpFlags
	taskFlag
	guardFlag
	copyFlags
	cli.Protect
	folderFlag
	policyFlags
	fleetFlags
	workerFlags
	hostFlags
}

// httpFlags are about clients of the Model Context Protocol over HTTP.
type httpFlags struct {
	McpTokens   string   `placeholder:"FILE" help:"File of bearer tokens for clients over HTTP, a line each: NAME, read or use, TOKEN. Required on addresses other than loopback."`
	McpResource string   `placeholder:"URL" help:"URL of this server as clients over HTTP know it, for OAuth metadata."`
	McpAuth     []string `placeholder:"URL" sep:"," help:"Authorization servers that give out tokens, for OAuth metadata; needs --mcp-resource."`
}

// taskFlag is about calls that take long.
type taskFlag struct {
	McpTaskAfter time.Duration `default:"10s" help:"Time after which a call goes on as a task, for clients of the Model Context Protocol that know tasks; 0 is at once."`
	McpPatience  time.Duration `default:"50s" help:"Time after which a call goes on and its answer says where its result will be, for clients of the Model Context Protocol that know no tasks and want no progress; 0 is never."`
}

// check refuses times that there are not.
func (f taskFlag) badTaskAfter() error {
	if f.McpTaskAfter < 0 {
		return cli.Usagef("--mcp-task-after %s: must be 0 or more", f.McpTaskAfter)
	}
	if f.McpPatience < 0 {
		return cli.Usagef("--mcp-patience %s: must be 0 or more", f.McpPatience)
	}
	return nil
}

// patience is that of clients who know no tasks.
func (f taskFlag) patience() time.Duration {
	if f.McpPatience == 0 {
		return -1
	}
	return f.McpPatience
}

// taskAfter is that of every tool.
func (f taskFlag) taskAfter(string) time.Duration { return f.McpTaskAfter }

// clients checks the flags for an address and reads the tokens.
func (f *httpFlags) clients(flag, address string) (o mcpserver.HTTPOptions, err error) {
	if address == "" {
		if f.McpTokens != "" || f.McpResource != "" || len(f.McpAuth) > 0 {
			return o, cli.Usagef("--mcp-tokens, --mcp-resource and --mcp-auth are for clients over HTTP: they need %s", flag)
		}
		return o, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return o, cli.Usagef("%s %s: must be an address as in 127.0.0.1:7080", flag, address)
	}
	ip, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !ip.IsLoopback()) && f.McpTokens == "" {
		return o, cli.Usagef("%s %s: others reach it: give --mcp-tokens, or listen on a loopback address", flag, address)
	}
	for _, given := range append([]string{f.McpResource}, f.McpAuth...) {
		if u, err := url.Parse(given); given != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
			return o, cli.Usagef("--mcp-resource, --mcp-auth: %q is no http or https URL", given)
		}
	}
	if (f.McpResource == "") != (len(f.McpAuth) == 0) {
		return o, cli.Usagef("--mcp-resource and --mcp-auth: one needs the other")
	}
	o.Resource, o.AuthorizationServers = f.McpResource, f.McpAuth
	if f.McpTokens == "" {
		return o, nil
	}
	file, err := os.Open(f.McpTokens)
	if err != nil {
		return o, cli.Usagef("--mcp-tokens: %v", err)
	}
	defer file.Close()
	if o.Tokens, err = mcpserver.ReadTokens(file); err != nil {
		return o, cli.Usagef("--mcp-tokens %s: %v", f.McpTokens, err)
	}
	return o, nil
}

func (c *mcpCommand) run(ctx context.Context, p program) (err error) {
	logger := p.common.Logger(p.Program)
	warn := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	web, err := c.clients("--listen", c.Listen)
	if err = errors.Join(err, c.badTaskAfter()); err != nil {
		return err
	}
	options := mcpserver.Options{Version: p.Version, Fleet: protocol.Fleet(c.Fleet), Guard: c.guard(), MinLevel: c.least(), Logger: logger}
	session := protocol.NewSessionID()
	if c.Session != "" {
		if session, err = protocol.ParseSessionID(c.Session); err != nil {
			return cli.Usagef("--session: %v", err)
		}
	}
	workspace, err := checkWorkspace(c.Workspace)
	if err != nil {
		return err
	}
	if err := (&turnFlags{Workspace: c.Workspace, WholeHome: c.WholeHome}).narrow(workspace); err != nil {
		return err
	}
	if c.Listen == "" || c.Session != "" || workspace != "" {
		options.Session = session
	}
	if err := c.checkHost(c.Nats != ""); err != nil {
		return err
	}
	folder, err := c.openFolder()
	if err != nil {
		return err
	}
	box, err := c.toolbox(c.Toolset, folder, warn)
	if err != nil {
		return err
	}
	if options.Policy, err = c.judge(); err != nil {
		return err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	protect, err := c.Places()
	if err != nil {
		return err
	}
	data, cleanup, err := c.dataDir(session, true)
	if err != nil {
		return err
	}
	defer cleanup()
	worker, err := c.openWorker(ctx, &c.fleetFlags, data, c.folderFlag, protect, logger)
	if err != nil {
		return err
	}
	if err := worker.see(ctx, &c.hostFlags, workspace, data); err != nil {
		return err
	}
	defer func() { _ = worker.forget() }() // its cache is brought below its bound another time
	end, err := p.Telemetry(ctx, "toolfleet-coordinator", telemetry.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer end()
	fl, err := c.connect(ctx, connection{name: "coordinator mcp", data: data, p: p, logger: logger})
	if err != nil {
		return err
	}
	defer fl.Close()
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	git := watchGit(ctx, workspace, show.alert)
	if worker != nil {
		err = worker.start(ctx, fl, data, show.warn, session, workspace)
	} else if workspace != "" {
		var remote *remoteWorkspace
		remote, err = c.importWorkspace(ctx, fl, session, workspace, protect, c.copyFlags, show)
		defer func() {
			if remote != nil {
				err = errors.Join(err, remote.sync(context.WithoutCancel(ctx), show))
			}
		}()
	}
	if err != nil {
		return err
	}
	ask := func(ctx context.Context) error {
		if options.Session == "" && c.Nats != "" {
			return c.askAside(ctx, fl, &box, show.warn)
		}
		return box.ask(ctx, fl, session, show.warn)
	}
	if err := ask(ctx); err != nil {
		return err
	}
	options.Tools = box.table
	options.At, options.Dispatcher, options.Journal = fl.Conn, fl.Dispatcher, fl.Journal
	options.TaskAfter, options.Patience, options.Lasting = c.taskAfter, c.patience(), c.Nats != ""
	if c.Nats != "" {
		options.Approve = announced(show.warn, at(c.Nats, c.Login, c.Fleet), approval.Waiter(fl.NC, fl.Name))
		options.Ask = func(call *protocol.Call, q *protocol.Question) {
			show.warn(asks(call.Tool, approval.Asked{Pool: call.Pool, Session: call.SessionID, Call: call.ID}, q, at(c.Nats, c.Login, c.Fleet)))
		}
	}
	changed := make(changes, 1)
	options.ToolsChanged = changed.tell
	server := mcpserver.New(options)
	defer server.Close()
	var beside sync.WaitGroup
	defer beside.Wait()
	following, rest := context.WithCancel(ctx)
	defer rest()
	beside.Go(func() { box.follow(following, server, fl, changed, ask, warn) })
	if c.Listen != "" {
		var serve func() error
		if serve, err = listenHTTP(ctx, server, c.Listen, web, p); err == nil {
			err = serve()
		}
	} else {
		err = server.Run(ctx, mcpserver.Stdio(p.Stdin, p.Stdout))
	}
	if ctx.Err() != nil {
		err = nil // it was asked to end
	}
	git.tell(git.findings(context.WithoutCancel(ctx)))
	return err
}

// listenHTTP listens for clients and returns what serves them until ctx ends.
func listenHTTP(ctx context.Context, server *mcpserver.Server, address string, o mcpserver.HTTPOptions, p program) (serve func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, cli.Usagef("cannot listen for MCP clients: %v", err)
	}
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: MCP is at http://%s/mcp\n", listener.Addr())
	return func() error { return server.Serve(ctx, listener, o) }, nil
}
