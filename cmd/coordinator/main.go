// Command coordinator runs agent sessions and dispatches their tool calls to workers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // the time zones of schedules, where the system has none

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/doctor"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
)

// version is set when the binary is linked.
var version = "development"

// grammar is the command line of the coordinator.
type grammar struct {
	cli.Common

	NoProjectConfig bool `group:"Every command:" help:"Ignore the toolfleet.yaml of the project."`

	Run        runCommand        `cmd:"" help:"Run a session: the model works on PROMPT with tools until it answers."`
	Chat       chatCommand       `cmd:"" help:"Talk with a model that works with tools: turn after turn in one session, at this terminal."`
	Call       callCommand       `cmd:"" help:"Call one tool without a model and print its result as JSON."`
	Calls      callsCommand      `cmd:"" help:"Print the log of calls that ended: how, when, and what they waited for."`
	Serve      serveCommand      `cmd:"" help:"Run sessions for others until stopped."`
	Submit     submitCommand     `cmd:"" help:"Send a prompt to a serving coordinator, and follow the session."`
	Mcp        mcpCommand        `cmd:"" help:"Offer the tools to an agent by the Model Context Protocol, on stdin and stdout or over HTTP."`
	Acp        acpCommand        `cmd:"" help:"Run sessions for an editor by the Agent Client Protocol, on stdin and stdout."`
	HTTP       httpCommand       `cmd:"" name:"http" help:"Serve the HTTP API over the sessions of this machine: for programs in any language."`
	UI         uiCommand         `cmd:"" name:"ui" help:"Show the sessions and the fleet of this machine as web pages, in a browser."`
	Approve    approveCommand    `cmd:"" help:"Approve or refuse a waiting tool call; approve ls lists the waiting calls."`
	Tools      toolsCommand      `cmd:"" help:"Print the tool schemas that the model receives."`
	Login      loginCommand      `cmd:"" help:"Log in to an MCP server, for sessions whose tools run in this program; \"worker login\" is for workers elsewhere."`
	Bench      benchCommand      `cmd:"" files:"section" help:"Measure calls through the fleet and bare NATS in one run, and check the order of every lane."`
	Workers    workersCommand    `cmd:"" help:"List the workers of a fleet and their capabilities."`
	Top        topCommand        `cmd:"" help:"Watch a fleet: what is stalled, workers, lanes, sessions, waits and limits; look into them, pause, cancel and kill."`
	Lane       laneCommand       `cmd:"" help:"Inspect and control lanes: ls, show, pause, resume, wake, skip, kill."`
	Session    sessionCommand    `cmd:"" help:"Inspect and manage sessions: ls, show, log, search, export, files, diff, pull, restore, fork, merge, attach, cancel, rm."`
	Trace      traceCommand      `cmd:"" help:"Show where the time of a turn went, as bars: model, waits by reason, sandbox start, run, result."`
	Schedule   scheduleCommand   `cmd:"" help:"Start turns and tool calls at set times: add, ls, result, pause, resume, rm."`
	Limits     limitsCommand     `cmd:"" help:"Limit how many calls of a lane run at once, and start in a time: set, ls, rm."`
	Webhook    webhookCommand    `cmd:"" help:"Notify receivers over HTTP of what ends, or waits for a person: add, ls, test, resume, rm."`
	Template   templateCommand   `cmd:"" help:"Templates for the workspaces of new sessions: create, ls, rm."`
	JoinToken  joinTokenCommand  `cmd:"" name:"join-token" files:"none" help:"Let other machines join the fleet of a coordinator serve on this machine: add, ls, rm."`
	Token      tokenCommand      `cmd:"" files:"none" help:"Tokens of clients over HTTP, for each server of a fleet: add, ls, rm."`
	Context    contextCommand    `cmd:"" files:"none" help:"Connection flags under names: add, ls, use, rm."`
	Config     configCommand     `cmd:"" files:"none" help:"Settings in files: show, trust."`
	Completion completionCommand `cmd:"" files:"none" help:"Print the completion script of a shell: bash, zsh or fish."`
	Doctor     doctorCommand     `cmd:"" help:"Test the sandboxes of this host, and say how to fix what is missing."`
	Info       versionCommand    `cmd:"" name:"version" help:"Print the version."`
	Ping       pingCommand       `cmd:"" help:"Check that the fleet can be reached and its streams are right."`
}

