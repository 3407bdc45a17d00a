//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// NewFS makes file operations, and tells the workspace's directory on the host.
type NewFS func(t *testing.T) (fs sandbox.FS, workspace string)

// RunFS tests file operations. The tests of a group have one workspace after the other: to open a
// sandbox for each of them took longer than all that they do.
func RunFS(t *testing.T, newFS NewFS) {
	t.Helper()
	groups := map[string]map[string]func(*testing.T, *tree){
		"paths":  pathTests(),
		"bounds": boundTests(),
		"read":   readTests(),
		"write":  writeTests(),
		"edit":   editTests(),
		"edits":  editsTests(),
		"patch":  patchTests(),
		"json":   jsonTests(),
		"find":   findTests(),
		"list":   listTests(),
		"search": searchTests(),
		"texts":  textTests(),
	}
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs, dir := newFS(t)
			for name, test := range group {
				t.Run(name, func(t *testing.T) {
					f := &tree{FS: fs, dir: dir}
					t.Cleanup(func() {
						for _, left := range f.names(t, "") {
							require.NoError(t, os.RemoveAll(f.host(left)))
						}
					})
					test(t, f)
				})
			}
		})
	}
}

// tree is file operations under test.
type tree struct {
	sandbox.FS

	dir string
}

func (f *tree) host(name string) string { return filepath.Join(f.dir, name) }

// put makes a file from outside.
func (f *tree) put(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(f.host(name)), 0o755))
	require.NoError(t, os.WriteFile(f.host(name), []byte(content), 0o644))
}

func (f *tree) link(t *testing.T, target, name string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(f.host(name)), 0o755))
	require.NoError(t, os.Symlink(target, f.host(name)))
}

// get reads a file from outside.
func (f *tree) get(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(f.host(name))
	require.NoError(t, err)
	return string(content)
}

// names are what is in a directory, seen from outside.
func (f *tree) names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(f.host(dir))
	require.NoError(t, err)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// each calls every operation on a path and checks what comes of it.
func (f *tree) each(t *testing.T, path string, check func(op string, err error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := time.Now()
	_, err := f.Read(ctx, protocol.FilesRead{Path: path})
	check("read", err)
	_, err = f.Write(ctx, protocol.FilesWrite{Path: path, Content: []byte("x")})
	check("write", err)
	_, err = f.Edit(ctx, protocol.FilesEdit{Path: path, Edits: []protocol.FileEdit{{Old: "a", New: "b"}}})
	check("edit", err)
	_, err = f.List(ctx, protocol.FilesList{Path: path})
	check("list", err)
	_, err = f.Search(ctx, protocol.FilesSearch{Path: path, Pattern: "x"}, 0)
	check("search", err)
	require.Less(t, time.Since(start), patience)
}

func pathTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"many ways to name a file":                pathNames,
		"a path that leads outside":               pathOutside,
		"a path that cannot be one":               pathInvalid,
		"a link that leads outside":               pathLinks,
		"a link inside":                           pathInnerLinks,
		"an absolute link inside":                 pathAbsoluteLinks,
		"a FIFO, socket or device does not block": pathSpecial,
		"a directory where a file is needed":      pathDirectory,
		"a file where a directory is needed":      pathThroughFile,
		"nothing there, but something like it":    pathNear,
		"stat":                                    pathStat,
		"a closed context":                        pathContext,
		"permissions":                             pathPermissions,
	}
}

func pathNames(t *testing.T, f *tree) {
	f.put(t, "a/b.txt", "content")
	for _, path := range []string{
		"a/b.txt", "./a/b.txt", "a//b.txt", "a/x/../b.txt", "/workspace/a/b.txt", "/workspace//a/./b.txt", "//workspace/a/b.txt",
	} {
		result, err := f.Read(t.Context(), protocol.FilesRead{Path: path})
		require.NoError(t, err, path)
		require.Equal(t, "content", string(result.Content))
	}
	for _, path := range []string{"", ".", "/workspace", "/workspace/", "a/.."} {
		result, err := f.List(t.Context(), protocol.FilesList{Path: path})
		require.NoError(t, err, path)
		require.Equal(t, []protocol.DirEntry{{Name: "a", Type: protocol.TypeDir}}, result.Entries)
	}
}

