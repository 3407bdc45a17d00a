package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/access/browsers"
	"github.com/toolfleet/toolfleet/internal/access/oidc"
	"github.com/toolfleet/toolfleet/internal/access/stored"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/webui"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// webFlags are about clients of the HTTP API.
type webFlags struct {
	HTTP      string        `name:"http" placeholder:"ADDR" brief:"Address of the HTTP API, as in 127.0.0.1:7070." help:"Address to serve the HTTP API on, as in 127.0.0.1:7070, or unix:PATH for a socket. coordinator http needs none: it takes a free port."`
	HTTPAt    endpointFlags `embed:"" prefix:"http-"`
	HTTPRate  int           `name:"http-rate" default:"1000" placeholder:"N" help:"Maximum number of requests of a client in a second, on average; 0 is no limit."`
	IndexAge  time.Duration `name:"index-age" hidden:"" default:"0s" help:"How long the log of calls and the index of searches have what was done, at least 1h; 0 means what their file has from the last process that set it, or else for ever."`
	IndexSize cli.Size      `name:"index-size" hidden:"" default:"0" placeholder:"SIZE" help:"Maximum size of the log of calls and the index of searches, at least 16M; the oldest calls and texts leave it first. 0 means what their file has from the last process that set it, or else 2G."`
	HTTPOpen  int           `name:"http-open" default:"1024" placeholder:"N" help:"Maximum number of requests and streams of a client that are open at once; 0 is no limit."`
}

// check checks the flags and reads the tokens. others says that clients may have tokens that are in
// no file.
func (f *webFlags) check(others bool) (tokens []access.Token, err error) {
	if f.IndexAge != 0 && f.IndexAge < time.Hour {
		return nil, cli.Usagef("--index-age %s: must be 0, or at least 1h", f.IndexAge)
	}
	if f.IndexSize != 0 && f.IndexSize < 16<<20 {
		return nil, cli.Usagef("--index-size %s: must be 0, or at least 16M", f.IndexSize)
	}
	if f.HTTPRate < 0 || f.HTTPOpen < 0 {
		return nil, cli.Usagef("--http-rate %d, --http-open %d: must be 0 or more", f.HTTPRate, f.HTTPOpen)
	}
	if f.HTTP == "" {
		if f.HTTPAt != (endpointFlags{}) {
			return nil, cli.Usagef("--http-tokens, --http-tls-cert, --http-tls-key and --http-behind-proxy need --http")
		}
		return nil, nil
	}
	return f.endpoint().check(others)
}

// endpoint is where clients of the API connect.
func (f *webFlags) endpoint() *endpoint {
	return &endpoint{f.HTTP, "--http", "--http", f.HTTPAt}
}

// listen listens for clients, as [endpoint.listen] does.
func (f *webFlags) listen(ctx context.Context, tokens []access.Token, others access.Any, dir string) (*listening, error) {
	l, err := f.endpoint().listen(ctx, tokens, others, dir)
	if err == nil && !strings.HasPrefix(f.HTTP, unixPrefix) {
		l.Pages = l.URL + pagesPath + "/"
	}
	return l, err
}

// site is what a listener serves: the API, and the pages.
type site struct {
	*listening

	pages   *webui.Handler
	handler http.Handler
}

// pagesPath is the path below which the pages are.
const pagesPath = "/ui"

// site returns what a listener serves, which follows until ctx ends who is signed in.
func (f *webFlags) site(ctx context.Context, l *listening, fl *fleet.Fleet, options httpapi.Options, background *sync.WaitGroup) (*site, error) {
	book, err := browsers.Open(ctx, fl.JS, fl.Name, fl.Logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sign browsers in: %w", err), l.listener.Close())
	}
	background.Go(func() { book.Run(ctx) })
	options.Access, options.Shares, options.AnyHost = l.access, &access.Shares{Rate: f.HTTPRate, Open: f.HTTPOpen}, f.HTTPAt.BehindProxy
	pages := webui.New(webui.Options{Options: options, Fleet: fl.Name, Browsers: book, Base: pagesPath, Secure: f.HTTPAt.BehindProxy || strings.HasPrefix(l.URL, "https:")})
	mux := http.NewServeMux()
	mux.Handle("/", httpapi.New(options))
	mux.Handle(pagesPath+"/", pages)
	mux.Handle("GET /{$}", http.RedirectHandler(pagesPath+"/", http.StatusSeeOther))
	return &site{l, pages, mux}, nil
}

// serve serves clients until ctx ends.
func (s *site) serve(ctx context.Context) error {
	defer s.end()
	defer s.pages.Close()
	return access.Serve(ctx, s.listener, s.handler, access.DefaultBounds())
}

// announceHTTP says where the API and the pages are.
func announceHTTP(to io.Writer, l *listening) {
	pages := ""
	if l.Pages != "" {
		pages = ", and the web pages are at " + l.Pages
	}
	_, _ = fmt.Fprintf(to, "coordinator: the HTTP API is at %s%s%s\n", l.URL, l.sendingToken(), pages)
}

