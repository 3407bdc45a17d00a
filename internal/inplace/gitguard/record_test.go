package gitguard_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
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
