// Package docs_test checks the documents: links and names of tests are valid, each page begins with
// what its reader does, and words that readers stumble over stay out.
package docs_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// documents returns every Markdown file of the repository by its path.
func documents(t *testing.T) map[string][]byte {
	t.Helper()
	root := os.DirFS("../..")
	found := map[string][]byte{}
	require.NoError(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && (entry.Name()[0] == '.' || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if path.Ext(name) != ".md" || entry.IsDir() {
			return nil
		}
		found[name], err = fs.ReadFile(root, name)
		return err
	}))
	require.Greater(t, len(found), 10)
	return found
}

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := documents(t)
	for name, text := range all {
		text = code.ReplaceAll(fence.ReplaceAll(text, nil), nil)
		for _, match := range link.FindAllSubmatch(text, -1) {
			checkLink(t, os.DirFS("../.."), all, name, string(match[1]))
		}
	}
}

// checkLink fails for a target that is not in the repository, or a heading that its document does
// not have. Addresses elsewhere are not asked for.
func checkLink(t *testing.T, root fs.FS, documents map[string][]byte, from, target string) {
	t.Helper()
	if strings.Contains(target, "://") {
		return
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
		if _, err := fs.Stat(root, to); err != nil {
			t.Errorf("%s: %s leads to no file", from, target)
			return
		}
	}
	if anchor != "" && !hasAnchor(documents[to], anchor) {
		t.Errorf("%s: %s leads to no heading", from, target)
	}
}

// hasAnchor knows the anchors that GitHub gives to headings.
func hasAnchor(text []byte, anchor string) bool {
	for _, match := range heading.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		title := bytes.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[1])
		if string(title) == anchor {
			return true
		}
	}
	return false
}

// TestDocs_BeginWithTheReader: each page begins with what its reader does, not with a promise of
// what the page teaches.
func TestDocs_BeginWithTheReader(t *testing.T) {
	t.Parallel()
	pages := 0
	for name, text := range documents(t) {
		if strings.HasPrefix(name, "docs/") {
			require.Regexp(t, `\A# .+\n\n[A-Z*|]`, string(text), name)
			require.NotRegexp(t, `\A# .+\n\n(After|In|On) this page`, string(text), name)
			pages++
		}
	}
	require.Greater(t, pages, 10)
}

// TestDocs_Readme: the README can be read in three minutes, its commands can be pasted as they are,
// and its Go code compiles.
func TestDocs_Readme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, len(strings.Fields(string(readme))), 700, "words of README.md")
	var programs []string
	for _, match := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```").FindAllStringSubmatch(string(readme), -1) {
		switch match[1] {
		case "sh":
			require.NotContains(t, match[2], "...")
		case "go":
			programs = append(programs, match[2])
		}
	}
	require.NotEmpty(t, programs)
	for _, body := range programs {
		file := filepath.Join(t.TempDir(), "main.go")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `package readme

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func run(ctx context.Context) error {
%s}

var _ = run
`, body), 0o600))
		out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", file).CombinedOutput()
		require.NoError(t, err, "the Go code of README.md: %s", out)
	}
}

// TestDocs_TestsAreThere: each test that a document names exists.
func TestDocs_TestsAreThere(t *testing.T) {
	t.Parallel()
	var names strings.Builder
	require.NoError(t, filepath.WalkDir("../..", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Example)\w*)`).FindAllSubmatch(text, -1) {
			fmt.Fprintf(&names, "%s\n", match[1])
		}
		return err
	}))
	for name, text := range documents(t) {
		for _, match := range regexp.MustCompile("`((?:Test|Benchmark)[A-Z]\\w*)(\\*?)`").FindAllSubmatch(text, -1) {
			want := "\n" + string(match[1])
			if len(match[2]) == 0 {
				want += "\n"
			}
			if !strings.Contains("\n"+names.String(), want) {
				t.Errorf("%s: there is no test %s", name, match[0])
			}
		}
	}
}

