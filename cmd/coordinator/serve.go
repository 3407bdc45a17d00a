package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/session/webhook"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

type serveCommand struct {
	Model     []string `placeholder:"M" sep:"none" help:"Model to serve: openai:NAME, anthropic:NAME, google:NAME or script:FILE. The first one is the default. May be given several times. Required."`
	Listen    string   `default:"127.0.0.1:4222" help:"Address of the embedded server, without --nats: a host and a port. 0.0.0.0 is every address of this machine. Other machines join with tokens (coordinator join-token), over TLS."`
	ListenTLS string   `name:"listen-tls" default:"auto" enum:"auto,always,never" placeholder:"WHEN" brief:"TLS of --listen: auto, always or never." help:"TLS of --listen, with certificates of an authority that the coordinator makes: auto (except on loopback), always, or never: passwords and contents are then in plain text on the network."`
	turnBounds
	setupFlags
	environment.FleetFlags  `group:"Fleet:"`
	replyFlags              `group:"Model:"`
	providerFlags           `group:"Model:"`
	environment.ToolFlags   `group:"Tools:"`
	agentFlag               `group:"Tools:"`
	promoteFlag             `group:"Tools:"`
	environment.PolicyFlags `group:"Policy:"`
	hookFlag                `group:"Policy:"`
	clientFlags             `group:"MCP over HTTP:"`
	webFlags                `group:"HTTP API:"`
	webhookFlags            `group:"HTTP API:"`
}

// turnBounds bound the turns of a serving coordinator.
type turnBounds struct {
	Sessions  int   `default:"64" help:"Concurrent turns."`
	MaxSteps  int   `default:"64" help:"Maximum number of model requests per turn."`
	MaxTokens int64 `default:"0" brief:"Token limit per turn; 0 means unlimited." help:"Token limit per turn, input plus output; 0 means unlimited."`
	alone
	Drain time.Duration `default:"10s" brief:"Time that running turns get after SIGTERM." help:"Time that running turns get after SIGTERM before another coordinator takes them over."`
}

// alone bounds what sessions do without a person.
type alone struct {
	TriggerTurns int    `default:"60" brief:"Turns per session and hour that triggers begin." help:"Maximum number of turns per session and hour that triggers begin; 0 means unlimited."`
	Unattended   string `default:"steps=500,tokens=10000000" placeholder:"B" brief:"What a session may use in 24 hours without a person: bounds as in --budget of run." help:"What a session may use in 24 hours in turns that triggers and schedules begin, or since the last turn that a person began: bounds as in --budget of run. none means unlimited."`
}

// triggerFloor is the least time between the beginnings of two turns of a session by triggers.
const triggerFloor = 2 * time.Second

// unattended checks the flags. A bound in dollars needs the prices of all models.
func (f *alone) unattended(options serve.Options) (bounds ports.Unattended, err error) {
	most, err := parseSpending("--unattended", f.Unattended)
	if f.TriggerTurns < 0 {
		return bounds, errors.Join(err, cli.Usagef("--trigger-turns %d: must not be negative", f.TriggerTurns))
	}
	if err != nil || most == nil {
		return bounds, err
	}
	for name := range options.Models {
		if price, _ := options.About(name); most.USD > 0 && price == nil {
			return bounds, cli.Usagef("--unattended %s: the price of model %s is unknown: name its price with --prices", f.Unattended, name)
		}
	}
	return ports.Unattended{Floor: triggerFloor, PerHour: f.TriggerTurns, Most: *most}, nil
}

