//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// testProtect holds drivers to [isolation.Spec].Protect, or to refusing it.
func testProtect(t *testing.T, s suite) {
	caps, err := s.newDriver(t).Probe(t.Context())
	require.NoError(t, err)
	if !caps.Protect {
		spec := isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Protection: isolation.Protection{Protect: []string{"a"}}}
		_, err := s.newDriver(t).Open(t.Context(), spec)
		require.ErrorIs(t, err, sandbox.ErrUnsupported)
		return
	}
	for name, test := range map[string]func(*testing.T, suite){
		"a place that cannot be one is refused":                    protectInvalid,
		"a place behind a symbolic link is refused":                protectLink,
		"what is there can be read, and is not changed":            protectThere,
		"directories around it are not exchanged":                  protectAround,
		"what is missing is not made":                              protectMissing,
		"files stand in places that are missing":                   protectMissingFile,
		"a copy is changed in the place of a file":                 protectCopy,
		"what is below something missing is not made":              protectBelowMissing,
		"a directory in which nothing can be made":                 protectLocked,
		"a file on the way stays a file":                           protectFileOnTheWay,
		"file operations say that it is protected":                 protectFiles,
		"read-only commands run beside":                            protectReadOnly,
		"what is replaced from outside is protected again":         protectReplaced,
		"what was made in a missing place by others stays":         protectKept,
		"another sandbox of the same workspace takes nothing away": protectTwice,
		"a mount cannot be taken away":                             protectUnmount,
		"descriptors and other names are no way to it":             protectDetours,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// protected opens a sandbox with a workspace that make fills, and protected places.
func (s suite) protected(t *testing.T, workspace string, places ...string) *box {
	t.Helper()
	return s.protectedBy(t, workspace, isolation.Spec{Protection: isolation.Protection{Protect: places}})
}

// protectedBy is protected with all that a specification says about protected places.
func (s suite) protectedBy(t *testing.T, workspace string, spec isolation.Spec) *box {
	t.Helper()
	b := &box{workspace: workspace, scratch: cmp.Or(spec.Scratch, t.TempDir()), options: s.options}
	spec.ID, spec.Workspace, spec.Scratch, spec.Env = t.Name(), b.workspace, b.scratch, map[string]string{"PATH": path, "LANG": "C"}
	opened, err := s.newDriver(t).Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	b.Sandbox = opened
	return b
}

// repository is a workspace with what a repository has.
func repository(t *testing.T) string {
	t.Helper()
	b := &box{workspace: t.TempDir()}
	b.put(t, "d/hooks/h", "hook", 0o755)
	b.put(t, "d/config", "config", 0o644)
	b.put(t, "d/index", "index", 0o644)
	require.NoError(t, os.Chmod(b.host("d"), 0o755))
	return b.workspace
}

// fails runs a script of which every line has to fail, with one of the words in what it says.
func (b *box) fails(t *testing.T, script string, words ...string) {
	t.Helper()
	for line := range strings.Lines(strings.TrimSpace(script)) {
		result := b.exec(t, shell(line))
		require.NotZero(t, result.ExitCode, "%s\n%s", line, result.Stdout.Data)
		said := string(result.Stderr.Data)
		require.True(t, len(words) == 0 || containsAny(said, words), "%s\n%s", line, said)
	}
}

func containsAny(text string, words []string) bool {
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// What the kernel says of a read-only mount, and of a place where one is.
var shut = []string{"Read-only file system", "resource busy", "Invalid cross-device link"}

func protectInvalid(t *testing.T, s suite) {
	for _, place := range []string{"", ".", "..", "a/../..", "/etc", "/workspace/a", "a\x00b", "\xff", strings.Repeat("x", 256), strings.Repeat("x/", 3000)} {
		spec := isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Protection: isolation.Protection{Protect: []string{place}}}
		_, err := s.newDriver(t).Open(t.Context(), spec)
		require.ErrorContains(t, err, "protected place", "%q", place)
	}
	spec := isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Protection: isolation.Protection{Protect: make([]string, isolation.MaxProtected+1)}}
	_, err := s.newDriver(t).Open(t.Context(), spec)
	require.ErrorContains(t, err, "at most")
}

