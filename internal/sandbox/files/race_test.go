//go:build unix

package files_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// While file operations run, names change between files, directories and symbolic
// links to the outside: nothing outside is ever read or changed.
func TestFS_NoEscapeWhileLinksAreSwapped(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	fs := open(t, dir)
	for _, at := range []string{outside, filepath.Join(dir, "real")} {
		require.NoError(t, os.MkdirAll(at, 0o755))
	}
	secret := filepath.Join(outside, "file")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte("inside"), 0o666))
	for name, target := range map[string]string{"dir": "real", "link": "real/file", "hop": "/workspace/dir"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		swap(t, stop, dir, "dir", "real", outside, "/workspace/real", filepath.Join(outside, "../"+filepath.Base(outside)))
	})
	swaps.Go(func() { swap(t, stop, dir, "link", "/workspace/real/file", secret, filepath.Join(dir, "hop/file")) })
	start := time.Now()
	var users sync.WaitGroup
	var counts [2]struct{ ok, failed int }
	for i := range counts {
		users.Go(func() {
			count := &counts[i]
			for races(start, count.ok > 0 && count.failed > 0) {
				ok, failed := useAll(t, fs, i)
				count.ok += ok
				count.failed += failed
			}
		})
	}
	users.Wait()
	close(stop)
	swaps.Wait()
	for _, count := range counts {
		require.Positive(t, count.ok, "operations inside work")
		require.Positive(t, count.failed, "links to the outside were met")
	}
	content, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(content))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// races reports whether a race goes on: for a second, and until all was met that is to be met in
// it.
func races(start time.Time, met bool) bool {
	age := time.Since(start)
	return age < time.Second || !met && age < time.Minute
}

// swap makes name a symbolic link to one of the targets, in turns.
func swap(t *testing.T, stop <-chan struct{}, dir, name string, targets ...string) {
	t.Helper()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		temp := filepath.Join(dir, ".swap-"+name)
		if err := os.Symlink(targets[i%len(targets)], temp); err != nil {
			t.Errorf("symlink: %v", err)
			return
		}
		if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
			t.Errorf("rename: %v", err)
			return
		}
	}
}

// useAll tries every operation through the names that are swapped.
func useAll(t *testing.T, fs sandbox.FS, user int) (ok, failed int) {
	t.Helper()
	count := func(err error) bool {
		if err != nil {
			failed++
			return false
		}
		ok++
		return true
	}
	for _, path := range []string{"dir/file", "link", "hop/file"} {
		read, err := fs.Read(t.Context(), protocol.FilesRead{Path: path})
		if count(err) && string(read.Content) == "secret" {
			t.Errorf("read %s outside", path)
		}
		_, err = fs.Write(t.Context(), protocol.FilesWrite{Path: path, Content: []byte("inside " + strconv.Itoa(user))})
		count(err)
		_, err = fs.Edit(t.Context(), protocol.FilesEdit{Path: path, Edits: []protocol.FileEdit{{Old: "inside", New: "INSIDE"}}})
		count(err)
		found, err := fs.Search(t.Context(), protocol.FilesSearch{Path: path, Pattern: "secret"}, 0)
		if count(err) && len(found.Matches) > 0 {
			t.Errorf("searched %s outside", path)
		}
	}
	_, err := fs.Write(t.Context(), protocol.FilesWrite{Path: "dir/new/file", Content: []byte("inside")})
	count(err)
	_, err = fs.List(t.Context(), protocol.FilesList{Path: "dir"})
	count(err)
	return ok, failed
}

