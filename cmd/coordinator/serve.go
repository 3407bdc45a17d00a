package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/channel"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/limits"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/schedule"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/signing"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

type serveCommand struct {
	Model  []string `placeholder:"M" sep:"none" help:"Model to serve: openai:NAME, anthropic:NAME, google:NAME or script:FILE. The first one is the default. May be given several times. Required."`
	Listen string   `default:"127.0.0.1:4222" help:"Loopback address of the embedded server, without --nats."`
	turnBounds
	setupFlags
	environment.FleetFlags  `group:"Fleet:"`
	replyFlags              `group:"Model:"`
	providerFlags           `group:"Model:"`
	environment.ToolFlags   `group:"Tools:"`
	agentFlag               `group:"Tools:"`
	promoteFlag             `group:"Tools:"`
	environment.PolicyFlags `group:"Policy:"`
	clientFlags             `group:"MCP over HTTP:"`
}

// turnBounds bound the turns of a serving coordinator.
type turnBounds struct {
	Sessions  int           `default:"64" help:"Concurrent turns."`
	MaxSteps  int           `default:"64" help:"Maximum number of model requests per turn."`
	MaxTokens int64         `default:"0" help:"Token limit per turn, input plus output; 0 means unlimited."`
	Drain     time.Duration `default:"10s" help:"Time that running turns get after SIGTERM before another coordinator takes them over."`
}

// setupFlags are about what the coordinator makes in its fleet.
type setupFlags struct {
	Lease  time.Duration `default:"0s" help:"Lease on sessions, applied only when the fleet is created; 0 means the fleet's lease, or 10s."`
	Pools  []string      `placeholder:"POOL" help:"Pools to create if they are missing, separated by commas, for workers whose NATS user may not create them (deploy/nats)."`
	Bodies string        `placeholder:"URL" help:"Storage for workspace contents of a new fleet: s3://BUCKET/PREFIX?endpoint=URL; see worker --help. Default: its NATS servers."`
	Limits string        `placeholder:"FILE" help:"File with all limits of the fleet, which replace those that it has: JSON, as coordinator limits ls --json prints it."`
}

// clientFlags are about agents that bring their own model.
type clientFlags struct {
	Mcp     string   `placeholder:"ADDR" help:"Address to serve agents on by the Model Context Protocol over HTTP, as in 127.0.0.1:7080; see coordinator mcp --help."`
	Toolset []string `default:"core" help:"Toolsets of clients of --mcp, separated by commas."`
	httpFlags
	taskFlag
}

