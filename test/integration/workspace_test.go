package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/shell"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// pasted are the words that a shell makes of what somebody pastes into it.
func pasted(t *testing.T, text string) []string {
	t.Helper()
	words, err := shell.Fields(text, nil)
	require.NoError(t, err)
	return words
}

// TestFleet_ServesSessions is a fleet as a newcomer starts it: a coordinator with its own
// server, two workers by the command line that it prints, and sessions of both kinds.
func TestFleet_ServesSessions(t *testing.T) {
	t.Parallel()
	changes := script(t,
		say("Looking.", use("c1", "list", object{})),
		say("Changing.",
			use("c2", "edit", object{"path": "a.txt", "old": "alpha", "new": "omega"}),
			use("c3", "write", object{"path": "new/b.txt", "content": "beta\n"}),
			bash("c4", "rm gone.txt; chmod +x run.sh")),
		say("All changed."),
		say("Gone on."))
	server := startServe(t, changes, "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "serve"))
	printed := pasted(t, server.waitFor(t, `start workers with: worker (.*)\n`)[1])
	flags, keys := printed[:4], printed[4:]
	require.Equal(t, []string{"--nats", flags[1], "--creds", flags[3], "--call-keys", keys[1]}, printed)
	info, err := os.Stat(flags[3])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "the credential is the owner's alone")
	workers := startWorkers(t, 2, append(slices.Clone(flags), keys...))

	t.Run("sessions", func(t *testing.T) { //nolint:paralleltest // the fleet would wait for all other tests
		for name, args := range map[string][]string{
			"submit":               {"submit"},
			"submit with --json":   {"submit", "--json"},
			"run beside it":        {"run", "--model", changes},
			"run beside it --json": {"run", "--json", "--model", changes},
		} {
			t.Run(name, func(t *testing.T) { //nolint:paralleltest // as above
				workspace := t.TempDir()
				write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
				write(t, filepath.Join(workspace, "gone.txt"), "")
				write(t, filepath.Join(workspace, "run.sh"), "#!/bin/sh\n")
				write(t, filepath.Join(workspace, "same", "same.txt"), "same\n")
				got := succeed(t, coordinator, launch{args: append(append(args, flags...), "--workspace", workspace, "do it")})

				require.Equal(t, "omega\n", content(t, filepath.Join(workspace, "a.txt")))
				require.Equal(t, "beta\n", content(t, filepath.Join(workspace, "new", "b.txt")))
				require.NoFileExists(t, filepath.Join(workspace, "gone.txt"))
				require.Equal(t, "same\n", content(t, filepath.Join(workspace, "same", "same.txt")))
				mode, err := os.Stat(filepath.Join(workspace, "run.sh"))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o711), mode.Mode().Perm())

				if !slices.Contains(args, "--json") {
					require.Equal(t, "All changed.\n", got.stdout)
					require.Regexp(t, `\[2\.1 edit\] (?s:.*)ok · on \S+, attempt 1`, got.stderr)
					return
				}
				list := events(t, got.stdout)
				require.Equal(t, "session_started", list[0].Type)
				require.Equal(t, "All changed.", list[len(list)-1].Text)
				require.Len(t, results(list), 4)
				for id, result := range results(list) {
					require.Equal(t, "ok", result.Status, id)
					require.Contains(t, workers, result.WorkerID, "a worker of the fleet ran %s", id)
				}
			})
		}
		t.Run("a call that nobody signed", func(t *testing.T) { //nolint:paralleltest // as above
			alone := filepath.Join(t.TempDir(), "nats.token") // without the key beside it
			token, err := os.ReadFile(flags[3])
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(alone, token, 0o600))
			args := []string{"call", "--nats", flags[1], "--creds", alone, "bash", `{"command": "true"}`}
			got := execute(t, coordinator, launch{args: args})
			require.NotEqual(t, 0, got.code)
			require.Contains(t, got.stderr, "the key calls.key, which signs calls, is not next to it", "before the first call")
			require.Contains(t, got.stdout, "not_signed")
			require.Contains(t, got.stdout,
				"Its sender needs the private key: --sign-key FILE, or calls.key next to the file of --creds; coordinator serve makes calls.key next to its nats.token")
			args = append(args[:1:1], append([]string{"--sign-key", filepath.Join(filepath.Dir(flags[3]), "calls.key")}, args[1:]...)...)
			got = succeed(t, coordinator, launch{args: args})
			require.NotContains(t, got.stderr, "calls.key")
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(alone), "calls.key"), []byte(content(t, filepath.Join(filepath.Dir(flags[3]), "calls.key"))), 0o600))
			got = execute(t, coordinator, launch{args: append([]string{"call"}, args[3:]...)})
			require.Equal(t, 0, got.code, "the next command, as the message says it: "+got.stderr)
		})
	})
	got := succeed(t, coordinator, launch{args: append([]string{"submit", "--session", "last", "go on"}, flags...)})
	require.Equal(t, "Gone on.\n", got.stdout, "the session that changed last goes on")
	for _, w := range workers {
		w.stop(t)
	}
	server.stop(t)
}

