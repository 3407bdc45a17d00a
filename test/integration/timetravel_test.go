package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a session was after a call can be had as a directory and as a session of its own, without a
// worker, and with one the session itself goes back.
func TestTimeTravel_PullForkAndRestore(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	run := func(id, model string) finished {
		t.Helper()
		got := succeed(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), "--session", id, "--model", model, "go on")})
		return got
	}
	session := func(verb string, args ...string) string {
		t.Helper()
		got := b.session(t, verb, args...)
		require.Equal(t, 0, got.code, got)
		return got.stdout
	}
	machine := func(do func()) {
		t.Helper()
		for _, w := range startWorkers(t, 1, b.flags) {
			do()
			w.stop(t)
		}
	}
	building := say("Building.", bash("c1", "mkdir d; echo one > d/f; head -c 200000 /dev/zero | tr '\\0' x > large"))
	model := script(t, building, say("Done."), say("", bash("c2", "echo two > d/f; rm large")), say("Done."))
	machine(func() {
		run("s-1", model)
		run("s-1", model)
	})
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal([]byte(session("diff", "--json", "s-1")), &calls))
	require.Len(t, calls, 2)
	first := calls[0].Calls[0]

	dir := filepath.Join(t.TempDir(), "pulled")
	session("pull", "--at", first, "s-1", dir)
	requireFile(t, filepath.Join(dir, "d/f"), "one\n")
	requireFile(t, filepath.Join(dir, "large"), strings.Repeat("x", 200_000))
	session("pull", "s-1", dir) // on from there
	requireFile(t, filepath.Join(dir, "d/f"), "two\n")
	require.NoFileExists(t, filepath.Join(dir, "large"))

	fork := strings.TrimSpace(session("fork", "--at", first, "--leave-effects", "s-1"))
	require.Equal(t, "one\n", session("files", fork, "d/f"))
	require.Contains(t, session("log", fork), "Building.")
	require.Equal(t, "two\n", session("files", "s-1", "d/f"))
	forked := script(t, building, say("", bash("c3", "cat d/f; wc -c large; echo three > d/f")), say("Done."))
	machine(func() {
		require.Contains(t, session("restore", "--at", first, "--leave-effects", "s-1"), "2 files written")
		require.Contains(t, run(fork, forked).stderr, "one")
		session("rm", "s-1")
	})
	require.Equal(t, "three\n", session("files", fork, "d/f"))
	for _, bad := range [][]string{
		{"pull", "--at", "other", fork, dir}, {"fork", "--at", "other", fork}, {"fork", "nobody"}, {"fork", "s-1"},
	} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, bad)
	}
	require.Equal(t, 2, b.session(t, "restore", fork).code, "--at is missing")
	require.Equal(t, 2, b.session(t, "fork", "--at", "a.b", fork).code)
}

func requireFile(t *testing.T, path, want string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(content))
}

// rewinding is a session with tools of the user's own: order, which undo reverts, and ping, which
// nothing does. Both log that they ran.
type rewinding struct {
	*broker

	tools, log string
}

func newRewinding(t *testing.T, order string) *rewinding {
	t.Helper()
	r := &rewinding{newBroker(t), t.TempDir(), filepath.Join(t.TempDir(), "log")}
	for name, more := range map[string]string{"order": `"revert": {"tool": "undo", "arguments": {"n": "{n}"}},`, "undo": "", "ping": ""} {
		command := fmt.Sprintf(`line=$(cat); echo "%s $line" >> '%s'`, name, r.log)
		if name == "order" {
			command += order
		}
		encoded := encode(t, command)
		write(t, filepath.Join(r.tools, name+".json"), fmt.Sprintf(`{"name": %q, "description": "Does it.", %s "delivery": "at_most_once",
			"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}, "command": ["sh", "-c", %s]}`, name, more, encoded))
	}
	return r
}

func (r *rewinding) run(t *testing.T, model string) {
	t.Helper()
	succeed(t, coordinator, launch{args: append(append([]string{"run"}, r.flags...), "--tools", r.tools, "--session", "s-1", "--model", model, "go on")})
}