func protectLink(t *testing.T, s suite) {
	workspace, outside := repository(t), t.TempDir()
	require.NoError(t, os.Symlink("d", filepath.Join(workspace, "inside")))
	require.NoError(t, os.Symlink(outside, filepath.Join(workspace, "outside")))
	for _, place := range []string{"inside", "inside/config", "inside/missing", "outside/missing"} {
		spec := isolation.Spec{ID: "x", Workspace: workspace, Scratch: t.TempDir(), Protection: isolation.Protection{Protect: []string{place}}}
		_, err := s.newDriver(t).Open(t.Context(), spec)
		require.ErrorContains(t, err, "symbolic link", place)
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, filepath.Join(workspace, "d/missing"))
}

func protectThere(t *testing.T, s suite) {
	b := s.protected(t, repository(t), "d/hooks", "d/config")
	require.Equal(t, "configconfighook", b.sh(t, "cat d/config; cat /workspace/d/config; sh -c 'cd d/hooks && cat h'"))
	b.fails(t, `echo x > d/config
echo x >> d/config
: > d/hooks/h
echo x > d/hooks/new
mkdir d/hooks/new
rm -f d/hooks/h
rm -f d/config
rm -rf d/hooks
mv d/config d/other
mv d/hooks d/other
mv d/index d/config
echo x > d/lock && mv d/lock d/config
mkdir d/fresh && mv -T d/fresh d/hooks
ln d/config link
ln d/hooks/h d/link
ln -sf /tmp d/hooks/h
chmod 777 d/config
chmod 777 d/hooks
touch d/config
truncate -s 0 d/hooks/h`, shut...)
	require.Equal(t, "fine\n", b.sh(t, "echo x >> d/index; echo y > d/new; mkdir d/more; mv d/new d/more/; rm d/more/new; rm -r d/more; echo fine"))
	content, err := os.ReadFile(b.host("d/config"))
	require.NoError(t, err)
	require.Equal(t, "config", string(content))
	info, err := os.Stat(b.host("d/config"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
}

func protectAround(t *testing.T, s suite) {
	workspace := t.TempDir()
	(&box{workspace: workspace}).put(t, "a/b/c/config", "config", 0o644)
	b := s.protected(t, workspace, "a/b/c/config")
	b.fails(t, `mv a a2
mv a/b a/b2
mv a/b/c a/b/c2
mv a/b/c c2
rmdir a/b/c
rm -rf a
mkdir x && mv -T x a/b`, "resource busy", "Invalid cross-device link", "not empty")
	require.Equal(t, "config", b.sh(t, "cat a/b/c/config"))
}

func protectMissing(t *testing.T, s suite) {
	workspace := repository(t)
	b := s.protected(t, workspace, "d/commondir", "missing")
	b.fails(t, `echo x > missing/x
mkdir missing/x
rmdir missing
mv missing other
rm -rf missing
ln -sfT /tmp missing
echo x > missing
echo x > d/commondir
mv d/index d/commondir
mv -T d/hooks d/commondir`, append([]string{"directory", "busy"}, shut...)...)
	require.NoError(t, b.Close())
	require.NoFileExists(t, filepath.Join(workspace, "d/commondir"))
	require.NoDirExists(t, filepath.Join(workspace, "d/commondir"))
	require.NoDirExists(t, filepath.Join(workspace, "missing"))
}

// protectMissingFile also has one that a sandbox left which was killed, and one that somebody else
// has filled.
func protectMissingFile(t *testing.T, s suite) {
	workspace := repository(t)
	b := &box{workspace: workspace}
	b.put(t, "d/left", "stands", 0o644)
	b.put(t, "d/theirs", "theirs", 0o644)
	spec := isolation.Spec{
		Protection: isolation.Protection{
			Protect: []string{"d/empty", "d/file", "d/left", "d/theirs", "missing/file"},
			Missing: map[string]string{"d/empty": "", "d/file": "stands", "d/left": "stands", "d/theirs": "stands", "missing/file": "stands"},
		},
	}
	b = s.protectedBy(t, workspace, spec)
	require.Equal(t, "standsstandstheirs", b.sh(t, "cat d/empty d/file d/left d/theirs"))
	b.fails(t, `echo x > d/empty
echo x >> d/file
rm d/file
mv d/index d/left
ln -sf /tmp d/empty
echo x > d/theirs
echo x > missing/file`, append([]string{"directory"}, shut...)...)
	require.NoError(t, os.WriteFile(b.host("d/empty"), []byte("mine"), 0o600))
	require.NoError(t, b.Close())
	for _, gone := range []string{"d/file", "d/left", "missing"} {
		require.NoFileExists(t, b.host(gone))
		require.NoDirExists(t, b.host(gone))
	}
	for _, kept := range []string{"d/empty", "d/theirs"} {
		require.FileExists(t, b.host(kept))
	}
}

// protectCopy changes a file as git does: by a new one that is renamed over it, where a link leads.
func protectCopy(t *testing.T, s suite) {
	caps, err := s.newDriver(t).Probe(t.Context())
	require.NoError(t, err)
	workspace, scratch := repository(t), t.TempDir()
	spec := isolation.Spec{Scratch: scratch, Protection: isolation.Protection{Protect: []string{"d/config", "d/hooks"}, Copies: []string{"d/config", "d/hooks"}}}
	if !caps.Copies {
		spec.ID, spec.Workspace = "x", workspace
		_, err := s.newDriver(t).Open(t.Context(), spec)
		require.ErrorIs(t, err, sandbox.ErrUnsupported)
		return
	}
	kept := filepath.Join(scratch, isolation.CopyOf("d/config"))
	require.NoError(t, os.MkdirAll(filepath.Dir(kept), 0o700))
	require.NoError(t, os.WriteFile(kept, []byte("copy"), 0o600))
	for _, dir := range []string{scratch, filepath.Dir(filepath.Dir(kept)), filepath.Dir(kept)} {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	b := s.protectedBy(t, workspace, spec)
	require.Equal(t, "copyhook", b.sh(t, "cat d/config d/hooks/h"))
	require.Equal(t, "copyx\n", b.sh(t, "at=$(readlink d/config); (cat d/config; echo x) > $at.lock; mv $at.lock $at; cat d/config"))
	b.fails(t, `mv d/index d/config
rm d/config
ln -sf /tmp d/config
mv d/config d/other
mv d e
echo x > d/hooks/h
ln d/config d/other && echo x > d/other/x`, append([]string{"cross-device", "not permitted", "Not a directory"}, shut...)...)
	_, err = b.FS().Write(t.Context(), protocol.FilesWrite{Path: "d/config", Content: []byte("x")})
	requireFault(t, err, codes.Protected)
	require.NoError(t, b.Close())
	changed, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, "copyx\n", string(changed))
	original, err := os.ReadFile(b.host("d/config"))
	require.NoError(t, err)
	require.Equal(t, "config", string(original))
}

func protectBelowMissing(t *testing.T, s suite) {
	workspace := repository(t)
	b := s.protected(t, workspace, "editor/deep/settings", "editor/other")
	b.fails(t, `mkdir editor/deep
echo x > editor/other
mv editor x`, shut...)
	require.NoError(t, b.Close())
	require.NoDirExists(t, filepath.Join(workspace, "editor"))
}

// protectLocked has a directory that commands own and may not write to, until they have changed
// that.
func protectLocked(t *testing.T, s suite) {
	workspace := repository(t)
	locked := filepath.Join(workspace, "d")
	require.NoError(t, os.Chmod(locked, 0o555))
	t.Cleanup(func() { require.NoError(t, os.Chmod(locked, 0o755)) })
	b := s.protected(t, workspace, "d/missing")
	b.fails(t, "chmod 777 d; echo x > d/missing\nchmod 777 d; mkdir -p d/missing/x\nmv d e")
	require.NoError(t, b.Close())
	require.NoDirExists(t, filepath.Join(locked, "missing"))
}

func protectFileOnTheWay(t *testing.T, s suite) {
	workspace := repository(t)
	b := s.protected(t, workspace, "d/config/hooks")
	b.fails(t, `echo x > d/config
rm d/config
mv d/config x
mkdir -p d/config/hooks`, append([]string{"Not a directory", "File exists"}, shut...)...)
}

func protectFiles(t *testing.T, s suite) {
	b := s.protected(t, repository(t), "d/hooks", "d/config", "missing")
	require.NoError(t, os.Symlink("d/hooks", b.host("link")))
	require.NoError(t, os.Symlink("/workspace/d/config", b.host("absolute")))
	ctx, files := t.Context(), b.FS()
	for name, place := range map[string]string{
		"d/config": "d/config", "/workspace/d/config": "d/config", "d/hooks": "d/hooks", "d/hooks/new": "d/hooks", "d/hooks/a/b": "d/hooks",
		"missing": "missing", "missing/x": "missing", "link/h": "d/hooks", "link/new": "d/hooks", "absolute": "d/config",
	} {
		_, err := files.Write(ctx, protocol.FilesWrite{Path: name, Content: []byte("x")})
		require.Contains(t, requireFault(t, err, codes.Protected), place, name)
		_, err = files.Edit(ctx, protocol.FilesEdit{Path: name, Edits: []protocol.FileEdit{{Old: "o", New: "x"}}})
		requireFault(t, err, codes.Protected)
		_, err = files.WriteJSON(ctx, protocol.FilesJSONWrite{Path: name, Content: []byte("{}")})
		requireFault(t, err, codes.Protected)
	}
	read, err := files.Read(ctx, protocol.FilesRead{Path: "link/h"})
	require.NoError(t, err)
	require.Contains(t, string(read.Content), "hook")
	_, err = files.Write(ctx, protocol.FilesWrite{Path: "d/config2", Content: []byte("x")})
	require.NoError(t, err)
}

func protectReadOnly(t *testing.T, s suite) {
	caps, err := s.newDriver(t).Probe(t.Context())
	require.NoError(t, err)
	if !caps.ReadOnly {
		t.Skip("UNSUPPORTED: the driver has no read-only commands")
	}
	b := s.protected(t, repository(t), "d/config")
	cmd := shell("cat d/config; ! echo x > d/index 2> /dev/null && ! echo x > d/config 2> /dev/null")
	cmd.ReadOnly = true
	result := b.exec(t, cmd)
	require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
	require.Equal(t, "config", string(result.Stdout.Data))
}

func protectReplaced(t *testing.T, s suite) {
	b := s.protected(t, repository(t), "d/hooks", "d/config", "missing")
	b.put(t, "d/lock", "theirs", 0o644)
	require.NoError(t, os.Rename(b.host("d/lock"), b.host("d/config"))) // as git does it
	require.NoError(t, os.RemoveAll(b.host("d/hooks")))
	require.NoError(t, os.Remove(b.host("missing")))
	require.Equal(t, "theirs", b.sh(t, "cat d/config"))
	b.fails(t, `echo x > d/config
rm d/config
mkdir d/hooks/x
echo x > missing/x
mv d x`, shut...)
	require.NoError(t, b.Close())
	require.NoDirExists(t, b.host("d/hooks"))
	require.NoDirExists(t, b.host("missing"))
}

func protectKept(t *testing.T, s suite) {
	workspace := repository(t)
	b := s.protected(t, workspace, "full", "file")
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "full/mine"), nil, 0o600))
	require.NoError(t, os.Remove(filepath.Join(workspace, "file")))
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "file"), nil, 0o600))
	require.NoError(t, b.Close())
	require.FileExists(t, filepath.Join(workspace, "full/mine"))
	require.FileExists(t, filepath.Join(workspace, "file"))
}

