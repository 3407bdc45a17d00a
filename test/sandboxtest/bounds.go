//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"maps"
	"os"
	pathpkg "path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// bounded is a workspace with links from a place that may be used to one that may not.
func bounded(t *testing.T, f *tree) {
	t.Helper()
	f.put(t, "src/in.txt", "in\n")
	f.put(t, "src/in.json", "{}")
	f.put(t, "docs/doc.txt", "doc\n")
	f.put(t, "secret/out.txt", "out\n")
	f.put(t, "secret/out.json", `{"a":1}`)
	for link, target := range map[string]string{
		"src/file": "../secret/out.txt", "src/json": "../secret/out.json", "src/dir": "../secret", "src/new": "../secret/made",
		"src/twice": "file", "src/self": "in.txt", "alias": "src", "src/docs": "../docs",
	} {
		require.NoError(t, os.Symlink(target, f.host(link)))
	}
}

// operation is one of every sort on a path.
type operation func(ctx context.Context, fs sandbox.FS, p string) error

func readers() map[string]operation {
	return map[string]operation{
		"read": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Read(ctx, protocol.FilesRead{Path: p})
			return err
		},
		"read json": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.ReadJSON(ctx, protocol.FilesJSONRead{Path: p})
			return err
		},
		"search": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Search(ctx, protocol.FilesSearch{Path: p, Pattern: "o"}, 0)
			return err
		},
	}
}

func writers() map[string]operation {
	return map[string]operation{
		"write": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Write(ctx, protocol.FilesWrite{Path: p, Content: []byte("x")})
			return err
		},
		"edit": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Edit(ctx, protocol.FilesEdit{Path: p, Edits: []protocol.FileEdit{{Old: "o", New: "x", ReplaceAll: true}}})
			return err
		},
		"patch": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Edit(ctx, protocol.FilesEdit{Path: p, Patch: "@@ -1 +1 @@\n-out\n+x\n"})
			return err
		},
		"write json": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.WriteJSON(ctx, protocol.FilesJSONWrite{Path: p, Content: []byte("1")})
			return err
		},
	}
}

func walkers() map[string]operation {
	return map[string]operation{
		"list": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.List(ctx, protocol.FilesList{Path: p})
			return err
		},
		"tree": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Tree(ctx, protocol.FilesTree{Path: p})
			return err
		},
		"glob": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Glob(ctx, protocol.FilesGlob{Path: p, Pattern: "*"})
			return err
		},
		"base of a glob": func(ctx context.Context, fs sandbox.FS, p string) error {
			below := strings.TrimPrefix(strings.TrimPrefix(p, "src"), "/")
			_, err := fs.Glob(ctx, protocol.FilesGlob{Path: "src", Pattern: pathpkg.Join(below, "**/*.txt")})
			return err
		},
		"search": readers()["search"],
		"stat below": func(ctx context.Context, fs sandbox.FS, p string) error {
			_, err := fs.Stat(ctx, protocol.FilesExists{Path: p + "/out.txt"})
			return err
		},
	}
}

func boundTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"what a link leads to counts": func(t *testing.T, f *tree) {
			bounded(t, f)
			fs := f.Within(protocol.Roots{Write: []string{"src"}})
			all := readers()
			maps.Copy(all, writers())
			for _, do := range all {
				for _, p := range []string{"src/file", "src/json", "src/twice", "src/dir/out.txt", "/workspace/src/dir/none", "src/new", "secret/out.txt"} {
					requireFault(t, do(t.Context(), fs, p), protocol.CodePolicyDenied)
				}
			}
			for _, do := range walkers() {
				requireFault(t, do(t.Context(), fs, "src/dir"), protocol.CodePolicyDenied)
				requireFault(t, do(t.Context(), fs, "src/dir/below"), protocol.CodePolicyDenied)
			}
			require.Equal(t, "out\n", f.get(t, "secret/out.txt"))
			require.Equal(t, `{"a":1}`, f.get(t, "secret/out.json"))
			require.NoFileExists(t, f.host("secret/made"))
			require.NoFileExists(t, f.host("secret/none"))
		},
		"the rest is as ever": func(t *testing.T, f *tree) {
			bounded(t, f)
			fs := f.Within(protocol.Roots{Write: []string{"src"}})
			for name, do := range readers() {
				require.NoError(t, do(t.Context(), fs, "src/in.json"), name)
			}
			for name, do := range walkers() {
				require.NoError(t, do(t.Context(), fs, "src"), name)
			}
			require.NoError(t, writers()["write"](t.Context(), fs, "src/self"), "a link within")
			require.Equal(t, "x", f.get(t, "src/in.txt"))
			require.NoError(t, writers()["write"](t.Context(), fs, "src/deep/down/a"))
			stat, err := fs.Stat(t.Context(), protocol.FilesExists{Path: "src/file"})
			require.NoError(t, err)
			require.Equal(t, protocol.TypeSymlink, stat.Type, "the link itself is within")
			found, err := fs.Search(t.Context(), protocol.FilesSearch{Path: "src", Pattern: "out|doc"}, 0)
			require.NoError(t, err)
			require.Empty(t, found.Matches, "walks follow no links")
		},
		"reading is not writing": func(t *testing.T, f *tree) {
			bounded(t, f)
			fs := f.Within(protocol.Roots{Read: []string{"docs", "src"}, Write: []string{"src"}})
			require.NoError(t, readers()["read"](t.Context(), fs, "src/docs/doc.txt"))
			for _, do := range writers() {
				requireFault(t, do(t.Context(), fs, "src/docs/doc.txt"), protocol.CodePolicyDenied)
			}
			require.Equal(t, "doc\n", f.get(t, "docs/doc.txt"))
		},
		"all bounds hold": func(t *testing.T, f *tree) {
			bounded(t, f)
			fs := f.Within(protocol.Roots{Read: []string{""}}, protocol.Roots{Write: []string{"src"}}).Within(protocol.Roots{Read: []string{"src/in.txt"}})
			require.NoError(t, readers()["read"](t.Context(), fs, "src/in.txt"))
			require.NoError(t, readers()["read"](t.Context(), fs, "src/self"), "it leads to a root")
			requireFault(t, readers()["read"](t.Context(), fs, "src/in.json"), protocol.CodePolicyDenied)
			requireFault(t, writers()["write"](t.Context(), fs, "src/in.txt"), protocol.CodePolicyDenied)
		},
		"a root that is a link allows nothing": func(t *testing.T, f *tree) {
			bounded(t, f)
			requireFault(t, readers()["read"](t.Context(), f.Within(protocol.Roots{Read: []string{"alias"}}), "alias/in.txt"), protocol.CodePolicyDenied)
			require.NoError(t, readers()["read"](t.Context(), f.Within(protocol.Roots{Read: []string{"src"}}), "alias/in.txt"))
		},
		"names are not prefixes": func(t *testing.T, f *tree) {
			f.put(t, "srcs/a", "a")
			requireFault(t, readers()["read"](t.Context(), f.Within(protocol.Roots{Read: []string{"src", "srcs/ab"}}), "srcs/a"), protocol.CodePolicyDenied)
		},
		"no roots are no bound, and empty ones allow nothing": func(t *testing.T, f *tree) {
			bounded(t, f)
			require.NoError(t, readers()["read"](t.Context(), f.Within(), "src/file"))
			requireFault(t, readers()["read"](t.Context(), f.Within(protocol.Roots{}), "src/in.txt"), protocol.CodePolicyDenied)
		},
		"escapes stay escapes": func(t *testing.T, f *tree) {
			require.NoError(t, os.Mkdir(f.host("src"), 0o755))
			require.NoError(t, os.Symlink("/etc", f.host("src/abs")))
			require.NoError(t, os.Symlink("../..", f.host("src/up")))
			fs := f.Within(protocol.Roots{Write: []string{"src"}})
			for _, p := range []string{"src/abs/passwd", "src/up/x", "../x", "/etc/passwd"} {
				requireFault(t, readers()["read"](t.Context(), fs, p), codes.PathEscape)
			}
		},
	}
}