// TestDocs_FoldersAreThere: ARCHITECTURE.md names each folder of internal, pkg and test.
func TestDocs_FoldersAreThere(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	for _, parent := range []string{"internal", "pkg", "test"} {
		entries, err := os.ReadDir(filepath.Join("../..", parent))
		require.NoError(t, err)
		for _, entry := range entries {
			folder := "`" + parent + "/" + entry.Name() + "`"
			if entry.IsDir() && !bytes.Contains(page, []byte(folder)) {
				t.Errorf("ARCHITECTURE.md does not name %s", folder)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the generated tables")

// TestDocs_PolicyListsInterfacesAndActs: the tables of the page are those of the code.
func TestDocs_PolicyListsInterfacesAndActs(t *testing.T) {
	t.Parallel()
	const file = "../../docs/policy.md"
	body, err := os.ReadFile(file)
	require.NoError(t, err)
	page := string(body)
	for name, table := range map[string]string{"interfaces": interfacesTable(), "acts": actsTable()} {
		begin := strings.Index(page, "<!-- "+name+": ")
		require.Positive(t, begin, name)
		begin += strings.Index(page[begin:], "-->\n") + len("-->\n")
		end := begin + strings.Index(page[begin:], "<!-- end -->")
		if *update {
			page = page[:begin] + table + page[end:]
			continue
		}
		require.Equal(t, table, page[begin:end], "go test ./test/docs -run Interfaces -update")
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o644))
	}
}

// interfacesTable is a table of [judge.Interfaces].
func interfacesTable() string {
	var text strings.Builder
	text.WriteString("| interface | who acts | acts that are judged | calls of tools | calls are counted in |\n|---|---|---|---|---|\n")
	for _, way := range judge.Interfaces() {
		var acts, classes []string
		for _, act := range judge.Acts() {
			var kinds []string
			for _, on := range way.Judged {
				if on.Act == act {
					kinds = append(kinds, string(on.Kind))
				}
			}
			if len(kinds) > 0 {
				acts = append(acts, string(act)+" "+strings.Join(kinds, ", "))
			}
		}
		for _, class := range way.Classes {
			classes = append(classes, string(class))
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", way.Name, way.Who, strings.Join(acts, "; "), cmp.Or(strings.Join(classes, ", "), "-"), cmp.Or(way.Count, "-"))
	}
	return text.String()
}

// actsTable is a table of [judge.Rules].
func actsTable() string {
	var text strings.Builder
	text.WriteString("| act | objects | role for its own | role for those of others |\n|---|---|---|---|\n")
	for _, rule := range judge.Rules() {
		var kinds []string
		for _, kind := range rule.Kinds {
			kinds = append(kinds, string(kind))
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", rule.Act, strings.Join(kinds, ", "), cmp.Or(string(rule.Own), "none"), rule.Others)
	}
	return text.String()
}

// The page for operators names what the code reserves.
func TestDocs_StorageOfAFleet(t *testing.T) {
	t.Parallel()
	all := documents(t)
	page := string(all["docs/operations/start.md"])
	require.Contains(t, page, fmt.Sprintf("reserves at least %d MiB", natsio.LeastRoom>>20))
	require.Contains(t, page, fmt.Sprintf("With %d MiB there is the whole room", natsio.WholeRoom>>20))
	require.Contains(t, string(all["docs/operations/maintain.md"]), fmt.Sprintf("down to %d MiB", natsio.LeastCallBytes>>20))
}

// TestDocs_ListReasons: the page that explains where time goes has each reason.
func TestDocs_ListReasons(t *testing.T) {
	t.Parallel()
	page := string(documents(t)["docs/operations/watch.md"])
	for _, r := range report.Reasons() {
		require.Regexp(t, "(?m)^\\|.*`"+string(r)+"`.* \\| ", page)
	}
}

// TestCoordinator_UsesThePublicClient: cmd/coordinator does with a fleet what the public client,
// pkg/fleet, can do. Some files import packages of the engine, or use the fleet behind the client
// ([environment.Environment].Fleet). Take a file off the list when it no longer does; add none.
func TestCoordinator_UsesThePublicClient(t *testing.T) {
	t.Parallel()
	engine := []string{"approval", "dispatch", "fleet", "journal", "lane", "lane/operator", "limits", "natsio", "schedule", "session", "workspace"}
	allowed := []string{
		"bench.go",      // measures the engine itself
		"call.go",       // judges a call before it opens a fleet, which a refused one needs not; reports its waits
		"call_batch.go", // sends all calls in one step, and reports their waits, which futures do not
		"http.go",       // is a server: its calls run in a worker of its process
		"jointoken.go",  // makes the pool of a worker that joins, in a fleet that it need not have the rights to use
		"listen.go",     // is what the servers share: HTTP and MCP of a coordinator
		"mcp.go",        // is a server: its sessions are processes of clients
		"run.go",        // aborts the worker in this process, binds a model's limits, lists as tools.go
		"serve.go",      // is a part of the fleet, not a client of it
		"settings.go",   // contexts of NATS, for each command
		"tools.go",      // reports what MCP servers wait for to start, which Client.ServerTools does not
	}
	files, err := filepath.Glob("../../cmd/coordinator/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		if bytes.Contains(content, []byte("env.Fleet")) {
			found[filepath.Base(name)] = true
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if slices.Contains(engine, strings.TrimPrefix(imported, "github.com/toolfleet/toolfleet/internal/")) {
				found[filepath.Base(name)] = true
			}
		}
	}
	require.Equal(t, slices.Sorted(slices.Values(allowed)), slices.Sorted(maps.Keys(found)))
}

// words are those that make readers read a sentence twice. Documents and help texts have none of
// them. Comments of Go code have at most as many as the number says, which may only be lowered.
var words = []struct {
	pattern  *regexp.Regexp
	write    string
	comments int
}{
	{word(`whoever|nobody|somebody|everybody`), "the actor: the caller, the holder, no worker", 52},
	{word(`told|tells?|telling|hears?|heard`), "notified, reported, returned, received", 56},
	{word(`places?`), "path, location, directory, position", 118},
	{word(`beside`), "next to, concurrently with, in addition to", 19},
	{word(`of which|of whom|of whose`), "a sentence of its own", 39},
	{word(`anew`), "from scratch, again", 5},
	{word(`goes on|go on|lets? go`), "continues; releases", 36},
	{word(`desk|seat|roster|heeds?|wonders?|bury|buries|doors?|news|foretells?|thereof`), "the field's word", 17},
	{word(`shuts? in`), "isolates", 1},
}

// word matches any of alternatives, as a whole word.
func word(alternatives string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + alternatives + `)\b`)
}

// exceptions are terms, which are removed before words are searched for.
var exceptions = regexp.MustCompile(`(?i)\bin[ -]place\b|takes? place`)

// find returns the words of a text that match a pattern, each with its line.
func find(text string, pattern *regexp.Regexp) (found []string) {
	for line := range strings.Lines(text) {
		for range pattern.FindAllString(exceptions.ReplaceAllString(line, ""), -1) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func TestWords_Documents(t *testing.T) {
	t.Parallel()
	for name, text := range documents(t) {
		prose := string(code.ReplaceAll(fence.ReplaceAll(text, nil), nil))
		for _, word := range words {
			for _, line := range find(prose, word.pattern) {
				t.Errorf("%s: %q has %q: write %s", name, line, word.pattern, word.write)
			}
		}
	}
}

// TestWords_Code: help texts have none of the words, and comments no more than they had.
func TestWords_Code(t *testing.T) {
	t.Parallel()
	help := regexp.MustCompile(`help:"((?:[^"\\]|\\.)*)"`)
	comments := map[*regexp.Regexp]int{}
	require.NoError(t, filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || entry.IsDir() {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var tokens scanner.Scanner
		files := token.NewFileSet()
		tokens.Init(files.AddFile(name, -1, len(source)), source, nil, scanner.ScanComments)
		for {
			_, kind, text := tokens.Scan()
			switch kind {
			case token.COMMENT:
				for _, word := range words {
					comments[word.pattern] += len(find(text, word.pattern))
				}
			case token.STRING:
				for _, match := range help.FindAllStringSubmatch(text, -1) {
					for _, word := range words {
						require.Empty(t, find(match[1], word.pattern), "%s: write %s", name, word.write)
					}
				}
			case token.EOF:
				return nil
			}
		}
	}))
	for _, word := range words {
		n := comments[word.pattern]
		require.LessOrEqual(t, n, word.comments, "%q in comments: write %s", word.pattern, word.write)
		if n < word.comments {
			t.Logf("%q: %d are left: lower the bound from %d", word.pattern, n, word.comments)
		}
	}
}