// logged is what ran since the last time.
func (r *rewinding) logged(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(r.log)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
		require.NoError(t, os.Remove(r.log))
	}
	return string(content)
}

// A session is not rewound behind effects unless flags say what becomes of them: --revert undoes
// those that have a revert, --leave-effects leaves the rest.
func TestRewind_EffectsOutsideOfTheWorkspace(t *testing.T) {
	t.Parallel()
	r := newRewinding(t, "")
	startWorkers(t, 1, r.flags)
	file := func(id, content string) object { return use(id, "write", object{"path": "f", "content": content}) }
	first, second := say("", file("c1", "one"), use("c2", "order", object{"n": 1})), say("", file("c3", "two"))
	third := say("", use("c4", "ping", object{"n": 2}), use("c5", "order", object{"n": 3}))
	r.run(t, script(t, first, second, say("Done.")))
	require.Equal(t, "order {\"n\":1}\n", r.logged(t))
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal([]byte(r.session(t, "diff", "--json", "s-1").stdout), &calls))
	at := calls[0].Calls[0]

	for _, verb := range []string{"restore", "fork"} {
		refused := r.session(t, verb, "--at", at, "s-1")
		require.Equal(t, 1, refused.code, refused)
		require.Contains(t, refused.stderr, "the effects of 1 call after this point reach outside of the workspace")
		require.Regexp(t, `(?m)^\S+ +order +ok +tool, (network, )?at_most_once +undo$`, refused.stderr)
		require.Contains(t, refused.stderr, "nothing was changed: --revert reverts 1 call, --leave-effects continues without that")
		require.Equal(t, "two", r.session(t, "files", "s-1", "f").stdout)
		require.Empty(t, r.logged(t))
	}
	left := r.session(t, "fork", "--at", at, "--leave-effects", "s-1")
	require.Equal(t, 0, left.code, left)
	require.Empty(t, r.logged(t))
	undone := r.session(t, "restore", "--at", at, "--revert", "s-1")
	require.Equal(t, 0, undone.code, undone)
	require.Equal(t, "undo {\"n\":1}\n", r.logged(t))
	require.Equal(t, "one", r.session(t, "files", "s-1", "f").stdout)
	again := r.session(t, "restore", "--json", "--at", at, "s-1")
	require.Equal(t, 0, again.code, "it is reverted already")
	require.Contains(t, again.stderr, "undo (done)")
	require.Contains(t, again.stdout, `"reverted":true`)
	require.Empty(t, r.logged(t))

	r.run(t, script(t, first, second, say("Done."), third, say("Done.")))
	require.Contains(t, r.session(t, "export", "s-1").stdout, "ended as ok", "the model reads of it")
	require.Equal(t, "ping {\"n\":2}\norder {\"n\":3}\n", r.logged(t))
	for _, flags := range [][]string{nil, {"--revert"}} {
		refused := r.session(t, "restore", append(flags, "--at", at, "s-1")...)
		require.Equal(t, 1, refused.code, refused)
		require.Contains(t, refused.stderr, "nothing was changed: 1 call cannot be reverted; --leave-effects continues without that")
		require.Empty(t, r.logged(t))
	}
	both := r.session(t, "restore", "--at", at, "--revert", "--leave-effects", "s-1")
	require.Equal(t, 0, both.code, both)
	require.Equal(t, "undo {\"n\":3}\n", r.logged(t))
}

