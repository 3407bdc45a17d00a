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
			for file := range saved(t, root, &snapshot.SaveOptions{Skip: ignore.Skip}).tree {
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
