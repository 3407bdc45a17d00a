package firsthour

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// serveIndex starts an index of Python packages as pip asks one, in which each package has one
// function, capitals. It returns the flags by which sandboxes reach it, by the proxy: what
// registries are for the other languages no test machine has to reach for Python.
func serveIndex(t *testing.T, packages []string) []string {
	t.Helper()
	if len(packages) == 0 {
		return nil
	}
	mux := http.NewServeMux()
	for _, name := range packages {
		file, content := wheel(t, name)
		mux.HandleFunc("/simple/"+name+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte(`<a href="/files/` + file + `">` + file + `</a>`))
		})
		mux.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	return []string{
		"--allow-net", address, "--allow-net-private", loopback + "/32",
		"--env", "NO_PROXY=", "--env", "no_proxy=", "--env", "PIP_INDEX_URL=" + server.URL + "/simple", "--env", "PIP_TRUSTED_HOST=" + loopback,
	}
}

// wheel is version 1.0.0 of a package, as pip installs it.
func wheel(t *testing.T, name string) (file string, content []byte) {
	t.Helper()
	var buffer bytes.Buffer
	w := zip.NewWriter(&buffer)
	about := name + "-1.0.0.dist-info/"
	for _, entry := range [][2]string{
		{name + ".py", "def capitals(text):\n    return text.upper()\n"},
		{about + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0.0\n"},
		{about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{about + "RECORD", name + ".py,,\n" + about + "METADATA,,\n" + about + "WHEEL,,\n" + about + "RECORD,,\n"},
	} {
		f, err := w.Create(entry[0])
		require.NoError(t, err)
		_, err = f.Write([]byte(entry[1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return name + "-1.0.0-py3-none-any.whl", buffer.Bytes()
}

// bash runs a command in a directory of the person's, in place, and returns what a model reads.
func (who person) bash(tb testing.TB, workspace, command string, flags ...string) string {
	tb.Helper()
	arguments, err := json.Marshal(map[string]any{"command": command, "timeout": 600})
	require.NoError(tb, err)
	out, _ := who.coordinator(tb, append([]string{"call", "--workspace", workspace, "bash", string(arguments)}, flags...)...)
	var result struct{ Content string }
	require.NoError(tb, json.Unmarshal([]byte(out), &result), out)
	return result.Content
}

// poison tries to change the cache that has the file $1, and what lies above the session's own, by
// every path that leads there and by links.
const poison = `victim=%q; caches=%q; mine=${GOCACHE%%/go/build}; mkdir -p "$GOCACHE"
	for to in "$victim" "$mine"/../used "$mine"/../project "$mine"/../lock "$mine"/../new "$mine"/../../new "$mine"/../../*/files/go/build/x; do
		echo poison >"$to"; echo poison >>"$to"; rm -f "$to"; mv "$GOCACHE" "$to"; ln "$victim" "$mine/hard" && echo poison >"$mine/hard"
	done
	rm -rf "$(dirname "$victim")" "$caches"/* "$GOCACHE"; mv "$mine" "$mine/../gone"
	ln -s "$(dirname "$victim")" "$GOCACHE"; echo poison >"$GOCACHE/x"; rm -f "$GOCACHE/x"; echo tried`

// TestCache_OtherProjectsCannotChangeIt by whatever a session writes at its own cache, above it, or
// at the places of the host that it was told of.
func TestCache_OtherProjectsCannotChangeIt(t *testing.T) {
	t.Parallel()
	asUsers(t, "poison", func(t *testing.T, uid int) {
		t.Helper()
		if uid == 0 && os.Getenv("TOOLFLEET_FIRSTHOUR") != "all" {
			t.Skip("as an ordinary user is enough: make firsthour runs both")
		}
		for _, driver := range []string{"ns", "landlock"} {
			if driver == "landlock" && uid == 0 {
				continue // which it refuses
			}
			who := newPerson(t, uid)
			other := filepath.Join(who.home, "other")
			require.NoError(t, os.Mkdir(other, 0o755))
			who.own(t)
			who.bash(t, who.workspace, `mkdir -p "$GOCACHE" && echo kept >"$GOCACHE/x"`, "--sandbox", driver)
			caches := filepath.Join(who.home, ".local/state/toolfleet/caches")
			before := contents(t, caches)
			found, err := filepath.Glob(filepath.Join(caches, "*/files/go/build/x"))
			require.NoError(t, err)
			require.Len(t, found, 1)

			require.Contains(t, who.bash(t, other, fmt.Sprintf(poison, found[0], caches), "--sandbox", driver), "tried\n")
			after := contents(t, caches)
			for path, content := range before {
				require.Equal(t, content, after[path], path)
			}
			require.Len(t, after, len(before)+3, "lock, project and used of its own: %v", after)
			require.Equal(t, "kept\n", who.bash(t, who.workspace, `cat "$GOCACHE/x"`, "--sandbox", driver))
		}
	})
}

// together waits until two sessions of a workspace are this far, and gives each a copy of it.
const together = `touch "$(mktemp at.XXXX)" && until test "$(ls at.* | wc -l)" -ge 2; do sleep 0.1; done; copy=$(mktemp -d) && cp -R . "$copy" && cd "$copy" && `

// TestCache_TwoSessionsFillItAtOnce with the same modules, packages and results of the compiler;
// what they leave is whole.
func TestCache_TwoSessionsFillItAtOnce(t *testing.T) {
	t.Parallel()
	if os.Getenv("TOOLFLEET_FIRSTHOUR") != "all" {
		t.Skip("two cold builds of modules and packages take minutes: make firsthour runs it")
	}
	project{needs: []string{"go", "node", "npm"}}.available(t)
	flags := reach(t, []string{"go", "npm"})
	who := newPerson(t, os.Geteuid())
	for _, name := range []string{"gomodules", "npm"} {
		readProject(t, "testdata/"+name+".txtar").layOut(t, who)
	}
	who.own(t)
	const build = "go build -o built . && ./built v1.10.0 v1.9.0 && npm ci --ignore-scripts 2>&1 && node index.js"
	who.bash(t, who.workspace, "npm install --package-lock-only", append(flags, "--cache", "none")...)
	works := func(t *testing.T, command, last string, flags ...string) {
		t.Helper()
		result := who.bash(t, who.workspace, command, flags...)
		require.Contains(t, result, "v1.9.0 v1.10.0")
		require.Contains(t, result, last)
		require.NotContains(t, result, "exit code")
	}
	t.Run("at once", func(t *testing.T) {
		for _, name := range []string{"one", "two"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				works(t, together+build, "7200000", flags...)
			})
		}
	})
	works(t, build+" && go mod verify", "all modules verified")
}

// contents are the regular files below a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		files[path] = string(content)
		return err
	}))
	return files
}