// A call of unknown outcome is listed until a person says what became of it, which the model reads.
func TestResolve_ACallOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	r := newRewinding(t, "; "+hold.pass())
	workers := startWorkers(t, 2, r.flags)
	order := say("", use("c1", "order", object{"n": 1}), use("c2", "order", object{"n": 2}))
	p := start(t, coordinator, launch{
		args: append(append([]string{"run"}, r.flags...), "--tools", r.tools, "--session", "s-1", "--model", script(t, order, say("Done.")), "go"),
	})
	workers[p.waitFor(t, `\[1\.1 order\] +. running on (\S+)\n`)[1]].kill(t)
	hold.open(t)
	require.Equal(t, 0, p.wait(t), p)

	shown := r.session(t, "show", "s-1")
	hint := `unknown +call (\S+) of order: coordinator session resolve --nats \S+ --creds \S+ s-1 \S+ --happened, or --did-not`
	require.Regexp(t, hint, shown.stdout)
	var info struct {
		Unknown []struct {
			CallID string `json:"call_id"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.session(t, "show", "--json", "s-1").stdout), &info))
	require.Len(t, info.Unknown, 1)
	call := info.Unknown[0].CallID
	require.Equal(t, 2, r.session(t, "resolve", "s-1", call).code, "one of the two flags")
	require.Equal(t, 2, r.session(t, "resolve", "s-1", call, "--happened", "--did-not").code)
	require.Equal(t, 1, r.session(t, "resolve", "s-1", "other", "--happened").code)
	resolved := r.session(t, "resolve", "s-1", call, "--did-not")
	require.Equal(t, 0, resolved.code, resolved)
	require.Contains(t, resolved.stdout, "it did not happen; the model reads that in its next turn")
	require.Equal(t, 1, r.session(t, "resolve", "s-1", call, "--happened").code, "it is resolved")
	require.NotContains(t, r.session(t, "show", "s-1").stdout, "unknown")
	exported := r.session(t, "export", "s-1").stdout
	require.Equal(t, 1, strings.Count(exported, "whose outcome was unknown: it did not happen."), exported)
}

// A session goes on with a worker on another disk, and its files can be looked at, as they are and
// as they were, when nobody is there.
func TestCheckpoint_AFleetWhoseMachinesAreReplaced(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	run := func(args ...string) finished {
		t.Helper()
		got := succeed(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), args...)})
		return got
	}
	machine := func(do func()) {
		t.Helper()
		for _, w := range startWorkers(t, 1, b.flags) { // a data directory of its own
			do()
			w.stop(t)
		}
	}
	model := script(t,
		say("Building.", bash("c1", "mkdir d; printf 'one\\ntwo\\n' > d/text; printf 'a\\0b' > binary")), say("Done."),
		say("Going on.", bash("c2", "cat d/text; sed -i s/two/three/ d/text; rm binary; ln -s d l")), say("Done."))
	machine(func() { run("--session", "s-1", "--model", model, "build") })
	machine(func() { require.Contains(t, run("--session", "s-1", "--model", model, "go on").stderr, "two") })

	require.Equal(t, "one\nthree\n", b.session(t, "files", "s-1", "d/text").stdout)
	listed := b.session(t, "files", "s-1")
	require.Equal(t, 0, listed.code, listed)
	require.Regexp(t, `(?m)^drwx\S+ +0  d\n-rw\S+ +10  d/text\nL\S+ +0  l -> d\n`, listed.stdout)
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal([]byte(b.session(t, "diff", "--json", "s-1").stdout), &calls))
	require.Len(t, calls, 2)
	require.Regexp(t, `(?m)^`+calls[0].Calls[0]+`  \S+ \S+  bash  \d+ set, 0 removed: binary, d, d/text$`, b.session(t, "diff", "s-1").stdout)
	require.Equal(t, "one\ntwo\n", b.session(t, "files", "--at", calls[0].Calls[0], "s-1", "d/text").stdout)
	require.Equal(t, "removed file binary\nchanged file d/text\n--- a/d/text\n+++ b/d/text\n@@ -1,2 +1,2 @@\n one\n-two\n+three\nnew symlink l\n",
		b.session(t, "diff", "s-1", calls[1].Calls[0]).stdout)

	for _, bad := range [][]string{{"files", "s-1", "nothing"}, {"files", "--at", "other", "s-1"}, {"diff", "s-1", "other"}, {"diff", "nobody"}} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, filepath.Join(bad...))
	}
}
