package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var (
	resultPath = regexp.MustCompile(`path=\\?"(result:[^"\\]+)\\?"`)
	resultFrom = regexp.MustCompile(`:\d+(@\d+)?$`)
)

// reader reads what a mark names to its end, by calls of the tool read.
func reader(t *testing.T, flags []string, session string) func(mark string) string {
	t.Helper()
	return func(mark string) string {
		t.Helper()
		found := resultPath.FindStringSubmatch(mark)
		require.NotNil(t, found, "no handle: %s", mark[max(0, len(mark)-300):])
		var all strings.Builder
		path := resultFrom.ReplaceAllString(found[1], "")
		for range 100 {
			page := parseCall(t, execute(t, coordinator, launch{args: append([]string{
				"call", "read", `{"path":"` + path + `"}`, "--session", session,
			}, flags...)}))
			require.Equal(t, "ok", page.Status, page.Content)
			at := strings.LastIndexByte(page.Content, '\n')
			for i, line := range strings.Split(page.Content[:at], "\n") {
				_, text, _ := strings.Cut(line, "\t")
				if all.Len() > 0 && (i > 0 || !strings.Contains(path, "@")) {
					all.WriteByte('\n')
				}
				all.WriteString(text)
			}
			next := resultPath.FindStringSubmatch(page.Content[at:])
			if next == nil {
				return all.String()
			}
			path = next[1]
		}
		require.Fail(t, "there is no end of it")
		return ""
	}
}

// aged is a fleet of which every result, and whatever else has an age, is gone.
func aged(t *testing.T, b *broker) {
	t.Helper()
	js := b.jetStream(t)
	for _, name := range []string{wire.ResultsStream(protocol.DefaultFleet), "OBJ_" + wire.BlobsBucket(protocol.DefaultFleet)} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.NotZero(t, stream.CachedInfo().Config.MaxAge, "%s has an age", name)
		require.NoError(t, stream.Purge(t.Context()))
	}
	for _, name := range []string{wire.SessionsStream(protocol.DefaultFleet), "OBJ_" + wire.KeptBucket(protocol.DefaultFleet)} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.Zero(t, stream.CachedInfo().Config.MaxAge, "%s has none", name)
	}
}

// TestCut_ResultsAreKeptUntilTheirSessionIsRemoved: what a session's tools returned and its
// model was not shown, of each sort, is there after the results have aged out and with other
// processes than those that made it, and gone with the session.
func TestCut_ResultsAreKeptUntilTheirSessionIsRemoved(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	data := filepath.Join(t.TempDir(), "data")
	folder := t.TempDir()
	write(t, filepath.Join(folder, "long.json"), `{"name":"long","description":"Returns much.","parameters":{"type":"object","properties":{}},
		"command":["sh","-c","printf '\"'; head -c 100000 /dev/zero | tr '\\0' v; printf '\"'"]}`)
	var names, numbers, hits []string
	for i := range 1200 {
		names = append(names, fmt.Sprintf("many/f%04d", i))
		hits = append(hits, fmt.Sprintf("many/f%04d:1:hit", i))
	}
	for i := range 20_000 {
		numbers = append(numbers, fmt.Sprint(i+1))
	}
	wide := strings.Repeat("x", 150_000)
	workers := startWorkers(t, 1, append([]string{"--data", data}, b.flags...))
	model := script(t,
		say("Making.", bash("c0", "mkdir many; cd many; for i in $(seq -w 0 1199); do echo hit >f$i; done; head -c 150000 /dev/zero | tr '\\0' x >../wide; echo \"[$(seq -s, 1 20000)]\" >../a.json")),
		say("Reading.", bash("bash", "seq 20000"), use("glob", "glob", object{"pattern": "many/*"}), use("grep", "grep", object{"pattern": "hit", "path": "many"}),
			use("list", "list", object{"path": "many"}), use("tree", "tree", object{"path": "many"}), use("read", "read", object{"path": "wide"}),
			use("json", "json_read", object{"path": "a.json"}), use("own", "long", object{})),
		say("Done."))
	run := execute(t, coordinator, launch{args: append([]string{"run", "--json", "--session", "cut", "--model", model, "--tools", folder, "go"}, b.flags...)})
	require.Equal(t, 0, run.code, run.stderr)
	shown := results(events(t, run.stdout))
	for _, w := range workers {
		w.stop(t)
	}
	startWorkers(t, 1, append([]string{"--data", data}, b.flags...))
	aged(t, b)

	read := reader(t, b.flags, "cut")
	require.Equal(t, strings.Join(numbers, "\n"), read(shown["bash"].Content))
	require.Equal(t, strings.Join(names, "\n"), read(shown["glob"].Content))
	require.Equal(t, strings.Join(hits, "\n"), read(shown["grep"].Content))
	entries := strings.ReplaceAll(strings.Join(names, " (4 bytes)\n")+" (4 bytes)", "many/", "")
	require.Equal(t, entries, read(shown["list"].Content))
	require.Equal(t, entries, read(shown["tree"].Content))
	require.Equal(t, wide, read(shown["read"].Content))
	require.Equal(t, "["+strings.Join(numbers, ",")+"]", read(shown["json"].Content))
	require.Equal(t, strings.Repeat("v", 100_000), read(shown["own"].Content))
	another := parseCall(t, execute(t, coordinator, launch{args: append([]string{
		"call", "read", `{"path":"` + resultPath.FindStringSubmatch(shown["glob"].Content)[1] + `"}`, "--session", "other",
	}, b.flags...)}))
	require.Equal(t, "not_found", another.Error.Code, "another session does not see it")

	for _, id := range []string{"cut", "other"} {
		rm := execute(t, coordinator, launch{args: append([]string{"session", "rm", id}, b.flags...)})
		require.Equal(t, 0, rm.code, rm.stderr)
	}
	store, err := b.jetStream(t).ObjectStore(t.Context(), wire.KeptBucket(protocol.DefaultFleet))
	require.NoError(t, err)
	_, err = store.List(t.Context(), jetstream.ListObjectsShowDeleted())
	require.ErrorIs(t, err, jetstream.ErrNoObjectsFound)
	gone := execute(t, coordinator, launch{args: append([]string{
		"call", "read", `{"path":"` + resultPath.FindStringSubmatch(shown["glob"].Content)[1] + `"}`, "--session", "cut",
	}, b.flags...)})
	require.NotEqual(t, 0, gone.code)
	require.Contains(t, gone.stderr, "session cut was removed")
}
