package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

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
	found, err := cli.Complete(p, &grammar{}, words, func(command, name string) []cli.Candidate { return candidates(ctx, words, command, name) })
	if err != nil {
		return cli.ExitFailed
	}
	for _, c := range found {
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
	case strings.HasPrefix(command, "session ") && name == "id", command == "approve" && name == "session", name == "--session":
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
	cmd.Args = append([]string{"coordinator", "session", "ls", "--json", "--limit=50"}, connectionFlags(words)...)
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