// setupFlags are about what the coordinator makes in its fleet.
type setupFlags struct {
	Lease        time.Duration `default:"0s" help:"Lease on sessions, applied only when the fleet is created; 0 means the fleet's lease, or 10s."`
	Pools        []string      `placeholder:"POOL" brief:"Pools to create if they are missing (deploy/nats)." help:"Pools to create if they are missing, separated by commas, for workers whose NATS user may not create them (deploy/nats)."`
	CallKeys     string        `placeholder:"FILE" brief:"Public keys of the callers that may submit turns; others are rejected." help:"Public keys (PEM, Ed25519) of the callers that may submit turns, as in worker --call-keys. A turn runs only if one of them, or this coordinator's key (--sign-key), has signed it; a schedule starts only if this coordinator's key has signed it. Default: all turns run; with --sign-key, those of other signers only for the default tenant."`
	WorkspaceAge time.Duration `default:"720h" brief:"Age after which sandboxes that only calls without a model used are removed." help:"Age after which a sandbox is removed with all that is stored of it, if only calls without a model used it (call --session, Go programs, MCP clients); 0 means never."`
	Limits       string        `placeholder:"FILE" brief:"File with all limits of the fleet." help:"File with all limits of the fleet, which replace those that it has: JSON, as coordinator limits ls --json prints it."`
}

// minWorkspaceAge is more than a client waits between two calls.
const minWorkspaceAge = time.Hour

// clientFlags are about agents that bring their own model.
type clientFlags struct {
	Mcp     string   `placeholder:"ADDR" help:"Address to serve agents on by the Model Context Protocol over HTTP, as in 127.0.0.1:7080; see coordinator mcp --help."`
	Toolset []string `default:"core" help:"Toolsets of clients of --mcp, separated by commas."`
	mcpFlags
	issuerFlags
	taskFlag
	approveFlag
}

// webhookFlags say which receivers a coordinator reaches.
type webhookFlags struct {
	WebhookHost  []string `placeholder:"HOST" help:"Hosts that webhooks are sent to, separated by commas: HOST, HOST:PORT, *.SUFFIX, or all. Addresses that are not public are reached only if they are listed, too. Default: none, so this coordinator sends no webhooks."`
	WebhookPlain bool     `help:"Send webhooks over plain HTTP to the loopback addresses of --webhook-host, for development."`
}

// hosts reads the list of hosts.
func (f *webhookFlags) hosts() (egress.Allow, error) {
	allow, err := egress.ParseAllow(strings.Join(f.WebhookHost, ","))
	switch {
	case err != nil:
		return allow, cli.Usagef("--webhook-host: %v", err)
	case f.WebhookPlain && allow.Empty():
		return allow, cli.Usagef("--webhook-plain needs --webhook-host")
	}
	return allow, nil
}

// send sends webhooks to hosts until serving ends.
func (f *webhookFlags) send(ctx, serving context.Context, s *service, hosts egress.Allow) error {
	if hosts.Empty() {
		return nil
	}
	fl := s.env.Fleet
	sender, err := webhook.NewSender(ctx, webhook.Options{Fleet: fl, Allow: hosts, Plain: f.WebhookPlain, Version: s.Version, Logger: fl.Logger})
	if err != nil {
		return err
	}
	s.background.Go(func() { sender.Run(serving) })
	return nil
}

// prepare checks the flags and opens what they name; it connects to nothing.
func (c *serveCommand) prepare(p program, gate *model.Gate) (o serve.Options, box *environment.Toolbox, err error) {
	if err := c.check(); err != nil {
		return o, nil, err
	}
	opener := model.Opener{Env: p.Getenv, Logger: p.logger(), MaxWait: c.ModelWait, Gate: gate}
	if o.Models, o.Default, err = c.openModels(opener); err != nil {
		return o, nil, err
	}
	known, err := c.openCosts(opener)
	if err != nil {
		return o, nil, err
	}
	o.About = known.about
	for name, opened := range o.Models {
		if o.Models[name], err = c.withFallback(opener, known, name, opened); err != nil {
			return o, nil, err
		}
	}
	if o.Agents, err = c.openAgents(opener, known, p.warn); err != nil {
		return o, nil, err
	}
	if box, err = c.OpenToolbox(c.Toolset, p.warn); err != nil {
		return o, nil, err
	}
	if err := box.CheckPolicies(&c.PolicyFlags, p.warn); err != nil {
		return o, nil, err
	}
	box.CheckAgents(o.Agents, p.warn)
	o.Tools, o.Skills, o.Servers = box.Folder, box.Skills, box.Configured
	if o.Unattended, err = c.unattended(o); err != nil {
		return o, nil, err
	}
	o.MaxSteps, o.MaxTokens, o.PromoteAfter = c.MaxSteps, c.MaxTokens, c.PromoteAfter
	if o.Settings, err = c.settings(); err != nil {
		return o, nil, err
	}
	if o.Hooks, err = c.hooks(""); err != nil {
		return o, nil, err
	}
	o.Policies, err = c.Policies()
	return o, box, err
}

