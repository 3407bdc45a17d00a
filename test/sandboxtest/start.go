//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testStart(t *testing.T, s suite) {
	s.run(t, map[string]func(*testing.T, *box){
		"directory of the command":                  startDirectory,
		"directory outside of the workspace":        startOutside,
		"directory that is none":                    startNoDirectory,
		"program that is not there":                 startNotFound,
		"program that is not executable":            startNotExecutable,
		"program of the workspace":                  startWorkspaceProgram,
		"program in a relative directory of PATH":   startRelativePath,
		"script whose interpreter is not there":     startNoInterpreter,
		"arguments and environment that can't be":   startInvalid,
		"the sandbox can be used after every fault": startAfterFault,
	})
}

func startDirectory(t *testing.T, b *box) {
	b.put(t, "sub/dir/file", "content", 0o644)
	require.NoError(t, os.Symlink("sub/dir", b.host("link")))
	require.NoError(t, os.Symlink("/workspace/sub", b.host("absolute")))
	for _, dir := range []string{"sub/dir", "./sub//dir/", "/workspace/sub/dir", "sub/x/../dir", "link", "absolute/dir"} {
		result := b.exec(t, sandbox.Cmd{Argv: []string{"cat", "file"}, Dir: dir})
		require.Equal(t, "content", string(result.Stdout.Data), dir)
	}
	result := b.exec(t, sandbox.Cmd{Argv: []string{"cat", "sub/dir/file"}})
	require.Equal(t, "content", string(result.Stdout.Data))
}

func startOutside(t *testing.T, b *box) {
	require.NoError(t, os.Symlink(b.scratch, b.host("absolute")))
	require.NoError(t, os.Symlink("../..", b.host("relative")))
	for _, dir := range []string{"..", "a/../..", "/", "/etc", "/workspace/..", "absolute", "relative", "relative/tmp"} {
		_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: dir})
		requireFault(t, err, codes.PathEscape)
	}
}

func startNoDirectory(t *testing.T, b *box) {
	b.put(t, "file", "", 0o644)
	_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "missing"})
	requireFault(t, err, protocol.CodeNotFound)
	_, err = b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "file"})
	requireFault(t, err, codes.NotDirectory)
	_, err = b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "a\x00b"})
	requireFault(t, err, codes.InvalidPath)
}

func startNotFound(t *testing.T, b *box) {
	for _, name := range []string{"no-such-program-here", "./missing", "/no/such/program"} {
		_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{name}})
		require.Contains(t, requireFault(t, err, protocol.CodeCommandNotFound), name)
	}
}

func startNotExecutable(t *testing.T, b *box) {
	b.put(t, "plain", "#!/bin/sh\n", 0o644)
	b.put(t, "garbage", "\x00\x01\x02", 0o755)
	require.NoError(t, os.Mkdir(b.host("dir"), 0o755))
	for _, name := range []string{"./plain", "./garbage", "./dir"} {
		_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{name}})
		requireFault(t, err, protocol.CodeCommandNotFound)
	}
}

func startWorkspaceProgram(t *testing.T, b *box) {
	b.put(t, "bin/hello", "#!/bin/sh\necho hello $1\n", 0o755)
	result := b.exec(t, sandbox.Cmd{Argv: []string{"./hello", "you"}, Dir: "bin"})
	require.Equal(t, "hello you\n", string(result.Stdout.Data))
}

func startRelativePath(t *testing.T, b *box) {
	b.put(t, "bin/hello", "#!/bin/sh\necho hello\n", 0o755)
	result := b.exec(t, sandbox.Cmd{Argv: []string{"hello"}, Env: map[string]string{"PATH": path + ":bin"}})
	require.Equal(t, "hello\n", string(result.Stdout.Data))
}

func startNoInterpreter(t *testing.T, b *box) {
	b.put(t, "script", "#!/no/such/interpreter\n", 0o755)
	_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"./script"}})
	require.Contains(t, requireFault(t, err, protocol.CodeCommandNotFound), "interpreter")
}

func startInvalid(t *testing.T, b *box) {
	for name, cmd := range map[string]sandbox.Cmd{
		"nothing":           {},
		"empty name":        {Argv: []string{""}},
		"NUL in argument":   {Argv: []string{"echo", "a\x00b"}},
		"empty variable":    {Argv: []string{"true"}, Env: map[string]string{"": "x"}},
		"'=' in a variable": {Argv: []string{"true"}, Env: map[string]string{"A=B": "x"}},
		"NUL in a variable": {Argv: []string{"true"}, Env: map[string]string{"A": "x\x00"}},
		"negative limit":    {Argv: []string{"true"}, Limits: sandbox.Limits{Memory: -1}},
	} {
		_, err := b.Exec(t.Context(), cmd)
		require.Error(t, err, name)
		requireFault(t, err, protocol.CodeInvalidArguments)
	}
	_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true", string(make4MiB())}})
	requireFault(t, err, codes.TooLarge)
}

// make4MiB is more than a system passes as one argument.
func make4MiB() []byte {
	arg := make([]byte, 4<<20)
	for i := range arg {
		arg[i] = 'x'
	}
	return arg
}

func startAfterFault(t *testing.T, b *box) {
	_, err := b.Exec(t.Context(), sandbox.Cmd{Argv: []string{"no-such-program-here"}})
	require.Error(t, err)
	require.Equal(t, "fine\n", b.sh(t, "echo fine"))
}
