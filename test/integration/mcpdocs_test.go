package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	toolsmcp "github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/test/npmtest"
)

var (
	mcpFence  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	mcpOurs   = regexp.MustCompile(`(?m)(?:^|\$ |-- )((?:coordinator|worker) .*)$`)
	mcpRemark = regexp.MustCompile(`\s+# .*$`)
	tomlValue = regexp.MustCompile(`(?m)^(command|args) = (.*)$`)
)

// blocks are the fenced blocks of a page, by language.
func blocks(t *testing.T, page string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, "docs", page))
	require.NoError(t, err)
	found := map[string][]string{}
	for _, match := range mcpFence.FindAllStringSubmatch(string(text), -1) {
		found[match[1]] = append(found[match[1]], match[2])
	}
	return found
}

// docsHome is a directory as the pages have it, in which their commands run.
func docsHome(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(module, "examples"))))
	write(t, filepath.Join(dir, "README.md"), "three words here\n")
	return dir
}

// typed runs a line of a page.
func typed(t *testing.T, dir, line string) finished {
	t.Helper()
	script := fmt.Sprintf("coordinator() { '%s' \"$@\"; }; worker() { '%s' \"$@\"; }; cd '%s' && %s", coordinator, worker, dir, line)
	return execute(t, "/bin/sh", launch{args: []string{"-c", script}, group: true})
}

// programs collects the command lines of a configuration of an agent.
func programs(value any) (found [][]string) {
	of, is := value.(map[string]any)
	if !is {
		return nil
	}
	var argv []string
	switch command := of["command"].(type) {
	case string:
		argv = append(argv, command)
	case []any:
		for _, word := range command {
			argv = append(argv, fmt.Sprint(word))
		}
	}
	if args, is := of["args"].([]any); is {
		for _, word := range args {
			argv = append(argv, fmt.Sprint(word))
		}
	}
	if argv != nil {
		return [][]string{argv}
	}
	for _, inner := range of {
		found = append(found, programs(inner)...)
	}
	return found
}

// TestMcpDocs_CommandLinesAreTaken: each command line of the pages, and of the configurations in
// them, is one that the program takes.
func TestMcpDocs_CommandLinesAreTaken(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, page := range []string{"mcp.md", "tools-of-your-own.md"} {
		for language, texts := range blocks(t, page) {
			for _, text := range texts {
				if language != "" && language != "sh" {
					continue
				}
				for _, match := range mcpOurs.FindAllStringSubmatch(text, -1) {
					lines = append(lines, strings.TrimSuffix(mcpRemark.ReplaceAllString(match[1], ""), " ..."))
				}
			}
		}
	}
	require.GreaterOrEqual(t, len(lines), 12, lines)
	agents := blocks(t, "mcp.md")
	var configured [][]string
	for _, text := range agents["json"] {
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			if strings.HasPrefix(line, "//") {
				continue
			}
			var config any
			require.NoError(t, json.Unmarshal([]byte(line), &config), line)
			configured = append(configured, programs(config)...)
		}
	}
	for _, text := range agents["toml"] {
		config := map[string]any{}
		for _, match := range tomlValue.FindAllStringSubmatch(text, -1) {
			var value any
			require.NoError(t, json.Unmarshal([]byte(match[2]), &value), match[0]) // these values are JSON, too
			config[match[1]] = value
		}
		configured = append(configured, programs(config)...)
	}
	require.Len(t, configured, 4, "Codex, Cursor, VS Code and opencode")
	for _, argv := range configured {
		lines = append(lines, strings.Join(argv, " "))
	}
	dir := docsHome(t)
	for _, line := range lines {
		got := typed(t, dir, line+" --print-config")
		require.Zero(t, got.code, "%s: %s", line, got.stderr)
		require.True(t, json.Valid([]byte(got.stdout)), line)
	}
}

// TestMcpDocs_FilesAreTaken: each file of the pages is one that is loaded without a fault.
func TestMcpDocs_FilesAreTaken(t *testing.T) {
	t.Parallel()
	own := blocks(t, "tools-of-your-own.md")
	require.Len(t, own["json"], 1)
	servers, faults := toolsmcp.Parse([]byte(own["json"][0]))
	require.Empty(t, faults)
	require.Len(t, servers, 2)
	dir := docsHome(t)
	require.Len(t, own["yaml"], 3)
	for i, text := range own["yaml"] {
		write(t, filepath.Join(dir, "own", fmt.Sprintf("%d.yaml", i)), text)
	}
	for folder, want := range map[string]int{"own": 3, "examples/tools": 2, "examples/servers": 1} {
		opened, err := manifest.Open(filepath.Join(dir, folder))
		require.NoError(t, err)
		set := opened.Load()
		require.Empty(t, set.Problems, folder)
		require.GreaterOrEqual(t, len(set.Tools)+len(set.Servers), want, folder)
	}
	taken := 0
	for _, text := range blocks(t, "mcp.md")[""] {
		tokens, err := access.ReadTokens(strings.NewReader(text))
		require.NoError(t, err)
		taken += len(tokens)
	}
	require.Equal(t, 2, taken)
}