func (c *serveCommand) run(ctx context.Context, p program) error {
	if err := c.check(); err != nil {
		return err
	}
	logger := p.common.Logger(p.Program)
	var gate model.Gate
	opener := model.Opener{Env: p.Getenv, Logger: logger, MaxWait: c.ModelWait, Gate: &gate}
	models, first, err := c.openModels(opener)
	if err != nil {
		return err
	}
	known, err := c.openCosts(opener)
	if err != nil {
		return err
	}
	for name, opened := range models {
		if models[name], err = c.withFallback(opener, known, name, opened); err != nil {
			return err
		}
	}
	warn := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	agents, err := c.openAgents(opener, known, warn)
	if err != nil {
		return err
	}
	rules, err := readLimits(c.Limits)
	if err != nil {
		return err
	}
	folder, err := c.OpenFolder()
	if err != nil {
		return err
	}
	servers, err := c.ConfiguredServers()
	if err != nil {
		return err
	}
	skills, err := c.OpenSkills()
	if err != nil {
		return err
	}
	settings, err := c.settings()
	if err != nil {
		return err
	}
	policies, err := c.Policies()
	if err != nil {
		return err
	}
	clients, err := c.clients("--mcp", c.Mcp)
	if err = errors.Join(err, c.badTaskAfter()); err != nil {
		return err
	}
	drain, abort := context.WithCancel(ctx)
	defer abort()
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: logger, Client: "coordinator serve"}, Flags: &environment.Flags{FleetFlags: c.FleetFlags}, Listen: c.Listen, Warn: warn,
	})
	if err != nil {
		return err
	}
	defer env.Close(nil)
	fl := env.Fleet
	gate.Bind(fl.Dispatcher.ModelLimits())
	logger = fl.Logger()
	for _, pool := range c.Pools {
		if err := natsio.MakePool(ctx, fl.At(protocol.Pool(pool)).JS, fl.Name, protocol.Pool(pool)); err != nil {
			return err
		}
	}
	if c.Limits != "" {
		if err := eachLimits(ctx, fl.Parts(), func(store *limits.Store) error { return store.Replace(ctx, rules) }); err != nil {
			return err
		}
	}
	schedules, err := schedule.Open(ctx, fl.JS, fl.Name)
	if err != nil {
		warn(fmt.Sprintf("this coordinator starts no scheduled turns: %v", err))
	}
	channels, err := channel.Open(ctx, fl.JS, fl.Name)
	if err != nil {
		warn(fmt.Sprintf("this coordinator starts no turns by messages: %v", err))
	}
	host, _ := os.Hostname() // only a name
	id := wire.NewWorkerID(host)
	server, err := serve.New(ctx, fl.NC, serve.Options{
		Fleet: fl.Name, Holder: serve.Holder{ID: id, Build: p.Version, Slots: c.Sessions, AckWait: c.Lease, Origin: fl.Origin},
		Dispatcher: fl.Dispatcher, Journal: fl.Journal,
		Served:  serve.Served{Models: models, Default: first, About: known.about},
		Toolbox: serve.Toolbox{Tools: folder, Skills: skills, Servers: servers, Do: fl.Dispatcher.One, Agents: agents, Schedules: schedules},
		Rules:   serve.Rules{Policies: policies, MinLevel: environment.MinLevelElsewhere, Approve: approval.Waiter(fl.NC, fl.Name), TakeOn: takesOn(fl, logger)},
		Bounds:  serve.Bounds{MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens, PromoteAfter: c.PromoteAfter, Settings: settings},
		Tracer:  telemetry.Tracer(), Logger: logger,
	})
	if err != nil {
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	sweeping, rest := context.WithCancel(ctx)
	defer rest()
	for _, part := range fl.Parts() {
		bodies := ""
		if part == fl.At(protocol.DefaultPool) { // it has the sandboxes of sessions
			bodies = c.Bodies
		}
		if err := workspace.Bind(ctx, part.NC, fl.Name, bodies); err != nil {
			return err
		}
		workspaces, err := workspace.Open(ctx, part.NC, fl.Name)
		if err != nil {
			return err
		}
		background.Go(func() {
			workspaces.KeepSwept(sweeping, func(err error) {
				logger.WarnContext(sweeping, "unused contents of workspaces are not removed", slog.Any("error", err))
			})
		})
	}
	if c.Mcp != "" {
		if err := c.serveClients(sweeping, p, env, folder, clients, logger, &background); err != nil {
			return err
		}
	}
	if schedules != nil {
		background.Go(func() {
			(&schedule.Runner{Store: schedules, Channels: channels, Send: serve.StartNow(fl.Dispatcher, logger), Logger: logger}).Run(sweeping)
		})
	}
	c.announce(p, fl, first)
	context.AfterFunc(ctx, func() { time.AfterFunc(c.Drain, abort) })
	return server.Run(ctx, drain)
}

// takesOn lets calls that ask a person wait for an answer: it may come from coordinator approve.
func takesOn(fl *fleet.Fleet, logger *slog.Logger) func(loop.Event) {
	return func(e loop.Event) {
		pool, _, _ := strings.Cut(e.Lane, "/")
		at := approval.Asked{Pool: protocol.Pool(pool), Session: e.SessionID, Call: e.CallID}
		if err := approval.TakeOn(fl.Conn(at.Pool), fl.Name, at, e.Question.ID); err != nil {
			logger.Warn("question of a call is not answered", slog.String("call_id", string(e.CallID)), slog.Any("error", err))
		}
	}
}

// serveClients serves agents that bring their own model, until ctx ends.
func (c *serveCommand) serveClients(
	ctx context.Context, p program, env *environment.Environment, folder *manifest.Folder, clients mcpserver.HTTPOptions, logger *slog.Logger, background *sync.WaitGroup,
) error {
	warn := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	box, err := c.OpenToolbox(c.Toolset, folder, warn)
	if err != nil {
		return err
	}
	judge, err := c.Judge()
	if err != nil {
		return err
	}
	fl := env.Fleet
	key, err := fl.Secret(ctx)
	if err != nil {
		return err
	}
	changed := make(environment.Changes, 1)
	server := mcpserver.New(mcpserver.Options{
		Version: p.Version, Fleet: mcpserver.Fleet{Name: fl.Name, At: fl.Conn, Dispatcher: fl.Dispatcher, Journal: fl.Journal, Lasting: true}, Tasks: mcpserver.Tasks{Key: key, TaskAfter: c.taskAfter, Patience: c.patience()}, Tools: box.Table, Rules: mcpserver.Rules{Policy: judge, MinLevel: environment.MinLevelElsewhere, Approve: approval.Waiter(fl.NC, fl.Name)},
		Logger: logger, ToolsChanged: changed.Notify,
	})
	serve, err := listenHTTP(ctx, server, c.Mcp, clients, env.Data, p)
	if err != nil {
		return err
	}
	list := func(ctx context.Context) error { return c.ListAside(ctx, fl, box, warn) }
	background.Go(func() {
		if err := list(ctx); err != nil && ctx.Err() == nil {
			warn(fmt.Sprintf("clients get no tools of MCP servers: %v", err))
		}
		server.SetTools(box.Table)
		box.Follow(ctx, fl, changed, list, server.SetTools, warn)
	})
	background.Go(func() {
		defer server.Close()
		if err := serve(); err != nil {
			logger.ErrorContext(ctx, "MCP is not served any more", slog.Any("error", err))
		}
	})
	return nil
}