func protectTwice(t *testing.T, s suite) {
	workspace := repository(t)
	one, two := s.protected(t, workspace, "missing"), s.protected(t, workspace, "missing")
	require.NoError(t, one.Close())
	two.fails(t, "echo x > missing\necho x > missing/x", append([]string{"directory"}, shut...)...)
	require.NoError(t, two.Close())
	require.NoDirExists(t, filepath.Join(workspace, "missing"))
}

func protectUnmount(t *testing.T, s suite) {
	b := s.protected(t, repository(t), "d/config")
	b.fails(t, `umount d/config
umount -l /workspace/d
mount -o remount,rw /workspace/d/config
mount --bind d/index d/config
unshare -Urm true
unshare -m true`)
	require.Equal(t, "config", b.sh(t, "cat d/config"))
}

func protectDetours(t *testing.T, s suite) {
	b := s.protected(t, repository(t), "d/hooks")
	b.fails(t, `exec 3<> d/hooks/h
ln d/hooks/h other
cp -l d/hooks/h other
exec 3< d/hooks/h; echo x > /proc/self/fd/3
exec 3< d/hooks; echo x > /proc/self/fd/3/h
cd d/hooks && echo x > h
echo x > /proc/1/root/workspace/d/hooks/h`)
	content, err := os.ReadFile(b.host("d/hooks/h"))
	require.NoError(t, err)
	require.Equal(t, "hook", string(content))
}