// httpCommand serves the HTTP API over the fleet of this machine's sessions, or over one of its
// own.
type httpCommand struct {
	UntilStdinCloses bool `brief:"End when standard input is closed." help:"End when standard input is closed: the program that has started this one has ended."`
	localSite
}

func (c *httpCommand) run(ctx context.Context, p program) error {
	return c.serveLocal(ctx, p, siteOf{
		command: "http", ownData: c.UntilStdinCloses,
		ready: func(_ context.Context, s *site, over func(), _ *sync.WaitGroup) error {
			if c.UntilStdinCloses {
				go func() {
					_, _ = io.Copy(io.Discard, p.Stdin)
					over()
				}()
			}
			announceHTTP(p.Stderr, s.listening)
			return json.NewEncoder(p.Stdout).Encode(s.listening)
		},
	})
}

// localSite serves the fleet of this machine's sessions, or one of its own, over HTTP.
type localSite struct {
	Workspace    string   `placeholder:"DIR" brief:"Working directory of turns, and of single calls." help:"Working directory of turns, and of calls that name no session, used in place. A call that names a session has the workspace of that session. Default: an empty workspace for each session."`
	WholeHome    bool     `brief:"Allow --workspace to be / or the home directory." help:"Allow --workspace to be the root directory or the home directory."`
	Toolset      []string `default:"core" help:"Toolsets of calls, separated by commas."`
	Model        []string `placeholder:"M" sep:"none" brief:"openai:, anthropic: or google:NAME, or script:FILE." help:"Model of sessions: openai:NAME, anthropic:NAME, google:NAME or script:FILE. The first one is the default. May be given several times. Default: there are only calls."`
	webFlags     `group:"HTTP API:"`
	issuerFlags  `group:"HTTP API:"`
	webhookFlags `group:"HTTP API:"`
	turnBounds
	replyFlags    `group:"Model:"`
	providerFlags `group:"Model:"`
	agentFlag     `group:"Tools:"`
	promoteFlag   `group:"Tools:"`
	hookFlag      `group:"Policy:"`
	environment.SessionFlags
	environment.Flags
}

// siteOf is what differs between the commands that serve a [localSite].
type siteOf struct {
	command string
	ownData bool // without --workspace and --data: the directory of the sessions is that of --workspace
	// running reports whether another process serves the session already, and has done what was
	// asked; nil asks no other one.
	running func(ctx context.Context, session protocol.SessionID) bool
	// ready is called before the first client is served. over ends the command, and background has
	// what ends with ctx.
	ready func(ctx context.Context, s *site, over func(), background *sync.WaitGroup) error
}

// localPlan is what the flags of a [localSite] say.
type localPlan struct {
	issuer    *oidc.Issuer
	tokens    []access.Token
	hosts     egress.Allow // of webhooks
	workspace string       // "" is an empty one for each session
	hooks     []loop.Hook
	session   protocol.SessionID // of calls that name none, and of turns in the workspace
}

// plan checks the flags. They may say that a directory is for this command alone.
func (c *localSite) plan(of siteOf) (l localPlan, err error) {
	if c.HTTP == "" {
		c.HTTP = "127.0.0.1:0"
	}
	if l.issuer, err = c.issuer(); err != nil {
		return l, err
	}
	if l.tokens, err = c.check(l.issuer != nil); err != nil {
		return l, err
	}
	if l.hosts, err = c.hosts(); err != nil {
		return l, err
	}
	if c.Nats != "" {
		return l, cli.Usagef("--nats: coordinator %s serves the sessions of this machine; coordinator serve --nats %s --http %s serves the API and the pages of a fleet elsewhere", of.command, c.Nats, c.HTTP)
	}
	if l.workspace, err = environment.CheckWorkspace(c.Workspace); err == nil && !c.WholeHome {
		err = environment.CheckWhole("--workspace "+c.Workspace, l.workspace, nil)
	}
	if err != nil {
		return l, err
	}
	sum := sha256.Sum256([]byte(l.workspace))
	l.session = protocol.SessionID(of.command)
	switch own := of.command + "-" + hex.EncodeToString(sum[:8]); { // of the directory
	case c.Data != "":
	case of.ownData: // several programs may have one each
		if c.Data, err = cli.StateDir(own); err != nil {
			return l, cli.Usagef("--data: %v", err)
		}
	case l.workspace != "":
		l.session = protocol.SessionID(own)
	}
	l.hooks, err = c.hooks(l.workspace)
	return l, err
}