func pathOutside(t *testing.T, f *tree) {
	outside := filepath.Join(filepath.Dir(f.dir), "outside-"+filepath.Base(f.dir))
	for _, path := range []string{
		"..", "../x", "a/../../x", "/", "/etc/passwd", "/workspace/..", "/workspace/../etc/passwd", "/workspacex/a",
		outside, "../" + filepath.Base(outside),
	} {
		f.each(t, path, func(op string, err error) {
			require.Contains(t, requireFault(t, err, codes.PathEscape), "relative to the workspace", "%s %s", op, path)
		})
		_, err := f.Stat(t.Context(), protocol.FilesExists{Path: path})
		requireFault(t, err, codes.PathEscape)
	}
	require.NoFileExists(t, outside)
}

func pathInvalid(t *testing.T, f *tree) {
	long := make([]byte, 300)
	deep := make([]byte, 0, 9000)
	for i := range long {
		long[i] = 'n'
	}
	for range 3000 {
		deep = append(deep, "ab/"...)
	}
	for _, path := range []string{"a\x00b", "\x00", "a\xffb", string(long), "dir/" + string(long), string(deep)} {
		f.each(t, path, func(op string, err error) {
			require.Less(t, len(requireFault(t, err, codes.InvalidPath)), 1000, op)
		})
		_, err := f.Stat(t.Context(), protocol.FilesExists{Path: path})
		requireFault(t, err, codes.InvalidPath)
	}
	require.Empty(t, f.names(t, ""))
}

