package gitguard_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// usesEnv has this program use a directory as a session does, until it is killed: its value is the
// directory.
const usesEnv = "TOOLFLEET_TEST_USES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(usesEnv); dir != "" {
		use(dir)
	}
	state, err := os.MkdirTemp("", "toolfleet-state-")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", state)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(state) // it is temporary
	os.Exit(code)
}

func use(dir string) {
	_, err := gitguard.NewReport(context.Background(), dir, os.Getenv("KEEP") != "", func(string) {})
	if err == nil {
		_, err = gitguard.NewAside(context.Background(), dir)
	}
	fmt.Println(err)
	for {
		time.Sleep(time.Hour) // a process that only selects may end as deadlocked
	}
}

// killedUse has another process look at a directory, runs what a session's command would do there,
// and kills the process before it can set anything aside.
func killedUse(t *testing.T, state, dir, plant string, env ...string) {
	t.Helper()
	user := exec.CommandContext(t.Context(), os.Args[0])
	user.Env = append(append(os.Environ(), "XDG_STATE_HOME="+state, usesEnv+"="+dir), env...)
	user.Stderr = os.Stderr
	out, err := user.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, user.Start())
	said, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "<nil>\n", said)
	run(t, dir, plant)
	require.NoError(t, user.Process.Kill())
	require.Error(t, user.Wait())
}

// report is a report on a directory, and what it shows.
func report(t *testing.T, dir string) (*gitguard.Report, *[]string) {
	t.Helper()
	var said []string
	r, err := gitguard.NewReport(t.Context(), dir, false, func(text string) { said = append(said, text) })
	require.NoError(t, err)
	return r, &said
}

func records(t *testing.T, state string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(state, "toolfleet/git/*.json*"))
	require.NoError(t, err)
	return names
}

// TestAside_CompletedAfterAKill: what a session has planted is set aside although its process was
// killed before that, when the directory, one in it or one around it is used next, once. What the
// user had stays.
func TestAside_CompletedAfterAKill(t *testing.T) {
	plant := "git init -q sub; git -C sub config core.fsmonitor '" + ran + ";true'"
	for name, c := range map[string]struct {
		before, next string
		then         string // between the two
		finds        string
	}{
		"the same":              {"mkdir -p sub", ".", "true", "sub/.git/config"},
		"beside the user's own": {commit + "git config core.pager less", ".", "true", "sub/.git/config"},
		"moved":                 {"mkdir -p sub", "../moved", "mv \"$PWD\" ../moved; cd ../moved", "sub/.git/config"},
		"in it":                 {"mkdir -p sub/in", "sub/in", "true", "/sub/.git/config"},
		"around it":             {"mkdir -p sub", "..", "true", "work/sub/.git/config"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			t.Setenv("XDG_STATE_HOME", state)
			dir := workspace(t, c.before)
			killedUse(t, state, dir, plant)
			require.Len(t, records(t, state), 2)
			run(t, dir, c.then)
			next := filepath.Join(dir, c.next)
			r, said := report(t, next)
			require.Len(t, *said, 2)
			require.Contains(t, (*said)[0], "a session whose process was killed")
			require.Contains(t, (*said)[0], c.finds+": core.fsmonitor")
			require.Contains(t, (*said)[1], c.finds+".set-aside: was set aside")
			run(t, next, "git status || true; cd sub 2>/dev/null || cd work/sub 2>/dev/null || true; git status || true")
			require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "ran"))
			require.Len(t, records(t, state), 1, "its own")
			require.Empty(t, r.Findings(t.Context()))
			r.Close(t.Context())
			require.Len(t, *said, 2, "once")
			require.Empty(t, records(t, state))
			r, said = report(t, next)
			require.Empty(t, *said)
			r.Close(t.Context())
			if name == "beside the user's own" {
				require.Equal(t, "less\n", run(t, dir, "git config core.pager"))
			}
		})
	}
}

// TestAside_CompletedByALivingProcess: its next call completes what a killed one has left.
func TestAside_CompletedByALivingProcess(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir := workspace(t, "true")
	aside, err := gitguard.NewAside(t.Context(), dir)
	require.NoError(t, err)
	killedUse(t, state, dir, "git init -q; printf '#!/bin/sh\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit")
	moved, err := aside.Move(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, moved)
	require.Len(t, records(t, state), 1)
	_, err = aside.Close(t.Context())
	require.NoError(t, err)
	require.Empty(t, records(t, state))
}

