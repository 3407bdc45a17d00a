package firsthour

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// A project is a file of testdata. Its comment has a line for each thing to do or to look for:
//
//	needs PROGRAM...   the test is skipped where one is missing
//	net SET...         sandboxes reach the hosts of these sets; skipped where there is no network
//	index PACKAGE...   pip finds these packages in an index of the test's own
//	only WAY           is enough, or none at all, but for TOOLFLEET_FIRSTHOUR=all: it takes long
//	flag FLAG...       flags of run in place, and of the worker
//	outside COMMAND    a shell runs it in the workspace before the session, as a person does
//	$ COMMAND          the model calls bash
//	@ TOOL JSON        the model calls another tool
//	> TEXT             is in what the model reads of the call
//	+ TEXT             is in it in place
//	found TEXT         is told of the workspace when the session ends in place
//	after COMMAND      as outside, when the session has ended; it must succeed
//	here COMMAND       the same, in place
//
// A % in the arguments of a tool is the name of the background process that was started last.
type project struct {
	needs, net, index, flags, outside, found, after, here []string
	only                                                  string // "in place" or "over a fleet"; anything else is never
	calls                                                 []call
	files                                                 []txtar.File
}

type call struct {
	tool, arguments   string
	wanted, here, not []string
}

// session is that of every project.
const session = "first"

func readProject(t *testing.T, path string) project {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	require.NoError(t, err)
	p := project{files: archive.Files}
	for line := range strings.Lines(string(archive.Comment)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		last := len(p.calls) - 1
		switch word {
		case "", "#":
		case "needs":
			p.needs = append(p.needs, strings.Fields(rest)...)
		case "net":
			p.net = append(p.net, strings.Fields(rest)...)
		case "index":
			p.index = append(p.index, strings.Fields(rest)...)
		case "only":
			p.only = rest
		case "found":
			p.found = append(p.found, rest)
		case "flag":
			p.flags = append(p.flags, strings.Fields(rest)...)
		case "outside":
			p.outside = append(p.outside, rest)
		case "after":
			p.after = append(p.after, rest)
		case "here":
			p.here = append(p.here, rest)
		case "$":
			arguments, err := json.Marshal(map[string]any{"command": rest, "timeout": 600})
			require.NoError(t, err)
			p.calls = append(p.calls, call{tool: "bash", arguments: string(arguments)})
		case "@":
			tool, arguments, _ := strings.Cut(rest, " ")
			p.calls = append(p.calls, call{tool: tool, arguments: strings.ReplaceAll(arguments, "%", p.process())})
		case ">":
			p.calls[last].wanted = append(p.calls[last].wanted, rest)
		case "+":
			p.calls[last].here = append(p.calls[last].here, rest)
		default:
			t.Fatalf("%s: %q is not what a project has", path, line)
		}
	}
	return p
}

// layOut writes the project's files into the person's workspace.
func (p project) layOut(t *testing.T, who person) {
	t.Helper()
	for _, f := range p.files {
		path := filepath.Join(who.workspace, f.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, f.Data, 0o644))
	}
}

// process stands for the name of the background process that was started last.
func (p project) process() string {
	for i, c := range slices.Backward(p.calls) {
		if c.tool == "bash" && (strings.Contains(c.arguments, `"tty"`) || strings.Contains(c.arguments, `"background"`)) {
			return fmt.Sprintf("{{c%d p-[0-9a-f]+}}", i)
		}
	}
	return ""
}

// available skips the test where a program is missing that the project needs.
func (p project) available(tb testing.TB) {
	tb.Helper()
	for _, program := range p.needs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		processtest.Unavailable(tb, program+" is not installed")
	}
}

// model is the script of a model that makes the calls, one after the other.
func (p project) model(t *testing.T, dir string) string {
	t.Helper()
	type toolCall struct {
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	type step struct {
		Text      string     `json:"text"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	var steps []step
	for i, c := range p.calls {
		made := toolCall{ID: fmt.Sprintf("c%d", i), Name: c.tool, Arguments: json.RawMessage(c.arguments)}
		steps = append(steps, step{Text: "Next.", ToolCalls: []toolCall{made}})
	}
	script, err := json.Marshal(map[string]any{"steps": append(steps, step{Text: "Done."})})
	require.NoError(t, err)
	path := filepath.Join(dir, "model.json")
	require.NoError(t, os.WriteFile(path, script, 0o644))
	return "script:" + path
}

// check holds what the model has read of each call against what the project wants.
func (p project) check(t *testing.T, stdout string, inPlace bool) {
	t.Helper()
	type event struct {
		Type, Status, Content string
		ToolCallID            string `json:"tool_call_id"`
		Findings              []struct{ Path, What string }
	}
	read, found := map[string]string{}, ""
	for line := range strings.Lines(stdout) {
		var e event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e.Type == "tool_result" {
			read[e.ToolCallID] = e.Status + "\n" + e.Content
		}
		for _, f := range e.Findings {
			found += f.Path + ": " + f.What + "\n"
		}
	}
	if inPlace {
		for _, text := range p.found {
			require.Contains(t, found, text)
		}
		require.Len(t, p.found, strings.Count(found, "\n"), found)
	}
	for i, c := range p.calls {
		got, ok := read[fmt.Sprintf("c%d", i)]
		require.True(t, ok, "%s was not called: %s", c.arguments, ends(stdout))
		if inPlace {
			c.wanted = append(c.wanted, c.here...)
		}
		for _, text := range c.wanted {
			if !strings.Contains(got, text) { // which may be too long to be shown whole
				t.Errorf("%s %s: no %q in %s", c.tool, c.arguments, text, ends(got))
			}
		}
		for _, text := range c.not {
			if strings.Contains(got, text) {
				t.Errorf("%s %s: %q in %s", c.tool, c.arguments, text, ends(got))
			}
		}
	}
}

// ends are the beginning and the end of a text.
func ends(text string) string {
	if len(text) < 4000 {
		return text
	}
	return text[:1000] + "\n...\n" + text[len(text)-3000:]
}