func (c *serveCommand) run(ctx context.Context, p program) error {
	var gate model.Gate
	options, box, err := c.prepare(p, &gate)
	if err != nil {
		return err
	}
	rules, err := readLimits(c.Limits)
	if err != nil {
		return err
	}
	clients, mcpTokens, err := c.clients("--mcp", c.Mcp, true)
	if err = errors.Join(err, c.badTaskAfter()); err != nil {
		return err
	}
	tokens, err := c.webFlags.check(true)
	if err != nil {
		return err
	}
	issuer, err := c.issuer()
	if err != nil {
		return err
	}
	hosts, err := c.hosts()
	if err != nil {
		return err
	}
	drain, abort := context.WithCancel(ctx)
	defer abort()
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: p.logger(), Client: "coordinator serve"},
		Flags:   &environment.Flags{FleetFlags: c.FleetFlags}, Listen: c.Listen, Plain: c.ListenTLS == "never", TLS: c.ListenTLS == "always",
		Warn:     p.warn,
		IndexAge: c.IndexAge, IndexBytes: int64(c.IndexSize),
	})
	if err != nil {
		return err
	}
	defer env.Close(nil)
	defer env.Fleet.ObserveStored()()
	env.Fleet.TokenInFile = access.NewTokens(tokens...).Has
	s := &service{program: p, env: env}
	defer s.background.Wait()
	serving, rest := context.WithCancel(ctx)
	defer rest()
	if c.Limits != "" {
		if err := replaceLimits(ctx, env.Fleet.Parts(), rules); err != nil {
			return err
		}
	}
	server, err := c.open(ctx, serving, s, options, &gate)
	if err != nil {
		return err
	}
	if err := c.send(ctx, serving, s, hosts); err != nil {
		return err
	}
	if c.HTTP != "" || c.Mcp != "" {
		rules, err := c.Judge()
		if err != nil {
			return err
		}
		box.Rules = mcptools.Rules{Policy: rules, MinLevel: environment.MinLevelElsewhere}
		shared := interfaces{s, box, rules, options.Hooks, clientsOf(serving, env.Fleet, issuer, &s.background)}
		if c.HTTP != "" {
			if err := c.serveHTTP(serving, shared, tokens); err != nil {
				return err
			}
		}
		if c.Mcp != "" {
			if err := c.serveClients(serving, shared, clients, mcpTokens, server.keys); err != nil {
				return err
			}
		}
	}
	if err := c.announce(ctx, p, env, options.Default); err != nil {
		return err
	}
	return server.run(ctx, drain, abort)
}

// sessionServer runs sessions in a fleet.
type sessionServer struct {
	*serve.Server

	keys  *signing.Keys
	drain time.Duration
	p     program
	fleet *fleet.Fleet
}

// run runs sessions until ctx ends. They end with drain, which abort ends.
func (s *sessionServer) run(ctx, drain context.Context, abort func()) error {
	said := cli.Drains(ctx, s.drain, abort, func() {
		if s.fleet.Server != nil {
			s.fleet.Server.Draining(time.Now().Add(s.drain))
		}
		s.p.Draining(s.drain, s.Running(), "turn", "a turn that runs longer continues with another coordinator, or after a restart")
	})
	err := s.Run(ctx, drain)
	said()
	return err
}