// TestAside_KeptSettingsAreKeptAfterAKill, and shown.
func TestAside_KeptSettingsAreKeptAfterAKill(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir := workspace(t, commit)
	killedUse(t, state, dir, "git config core.pager x; git init -q sub; git -C sub config core.pager y", "KEEP=1")
	_, said := report(t, dir)
	require.Contains(t, (*said)[len(*said)-1], ".git/config: core.pager = x", "of the user's own repository: shown")
	require.Equal(t, "x\n", run(t, dir, "git config core.pager"))
}

// TestAside_AnErrorIsTriedAgain: what could not be set aside is, when the directory is used next.
func TestAside_AnErrorIsTriedAgain(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir := workspace(t, "true")
	r, said := report(t, dir)
	deep := "deep" + string(filepath.Separator)
	for range 502 {
		deep += "a/"
	}
	run(t, dir, "mkdir -p "+deep+"; git init -q b; git -C b config core.pager x")
	r.Findings(t.Context())
	r.Close(t.Context())
	require.NotEmpty(t, *said)
	require.Contains(t, (*said)[0], "is below more than 500 directories")
	require.Len(t, records(t, state), 1)
	_, err := gitguard.NewReport(t.Context(), dir, false, func(string) {})
	require.ErrorContains(t, err, "is below more than 500 directories")
	require.ErrorContains(t, err, records(t, state)[0])
	require.ErrorContains(t, err, "if you have looked at what git runs there, remove this record")
	run(t, dir, "rm -r deep; git init -q c; git -C c config core.pager x")
	r, said = report(t, dir)
	require.Contains(t, (*said)[0], "c/.git/config: core.pager")
	r.Close(t.Context())
	require.Empty(t, records(t, state))
}

// TestAside_ARecordThatCannotBeReadRefuses, also one that cannot be stored.
func TestAside_ARecordThatCannotBeReadRefuses(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir := workspace(t, commit)
	require.NoError(t, os.MkdirAll(filepath.Join(state, "toolfleet/git"), 0o700))
	broken := filepath.Join(state, "toolfleet/git/x.json")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(state, "toolfleet/git/y.json.new"), []byte("{"), 0o600)) // of a process that was killed early
	_, err := gitguard.NewAside(t.Context(), dir)
	require.ErrorContains(t, err, broken)
	require.NoError(t, os.Remove(broken))
	aside, err := gitguard.NewAside(t.Context(), dir)
	require.NoError(t, err)
	_, err = aside.Close(t.Context())
	require.NoError(t, err)
	require.Empty(t, records(t, state))
	file := filepath.Join(state, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("XDG_STATE_HOME", file)
	_, err = gitguard.NewAside(t.Context(), dir)
	require.ErrorContains(t, err, "set XDG_STATE_HOME to a directory that can be written to")
}

// copies is a repository, and the copy of its settings that a sandbox has.
type copies struct {
	*gitguard.Copies

	dir, copy string
}

func newCopies(t *testing.T, script string) *copies {
	t.Helper()
	dir, scratch := workspace(t, commit+script), t.TempDir()
	c := &copies{Copies: gitguard.NewCopies(dir, scratch, []string{".git/config"}), dir: dir, copy: filepath.Join(scratch, isolation.CopyOf(".git/config"))}
	require.NoError(t, c.Put(t.Context()))
	return c
}

// sets has a command change settings, and returns what is reported of it.
func (c *copies) sets(t *testing.T, script string) []string {
	t.Helper()
	run(t, c.dir, "set() { git config -f '"+c.copy+"' \"$@\"; }\nCOPY='"+c.copy+"'\n"+script)
	keys, err := c.Changed(t.Context())
	require.NoError(t, err)
	return keys
}

func TestCopies_WhatCommandsSetStaysInTheCopy(t *testing.T) {
	t.Parallel()
	const before = "git config remote.origin.url https://example.com/o; git config branch.main.remote origin"
	for script, key := range map[string]string{
		"set core.fsmonitor ./evil": "core.fsmonitor", "set core.hooksPath x": "core.hookspath", "set user.name agent": "user.name",
		"set remote.origin.url https://evil.example.com/o":                 "remote.origin.url",
		"set --remove-section remote.origin":                               "remote.origin.url",
		"set remote.up.url https://example.com/up":                         "remote.up.url",
		"set include.path x":                                               "include.path",
		"set \"remote.$(printf 'a\\033b').url\" ./evil":                    `"remote.a\x1bb.url"`,
		"printf '[remote]\\n\\turl = https://example.com\\n' >> \"$COPY\"": "remote.url",
		"printf '[-e]\\n\\tx = --global\\n' >> \"$COPY\"":                  "-e.x",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := newCopies(t, before)
			config := filepath.Join(c.dir, ".git/config")
			want, err := os.ReadFile(config)
			require.NoError(t, err)
			require.Equal(t, []string{".git/config: " + key}, c.sets(t, script))
			actual, err := os.ReadFile(config)
			require.NoError(t, err)
			require.Equal(t, string(want), string(actual), "the user's settings do not change")
			require.Empty(t, c.sets(t, "true"), "it is reported once")
			has := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			run(t, c.dir, "git config x.y z")
			require.NoError(t, c.Put(t.Context()), "the user's change is added to what was set")
			now := run(t, c.dir, "git config -f '"+c.copy+"' --list")
			require.Contains(t, now, "x.y=z")
			for line := range lines(has) {
				require.Contains(t, now, line)
			}
		})
	}
}