// The files that a glob leaves out are those that git ignores, whatever the rules.
func TestIgnore_AsGitDoes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("UNSUPPORTED HERE: git is not installed, so nothing is compared")
	}
	part := rapid.SampledFrom([]string{"a", "b", "ab", "*", "**", "?", "[ab]", "[!a]", "a*", "*b", `\a`, "[[:alpha:]]", "[a-b]", "[b-]", "[]a]", "[^b]", `\*`, "a?", ".*"})
	rule := rapid.Custom(func(t *rapid.T) string {
		text := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/")
		return rapid.SampledFrom([]string{"", "", "", "!", "#"}).Draw(t, "mark") + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "start") +
			text + rapid.SampledFrom([]string{"", "", "/", " ", `\ `, "/**"}).Draw(t, "end")
	})
	rules := rapid.SliceOfN(rule, 0, 4)
	base := t.TempDir()
	repository := filepath.Join(base, "git")
	git(t, "init", "-q", "--bare", repository)
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		checks++
		dir := filepath.Join(base, strconv.Itoa(checks))
		require.NoError(t, os.Mkdir(dir, 0o755))
		put := func(name, content string) {
			name = filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		}
		names := []string{"a", "b/a", "b/b", "ab/a/b", "ab/ab", "c/a/b/ab", "c/ab", "c/b/a"}
		for _, name := range names {
			put(name, "")
		}
		for _, at := range []string{"", "c/", "ab/a/"} {
			if text := strings.Join(rules.Draw(rt, "rules"), "\n"); text != "" {
				put(at+".gitignore", text+"\n")
			}
		}
		fs := open(t, dir)
		got, err := fs.Glob(t.Context(), protocol.FilesGlob{Pattern: "**"})
		require.NoError(t, err)
		require.Equal(rt, append([]string{}, gitSees(t, repository, dir)...), got.Paths)
	})
}

// gitSees are the files in dir that git would add to a repository.
func gitSees(t *testing.T, repository, dir string) []string {
	t.Helper()
	var names []string
	out := git(t, "--git-dir", repository, "--work-tree", dir, "ls-files", "--others", "--exclude-standard", "-z")
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if len(name) > 0 {
			names = append(names, string(name))
		}
	}
	return names
}

func git(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = []string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1"}
	if i := slices.Index(args, "--work-tree"); i >= 0 {
		cmd.Dir = args[i+1]
	}
	out, err := cmd.Output()
	require.NoError(t, err)
	return out
}

// Edits of one file under several names all hold.
func TestFS_EditsUnderSeveralNamesAllHold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fs := open(t, dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "dir")))
	require.NoError(t, os.Symlink("dir/file", filepath.Join(dir, "link")))
	const edits = 60
	var before, after strings.Builder
	for i := range edits {
		fmt.Fprintf(&before, "<%d>\n", i)
		fmt.Fprintf(&after, "[%d]\n", i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte(before.String()), 0o644))
	names := []string{"real/file", "dir/file", "link"}
	var group sync.WaitGroup
	for i := range edits {
		group.Go(func() {
			_, err := fs.Edit(t.Context(), protocol.FilesEdit{Path: names[i%len(names)], Edits: []protocol.FileEdit{{Old: fmt.Sprintf("<%d>", i), New: fmt.Sprintf("[%d]", i)}}})
			if err != nil {
				t.Errorf("edit %d: %v", i, err)
			}
		})
	}
	group.Wait()
	content, err := os.ReadFile(filepath.Join(dir, "real", "file"))
	require.NoError(t, err)
	require.Equal(t, after.String(), string(content))
}

func TestWrite_TheOwnerStays(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	f := open(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "theirs"), []byte("old"), 0o600))
	require.NoError(t, os.Chown(dir, 1234, 2345))
	require.NoError(t, os.Chown(filepath.Join(dir, "theirs"), 3456, 4567))
	for _, path := range []string{"theirs", "new", "a/b/new"} {
		_, err := f.Write(t.Context(), protocol.FilesWrite{Path: path, Content: []byte("x")})
		require.NoError(t, err)
	}
	owner := func(name string) [2]uint32 {
		var stat syscall.Stat_t
		require.NoError(t, syscall.Lstat(filepath.Join(dir, name), &stat))
		return [2]uint32{stat.Uid, stat.Gid}
	}
	require.Equal(t, [2]uint32{3456, 4567}, owner("theirs"))
	for _, name := range []string{"new", "a", "a/b", "a/b/new"} {
		require.Equal(t, [2]uint32{1234, 2345}, owner(name), name)
	}
}