// TestFleet_ConflictIsLeftAlone: what changes in the directory while the session
// works on its copy is not overwritten, and the user is told.
func TestFleet_ConflictIsLeftAlone(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t,
		say("Changing.", bash("c1", "echo theirs > both.txt; echo theirs > only.txt; "+hold.pass())),
		say("Changed."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "both.txt"), "before\n")
	write(t, filepath.Join(workspace, "only.txt"), "before\n")
	write(t, filepath.Join(workspace, "ours.txt"), "before\n")
	p := start(t, coordinator, launch{args: append(append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...), "do it")})
	p.waitFor(t, `\[1\.1 bash\] +. running on`)
	write(t, filepath.Join(workspace, "both.txt"), "ours\n")
	write(t, filepath.Join(workspace, "ours.txt"), "ours\n")
	hold.open(t)
	require.Equal(t, 0, p.wait(t))

	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "both.txt")))
	require.Equal(t, "theirs\n", content(t, filepath.Join(workspace, "only.txt")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "ours.txt")))
	require.Regexp(t, `changed here and in the session, and left unchanged here: both\.txt; the version of the session is in both\.txt\.toolfleet-theirs\n`, p.stderr)
	require.Equal(t, "Changed.\n", p.stdout.String())
}

// A directory is sent whole if the fleet has lost contents that it had; and a sparse file keeps
// nothing else from being brought back.
func TestFleet_SendsAgainWhatTheFleetHasLost(t *testing.T) {
	t.Parallel()
	model := script(t, say("Changing.", bash("c1", "echo more >> work.txt; truncate -s 9G new.img")), say("Changed."))
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	disk, err := os.Create(filepath.Join(workspace, "disk.img"))
	require.NoError(t, err)
	require.NoError(t, errors.Join(disk.Truncate(5<<30), disk.Close()))
	write(t, filepath.Join(workspace, "large"), strings.Repeat("large", 50_000))
	run := func() {
		succeed(t, coordinator, launch{args: append(append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...), "do it")})
	}
	run()
	js, bucket := b.jetStream(t), wire.BodiesBucket(protocol.DefaultFleet)
	lost, err := natsio.ListObjects(t.Context(), js, bucket, func(string) bool { return true })
	require.NoError(t, err)
	require.NotEmpty(t, lost)
	require.NoError(t, natsio.DeleteTheseObjects(t.Context(), js, bucket, lost...))
	run()
	require.Equal(t, "more\nmore\n", content(t, filepath.Join(workspace, "work.txt")))
	info, err := os.Stat(filepath.Join(workspace, "new.img"))
	require.NoError(t, err)
	require.EqualValues(t, 9<<30, info.Size())
}