// open opens what runs sessions, and what keeps the fleet in order until serving ends.
func (c *serveCommand) open(ctx, serving context.Context, s *service, options serve.Options, gate *model.Gate) (_ *sessionServer, err error) {
	p, fl := s.program, s.env.Fleet
	gate.Bind(fl.Dispatcher.ModelLimits())
	logger := fl.Logger
	var pools []protocol.Pool
	if fl.Server != nil && fl.Server.IsJoined() {
		if pools, err = joinedPools(s.env.Data, fl.Name); err != nil {
			return nil, err
		}
	}
	for _, pool := range c.Pools {
		pools = append(pools, protocol.Pool(pool))
	}
	for _, pool := range pools {
		if err := natsio.MakePool(ctx, fl.At(pool).JS, fl.Name, pool); err != nil {
			return nil, err
		}
	}
	if options.Schedules, err = fl.Schedules(ctx); err != nil {
		options.Schedules = nil
		p.warn(fmt.Sprintf("this coordinator starts no scheduled turns and calls: %v", err))
	}
	channels, err := channel.Open(ctx, fl.JS, fl.Name)
	if err != nil {
		p.warn(fmt.Sprintf("this coordinator starts no turns by messages: %v", err))
	}
	host, _ := os.Hostname() // only a name
	options.Fleet, options.Dispatcher, options.Journal, options.Do = fl.Name, fl.Dispatcher, fl.Journal, fl.Dispatcher.Call
	options.Holder = serve.Holder{ID: wire.NewWorkerID(host), Build: p.Version, Slots: c.Sessions, AckWait: c.Lease, Origin: fl.Origin}
	if options.Keys, err = c.keys(fl); err != nil {
		return nil, err
	}
	fl.Dispatcher.AnswerKeys(options.Keys)
	if options.Schedules != nil {
		options.Schedules.Strict = c.CallKeys != ""
	}
	options.MinLevel, options.Approve, options.TakeOn = environment.MinLevelElsewhere, approval.Waiter(fl.NC, fl.Name, options.Keys), takesOn(fl, logger)
	options.GiverValid, options.Tracer, options.Logger = fl.GiverValid, telemetry.Tracer(), logger
	server, err := serve.New(ctx, fl.NC, options)
	if err != nil {
		return nil, err
	}
	if err := c.sweep(serving, fl, &s.background); err != nil {
		return nil, err
	}
	if options.Schedules != nil {
		s.background.Go(func() {
			owner := func(ctx context.Context, id protocol.SessionID) (*judge.Owner, bool, error) {
				return session.Owner(ctx, fl, id)
			}
			(&schedule.Runner{
				Store: options.Schedules, Channels: channels, Send: startIn(fl),
				Judge: judgeScheduled(options.Policies, options.Hooks, loop.NewLedger(fl.Journal), logger), Owner: owner,
				Logger: logger,
			}).Run(serving)
		})
	}
	return &sessionServer{server, options.Keys, c.Drain, p, fl}, nil
}

// keys are the signers whose turns this coordinator runs; nil runs every turn, as without a key of
// its own it signs nothing for others.
func (c *serveCommand) keys(fl *fleet.Fleet) (*signing.Keys, error) {
	if c.CallKeys == "" && fl.Signer == nil {
		return nil, nil //nolint:nilnil // every turn
	}
	keys, err := signing.OpenFor(fl.Signer, c.CallKeys)
	if err != nil {
		return nil, cli.Usagef("--call-keys: %v", err)
	}
	return keys, nil
}

