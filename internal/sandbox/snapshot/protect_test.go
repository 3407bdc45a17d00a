package snapshot_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
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

func TestIgnore(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		".gitignore": "build/\n*.log\n", "main.go": "", "build/out": "", "a.log": "", "sub/.gitignore": "!keep.log\nlocal\n",
		"sub/keep.log": "", "sub/drop.log": "", "sub/local/x": "", ".git/refs/heads/key.pem": "", ".git/a.log": "",
		".env": "", ".env.local": "", ".env.example": "", "sub/server.pem": "", "id_rsa": "", "id_rsa.pub": "", ".aws/config": "",
		"credentials/code.go": "", ".npmrc": "registry=x\n", "sub/.npmrc": "//x/:_authToken=y\n", "x.key/file": "",
	}
	everywhere := []string{
		".env.example", ".git/a.log", ".git/refs/heads/key.pem", ".gitignore", ".npmrc", "credentials/code.go", "id_rsa.pub",
		"main.go", "sub/.gitignore", "sub/keep.log", "x.key/file",
	}
	for name, test := range map[string]struct {
		own     string
		tracked []string
		all     bool
		more    []string
		less    []string
		told    string
	}{
		"what git and secrets leave out": {told: ".aws, .env, .env.local, id_rsa and 2 more (secrets), a.log, build, sub/drop.log, sub/local (.gitignore)"},
		"ignored ones, but no secrets": {
			all: true, more: []string{"a.log", "build/out", "sub/drop.log", "sub/local/x"}, told: ".aws, .env, .env.local, id_rsa and 2 more (secrets)",
		},
		"what git tracks is there": {
			tracked: []string{"build/out", "sub/server.pem"}, more: []string{"build/out", "sub/server.pem"},
			told: ".aws, .env, .env.local, id_rsa and 1 more (secrets), a.log, sub/drop.log, sub/local (.gitignore)",
		},
		"beside what git tracks in an ignored directory": {
			tracked: []string{"build/other"}, told: ".aws, .env, .env.local, id_rsa and 2 more (secrets), a.log, build/out, sub/drop.log, sub/local (.gitignore)",
		},
		"the directory has the last word": {
			own: "!.env\n!build/\n/main.go\n.git/\n", tracked: []string{"main.go"}, more: []string{".toolfleetignore", ".env", "build/out"},
			less: []string{"main.go", ".git/a.log", ".git/refs/heads/key.pem"},
			told: ".aws, .env.local, id_rsa, sub/.npmrc and 1 more (secrets), a.log, sub/drop.log, sub/local (.gitignore)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := maps.Clone(base)
			if test.own != "" {
				files[snapshot.OwnIgnoreFile] = test.own
			}
			for file, content := range files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
			}
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			ignore := snapshot.NewIgnore(root, test.tracked, test.all)
			var kept []string
			for file := range saved(t, root, &snapshot.Options{Skip: ignore.Skip}).tree {
				if _, is := files[file]; is {
					kept = append(kept, file)
				}
			}
			want := append(slices.Clone(everywhere), test.more...)
			want = slices.DeleteFunc(want, func(file string) bool { return slices.Contains(test.less, file) })
			require.ElementsMatch(t, want, kept)
			require.Equal(t, test.told, ignore.LeftOut())
			require.True(t, ignore.Skip(".env.local", false))
			require.Empty(t, ignore.LeftOut(), "it was told")
		})
	}
}

// TestIgnore_SecretsInAnyCase: where names have no case, programs find .ENV as .env.
func TestIgnore_SecretsInAnyCase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".NPMRC"), []byte("//x/:_authToken=y\n"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	ignore := snapshot.NewIgnore(root, nil, false)
	for name, skipped := range map[string]bool{".ENV": true, "sub/Server.PEM": true, "ID_RSA": true, ".NPMRC": true, ".Env.Example": false, "README": false} {
		require.Equal(t, skipped, ignore.Skip(name, false), name)
	}
	require.True(t, ignore.Skip(".AWS", true))
}