// serveLocal serves clients until ctx ends, or a signal comes.
func (c *localSite) serveLocal(ctx context.Context, p program, of siteOf) (err error) {
	plan, err := c.plan(of)
	if err != nil {
		return err
	}
	if of.running != nil && c.Data == "" && of.running(ctx, plan.session) {
		return nil
	}
	box, judge, err := environment.OpenTools(&c.Flags, &c.SessionFlags, plan.session, c.Toolset, p.warn)
	if err != nil {
		return err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	ctx, over := context.WithCancel(ctx)
	defer over()
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: p.logger(), Client: "coordinator " + of.command}, Flags: &c.Flags, Session: &c.SessionFlags,
		ID: plan.session, Workspace: plan.workspace, Warn: p.warn, Alert: p.warn, Busy: func(string) {}, IndexAge: c.IndexAge, IndexBytes: int64(c.IndexSize),
	})
	if other, is := errors.AsType[*environment.BusyError](err); is { // what other commands can do is in its text, too
		return cli.Usagef("--workspace %s: %s; use that process, or give --data DIR for a fleet of its own", c.Workspace, other.Busy())
	}
	if err != nil {
		return err
	}
	defer func() { env.Close(err) }()
	env.Fleet.TokenInFile = access.NewTokens(plan.tokens...).Has
	if err := box.List(ctx, env.Fleet, plan.session, p.warn); err != nil {
		return err
	}
	s := &service{program: p, env: env}
	defer s.background.Wait()
	serving, rest := context.WithCancel(ctx)
	defer rest()
	if err := c.send(ctx, serving, s, plan.hosts); err != nil {
		return err
	}
	local, keep := env.Served(), env.Data
	if local != nil { // the directory of the token is not one of a session
		if keep, err = cli.StateDir(""); err != nil {
			return err
		}
	}
	var turns *sessionServer
	if len(c.Model) > 0 {
		if local != nil {
			end, err := local.Alone()
			if err != nil {
				return err
			}
			defer end()
		}
		if turns, err = c.turns(ctx, serving, s, plan); err != nil {
			return err
		}
	}
	l, err := c.listen(ctx, plan.tokens, clientsOf(serving, env.Fleet, plan.issuer, &s.background), keep)
	if err != nil {
		return err
	}
	s.keepIndexed(serving)
	options := httpapi.Options{
		Client: env.Client, Table: func() *tools.Table { return box.Table }, Pool: env.Pool(), MinLevel: c.DefaultMinLevel(), Policy: judge, Hooks: plan.hooks,
		Session: plan.session, NoTurns: turns == nil, Version: p.Version, Logger: env.Fleet.Logger,
	}
	if local != nil {
		options.Local = local
	}
	site, err := c.site(serving, l, env.Fleet, options, &s.background)
	if err != nil {
		return err
	}
	if err := of.ready(serving, site, over, &s.background); err != nil {
		return errors.Join(err, l.listener.Close())
	}
	if turns == nil {
		return site.serve(ctx)
	}
	s.background.Go(func() {
		defer over()
		if err := site.serve(serving); err != nil {
			p.warn(err.Error())
		}
	})
	drain, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	return turns.run(ctx, drain, abort)
}

// turns opens what runs turns in the fleet of this process: in a sandbox that all sessions use, or
// in one each.
func (c *localSite) turns(ctx, serving context.Context, s *service, plan localPlan) (*sessionServer, error) {
	var gate model.Gate
	command := serveCommand{
		Model: c.Model, Listen: "127.0.0.1:0", turnBounds: c.turnBounds, FleetFlags: c.FleetFlags, replyFlags: c.replyFlags, providerFlags: c.providerFlags,
		ToolFlags: c.ToolFlags, agentFlag: c.agentFlag, promoteFlag: c.promoteFlag, PolicyFlags: c.PolicyFlags, hookFlag: c.hookFlag,
	}
	options, _, err := command.prepare(s.program, &gate)
	if err != nil {
		return nil, err
	}
	if plan.workspace != "" {
		options.Sandbox = string(plan.session)
	}
	if local := s.env.Served(); local != nil {
		options.Pool, options.Alone = s.env.Pool(), local.Run
	}
	return command.open(ctx, serving, s, options, &gate)
}

// service is a process that serves clients: what its parts share.
type service struct {
	program

	env        *environment.Environment
	background sync.WaitGroup // what runs until the context of the service ends
}

// keepIndexed keeps the index of searches across sessions up to date, until ctx ends.
func (s *service) keepIndexed(ctx context.Context) {
	s.background.Go(func() {
		if err := s.env.Client.Sessions("").KeepIndexed(ctx); err != nil && ctx.Err() == nil {
			s.warn(fmt.Sprintf("sessions cannot be searched: %v", err))
		}
	})
}

// clientsOf knows clients by the tokens of the fleet, and by those of an issuer, until ctx ends.
func clientsOf(ctx context.Context, fl *fleet.Fleet, issuer *oidc.Issuer, background *sync.WaitGroup) access.Any {
	watch := stored.NewWatch(fl.Tokens(), fl.Logger)
	background.Go(func() { watch.Run(ctx) })
	if issuer == nil {
		return access.Any{watch}
	}
	background.Go(func() { issuer.Watch(ctx, fl.Logger) })
	return access.Any{watch, issuer}
}