// judgeScheduled judges scheduled calls by the policies of this coordinator, and counts them in the
// journals of their sessions if the policies bound their number: no person is there to approve one.
// The session of a call belongs to the owner of its schedule, if it is new.
func judgeScheduled(policies []policy.Policy, hooks []loop.Hook, ledger *loop.Ledger, logger *slog.Logger) func(context.Context, *protocol.Call) error {
	var rules loop.Policy
	var err error
	if len(policies) > 0 {
		rules, err = policy.New(policies...)
	}
	return func(ctx context.Context, call *protocol.Call) error {
		if err != nil {
			return err
		}
		who := judge.PrincipalOf(judge.Owner{Tenant: call.Tenant, By: call.By}) // the schedule's owner
		denied := loop.JudgeCall(judge.With(ctx, who), call, &loop.SingleOptions{
			Hooks: hooks, Policy: rules, Ledger: ledger, Interface: "schedule", Logger: logger,
			Approve: func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
				return protocol.Approval{}, errors.New("no person can approve a scheduled call")
			},
		})
		if denied != nil {
			return denied
		}
		return nil
	}
}

// startIn sends scheduled calls. If the time for that ends, it looks whether this process lacks
// rights in the pool of the call: the error names them.
func startIn(fl *fleet.Fleet) func(context.Context, *protocol.Call) error {
	return func(ctx context.Context, call *protocol.Call) error {
		err := fl.Dispatcher.Submit(ctx, call)
		if err != nil && ctx.Err() != nil {
			err = cmp.Or(fl.CheckRights(context.WithoutCancel(ctx), natsio.CallRights(fl.Name, call.Pool)), err)
		}
		return err
	}
}

// sweep removes contents of workspaces that no workspace needs, and what clients have not used for
// --workspace-age, until ctx ends.
func (c *serveCommand) sweep(ctx context.Context, fl *fleet.Fleet, background *sync.WaitGroup) error {
	unused := session.Sweeper{Fleet: fl, Stores: map[*fleet.Fleet]*workspace.Store{}, Age: c.WorkspaceAge}
	keep := func(what string, sweep func(context.Context) (int, error)) {
		background.Go(func() {
			workspace.KeepSwept(ctx, func(ctx context.Context) error {
				_, err := sweep(ctx)
				return err
			}, func(err error) {
				fl.Logger.WarnContext(ctx, "what is no longer used cannot be removed", slog.String("what", what), slog.Any("error", err))
			})
		})
	}
	for _, part := range fl.Parts() {
		bodies := ""
		if part == fl.At(protocol.DefaultPool) { // it has the sandboxes of sessions
			bodies = c.Bodies
		}
		if err := workspace.Bind(ctx, part.NC, fl.Name, bodies); err != nil {
			return err
		}
		workspaces, err := workspace.Open(ctx, part.NC, fl.Name, bodies)
		if err != nil {
			return err
		}
		unused.Stores[part] = workspaces
		keep("unused contents of workspaces", func(ctx context.Context) (int, error) { return workspaces.Sweep(ctx, workspace.SweepAge) })
		for _, bucket := range []string{wire.BodiesBucket(fl.Name), wire.KeptBucket(fl.Name)} {
			keep("chunks of objects in "+bucket, func(ctx context.Context) (int, error) { return natsio.SweepChunks(ctx, part.JS, bucket) })
		}
	}
	if c.WorkspaceAge > 0 {
		keep("old workspaces of clients", unused.Sweep)
	}
	return nil
}

// takesOn lets calls that ask a person wait for an answer: it may come from coordinator approve.
func takesOn(fl *fleet.Fleet, logger *slog.Logger) func(loop.Event) {
	return func(e loop.Event) {
		pool, _, _ := strings.Cut(e.Lane, "/")
		at := approval.Asked{Pool: protocol.Pool(pool), Session: e.SessionID, Call: e.CallID, Signer: fl.Signer}
		if err := approval.TakeOn(fl.Conn(at.Pool), fl.Name, at, e.Question.ID); err != nil {
			logger.Warn("question of a call is not answered", slog.String("call_id", string(e.CallID)), slog.Any("error", err))
		}
	}
}

