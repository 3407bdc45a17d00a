package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type toolsCommand struct {
	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
	Doc     string   `placeholder:"NAME" help:"Print the full documentation of one tool instead."`

	Workspace string `placeholder:"DIR" help:"Directory in which MCP servers are started to list their tools, without --nats. Default: an empty one."`
	environment.Flags
}

func (c *toolsCommand) run(ctx context.Context, p program) error {
	broken := 0
	warn := func(message string) {
		broken++
		_, _ = fmt.Fprintln(p.err(), message)
	}
	box, err := c.OpenToolbox(c.Toolset, warn)
	if err == nil && len(box.Servers) > 0 {
		err = c.list(ctx, p, box, warn)
	}
	if err != nil {
		return err
	}
	table := box.Table
	if c.Doc != "" {
		text, found := table.Document(c.Doc)
		if !found {
			return cli.Usagef("--doc %s: there is no such tool; the tools are %s", c.Doc, strings.Join(table.Names(), ", "))
		}
		_, err = fmt.Fprint(p.out(), text)
		return err
	}
	var body strings.Builder
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(table.Definitions()); err != nil {
		return fmt.Errorf("print tools: %w", err)
	}
	if _, err = fmt.Fprintln(terminal.JSONWriter(p.Stdout), body.String()); err != nil {
		return err
	}
	if broken > 0 { // so that a check of manifests is a command
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// list lists the tools of the MCP servers, which run in a session that is removed afterwards.
func (c *toolsCommand) list(ctx context.Context, p program, box *environment.Toolbox, warn func(string)) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	call := callCommand{Tool: "tools", Flags: c.Flags}
	workspace, err := environment.UseWorkspace(c.Workspace, false, nil)
	if err != nil {
		return err
	}
	if workspace != "" && c.Nats != "" {
		return cli.Usagef("--workspace %s: works only without --nats, for MCP servers of this process", c.Workspace)
	}
	session := protocol.NewSessionID()
	box.Rules.MinLevel = c.DefaultMinLevel()
	return call.inFleet(ctx, p, session, workspace, func(ctx context.Context, env *environment.Environment, _ view) (*protocol.Call, error) {
		box.Rules.Pool = env.Pool()
		return nil, box.List(ctx, env.Fleet, session, warn)
	})
}

// agentFlag names the folder of sub-agents.
type agentFlag struct {
	Agents string `placeholder:"DIR" help:"Folder of sub-agents for the toolset agents, such as .claude/agents: a Markdown file each, see docs/agents.md."`
}

// openAgents reads the folder. What a file asks for that cannot be had is reported, and left out,
// as is a file that describes no agent, such as a README.
func (f *agentFlag) openAgents(opener model.Opener, known known, warn func(string)) ([]loop.Agent, error) {
	if f.Agents == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.Agents)
	if err != nil {
		return nil, cli.Usagef("--agents %s: %v", f.Agents, errors.Unwrap(err))
	}
	var agents []loop.Agent
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".md" || entry.IsDir() {
			continue
		}
		path := filepath.Join(f.Agents, entry.Name())
		agent, err := readAgent(path, opener, known, func(problem string) { warn(path + ": " + problem) })
		if err == nil && slices.ContainsFunc(agents, func(other loop.Agent) bool { return other.Name == agent.Name }) {
			err = fmt.Errorf("another agent has the name %s", agent.Name)
		}
		if err != nil {
			warn(fmt.Sprintf("the agent is left out: %s: %v", path, err))
			continue
		}
		agents = append(agents, agent)
	}
	if len(agents) == 0 {
		return nil, cli.Usagef("--agents %s: has no Markdown file that describes an agent", f.Agents)
	}
	return agents, nil
}

// agentHead is the front matter of an agent's file; fields of other programs are ignored.
type agentHead struct {
	Name            string    `yaml:"name"`
	Description     string    `yaml:"description"`
	Tools           yaml.Node `yaml:"tools"`
	DisallowedTools yaml.Node `yaml:"disallowedTools"` //nolint:tagliatelle // the name that people have
	Model           string    `yaml:"model"`
	MaxTurns        int       `yaml:"maxTurns"` //nolint:tagliatelle // as above
	Budget          string    `yaml:"budget"`
}

// readAgent reads one file: front matter between two lines of ---, and the system prompt.
func readAgent(path string, opener model.Opener, known known, warn func(string)) (loop.Agent, error) {
	var fields agentHead
	system, err := yamlfile.FrontMatter(path, &fields)
	if err != nil {
		return loop.Agent{}, err
	}
	agent := loop.Agent{
		Name: strings.TrimSpace(fields.Name), Description: strings.TrimSpace(fields.Description), System: system, MaxSteps: fields.MaxTurns,
	}
	switch {
	case agent.Name == "" || agent.Description == "":
		return agent, errors.New("line 1: name and description are required")
	case agent.MaxSteps < 0:
		return agent, fmt.Errorf("maxTurns %d: must not be negative", agent.MaxSteps)
	}
	if agent.Tools, err = toolNames(&fields.Tools, func(name string) (string, error) {
		warn(fmt.Sprintf("tool %q is left out: without the part in parentheses the agent could do more than the file allows", name))
		return "", nil
	}); err != nil {
		return agent, fmt.Errorf("tools: %w", err)
	}
	if agent.Without, err = toolNames(&fields.DisallowedTools, func(name string) (string, error) {
		tool, _, ok := strings.Cut(name, "(")
		if !ok {
			return "", fmt.Errorf("%q: must be the name of a tool", name)
		}
		return tool, nil // all of it: less than the file allows
	}); err != nil {
		return agent, fmt.Errorf("disallowedTools: %w", err)
	}
	if agent.Budget, err = parseBudget(fields.Budget); err != nil {
		return agent, err
	}
	if !strings.Contains(fields.Model, ":") {
		if fields.Model != "" && fields.Model != "inherit" {
			warn(fmt.Sprintf("model %q names no provider (such as openai:gpt-4.1), so the agent has the model of its parent", fields.Model))
		}
		return agent, nil
	}
	if agent.Model, agent.ModelName, err = opener.Open(fields.Model); err != nil {
		return agent, fmt.Errorf("model: %w", err)
	}
	agent.Price, agent.Compaction = known.about(agent.ModelName)
	return agent, nil
}

// ourNames are our tools by the names that they have in other agents' files.
func ourNames() map[string]string {
	return map[string]string{
		"Read": "read", "Write": "write", "Edit": "edit", "MultiEdit": "multi_edit", "Bash": "bash", "BashOutput": "process", "KillShell": "process",
		"Grep": "grep", "Glob": "glob", "LS": "list", "WebFetch": "web_fetch", "WebSearch": "web_search", "Task": "agent", "Agent": "agent",
	}
}

// toolNames reads names of tools: a list, or a text with commas. nil is a field that is not there.
// pattern returns the name that stands for one with a pattern, as in Bash(git:*); "" is none.
func toolNames(node *yaml.Node, pattern func(name string) (string, error)) ([]string, error) {
	if node.IsZero() {
		return nil, nil
	}
	var listed []string
	if node.Kind == yaml.ScalarNode {
		listed = strings.Split(node.Value, ",")
	} else if err := node.Decode(&listed); err != nil {
		return nil, errors.New("must be a list of names, or names with commas")
	}
	names := []string{}
	for _, name := range listed {
		name = strings.TrimSpace(name)
		if strings.ContainsAny(name, "()*") {
			var err error
			if name, err = pattern(name); err != nil {
				return nil, err
			}
		}
		if ours, known := ourNames()[name]; known {
			name = ours
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}
