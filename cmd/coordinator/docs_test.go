package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
)

// commandLine is the grammar with all commands and flags.
func commandLine(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := kong.New(&grammar{}, kong.Name("coordinator"), kong.Vars{"version": ""})
	require.NoError(t, err)
	return parser.Model.Node
}

// TestDocs_EveryCommandHasARow of the table of commands, and those below session, lane and template
// are named on the page.
func TestDocs_EveryCommandHasARow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(page), "\n## Commands\n")
	table, _, _ := strings.Cut(after, "\n## ")
	for _, command := range commandLine(t).Leaves(true) {
		words := strings.Fields(command.FullPath())[1:]
		require.Regexp(t, "(?m)^\\| .*`(coordinator )?"+words[0]+"[ `].* \\|", table, "the table of commands lacks %s", command.FullPath())
		if len(words) > 1 {
			require.Regexp(t, "`(coordinator )?("+words[0]+" )?"+words[1]+"[ `]", string(page), "docs/cli.md lacks %s", command.FullPath())
		}
	}
}

// inDocuments is a command line in a document, with its flags.
var inDocuments = regexp.MustCompile("(?m)(?:^|[ `/(])coordinator ([a-z][^`\n#]*)")

// TestDocs_FlagsAreThere: what a document shows of a command is what the command takes.
func TestDocs_FlagsAreThere(t *testing.T) {
	t.Parallel()
	all := map[string]map[string]bool{}
	for _, command := range commandLine(t).Leaves(true) {
		flags := map[string]bool{}
		for _, group := range command.AllFlags(true) {
			for _, flag := range group {
				flags[flag.Name] = true
			}
		}
		all[strings.TrimPrefix(command.FullPath(), "coordinator ")] = flags
	}
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		pages = append(pages, found...)
	}
	checked := 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range inDocuments.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
			words := strings.Fields(match[1])
			flags := all[words[0]]
			if flags == nil && len(words) > 1 {
				flags = all[words[0]+" "+words[1]]
			}
			for _, flag := range regexp.MustCompile(` --([a-z][a-z-]*)`).FindAllStringSubmatch(match[1], -1) {
				if flags == nil {
					continue // of several commands at once
				}
				require.True(t, flags[flag[1]], "%s: coordinator %s: there is no --%s", path, match[1], flag[1])
				checked++
			}
		}
	}
	require.Greater(t, checked, 50)
}

// TestHelp_FitsOnAScreen.
func TestHelp_FitsOnAScreen(t *testing.T) {
	t.Parallel()
	const screen = 60
	node := commandLine(t)
	for _, command := range append(node.Leaves(true), node.Children...) {
		words := strings.Fields(command.FullPath())[1:]
		stdout, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
		require.NoError(t, err)
		code := run(cli.Program{Name: "coordinator", Args: append(words, "--help"), Stdout: stdout, Stderr: stdout, Examples: examples(), Getenv: os.Getenv})
		require.NoError(t, stdout.Close())
		require.Zero(t, code)
		text, err := os.ReadFile(stdout.Name())
		require.NoError(t, err)
		require.LessOrEqual(t, strings.Count(string(text), "\n"), screen, "%s", text)
		require.Contains(t, string(text), command.FullPath()+" --help-all\n")
	}
	for name := range examples() {
		require.NotNil(t, commandNamed(node, strings.Fields(name)), "examples of %q, which is no command", name)
	}
}

// commandNamed finds a command; nil for none.
func commandNamed(node *kong.Node, words []string) *kong.Node {
	for _, word := range words {
		i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == word })
		if i < 0 {
			return nil
		}
		node = node.Children[i]
	}
	return node
}
