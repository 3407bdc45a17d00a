package firsthour

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

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