func TestCopies_CommandsMayDoWithThemWhatTheyLike(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"removed": "rm -rf '%'", "a pipe": "rm '%'; mkfifo '%'", "a directory": "rm '%'; mkdir '%'", "a link": "rm '%'; ln -s /etc/passwd '%'",
		"big": "head -c 2000000 /dev/zero > '%'", "its directory is a link": "rm -r \"$(dirname '%')\"; ln -s /etc \"$(dirname '%')\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCopies(t, "true")
			require.Empty(t, c.sets(t, replaced(script, "%", c.copy)))
			if name != "its directory is a link" {
				run(t, c.dir, replaced("[ ! -d '%' ] || rmdir '%'", "%", c.copy))
				require.NoError(t, c.Put(t.Context()))
				require.FileExists(t, c.copy)
			} else {
				require.Error(t, c.Put(t.Context()))
			}
		})
	}
	c := newCopies(t, "true")
	run(t, c.dir, "echo '[' > '"+c.copy+"'")
	_, err := c.Changed(t.Context())
	require.ErrorContains(t, err, "look for changed settings in .git/config")
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"git config user.name p; git config x.gone 1")
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	theirs := run(t, dir, "cp .git/config c; git config -f c user.name s; git config -f c --unset x.gone; git config -f c core.pager y; cat c")
	keys, err := gitguard.Differences(t.Context(), root, ".git/config", []byte(theirs))
	require.NoError(t, err)
	require.Equal(t, []string{".git/config: core.pager", ".git/config: user.name", ".git/config: x.gone"}, keys)
}

func TestTracked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, in string
		want       []string
	}{
		"no repository":  {"touch a", "", nil},
		"repository":     {commit + "mkdir d; touch d/b c; git add d", "", []string{"a.txt", "d/b"}},
		"a subdirectory": {commit + "mkdir d e; touch d/b e/c; git add .", "d", []string{"b"}},
		"a submodule":    {submodule + "touch lib/x; git -C lib add x", "", []string{".gitmodules", "a.txt", "lib", "lib/x"}},
		"a worktree":     {commit + "git worktree add -q ../other 2>&1", "../other", []string{"a.txt"}},
		"a split index":  {commit + "git update-index --split-index; touch b; git add b", "", []string{"a.txt", "b"}},
		"long names": {
			"git init -q; d=$(printf 'd%.0s' $(seq 200)); p=$(printf \"$d/%.0s\" $(seq 25)); for f in x y; do git update-index --add --cacheinfo 100644,$(git hash-object -w --stdin </dev/null),$p$f; done; test ${#p} -gt 4095; git rm -q --cached ${p}y; git update-index --add --cacheinfo 100644,$(git hash-object --stdin </dev/null),b",
			"",
			[]string{"b", strings.Repeat(strings.Repeat("d", 200)+"/", 25) + "x"},
		},
		"version 4": {"git init -q; mkdir -p d/e; touch a d/e/b d/e/bc d/f; git add .; git update-index --index-version 4", "", []string{"a", "d/e/b", "d/e/bc", "d/f"}},
		"flags":     {"git init -q; touch a b ccccc; git add a b; git add -N ccccc; git update-index --skip-worktree a", "", []string{"a", "b", "ccccc"}},
		"split again": {
			commit + "git update-index --split-index; touch b; git add b; git update-index --split-index; touch c; git add c; git rm -q --cached a.txt",
			"",
			[]string{"b", "c"},
		},
		"with caches":   {commit + "git update-index --untracked-cache; git config index.threads 4; touch b; git add b; git status", "", []string{"a.txt", "b"}},
		"other digests": {"git init -q --object-format=sha256; touch b; git add b", "", []string{"b"}},
		"a file .git":   {"git init -q --separate-git-dir=../r .; touch b; git add b", "", []string{"b"}},
		"strange names": {"git init -q; touch ' a' 'ö\n\tx'; git add .", "", []string{" a", "ö\n\tx"}},
		"sparse": {
			commit + "mkdir in out; touch in/i out/o; git add .; git commit -qm 2; git sparse-checkout init --cone --sparse-index; git sparse-checkout set in",
			"",
			[]string{"a.txt", "in/i", "out"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(workspace(t, c.script), c.in)
			got, err := gitguard.Tracked(t.Context(), dir)
			require.NoError(t, err)
			slices.Sort(got)
			require.Equal(t, c.want, got)
		})
	}
	dir := workspace(t, commit+"head -c 100 /dev/urandom > .git/index")
	_, err := gitguard.Tracked(t.Context(), dir)
	require.ErrorContains(t, err, "files that git tracks: ", "nothing tracked is not known")
}

