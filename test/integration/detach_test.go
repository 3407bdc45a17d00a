package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// session runs a verb of coordinator session on the fleet.
func (b *broker) session(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"session", verb}, b.flags...), args...)})
}

// submit leaves a turn to the fleet, and returns the session's id.
func (b *broker) submit(tb testing.TB, args ...string) string {
	tb.Helper()
	got := execute(tb, coordinator, launch{args: append(append([]string{"submit", "--detach"}, b.flags...), args...)})
	require.Equal(tb, 0, got.code, got.stderr)
	require.Contains(tb, got.stderr, "session attach")
	return strings.TrimSpace(got.stdout)
}

// TestDetach_TurnIsAttachedToAndItsWorkspacePulled: whoever submits a turn can go, and come back to
// it while it runs and when it has ended.
func TestDetach_TurnIsAttachedToAndItsWorkspacePulled(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t,
		say("Changing.", bash("c1", "echo theirs > only.txt; echo theirs > both.txt; rm gone.txt; "+hold.pass())),
		say("All changed."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	for _, name := range []string{"only.txt", "both.txt", "ours.txt", "gone.txt"} {
		write(t, filepath.Join(workspace, name), "before\n")
	}
	id := b.submit(t, "--workspace", workspace, "do it")

	first := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	first.waitFor(t, `\[1\.1 bash\] › `) // live news of before are not told again
	first.signal(t, syscall.SIGINT)
	require.Equal(t, 130, first.wait(t))
	require.Contains(t, first.stderr.String(), "the turn continues")

	second := start(t, coordinator, launch{args: append([]string{"session", "attach", "--json", id}, b.flags...)})
	hold.open(t)
	require.Equal(t, 0, second.wait(t), second)
	list := events(t, second.stdout.String())
	require.Equal(t, "session_started", list[0].Type)
	require.Equal(t, "session_ended", list[len(list)-1].Type)
	require.Equal(t, "All changed.", list[len(list)-1].Text)
	require.Len(t, results(list), 1)

	ended := b.session(t, "attach", id)
	require.Equal(t, 0, ended.code, ended.stderr)
	require.Equal(t, "All changed.\n", ended.stdout)
	require.Equal(t, 1, strings.Count(ended.stderr, "✓ answered"), ended.stderr)
	require.Regexp(t, `\n  changed  both\.txt *\n +gone\.txt +deleted\n +only\.txt *\n$`, ended.stderr, "what commands changed, too")
	require.Contains(t, b.session(t, "log", id).stdout, "All changed.")

	require.Equal(t, "before\n", content(t, filepath.Join(workspace, "only.txt")), "nothing came back yet")
	write(t, filepath.Join(workspace, "ours.txt"), "ours\n")
	write(t, filepath.Join(workspace, "both.txt"), "ours\n")
	pulled := b.session(t, "pull", id, workspace)
	require.Equal(t, 0, pulled.code, pulled.stderr)
	require.Equal(t, "theirs\n", content(t, filepath.Join(workspace, "only.txt")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "ours.txt")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "both.txt")))
	require.NoFileExists(t, filepath.Join(workspace, "gone.txt"))
	require.Regexp(t, `left unchanged here: both\.txt; the version of the session is in both\.txt\.toolfleet-theirs\n`, pulled.stderr)

	whole := filepath.Join(t.TempDir(), "whole")
	require.Equal(t, 0, b.session(t, "pull", id, whole).code)
	require.Equal(t, "theirs\n", content(t, filepath.Join(whole, "both.txt")))
	require.Equal(t, "before\n", content(t, filepath.Join(whole, "ours.txt")))
}

// TestDetach_CancelEndsWhatRunsAndWaits: of a session that was left, by whoever knows its id.
func TestDetach_CancelEndsWhatRunsAndWaits(t *testing.T) {
	t.Parallel()
	model := script(t, say("Waiting.", bash("c1", "sleep 600")), say("Never."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	id := b.submit(t, "first")
	attached := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	attached.waitFor(t, `\[1\.1 bash\] › `)
	require.Equal(t, id, b.submit(t, "--session", id, "second"))

	got := b.session(t, "cancel", "--json", id)
	require.Equal(t, 0, got.code, got.stderr)
	var cancelled struct {
		Cancelled []string `json:"cancelled"`
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &cancelled))
	require.Len(t, cancelled.Cancelled, 2)
	require.Equal(t, 130, attached.wait(t), "the turn that is followed was interrupted")
	require.Contains(t, b.session(t, "cancel", id).stdout, "it has no turn that runs or waits")
	require.Regexp(t, `interrupted`, b.session(t, "show", id).stdout)
}

// TestWorkspace_SecondTurnKeepsWhatTheUserChangedBetween: the session's copy is not newer than the
// directory because it was there first.
func TestWorkspace_SecondTurnKeepsWhatTheUserChangedBetween(t *testing.T) {
	t.Parallel()
	model := script(t, say("Changing.", bash("c1", "echo theirs > theirs.txt")), say("Done."), say("Nothing to do."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "ours.txt"), "before\n")
	args := append([]string{"run", "--model", model, "--session", "twice", "--workspace", workspace}, b.flags...)
	succeed(t, coordinator, launch{args: append(args, "first")})
	write(t, filepath.Join(workspace, "ours.txt"), "ours\n")
	got := succeed(t, coordinator, launch{args: append(args, "second")})
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "ours.txt")))
	require.NotContains(t, got.stderr, "left unchanged here", "only one side changed it")
}

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
		say("Making.", bash("c0",
			"mkdir many; cd many; for i in $(seq -w 0 1199); do echo hit >f$i; done; head -c 150000 /dev/zero | tr '\\0' x >../wide; echo \"[$(seq -s, 1 20000)]\" >../a.json")),
		say("Reading.", bash("bash", "seq 20000"), use("glob", "glob", object{"pattern": "many/*"}), use("grep", "grep", object{"pattern": "hit", "path": "many"}),
			use("list", "list", object{"path": "many"}), use("tree", "tree", object{"path": "many"}), use("read", "read", object{"path": "wide"}),
			use("json", "json_read", object{"path": "a.json"}), use("own", "long", object{})),
		say("Done."))
	run := succeed(t, coordinator, launch{args: append([]string{"run", "--json", "--session", "cut", "--model", model, "--tools", folder, "go"}, b.flags...)})
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
		succeed(t, coordinator, launch{args: append([]string{"session", "rm", id}, b.flags...)})
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