// BenchmarkCache_SecondSession is the first go test of a session whose cache is full, beside the
// next one in the same sandbox: by turns, so that both have the machine's good and bad times.
func BenchmarkCache_SecondSession(b *testing.B) {
	project{needs: []string{"go"}}.available(b)
	who := newPerson(b, os.Geteuid())
	for name, content := range map[string]string{
		"go.mod":    "module example.org/served\n\ngo 1.24\n",
		"x_test.go": "package served\n\nimport (\n\t\"net/http\"\n\t\"testing\"\n)\n\nfunc Test(t *testing.T) { t.Log(http.StatusText(200)) }\n",
	} {
		require.NoError(b, os.WriteFile(filepath.Join(who.workspace, name), []byte(content), 0o644))
	}
	who.own(b)
	const command = "for i in 1 2; do from=$(date +%s%N); go test -count=1 ./... || exit; echo took $(($(date +%s%N) - from)); done"
	who.bash(b, who.workspace, command)
	var first, warm []float64
	for b.Loop() {
		said := who.bash(b, who.workspace, command)
		took := regexp.MustCompile(`took (\d+)`).FindAllStringSubmatch(said, -1)
		require.Len(b, took, 2, said)
		first, warm = append(first, number(b, took[0][1])), append(warm, number(b, took[1][1]))
	}
	ratio := median(first) / median(warm)
	b.ReportMetric(median(first)/1e9, "s/first")
	b.ReportMetric(median(warm)/1e9, "s/warm")
	b.ReportMetric(ratio, "first/warm")
	if b.N >= 7 {
		require.LessOrEqual(b, ratio, 1.2)
	}
}

func number(tb testing.TB, text string) float64 {
	tb.Helper()
	n, err := strconv.ParseFloat(text, 64)
	require.NoError(tb, err)
	return n
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