// openModels returns the models of the flags by name, and the name of the first.
func (c *serveCommand) openModels(opener model.Opener) (models map[string]loop.Model, first string, err error) {
	models = map[string]loop.Model{}
	for _, spec := range c.Model {
		opened, name, err := opener.Open(spec)
		if err == nil && model.RecordingOf(opened) != nil {
			err = fmt.Errorf("%s: a recording is played back by run", name)
		}
		if err != nil {
			return nil, "", cli.Usagef("--model: %v", err)
		}
		if models[name] = opened; first == "" {
			first = name
		}
	}
	if first == "" { // the error says how to name one
		_, _, err := opener.Open("")
		return nil, "", cli.Usagef("--model: %v", err)
	}
	return models, first, nil
}

// check checks the numbers and the addresses.
func (c *serveCommand) check() error {
	switch {
	case c.Sessions < 1:
		return cli.Usagef("--sessions %d: must be at least 1", c.Sessions)
	case c.MaxSteps < 1:
		return cli.Usagef("--max-steps %d: must be at least 1", c.MaxSteps)
	case c.MaxTokens < 0:
		return cli.Usagef("--max-tokens %d: must not be negative", c.MaxTokens)
	case c.Lease != 0 && (c.Lease < cli.MinLease || c.Lease > natsio.MaxAckWait):
		return cli.Usagef("--lease %s: must be 0 or %s to %s", c.Lease, cli.MinLease, natsio.MaxAckWait)
	case c.Drain < 0:
		return cli.Usagef("--drain %s: must not be negative", c.Drain)
	}
	for _, pool := range c.Pools {
		if _, err := protocol.ParsePool(pool); err != nil {
			return cli.Usagef("--pools: %v", err)
		}
	}
	if _, _, err := embedded.ParseListen(c.Listen); c.Nats == "" && err != nil {
		return cli.Usagef("--listen: %v", err)
	}
	if err := workspace.CheckURL(c.Bodies); err != nil {
		return cli.Usagef("--bodies: %v", err)
	}
	return c.badPromoteAfter()
}

// announce prints how others reach the fleet.
func (c *serveCommand) announce(p program, fl *fleet.Fleet, model string) {
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: serving sessions of fleet %s with model %s\n", fl.Name, model)
	if c.Nats != "" { // it may come from the environment, unnoticed
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: NATS is at %s (--nats, TOOLFLEET_NATS)\n", natsio.Redact(c.Nats))
	}
	if fl.Server != nil {
		creds := fl.Server.CredentialFile()
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: NATS is at %s; start workers with: worker --nats %s --creds %s --call-keys %s\n",
			fl.Server.URL(), fl.Server.URL(), shellWord(creds), shellWord(filepath.Join(filepath.Dir(creds), signing.PublicFile)))
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: other commands reach it with: --nats %s --creds %s\n", fl.Server.URL(), shellWord(creds))
	}
}

// shellWord quotes a path for a shell.
func shellWord(path string) string {
	if word, err := syntax.Quote(path, syntax.LangPOSIX); err == nil {
		return word
	}
	return path // no shell accepts it
}

// eachLimits opens the limits of parts of a fleet: pools with servers of their own have a copy.
func eachLimits(ctx context.Context, parts []*fleet.Fleet, do func(*limits.Store) error) error {
	for _, part := range parts {
		store, err := limits.Open(ctx, part.JS, part.Name)
		if err != nil {
			return err
		}
		if err := natsio.CheckRights(ctx, part.NC, natsio.LimitRights(part.Name)); err != nil {
			return err
		}
		if err := do(store); err != nil {
			return err
		}
	}
	return nil
}

// readLimits reads a file of limits, as limits ls --json prints them; no name has none.
func readLimits(file string) ([]limits.Rule, error) {
	if file == "" {
		return nil, nil
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--limits: %w", err)
	}
	rules, err := limits.Parse(body)
	if err != nil {
		return nil, cli.Usagef("--limits %s: %v", file, err)
	}
	return rules, nil
}