// TestTracked_FetchesNothing: git fetches what a partial clone lacks, by a program of its settings,
// when it looks into a directory of a sparse index.
func TestTracked_FetchesNothing(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+`mkdir in out; echo a >in/a; echo b >out/b; git add in out; git commit -qm 2
git sparse-checkout init --cone --sparse-index; git sparse-checkout set in
t=$(git rev-parse HEAD:out)
git config core.repositoryformatversion 1; git config extensions.partialclone origin
git config remote.origin.url ssh://h.example/x; git config remote.origin.promisor true
git config core.sshCommand '`+ran+` #'
rm .git/objects/${t:0:2}/${t:2}`)
	mark := filepath.Join(filepath.Dir(dir), "ran")
	files, err := gitguard.Tracked(t.Context(), dir)
	require.NoError(t, err)
	require.Contains(t, files, "in/a")
	_, err = gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	look, err := gitguard.Look(t.Context(), dir)
	require.NoError(t, err)
	_, err = look.Findings(t.Context())
	require.NoError(t, err)
	require.NoFileExists(t, mark)
	run(t, dir, "git ls-files || true")
	require.FileExists(t, mark, "the case is one")
}

// TestTracked_IsBounded: a session does not fill the disk with copies, nor the memory with names.
func TestTracked_IsBounded(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"truncate -s 1100M .git/index; for n in 1 2 3; do truncate -s 400M .git/sharedindex.$n; done")
	_, err := gitguard.Tracked(t.Context(), dir)
	require.ErrorContains(t, err, "the indexes are larger than")
	index := func(version uint32, entries int, entry func(i int) []byte) []byte {
		file := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte("DIRC"), version), uint32(entries))
		for i := range entries {
			file = append(append(file, make([]byte, 24)...), 0, 0, 0x81, 0xa4) // the mode of a file
			file = append(append(file, make([]byte, 12+20)...), entry(i)...)
		}
		return append(file, make([]byte, 20)...)
	}
	long := strings.Repeat("a", 60_000)
	for name, c := range map[string]struct {
		index []byte
		says  string
	}{
		"repeated prefixes": {index(4, 5000, func(i int) []byte {
			if i == 0 {
				return append([]byte("\x0f\xff\x00"+long), 0)
			}
			return fmt.Appendf(nil, "\x0f\xff\x08%08d\x00", i)
		}), "the names of its files have more than 268435456 bytes"},
		"a name that is shorter than its prefix": {index(4, 2, func(i int) []byte {
			if i == 0 {
				return append([]byte("\x0f\xff\x00"+long), 0)
			}
			return []byte("\x00\x02\x00xx\x00")
		}), "git cannot read it"},
		"a prefix that is longer than the name before": {index(4, 1, func(int) []byte { return []byte("\x00\x02\x05xx\x00") }), "git cannot read it"},
		"more entries than there are":                  {index(2, 1, func(int) []byte { return []byte("\x0f\xfe") }), "git cannot read it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, commit)
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".git/index"), c.index, 0o600))
			_, err := gitguard.Tracked(t.Context(), dir)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestIdentity_OfHostileConditions: alternatives of a pattern would be tried for longer than a
// life.
func TestIdentity_OfHostileConditions(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+`git config "includeIf.onbranch:$(printf '{a,a}%.0s' $(seq 60))b.path" x; git config user.name n; git config user.email e`+"\n"+
		`printf 'ref: refs/heads/'"$(printf 'a%.0s' $(seq 70))" > .git/HEAD`)
	name, email := gitguard.Identity(t.Context(), dir)
	require.Equal(t, []string{"n", "e"}, []string{name, email})
}
