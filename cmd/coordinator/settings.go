package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// configCommand is about settings in files.
type configCommand struct {
	Show  configShow  `cmd:"" help:"Print the settings of a command, and where each comes from: flag, variable, context, project, user or default."`
	Trust configTrust `cmd:"" help:"Trust the toolfleet.yaml of a project as it is now, with the files in the project that it names."`
}

type configShow struct {
	JSON    bool     `name:"json" help:"Print JSON."`
	Changed bool     `help:"Leave out defaults."`
	Command []string `arg:"" optional:"" passthrough:"" help:"Command line to look at, such as: serve --slots 4. Default: run."`
}

func (c *configShow) run(_ context.Context, p program) error {
	// Behind the command, --changed is still meant for this one: no other command has it.
	if at := slices.Index(c.Command, "--changed"); at >= 0 && !slices.Contains(c.Command[:at], "--") {
		c.Command, c.Changed = slices.Delete(c.Command, at, at+1), true
	}
	if len(c.Command) == 0 {
		c.Command = []string{"run"}
	}
	settings, notes, err := cli.Settings(p.Program, &grammar{}, c.Command)
	if err != nil {
		return err
	}
	for _, note := range notes {
		p.warn(note)
	}
	shown := []cli.Setting{}
	for _, s := range settings {
		if !c.Changed || s.From != "default" {
			shown = append(shown, s)
		}
	}
	if c.JSON {
		return printJSON(p, shown)
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	for _, s := range shown {
		value, err := prose.JSON(s.Value)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, value, s.From)
	}
	return table.Flush()
}

type configTrust struct {
	Dir  string `arg:"" optional:"" help:"Directory in the project. Default: the current one."`
	Undo bool   `help:"Forget the trust instead."`
}

func (c *configTrust) run(_ context.Context, p program) error {
	path, err := cli.Trust(c.Dir, c.Undo)
	if err != nil {
		return err
	}
	word := "trusted: "
	if c.Undo {
		word = "not trusted: "
	}
	_, err = fmt.Fprintln(p.out(), word+path)
	return err
}

// contextCommand stores connection flags under names.
type contextCommand struct {
	Add contextAdd `cmd:"" help:"Store connection flags under a name, also those that variables set."`
	Ls  contextLs  `cmd:"" help:"List contexts, also those of the nats tool; * marks the one in use."`
	Use contextUse `cmd:"" help:"Select the context of commands that name no other one; none selects no context."`
	Rm  contextRm  `cmd:"" help:"Remove a context, also of the nats tool. The files that it names stay."`
}

type contextAdd struct {
	Name string `arg:"" help:"Name of the context."`
	Nats string `placeholder:"URL" help:"NATS server or servers of the fleet, separated by commas. Without it the context is one that the nats tool has."`
	cli.Login
	cli.Pools
	cli.Signing
	Fleet string `default:"tf" help:"Name of the fleet."`
	Join  string `placeholder:"TOKEN" help:"Token of coordinator join-token add --role coordinator, or a file with it, instead of the other flags: it has the servers, the credentials, the trusted authority, the key that signs calls and the fleet."`
}

// join sets what a token says. Its key goes into a file of its own.
func (c *contextAdd) join() error {
	token, err := join.Parse(c.Join)
	if err == nil {
		err = token.For(join.RoleCoordinator)
	}
	if err != nil {
		return cli.Usagef("--join: %v", err)
	}
	if c.Nats != "" || len(c.Given()) > 0 || c.SignKey != "" || len(c.PoolNats) > 0 {
		return cli.Usagef("--join: the token says where the fleet is: give it without --nats, --creds, --tls-..., --pool-... and --sign-key")
	}
	c.Nats, c.TLS.Authority, c.Fleet = token.URL(), token.Authority, string(token.Fleet)
	c.PoolNats = map[string]string{}
	for _, pool := range token.Pools {
		c.PoolNats[string(pool)] = token.PoolURL(pool)
	}
	if token.Key == "" {
		return nil
	}
	c.SignKey, err = cli.StoreContextKey(c.Name, []byte(token.Key))
	return err
}

func (c *contextAdd) run(context.Context, program) error {
	if c.Join != "" {
		if err := c.join(); err != nil {
			return err
		}
	}
	if _, err := protocol.ParseFleet(c.Fleet); err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	if context, is := strings.CutPrefix(c.Nats, natsio.ContextScheme); is {
		return cli.Usagef("--nats %s: is a context itself: coordinator context add %s adds flags to it", c.Nats, context)
	}
	nats := cmp.Or(c.Nats, natsio.ContextScheme+c.Name)
	if err := errors.Join(natsio.CheckURLs(nats), c.Check(), c.CheckPools(nats), c.CheckKey()); err != nil {
		return err
	}
	flags, absolute := map[string]any{"fleet": c.Fleet}, func(file string) string {
		path, err := filepath.Abs(file)
		if err != nil { // there is no current directory
			return file
		}
		return path
	}
	for flag, file := range map[string]string{
		"creds": c.Creds, "tls-ca": c.TLS.CA, "tls-cert": c.TLS.Cert, "tls-key": c.TLS.Key, "sign-key": cmp.Or(c.SignKey, signing.Beside(c.Creds)),
	} {
		if file != "" {
			flags[flag] = absolute(file)
		}
	}
	if c.TLS.Authority != "" {
		flags["tls-authority"] = c.TLS.Authority
	}
	for pool, file := range c.PoolCreds {
		c.PoolCreds[pool] = absolute(file)
	}
	for flag, pools := range map[string]map[string]string{"pool-nats": c.PoolNats, "pool-creds": c.PoolCreds} {
		if len(pools) > 0 {
			flags[flag] = pools
		}
	}
	return cli.AddContext(c.Name, c.Nats, flags)
}