// TestFleet_WhatStaysHere: secrets and what git ignores are neither copied nor brought back, which
// is told, unless the user asks for it. A session cannot ask for it.
func TestFleet_WhatStaysHere(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	model := script(t,
		say("Looking.", bash("c1", "ls -A > listed; mkdir -p out; echo theirs > out/x; echo theirs > .env; echo '!.env' > .toolfleetignore")), say("Done."))
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, ".gitignore"), "out/\n")
	write(t, filepath.Join(workspace, ".env"), "ours\n")
	write(t, filepath.Join(workspace, "out", "x"), "ours\n")
	run := func(more ...string) string {
		args := append(append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...), more...)
		got := succeed(t, coordinator, launch{args: append(args, "do it")})
		return got.stderr
	}
	said := run()
	require.Contains(t, said, "not copied: .env (secrets), out (.gitignore); .toolfleetignore and --include-ignored change this\n")
	require.Contains(t, said, "protected, and left unchanged here (see --protect): .toolfleetignore\n")
	require.NotContains(t, said, "changed here and in the session")
	require.Equal(t, ".gitignore\nlisted\n", content(t, filepath.Join(workspace, "listed")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, ".env")))
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "out", "x")))
	require.NoFileExists(t, filepath.Join(workspace, ".toolfleetignore"))

	write(t, filepath.Join(workspace, ".toolfleetignore"), "!.env\nlisted\n")
	require.NotContains(t, run("--include-ignored"), "not copied")
	require.Equal(t, ".gitignore\nlisted\n", content(t, filepath.Join(workspace, "listed")), "of the first session")
	require.Equal(t, "theirs\n", content(t, filepath.Join(workspace, ".env")))
	require.Equal(t, "theirs\n", content(t, filepath.Join(workspace, "out", "x")))
}

// TestFleet_WhatDidNotComeBackIsNotShown: the workspace cannot be restored after a worker is lost,
// so nothing here has changed, and the end of the turn does not say that it has.
func TestFleet_WhatDidNotComeBackIsNotShown(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	model := script(t,
		say("Changing.", use("c1", "write", object{"path": "a.txt", "content": "theirs\n"})),
		say("Slow.", bash("c2", hold.pass())),
		say("Done."))
	b := newBroker(t)
	workers := startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "a.txt"), "ours\n")
	p := start(t, coordinator, launch{args: append(append([]string{"run", "--model", model, "--workspace", workspace}, b.flags...), "do it")})
	id := p.waitFor(t, `\[2\.1 bash\] +. running on (\S+)`)[1]
	workers[id].kill(t)
	stream, err := b.jetStream(t).Stream(t.Context(), "TF_WORKSPACES")
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("tf.workspace.*"))
	require.NoError(t, err)
	for subject := range info.State.Subjects {
		_, err := b.js.Publish(t.Context(), subject, []byte("damaged"))
		require.NoError(t, err)
	}
	startWorkers(t, 1, b.flags)
	require.Equal(t, 1, p.wait(t), p)
	require.Contains(t, p.stderr.String(), "copy the workspace back: ")
	require.NotRegexp(t, `(?m)^ *changed `, p.stderr)
	require.Equal(t, "ours\n", content(t, filepath.Join(workspace, "a.txt")))
}