func pathLinks(t *testing.T, f *tree) {
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	require.NoError(t, os.WriteFile(canary, []byte("a"), 0o666))
	relative, err := filepath.Rel(f.dir, outside)
	require.NoError(t, err)
	f.link(t, canary, "file")
	f.link(t, outside, "dir")
	f.link(t, filepath.Join(outside, "new"), "dangling")
	f.link(t, relative+"/canary", "relative")
	f.link(t, relative, "up")
	f.link(t, "up", "chain")
	f.link(t, "/proc/self/root", "proc")
	f.link(t, "/workspace/../etc/passwd", "over")
	f.link(t, "/workspacex/file", "beside")
	f.link(t, "/", "root")
	for _, path := range []string{
		"file", "dir/canary", "dir/new", "dangling", "relative", "up/canary", "chain/canary", "proc/etc/passwd", "over", "beside", "root/etc/passwd",
	} {
		f.each(t, path, func(op string, err error) {
			require.Contains(t, requireFault(t, err, codes.PathEscape), "symbolic link", "%s %s", op, path)
		})
	}
	_, err = f.Stat(t.Context(), protocol.FilesExists{Path: "dir/canary"})
	requireFault(t, err, codes.PathEscape)
	content, err := os.ReadFile(canary)
	require.NoError(t, err)
	require.Equal(t, "a", string(content))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func pathInnerLinks(t *testing.T, f *tree) {
	f.put(t, "real/file", "one\n")
	f.link(t, "real", "dir")
	f.link(t, "../dir/file", "links/file")
	f.link(t, "links/file", "chain")
	for _, path := range []string{"dir/file", "links/file", "chain"} {
		result, err := f.Read(t.Context(), protocol.FilesRead{Path: path})
		require.NoError(t, err)
		require.Equal(t, "one\n", string(result.Content), path)
	}
	f.link(t, "gone", "nowhere")
	f.link(t, "/workspace/gone", "lost")
	_, err := f.Read(t.Context(), protocol.FilesRead{Path: "lost"})
	require.Contains(t, requireFault(t, err, protocol.CodeNotFound), `"lost" leads nowhere`)
	for _, path := range []string{"nowhere", "nowhere/file"} {
		_, err := f.Read(t.Context(), protocol.FilesRead{Path: path})
		require.Contains(t, requireFault(t, err, protocol.CodeNotFound), `"nowhere" leads nowhere`)
	}
	f.link(t, "loop2", "loop1")
	f.link(t, "loop1", "loop2")
	f.each(t, "loop1", func(op string, err error) { require.Error(t, err, op) })
}

// pathAbsoluteLinks: a link may call the workspace by the name that it has in a sandbox, and
// by the one that it has on the host.
func pathAbsoluteLinks(t *testing.T, f *tree) {
	for i, workspace := range []string{"/workspace", f.dir, "//workspace/./"} {
		at := fmt.Sprintf("%d/", i)
		f.put(t, at+"real/file", "one\n")
		f.put(t, at+"real/sub/deep", "deep\n")
		for name, target := range map[string]string{"link": "real/file", "dir": "real", "sub/dir": "dir/sub", "up": "real/sub/..", "fresh": "made/later"} {
			f.link(t, workspace+"/"+at+target, at+name)
		}
		for _, path := range []string{"link", "dir/file", "sub/dir/deep", "up/file"} {
			result, err := f.Read(t.Context(), protocol.FilesRead{Path: at + path})
			require.NoError(t, err, path)
			require.Contains(t, "one\ndeep\n", string(result.Content), path)
			found, err := f.Search(t.Context(), protocol.FilesSearch{Path: at + path, Pattern: "e$"}, 0)
			require.NoError(t, err, path)
			require.Equal(t, 1, found.Files, path)
			exists, err := f.Stat(t.Context(), protocol.FilesExists{Path: at + path})
			require.NoError(t, err, path)
			require.True(t, exists.Exists, path)
		}
		for path, where := range map[string]string{"link": "real/file", "dir/new/file": "real/new/file", "sub/dir/deep": "real/sub/deep", "fresh": "made/later"} {
			_, err := f.Write(t.Context(), protocol.FilesWrite{Path: at + path, Content: []byte("two\n")})
			require.NoError(t, err, path)
			require.Equal(t, "two\n", f.get(t, at+where))
			_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: at + path, Edits: []protocol.FileEdit{{Old: "two", New: "three"}}})
			require.NoError(t, err, path)
			require.Equal(t, "three\n", f.get(t, at+where))
		}
		for _, name := range []string{"link", "dir", "sub/dir", "up", "fresh"} {
			info, err := os.Lstat(f.host(at + name))
			require.NoError(t, err)
			require.NotZero(t, info.Mode()&os.ModeSymlink, "%s is a link still", name)
		}
		list, err := f.List(t.Context(), protocol.FilesList{Path: at + "sub/dir"})
		require.NoError(t, err)
		require.Len(t, list.Entries, 1)
		glob, err := f.Glob(t.Context(), protocol.FilesGlob{Path: at + "dir", Pattern: "**/*"})
		require.NoError(t, err)
		require.Len(t, glob.Paths, 3)
		tree, err := f.Tree(t.Context(), protocol.FilesTree{Path: at + "dir"})
		require.NoError(t, err)
		require.Len(t, tree.Entries, 5)
	}
}

func pathSpecial(t *testing.T, f *tree) {
	require.NoError(t, syscall.Mkfifo(f.host("fifo"), 0o666))
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(socket)
	bound := filepath.Join("/tmp", filepath.Base(t.TempDir())+time.Now().Format("150405.000000000"))
	require.NoError(t, syscall.Bind(socket, &syscall.SockaddrUnix{Name: bound})) // names of sockets are short
	require.NoError(t, os.Rename(bound, f.host("socket")))
	f.link(t, "fifo", "link")
	for _, path := range []string{"fifo", "socket", "link"} {
		f.each(t, path, func(op string, err error) {
			if op == "list" {
				requireFault(t, err, codes.NotDirectory)
				return
			}
			requireFault(t, err, codes.NotRegular)
		})
	}
	list, err := f.List(t.Context(), protocol.FilesList{})
	require.NoError(t, err)
	require.Equal(t, []protocol.DirEntry{
		{Name: "fifo", Type: protocol.TypeOther},
		{Name: "link", Type: protocol.TypeSymlink},
		{Name: "socket", Type: protocol.TypeOther},
	}, list.Entries)
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 0)
	require.NoError(t, err)
	require.Zero(t, result.Files)
}

