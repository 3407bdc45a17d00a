package manifest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder is a folder of manifests that a test changes.
type folder struct {
	*manifest.Folder

	t *testing.T
}

func newFolder(t *testing.T) folder {
	t.Helper()
	opened, err := manifest.Open(t.TempDir())
	require.NoError(t, err)
	return folder{Folder: opened, t: t}
}

func (f folder) write(name, content string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.Dir(), name), []byte(content), 0o600))
}

func (f folder) tool(name string) {
	f.t.Helper()
	f.write(name+".yaml", "name: "+name+"\ndescription: Does "+name+".\ncommand: [\"true\"]\n")
}

func names(set manifest.Set) []string {
	out := []string{}
	for _, tool := range set.Tools {
		out = append(out, tool.Name)
	}
	return out
}

func problems(set manifest.Set) []string {
	out := []string{}
	for _, p := range set.Problems {
		out = append(out, filepath.Base(p.Error()))
	}
	return out
}

func TestFolder_FollowsItsFiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	require.Empty(t, f.Load().Tools)
	f.tool("b")
	f.tool("a")
	f.write("README.md", "not a manifest")
	f.write("a.py", "nor this")
	set := f.Load()
	require.Equal(t, []string{"a", "b"}, names(set))
	require.Empty(t, set.Problems)
	require.False(t, set.News)

	f.write("b.yaml", "name: c\ndescription: Other.\ncommand: [\"true\"]\n")
	require.Equal(t, []string{"a", "c"}, names(f.Load()))
	require.NoError(t, os.Remove(filepath.Join(f.Dir(), "a.yaml")))
	require.Equal(t, []string{"c"}, names(f.Load()))
}

func TestFolder_ABrokenManifestTakesNothingWithIt(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("a")
	f.tool("b")
	f.write("never.yaml", "name: never\n")
	set := f.Load()
	require.Equal(t, []string{"a", "b"}, names(set))
	require.True(t, set.News)
	require.Len(t, set.Problems, 1)
	require.Contains(t, set.Problems[0].Error(), "never.yaml")

	f.write("b.yaml", "name: b\ndescription: Does b.\ncomand: [\"true\"]\n")
	set = f.Load()
	require.Equal(t, []string{"a", "b"}, names(set), "b is as it was")
	require.True(t, set.News)
	require.Contains(t, problems(set)[0], `b.yaml:3: there is no field "comand"`)
	require.Contains(t, problems(set)[1], "b.yaml: the tool b stays as it was before")
	require.False(t, f.Load().News, "the same problems are no news")

	f.tool("b")
	require.NoError(t, os.Remove(filepath.Join(f.Dir(), "never.yaml")))
	set = f.Load()
	require.Empty(t, set.Problems)
	require.True(t, set.News, "that they are gone is")
}

func TestFolder_NamesAreTakenOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("bash")
	f.tool("twin")
	f.write("x.yaml", "# the other\nname: twin\ndescription: Other.\ncommand: [\"true\"]\n")
	set := f.Load("bash", "read")
	require.Equal(t, []string{"twin"}, names(set))
	require.Equal(t, []string{
		"bash.yaml:1: the name bash is that of a built-in tool: choose another",
		"x.yaml:2: the name twin is that of the tool of twin.yaml: choose another",
	}, problems(set))
}

func TestFolder_WhatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("a")
	require.NoError(t, os.Mkdir(filepath.Join(f.Dir(), "dir.yaml"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(f.Dir(), "dangling.yaml")))
	set := f.Load()
	require.Equal(t, []string{"a"}, names(set))
	require.Len(t, set.Problems, 2)
	require.NoError(t, os.Rename(f.Dir(), f.Dir()+".away"))
	set = f.Load()
	require.Equal(t, []string{"a"}, names(set), "what was there stays")
	require.NoError(t, os.Rename(f.Dir()+".away", f.Dir()))

	_, err := manifest.Open(filepath.Join(f.Dir(), "a.yaml"))
	require.ErrorContains(t, err, "not a directory")
	_, err = manifest.Open(filepath.Join(f.Dir(), "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
