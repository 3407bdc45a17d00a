package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// TestSync_LeavesProtectedPlacesAlone is a session that has planted programs in every place of a
// repository, by every name that some file system takes for it.
func TestSync_LeavesProtectedPlacesAlone(t *testing.T) {
	t.Parallel()
	options := &snapshot.Options{Protect: []string{".git/config", ".git/hooks", ".vscode/tasks.json"}}
	before := func() tree {
		return tree{
			".git": {dir: true}, ".git/config": {body: "mine"}, ".git/hooks": {dir: true}, ".git/hooks/old": {body: "mine"},
			".git/index": {body: "1"}, "f": {body: "1"},
		}
	}
	remote := before()
	remote[".git/config"] = node{body: "theirs"}
	remote[".git/hooks/new"] = node{body: "theirs"}
	delete(remote, ".git/hooks/old")
	remote[".git/index"] = node{body: "2"}
	remote["f"] = node{body: "2"}
	for _, planted := range []string{".GIT/hooks/x", ".g\u200cit/hooks/x", "GIT~1/config", ".git./hooks/x", ".git/HOOKS/x"} {
		remote[planted] = node{body: "theirs"}
	}
	for _, dir := range []string{".GIT", ".GIT/hooks", ".g\u200cit", ".g\u200cit/hooks", "GIT~1", ".git.", ".git./hooks", ".git/HOOKS", "evil"} {
		remote[dir] = node{dir: true}
	}
	remote["evil/tasks.json"] = node{body: "theirs"}
	remote[".vscode"] = node{link: "evil"}

	root, changes := threeWay(t, before(), remote, before(), options)
	require.Subset(t, changes.Protected, []string{
		".GIT/hooks/x", ".git./hooks/x", ".git/HOOKS/x", ".git/config", ".git/hooks/new", ".git/hooks/old", ".g\u200cit/hooks/x", ".vscode", "GIT~1/config",
	})
	require.Subset(t, changes.Written, []string{".git/index", "f"})
	require.Empty(t, changes.Conflicts)
	require.Empty(t, changes.Theirs)
	for name, want := range map[string]string{".git/config": "mine", ".git/hooks/old": "mine", ".git/index": "2", "f": "2"} {
		content, err := root.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(content), name)
	}
	for _, name := range append(changes.Protected[:0:0], ".git/hooks/new", ".git/HOOKS", ".GIT/hooks", ".vscode", "GIT~1/config") {
		_, err := root.Lstat(name)
		require.Error(t, err, name)
	}
}

// TestSync_DoesNotReplaceWhatProtectedPlacesAreIn has the archive put something else in the place
// of a directory with a protected file.
func TestSync_DoesNotReplaceWhatProtectedPlacesAreIn(t *testing.T) {
	t.Parallel()
	options := &snapshot.Options{Protect: []string{"d/config"}}
	before := tree{"d": {dir: true}, "d/config": {body: "mine"}, "d/other": {body: "1"}}
	for name, remote := range map[string]tree{
		"a link":  {"d": {link: "evil"}, "evil": {dir: true}, "evil/config": {body: "theirs"}},
		"a file":  {"d": {body: "theirs"}},
		"nothing": {},
	} {
		root, changes := threeWay(t, before, remote, before, options)
		require.Contains(t, changes.Protected, "d/config", name)
		content, err := root.ReadFile("d/config")
		require.NoError(t, err, name)
		require.Equal(t, "mine", string(content), name)
	}
}

// TestSync_NamesThatAreOthers come back.
func TestSync_NamesThatAreOthers(t *testing.T) {
	t.Parallel()
	options := &snapshot.Options{Protect: []string{".git/config", "src"}}
	names := []string{".gitignore", ".github", "config", "git", "src2", "sr", "SRC~x", "a/src", ".git~", "gitconfig~1"}
	remote := tree{"a": {dir: true}}
	for _, name := range names {
		remote[name] = node{body: "x"}
	}
	_, changes := threeWay(t, tree{}, remote, tree{}, options)
	require.Empty(t, changes.Protected)
	require.Subset(t, changes.Written, names)
}