func pathDirectory(t *testing.T, f *tree) {
	f.put(t, "dir/file", "x\n")
	for _, path := range []string{"dir", "."} {
		f.each(t, path, func(op string, err error) {
			if op == "list" || op == "search" {
				require.NoError(t, err)
				return
			}
			requireFault(t, err, codes.IsDirectory)
		})
	}
	require.Equal(t, "x\n", f.get(t, "dir/file"))
}

func pathThroughFile(t *testing.T, f *tree) {
	f.put(t, "file", "x")
	f.each(t, "file/below", func(_ string, err error) {
		requireFault(t, err, codes.NotDirectory)
	})
	_, err := f.List(t.Context(), protocol.FilesList{Path: "file"})
	requireFault(t, err, codes.NotDirectory)
	require.Equal(t, "x", f.get(t, "file"))
}

func pathNear(t *testing.T, f *tree) {
	f.put(t, "src/main.go", "")
	f.put(t, "README.md", "")
	for path, near := range map[string]string{
		"src/mian.go": `"src/main.go"`,
		"src/main.py": `"src/main.go"`,
		"scr/main.go": `"src"`,
		"readme.md":   `"README.md"`,
	} {
		_, err := f.Read(t.Context(), protocol.FilesRead{Path: path})
		require.Contains(t, requireFault(t, err, protocol.CodeNotFound), near)
	}
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "quite-different", Edits: []protocol.FileEdit{{Old: "a", New: "b"}}})
	require.NotContains(t, requireFault(t, err, protocol.CodeNotFound), "there is")
	_, err = f.List(t.Context(), protocol.FilesList{Path: "missing/dir"})
	require.Contains(t, requireFault(t, err, protocol.CodeNotFound), `there is no "missing" in the workspace`)
	_, err = f.Search(t.Context(), protocol.FilesSearch{Path: "missing", Pattern: "x"}, 0)
	requireFault(t, err, protocol.CodeNotFound)
}

func pathStat(t *testing.T, f *tree) {
	f.put(t, "dir/file", "12345")
	f.link(t, "/etc/passwd", "link")
	for path, want := range map[string]protocol.FilesExistsResult{
		"dir/file":       {Exists: true, Type: protocol.TypeFile, Size: 5},
		"dir":            {Exists: true, Type: protocol.TypeDir},
		"":               {Exists: true, Type: protocol.TypeDir},
		"link":           {Exists: true, Type: protocol.TypeSymlink},
		"missing":        {},
		"missing/below":  {},
		"dir/file/below": {},
	} {
		got, err := f.Stat(t.Context(), protocol.FilesExists{Path: path})
		require.NoError(t, err, path)
		want.Path = path
		require.Equal(t, want, got, path)
	}
}

func pathContext(t *testing.T, f *tree) {
	f.put(t, "file", "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Read(ctx, protocol.FilesRead{Path: "file"})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.Edit(ctx, protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "a", New: "b"}}})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.Write(ctx, protocol.FilesWrite{Path: "file", Content: []byte("b")})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.Write(ctx, protocol.FilesWrite{Path: "new", Content: []byte("b")})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.List(ctx, protocol.FilesList{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.Search(ctx, protocol.FilesSearch{Pattern: "a"}, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "a", f.get(t, "file"))
	require.Equal(t, []string{"file"}, f.names(t, ""))
}

func pathPermissions(t *testing.T, f *tree) {
	if os.Geteuid() == 0 {
		t.Skip("root may do everything")
	}
	f.put(t, "unreadable", "a")
	f.put(t, "readonly", "a")
	f.put(t, "dir/file", "a")
	require.NoError(t, os.Chmod(f.host("unreadable"), 0))
	require.NoError(t, os.Chmod(f.host("readonly"), 0o444))
	require.NoError(t, os.Chmod(f.host("dir"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(f.host("dir"), 0o755) })
	_, err := f.Read(t.Context(), protocol.FilesRead{Path: "unreadable"})
	requireFault(t, err, protocol.CodePermission)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "readonly", Edits: []protocol.FileEdit{{Old: "a", New: "b"}}})
	requireFault(t, err, protocol.CodePermission)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "readonly"})
	requireFault(t, err, protocol.CodePermission)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "dir/new"})
	requireFault(t, err, protocol.CodePermission)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "dir/file"})
	requireFault(t, err, protocol.CodePermission)
}