// openModels returns the models of the flags by name, and the name of the first.
func (c *serveCommand) openModels(opener model.Opener) (models map[string]loop.Model, first string, err error) {
	models = map[string]loop.Model{}
	for _, spec := range c.Model {
		opened, name, err := opener.Open(spec)
		if err == nil && model.RecordingOf(opened) != nil {
			err = fmt.Errorf("%s: serve cannot play a recording back; run can", name)
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
	case c.WorkspaceAge != 0 && c.WorkspaceAge < minWorkspaceAge:
		return cli.Usagef("--workspace-age %s: must be at least %s; 0 removes nothing", c.WorkspaceAge, minWorkspaceAge)
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
	return c.badPromoteAfter()
}

// announce prints how others reach the fleet.
func (c *serveCommand) announce(ctx context.Context, p program, env *environment.Environment, model string) error {
	fl := env.Fleet
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: serving sessions of fleet %s with model %s\n", fl.Name, model)
	if c.Nats != "" { // it may come from the environment, unnoticed
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: NATS is at %s (--nats, TOOLFLEET_NATS)\n", natsio.Redact(c.Nats))
	}
	if fl.Server == nil {
		return nil
	}
	url, creds, ca := fl.Server.URL(), cli.ShellWord(fl.Server.CredentialFile()), ""
	if file := fl.Server.Certificates(); file != "" {
		ca = " --tls-ca " + cli.ShellWord(file)
	}
	if fl.Server.IsJoined() {
		line, err := firstJoin(ctx, env.Data, fl.Name)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: NATS is at %s; start workers with:\n%s\n", url, line)
	} else {
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: NATS is at %s; start workers with: worker --nats %s --creds %s --call-keys %s\n",
			url, url, creds, cli.ShellWord(filepath.Join(filepath.Dir(fl.Server.CredentialFile()), signing.PublicFile)))
	}
	own, err := ownPoolFlags(fl, url)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: other commands reach it with: --nats %s --creds %s%s%s\n", url, creds, ca, own)
	return nil
}

// ownPoolFlags are the flags of other commands for pools with accounts of their own.
func ownPoolFlags(fl *fleet.Fleet, url string) (string, error) {
	pools, err := fl.Server.OwnPools(fl.Name)
	if err != nil || len(pools) == 0 {
		return "", err
	}
	var urls, creds []string
	for _, pool := range pools {
		urls = append(urls, string(pool)+"="+url)
		creds = append(creds, string(pool)+"="+embedded.PoolTokenFile(filepath.Dir(fl.Server.CredentialFile()), fl.Name, pool))
	}
	return " --pool-nats " + cli.ShellWord(strings.Join(urls, ";")) + " --pool-creds " + cli.ShellWord(strings.Join(creds, ";")), nil
}

// replaceLimits stores the limits of parts of a fleet: pools with servers of their own have a copy.
func replaceLimits(ctx context.Context, parts []*fleet.Fleet, rules []limits.Rule) error {
	for _, part := range parts {
		store, err := limits.Open(ctx, part.JS, part.Name)
		if err == nil {
			err = natsio.CheckRights(ctx, part.NC, natsio.LimitRights(part.Name))
		}
		if err == nil {
			err = store.Replace(ctx, rules)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxLimits bounds a file of limits, in bytes.
const maxLimits = 16 << 20

// readLimits reads a file of limits, as limits ls --json prints them; no name has none.
func readLimits(file string) ([]limits.Rule, error) {
	if file == "" {
		return nil, nil
	}
	body, err := regular.Read(file, maxLimits)
	if err != nil {
		return nil, cli.Usagef("--limits %s: %v", file, errors.Unwrap(err))
	}
	rules, err := limits.Parse(body)
	if err != nil {
		return nil, cli.Usagef("--limits %s: %v", file, err)
	}
	return rules, nil
}