// TestFleet_SaysWhereGitDoesNotWork: a copy has the files of a linked worktree, a submodule or a
// subdirectory, and no repository. The user is told in one line, and so is the model where its git
// would not say it.
func TestFleet_SaysWhereGitDoesNotWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	if !isolates(t) {
		t.Skip("NOT TESTED: no driver isolates here, and one that does not finds the repository of this host")
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
		export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p
		git init -q lib; git -C lib commit -q --allow-empty -m 1; git init -q repo; cd repo; mkdir sub; echo 1 >sub/f; git add .; git commit -qm 1
		git -c protocol.file.allow=always submodule --quiet add ../lib lib; git worktree add -q ../work`)
	cmd.Dir = base
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	model := script(t, say("Looking.", bash("c1", "git status")), say("Done."))
	server := startServe(t, model, "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "serve"))
	printed := pasted(t, server.waitFor(t, `start workers with: worker (.*)\n`)[1])
	flags, keys := printed[:4], printed[4:]
	start(t, worker, launch{args: slices.Concat([]string{"--data", filepath.Join(t.TempDir(), "data")}, flags, keys)}).
		waitFor(t, `takes calls of pool default in fleet tf: 4 slots, sandbox `)
	t.Run("workspaces", func(t *testing.T) { //nolint:paralleltest // the fleet would wait for all other tests
		for name, test := range map[string]struct {
			dir, told string
			noted     bool
		}{
			"linked worktree": {"work", "the workspace is a linked worktree of the repository " + base + "/repo,", true},
			"submodule":       {"repo/lib", "the workspace is a submodule of the repository " + base + "/repo,", true},
			"subdirectory":    {"repo/sub", "the workspace is a subdirectory of the repository " + base + "/repo,", false},
		} {
			for _, program := range [][]string{{"submit"}, {"run", "--model", model}} {
				t.Run(name+", "+program[0], func(t *testing.T) { //nolint:paralleltest // as above
					got := succeed(t, coordinator, launch{args: append(append(slices.Clone(program), flags...), "--json", "--workspace", filepath.Join(base, test.dir), "do it")})
					require.Regexp(t, `(?m)^! git does not work in this session: `+test.told+`.*$`, got.stderr)
					result := results(events(t, got.stdout))["c1"]
					require.Contains(t, result.Content, "fatal: not a git repository")
					if test.noted {
						require.Contains(t, result.Content, "git does not work in this workspace: it is a linked worktree, a submodule")
					} else {
						require.NotContains(t, result.Content, base, "it does not lead to a place that is not there")
					}
				})
			}
		}
	})
}

// A fork at the end of a turn is merged back: files, conflicts, and its answer.
func TestSessionMerge_OfAFork(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	run := func(id, model, prompt string) finished {
		t.Helper()
		got := succeed(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), "--session", id, "--model", model, prompt)})
		return got
	}
	session := func(verb string, args ...string) string {
		t.Helper()
		got := b.session(t, verb, args...)
		require.Equal(t, 0, got.code, got)
		return got.stdout
	}
	first, second := say("", bash("c1", `printf '1\n2\n3\n' > both; echo x > clash`)), say("", bash("c2", `printf 'one\n2\n3\n' > both; echo parent > clash`))
	run("s-1", script(t, first, say("Begun.")), "begin")
	run("s-1", script(t, first, say("Begun."), second, say("Done.")), "go on")

	fork := strings.TrimSpace(session("fork", "--at", "turn 1", "--leave-effects", "s-1"))
	require.Equal(t, "1\n2\n3\n", session("files", fork, "both"))
	run(fork, script(t, first, say("Begun."), say("", bash("c3", `printf '1\n2\nthree\n' > both; echo fork > clash; echo new > new`)), say("The fork is done.")), "try")
	require.Contains(t, session("diff", "s-1", fork), "+three\n")

	got := session("merge", fork, "s-1")
	require.Contains(t, got, "changed: both, new\n")
	require.Contains(t, got, "CONFLICTS, changed on both sides, and left as they are in the workspace: clash\n")
	require.Equal(t, "one\n2\nthree\n", session("files", "s-1", "both"))
	require.Equal(t, "parent\n", session("files", "s-1", "clash"))
	require.Equal(t, "fork\n", session("files", "s-1", "clash.toolfleet-theirs"))
	require.Contains(t, session("export", "s-1"), `Its answer:\nThe fork is done.`)
	require.Contains(t, session("merge", fork, "s-1"), "The fork has nothing new to merge")
	run("s-1", script(t, first, say("Begun."), second, say("Done."), say("", bash("c4", "cat new")), say("Seen.")), "and now")

	for _, bad := range [][]string{{"merge", "s-1", fork}, {"merge", "nobody", "s-1"}, {"fork", "--at", "turn 9", "--leave-effects", "s-1"}, {"diff", "s-1", "nobody"}} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, bad)
	}
	require.Equal(t, 2, b.session(t, "fork", "--at", "turn x", "s-1").code)
}