// TestMcpDocs_ExamplesWork: the lines of the pages that need nothing else do what they are for.
func TestMcpDocs_ExamplesWork(t *testing.T) {
	t.Parallel()
	dir := docsHome(t)
	const process = "TOOLFLEET_SANDBOX=process "
	for line, want := range map[string]string{
		"coordinator tools --tools examples/tools":                                                `"word_count"`,
		`coordinator call --tools examples/tools --workspace . word_count '{"path":"README.md"}'`: `3`,
		"coordinator tools --tools examples/servers":                                              `"todo__add"`,
	} {
		require.Contains(t, strings.Join(blocks(t, "tools-of-your-own.md")[""], ""), "$ "+line)
		got := typed(t, dir, process+line)
		require.Zero(t, got.code, "%s: %s", line, got.stderr)
		require.Contains(t, got.stdout, want, line)
	}
}

// TestMcpDocs_ServersByNpx: make interop runs the server by npx as the page has it. Else, and where
// a sandbox does not reach the registry, the same server runs as npm has installed it on this host.
func TestMcpDocs_ServersByNpx(t *testing.T) {
	t.Parallel()
	packages := npmtest.Install(t, "test/mcpservers", "NO TEST OF THE SERVERS OF THE DOCUMENTS")
	var file map[string]map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(blocks(t, "tools-of-your-own.md")["json"][0]), &file))
	delete(file["mcpServers"], "tickets") // of a host that there is not
	dir := docsHome(t)
	run := func(as func(line string) string) (list, call finished) {
		body := encode(t, file)
		write(t, filepath.Join(dir, "mcp.json"), string(body))
		flags := "--mcp-config mcp.json --allow-net npm --workspace ."
		lines := []string{"coordinator tools " + flags, "coordinator call " + flags + ` fs__list_directory '{"path":"."}'`}
		for _, line := range lines {
			require.Contains(t, strings.Join(blocks(t, "tools-of-your-own.md")[""], ""), "$ "+line)
		}
		if list = typed(t, dir, as(lines[0])); list.code == 0 {
			call = typed(t, dir, as(lines[1]))
		}
		return list, call
	}
	list, call := finished{code: 1, stderr: "MCP server fs would be installed by npx: make interop does that"}, finished{}
	if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
		list, call = run(func(line string) string { return line })
		if addresses, err := net.DefaultResolver.LookupHost(t.Context(), "registry.npmjs.org"); list.code != 0 && err == nil {
			for i := range addresses { // they may be those of a mirror in a private network
				prefix := netip.MustParseAddr(addresses[i])
				addresses[i] = netip.PrefixFrom(prefix, prefix.BitLen()).String()
			}
			list, call = run(func(line string) string {
				return "TOOLFLEET_ALLOW_NET_PRIVATE=" + strings.Join(addresses, ",") + " " + line
			})
		}
	}
	if list.code != 0 {
		_, _ = fmt.Fprintf(os.Stderr, "\n*** %s: NOT TESTED BY npx, but with the package that npm has installed: %s ***\n\n", t.Name(), strings.TrimSpace(list.stderr))
		require.Contains(t, list.stderr, "MCP server fs ")
		server := filepath.Join(packages, "node_modules", "@modelcontextprotocol", "server-filesystem", "dist", "index.js")
		args, _ := file["mcpServers"]["fs"]["args"].([]any)
		require.Equal(t, []any{"-y", "@modelcontextprotocol/server-filesystem"}, args[:2])
		file["mcpServers"]["fs"] = map[string]any{"command": "node", "args": append([]any{server}, args[2:]...)}
		list, call = run(func(line string) string { // which needs no network, and a host whose Node may be anywhere
			return "TOOLFLEET_SANDBOX=process " + strings.Replace(line, " --allow-net npm", "", 1)
		})
	}
	require.Zero(t, list.code, list.stderr)
	require.Contains(t, list.stdout, `"fs__list_directory"`)
	require.Zero(t, call.code, call.stderr)
	require.Contains(t, call.stdout, "README.md")
}

// TestMcpTools_AskedInAWorkspace: a server that needs files finds those of --workspace.
func TestMcpTools_AskedInAWorkspace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	body, err := os.ReadFile(mcpServers(t, "test"))
	require.NoError(t, err)
	var file map[string]map[string]map[string]any
	require.NoError(t, json.Unmarshal(body, &file))
	server := file["mcpServers"]["test"]
	server["args"] = []any{"-c", `test -e marker || { echo "no marker" >&2; exit 3; }; exec "$0"`, server["command"]}
	server["command"] = "sh"
	body = encode(t, file)
	write(t, filepath.Join(dir, "mcp.json"), string(body))
	write(t, filepath.Join(dir, "here", "marker"), "")
	const line = "TOOLFLEET_SANDBOX=process coordinator tools --mcp-config mcp.json"
	got := typed(t, dir, line+" --workspace here")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, `"test__count"`)
	got = typed(t, dir, line)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "no marker")
	got = typed(t, dir, line+" --workspace here --nats nats://127.0.0.1:1")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "--workspace here: works only without --nats, for MCP servers of this process")
	require.Equal(t, 2, typed(t, dir, line+" --workspace none").code)
}