type contextLs struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *contextLs) run(_ context.Context, p program) error {
	all, err := cli.ListContexts()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, all)
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	for _, stored := range all {
		mark := " "
		if stored.InUse {
			mark = "*"
		}
		_, _ = fmt.Fprintf(table, "%s %s", mark, stored.Name)
		for _, flag := range slices.Sorted(maps.Keys(stored.Values)) {
			_, _ = fmt.Fprintf(table, "\t--%s %s", flag, cli.ShellWord(stored.Values[flag]))
		}
		_, _ = fmt.Fprintln(table)
	}
	return table.Flush()
}

type contextUse struct {
	Name string `arg:"" help:"Name of the context, or none."`
}

func (c *contextUse) run(context.Context, program) error { return cli.UseContext(c.Name) }

type contextRm struct {
	Name string `arg:"" help:"Name of the context."`
}

func (c *contextRm) run(context.Context, program) error { return cli.RemoveContext(c.Name) }

// completionCommand prints what a shell needs to complete command lines.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// The scripts ask this program, as it is in the PATH: a program of that name in a repository that a
// person looks at is not run by a key.
const (
	bashCompletion = `# bash completion of coordinator
_coordinator() {
    local line typed="${COMP_LINE:0:COMP_POINT}" words=()
    read -ra words <<<"$typed"
    [[ $typed == *[[:space:]] ]] && words+=("")
    COMPREPLY=()
    while IFS= read -r line; do
        line="${line%%$'\t'*}"
        [[ $line == --*=* ]] && line="${line#*=}"
        COMPREPLY+=("$line")
    done < <(command coordinator __complete "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _coordinator coordinator
`
	zshCompletion = `#compdef coordinator
_coordinator() {
    local -a found
    found=("${(@f)$(command coordinator __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found%%$'\t'*}")
    if [[ -n "$found" ]]; then compadd -- "${(@)found}"; else _files; fi
}
if [[ $funcstack[1] == _coordinator ]]; then _coordinator "$@"; else compdef _coordinator coordinator; fi
`
	fishCompletion = `# fish completion of coordinator
function __coordinator_complete
    set -l words (commandline -opc) (commandline -ct)
    set -g __coordinator_found (command coordinator __complete $words[2..-1] 2>/dev/null)
    test (count $__coordinator_found) -gt 0
end
complete -c coordinator -n __coordinator_complete -f -a '$__coordinator_found'
`
)

func (c *completionCommand) run(_ context.Context, p program) error {
	script := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	_, err := fmt.Fprint(p.Stdout, script)
	return err
}

// completeArgument is the first argument of the scripts; the words of a command line follow.
const completeArgument = "__complete"

// complete prints the candidates for the last word of a command line. Shells show no errors.
func complete(ctx context.Context, p cli.Program) int {
	words := p.Args[1:]
	for _, c := range cli.Complete(p, &grammar{}, words, func(command, name string) []cli.Candidate { return candidates(ctx, words, command, name) }) {
		_, _ = fmt.Fprintln(p.Stdout, c)
	}
	return cli.ExitOK
}

// candidates are the values of a flag or argument, as far as they are known; without any shells
// complete names of files.
func candidates(ctx context.Context, words []string, command, name string) (all []cli.Candidate) {
	var names []string
	switch {
	case name == "--sandbox":
		names = drivers.Names()
	case name == "--toolset":
		names = toolset.Names()
	case name == "--context", (command == "context use" || command == "context rm") && name == "name":
		contexts, _ := cli.ListContexts() // an error is for the command
		for _, c := range contexts {
			names = append(names, c.Name)
		}
		if command != "context rm" {
			names = append(names, "none")
		}
	case command == "config show" && name == "command":
		names = []string{"run", "chat", "call", "serve", "submit", "mcp", "session"}
	case strings.HasPrefix(command, "session ") && name == "id", (command == "approve" || command == "trace") && name == "session", name == "--session":
		return sessionCandidates(ctx, words)
	}
	for _, n := range names {
		all = append(all, cli.Candidate{Word: n})
	}
	return all
}

// completeWithin is how long a key may wait for the sessions of a fleet.
const completeWithin = 2 * time.Second

// sessionCandidates are the sessions where the flags among words say.
func sessionCandidates(ctx context.Context, words []string) []cli.Candidate {
	executable, err := os.Executable()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, executable)
	cmd.Args = append([]string{"coordinator", "session", "ls", "--json", "--limit=50", "--running"}, connectionFlags(words)...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	var sessions []struct {
		ID     string `json:"session_id"`
		Prompt string `json:"prompt"`
	}
	if err := cmd.Run(); err != nil || json.Unmarshal(stdout.Bytes(), &sessions) != nil {
		return nil
	}
	found := []cli.Candidate{{Word: "last"}}
	for _, s := range sessions {
		const most = 60 // of a description
		prompt := []rune(s.Prompt)
		found = append(found, cli.Candidate{Word: s.ID, Help: string(prompt[:min(most, len(prompt))])})
	}
	return found
}

// connectionFlags are those of words that say where a fleet is.
func connectionFlags(words []string) (flags []string) {
	names := append(cli.ConnectionFlags(), "context", "fleet")
	for i, word := range words[:len(words)-1] {
		name, value, assigned := strings.Cut(word, "=")
		if flag, is := strings.CutPrefix(name, "--"); !is || !slices.Contains(names, flag) {
			continue
		}
		if !assigned {
			value = words[i+1]
		}
		flags = append(flags, name+"="+value)
	}
	return flags
}
