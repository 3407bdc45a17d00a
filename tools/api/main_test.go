package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestList_NamesWhatOtherModulesCanUse(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"go.mod": "module example.org/m\n\ngo 1.26\n",
		"pkg/a/a.go": `package a

import "io"

type Box struct {
	io.Reader
	Size   int
	hidden int
}

func (*Box) Close() error { return nil }
func (Box) open()         {}

type Opener interface{ Open() (*Box, error) }

type Also = Box

const Most = 3

var hidden Box

func New(size int) Box { return hidden }
`,
		"pkg/a/internal/b/b.go": "package b\n\nconst Hidden = 1\n",
		"pkg/tool/main.go":      "package main\n\nfunc Hidden() {}\nfunc main() {}\n",
		"internal/c/c.go":       "package c\n\nconst Hidden = 1\n",
	})
	names, err := list(dir)
	require.NoError(t, err)
	require.Equal(t, []string{
		"pkg/a: const Most untyped int",
		"pkg/a: func (*Box).Close() error",
		"pkg/a: func New(size int) Box",
		"pkg/a: type Also struct {Reader io.Reader; Size int}",
		"pkg/a: type Box struct {Reader io.Reader; Size int}",
		"pkg/a: type Opener interface{Open() (*Box, error)}",
	}, names)
}

func TestRun_CheckComparesAndChangesNothing(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"go.mod":     "module example.org/m\n\ngo 1.26\n",
		"pkg/a/a.go": "package a\n\nconst Most = 3\n",
	})
	path := filepath.Join(dir, "api.txt")
	require.ErrorContains(t, run(dir, path, true), "make api")
	require.NoFileExists(t, path)
	require.NoError(t, run(dir, path, false))
	require.NoError(t, run(dir, path, true))
	require.NoError(t, os.WriteFile(path, []byte("pkg/a: const Less\n"), 0o600))
	require.ErrorContains(t, run(dir, path, true), "make api")
}

func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}
