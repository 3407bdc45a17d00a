//go:build unix

package telemetry

import (
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTraceFile_IsNoPipe: opening one would wait for a reader.
func TestTraceFile_IsNoPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := openTraceFile(path, maxTraceFile, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "is no regular file")
}