func main() {
	os.Exit(run(cli.Program{
		Name: "coordinator", Version: version,
		Description: "Runs agent sessions whose tool calls are executed by workers over NATS JetStream. Every flag can be set by an environment variable: --timeout is TOOLFLEET_TIMEOUT.",
		Examples:    examples(), Files: cli.Files{User: true, Project: true, Others: []string{"worker"}},
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
	}))
}

// examples are command lines that --help shows, by the name of the command.
func examples() map[string][]string {
	return map[string][]string{
		"": {
			`coordinator run --model openai:gpt-4.1 "Why does the build fail?"`,
			`coordinator call bash '{"command":"go version"}'`,
			`coordinator COMMAND --help`,
		},
		"run": {
			`coordinator run --model openai:gpt-4.1 "Why does the build fail?"`,
			`coordinator run --allow-net go,github --ask-for @execute "Update the modules."`,
			`git diff | coordinator run --json "Review this change." -`,
		},
		"chat":  {`coordinator chat --model openai:gpt-4.1`, `coordinator chat --continue`},
		"call":  {`coordinator call bash '{"command":"go version"}'`, `coordinator call --session last read '{"path":"go.mod"}'`},
		"calls": {`coordinator calls --since 1h --status not_ok`, `coordinator calls --session last --follow`, `coordinator calls --text '"no space left"' --csv`},
		"serve": {`coordinator serve --model openai:gpt-4.1`, `coordinator serve --nats nats://nats1:4222 --model openai:gpt-4.1 --http 127.0.0.1:7070`},
		"submit": {
			`coordinator submit --nats nats://nats1:4222 --workspace . "Repair the build."`,
			`coordinator submit --nats nats://nats1:4222 --detach "Repair the build."`,
		},
		"mcp":            {`coordinator mcp --workspace ~/src/project`, `coordinator mcp --listen 127.0.0.1:7080 --nats nats://nats1:4222`},
		"acp":            {`coordinator acp --model openai:gpt-4.1`, `coordinator acp --model openai:gpt-4.1 --session-mode auto --policy policy.yaml`},
		"http":           {`coordinator http --workspace .`, `coordinator http --workspace . --model openai:gpt-4.1`},
		"ui":             {`coordinator ui`, `coordinator ui --workspace . --model openai:gpt-4.1`},
		"approve":        {`coordinator approve ls --nats nats://nats1:4222`, `coordinator approve --nats nats://nats1:4222 --deny --note "Not on Friday." SESSION CALL`},
		"tools":          {`coordinator tools --doc bash`, `coordinator tools --tools ./tools`},
		"login":          {`coordinator login --mcp-config mcp.json tickets`},
		"bench":          {`coordinator bench --lanes 1`, `coordinator bench --exec true --calls 2000`},
		"workers":        {`coordinator workers --nats nats://nats1:4222`},
		"top":            {`coordinator top`, `coordinator top --nats nats://nats1:4222 --once --json`},
		"lane":           {`coordinator lane ls --nats nats://nats1:4222`, `coordinator lane show --nats nats://nats1:4222 sandbox/abc`},
		"session":        {`coordinator session ls`, `coordinator session log last`, `coordinator session pull --nats nats://nats1:4222 last ./result`},
		"session search": {`coordinator session search frobnicate`, `coordinator session search '"no such file" config*' --since 24h`},
		"session pull": {
			`coordinator session pull --nats nats://nats1:4222 last ./result`,
		},
		"trace": {`coordinator trace last`, `coordinator trace --nats nats://nats1:4222 --json 0f3a 2`, `coordinator trace --format chrome last >turn.json`},
		"schedule": {
			`coordinator schedule add --nats nats://nats1:4222 --cron "0 7 * * 1-5" --tz Europe/Berlin morning -- submit "List the failed builds."`,
			`coordinator schedule add --nats nats://nats1:4222 --cron @hourly poll -- call bash '{"command":"date >> log"}'`,
			`coordinator schedule ls --nats nats://nats1:4222`,
		},
		"limits": {
			`coordinator limits set --nats nats://nats1:4222 'account/*' --concurrent 5 --rate 60/min --burst 10`,
			`coordinator limits ls --nats nats://nats1:4222`,
		},
		"webhook": {
			`coordinator webhook add --nats nats://nats1:4222 --event turn.ended,approval.waiting https://hooks.example.com/toolfleet`,
			`coordinator webhook ls --nats nats://nats1:4222`,
		},
		"template": {`coordinator template create --nats nats://nats1:4222 base ~/src/project`},
		"context": {
			`coordinator context add prod --nats nats://nats1:4222 --creds ~/prod.creds`,
			`coordinator context use prod`,
			`coordinator workers --context prod`,
		},
		"join-token": {
			`coordinator join-token add`,
			`coordinator join-token add --pool gpu --expires 24h --note build-7`,
			`coordinator join-token ls`,
		},
		"token": {
			`coordinator token add --nats nats://nats1:4222 --role run --tenant acme ann`,
			`coordinator token ls --nats nats://nats1:4222`,
			`coordinator token rm --nats nats://nats1:4222 k3v9q2ma`,
		},
		"config":     {`coordinator config show --changed run`, `coordinator config trust`},
		"completion": {`source <(coordinator completion bash)`, `coordinator completion fish | source`},
		"doctor":     {`coordinator doctor`},
		"ping":       {`coordinator ping --nats nats://nats1:4222`},
	}
}

