package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTraceFile_RefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("NOT TESTED: links and owners are those of Unix")
	}
	write := func(t *testing.T, path, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string)
		says    string
	}{
		"a link": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path+".target", "")
			require.NoError(t, os.Symlink(path+".target", path))
		}, "is no regular file"},
		"a directory": {func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.Mkdir(path, 0o700))
		}, "is no regular file"},
		"a file with something else": {func(t *testing.T, path string) { t.Helper(); write(t, path, "export PATH=/bin\n") }, "has something else than spans"},
		"a short one":                {func(t *testing.T, path string) { t.Helper(); write(t, path, "{}") }, "has something else than spans"},
		"a file of another user": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path, "")
			if err := os.Chown(path, 4711, -1); err != nil {
				t.Skip("NOT TESTED: only root can give a file to another user")
			}
		}, "belongs to user 4711"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "trace.jsonl")
			c.prepare(t, path)
			content := func() string { // "" of what is no file
				if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
					return ""
				}
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				return string(text)
			}
			before := content()
			_, err := openTraceFile(path, maxTraceFile, slog.New(slog.DiscardHandler))
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, path)
			require.Equal(t, before, content())
		})
	}
}

// TestTraceFile_IsWhole: after a line that was not written to its end, when it is full, and for
// others who append to it.
func TestTraceFile_IsWhole(t *testing.T) {
	t.Parallel()
	const line = `{"resourceSpans":[]}` + "\n"
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	for _, partial := range []string{"", `{"resourceSp`, line[:len(line)-1] + strings.Repeat("x", 200<<10)} {
		require.NoError(t, os.WriteFile(path, []byte(line+partial), 0o644))
		file, err := openTraceFile(path, 3*int64(len(line)), nil)
		require.NoError(t, err)
		require.NoError(t, file.append(t.Context(), []byte(line)))
		require.NoError(t, file.file.Close())
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, line+line, string(content)) //nolint:testifylint // byte by byte
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), "spans are for this user")
	}
	require.NoError(t, os.WriteFile(path, []byte(line[:len(line)-1]), 0o600))
	whole, err := openTraceFile(path, maxTraceFile, nil)
	require.NoError(t, err)
	require.NoError(t, errors.Join(whole.append(t.Context(), []byte(line)), whole.file.Close()))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(content), line), "a line without an end that another program has written is kept")
	require.Len(t, content, 2*len(line))
	var said strings.Builder
	logger := slog.New(slog.NewTextHandler(&said, nil))
	var files []*traceFile
	for range 2 {
		file, err := openTraceFile(path, 3*int64(len(line)), logger)
		require.NoError(t, err)
		files = append(files, file)
	}
	for range 3 { // there is room for one line
		for _, file := range files {
			require.NoError(t, file.append(context.WithoutCancel(t.Context()), []byte(line)))
		}
	}
	for _, file := range files {
		require.NoError(t, file.file.Close())
	}
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(line, 3), string(content))
	require.Equal(t, 2, strings.Count(said.String(), "the trace file is full"), "each says so once")
}
