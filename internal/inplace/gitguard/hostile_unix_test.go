//go:build unix

package gitguard_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

// TestGuard_NeverWaits: FIFOs in the places of all that is read of a repository.
func TestGuard_NeverWaits(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		".git", ".git/config", ".git/config.worktree", ".git/commondir", ".git/HEAD", ".git/index", ".git/sharedindex.x", ".git/hooks", ".git/hooks/pre-commit",
		".git/gitdir", "sub/.git", "sub/HEAD", "sub/commondir", ".gitattributes", ".git/info/attributes", ".included", "tool",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, commit+"git config include.path ../.included; git config core.fsmonitor ./tool; mkdir sub")
			require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
			run(t, dir, "mkfifo '"+name+"'")
			if name == "sub/commondir" {
				run(t, dir, "echo 'ref: refs/heads/main' > sub/HEAD")
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				gitguard.FindOutside(t.Context(), dir)
				_, _ = gitguard.Protected(t.Context(), dir)
				_, _ = gitguard.Tracked(t.Context(), dir)
				_, _ = gitguard.Identity(t.Context(), dir)
				if w, err := gitguard.Look(t.Context(), dir); err == nil {
					_, _ = w.Findings(t.Context())
				}
				if a, err := gitguard.NewAside(t.Context(), dir); err == nil {
					_, _ = a.Move(t.Context())
				}
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("waits for a writer")
			}
		})
	}
}

// TestGuard_RefusesWhatItCannotSee: a bound means that nothing is known, never that nothing is
// there.
func TestGuard_RefusesWhatItCannotSee(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"settings that are no file":     {"rm .git/config; mkfifo .git/config", "is not a regular file"},
		"settings that are too large":   {"head -c 2000000 /dev/zero | tr '\\0' '#' >> .git/config", "is larger than 1 MiB"},
		"an include that is no file":    {"git config include.path ../x; mkfifo x", "is not a regular file"},
		"directories that are too deep": {"d=d; for i in 1 2 3 4 5 6 7 8 9; do d=$d/$d; done; mkdir -p \"$d\"", "below more than 500 directories"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, commit+c.script)
			_, err := gitguard.Protected(t.Context(), dir)
			require.ErrorContains(t, err, c.want)
			_, err = gitguard.Look(t.Context(), dir)
			require.ErrorContains(t, err, c.want)
			_, err = gitguard.NewReport(t.Context(), dir, false, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestGuard_TooManyRepositoriesAreRefused also checks that a session that makes them is told of.
func TestGuard_TooManyRepositoriesAreRefused(t *testing.T) {
	t.Parallel()
	dir, alerts := workspace(t, commit), ""
	report, err := gitguard.NewReport(t.Context(), dir, false, func(text string) { alerts += text })
	require.NoError(t, err)
	aside, err := gitguard.NewAside(t.Context(), dir)
	require.NoError(t, err)
	madeUp(t, dir, 2000)
	_, err = gitguard.Look(t.Context(), dir)
	require.ErrorContains(t, err, "has more than 2000 repositories")
	_, err = aside.Move(t.Context())
	require.ErrorContains(t, err, "has more than 2000 repositories")
	require.Empty(t, report.Findings(t.Context()))
	require.Contains(t, alerts, "it is unknown what git would run in "+dir+";")
}

// TestProgram_IsNotOneOfTheWorkspace: a session puts a program where the PATH leads first.
func TestProgram_IsNotOneOfTheWorkspace(t *testing.T) {
	dir := workspace(t, commit+"mkdir bin; printf '#!/bin/sh\n"+ran+"\n' > bin/git; chmod +x bin/git")
	t.Setenv("RAN", filepath.Join(filepath.Dir(dir), "ran"))
	t.Setenv("PATH", filepath.Join(dir, "bin")+":bin:"+os.Getenv("PATH"))
	program, err := gitguard.Program("git", dir)
	require.NoError(t, err)
	require.NotContains(t, program, dir)
	files, err := gitguard.Tracked(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a.txt"}, files)
	_, err = gitguard.Look(t.Context(), dir)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(filepath.Dir(dir), "ran"))
}