type versionCommand struct{}

func (versionCommand) run(_ context.Context, p program) error {
	_, err := fmt.Fprintf(p.Stdout, "%s %s\n", p.Name, p.Version)
	return err
}

// command is one subcommand.
type command interface {
	run(ctx context.Context, p program) error
}

// group is a command with subcommands that share its flags.
type group interface {
	verbs() map[string]command // by name
}

// commandOf returns what runs the selected command.
func commandOf(s cli.Selected) command {
	if c, is := s.Target.(command); is {
		return c
	}
	verbs, _ := s.Group.(group)
	return verbs.verbs()[s.Name]
}

// fleetVerb is a subcommand that works with a fleet that exists, within a time limit.
type fleetVerb struct {
	fleet   *environment.ExistingFleet
	timeout time.Duration
	check   func() error // checks the flags and arguments before anything is connected; may be nil
	act     func(ctx context.Context, p program, client *fleet.Client) error
}

func (v fleetVerb) run(ctx context.Context, p program) error {
	if err := checkTimeout(v.timeout); err != nil {
		return err
	}
	if v.check != nil {
		if err := v.check(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	client, err := v.fleet.Client(ctx, p.logger())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing of it is in this process
	err = v.act(ctx, p, client)
	if errors.Is(err, fleet.ErrInvalid) {
		return cli.Usagef("%v", err)
	}
	return err
}

// program is the environment of a subcommand, without its flags.
type program struct {
	cli.Program
	common cli.Common
}

// out is standard output for people: what others wrote does nothing to a terminal.
func (p program) out() io.Writer { return terminal.Writer(p.Stdout) }

// err is standard error for people.
func (p program) err() io.Writer { return terminal.Writer(p.Stderr) }

// warn prints a message for people.
func (p program) warn(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }

func (p program) logger() *slog.Logger { return p.common.Logger(p.Program) }

func run(p cli.Program) int {
	if len(p.Args) > 1 && p.Args[0] == completeArgument {
		return complete(context.Background(), p)
	}
	if len(p.Args) > 1 && p.Args[0] == environment.Serve {
		return serveLocal(p)
	}
	var g grammar
	return cli.Run(p, &g, &g.Common, func(selected cli.Selected) error {
		return commandOf(selected).run(context.Background(), program{Program: p, common: g.Common})
	})
}

// serveLocal is the server of the fleet that the commands of one user share.
func serveLocal(p cli.Program) int {
	shared.CloseInherited()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
	idle, err := time.ParseDuration(p.Getenv(shared.IdleVariable))
	if err != nil || idle <= 0 {
		idle = shared.DefaultIdle
	}
	logger := slog.New(slog.NewTextHandler(p.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	tidy := func(ctx context.Context, nc *nats.Conn) error {
		return environment.RemoveUnusedPools(ctx, p.Args[1], nc)
	}
	if err := shared.Serve(ctx, p.Args[1], idle, logger, tidy); err != nil {
		_, _ = fmt.Fprintln(p.Stderr, err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}

type doctorCommand struct {
	JSON bool `name:"json" help:"Print the result as JSON."`
}

func (c *doctorCommand) run(ctx context.Context, p program) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	data, _ := cli.StateDir("local") // without a home it is that of temporary files
	return doctor.Run(ctx, data, true, p.Stdout, c.JSON)
}

type loginCommand struct{ workercmd.Login }

func (c *loginCommand) run(ctx context.Context, p program) error {
	store, err := environment.Logins()
	if err != nil {
		return err
	}
	return c.Run(ctx, p.Program, store)
}
