//go:build unix

package sandboxtest

import (
	"bufio"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// witness is a FIFO in the workspace. Processes that hold it open for writing show
// that they live: its end comes when the last of them is dead.
type witness struct {
	file  *os.File
	lines *bufio.Reader
}

// newWitness makes the FIFO "fifo" and opens it for reading.
func (b *box) newWitness(t *testing.T) *witness {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(b.host("fifo"), 0o666))
	require.NoError(t, os.Chmod(b.host("fifo"), 0o666))
	file, err := os.OpenFile(b.host("fifo"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return &witness{file: file, lines: bufio.NewReader(file)}
}

// line waits for a line that a process writes.
func (w *witness) line(t *testing.T) string {
	t.Helper()
	deadline := time.Now().Add(patience)
	require.NoError(t, w.file.SetReadDeadline(deadline))
	for {
		text, err := w.lines.ReadString('\n')
		if err == io.EOF && text == "" && time.Now().Before(deadline) {
			<-time.After(time.Millisecond) // nobody has opened it yet
			continue
		}
		require.NoError(t, err, "got %q", text)
		return text
	}
}

// requireDead fails unless every process that held the FIFO is dead by now. What they
// wrote is returned.
func (w *witness) requireDead(t *testing.T) string {
	t.Helper()
	require.NoError(t, w.file.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	rest, err := io.ReadAll(w.lines)
	require.NoError(t, err, "a process is still alive")
	return string(rest)
}

// requireAlive fails if no process holds the FIFO.
func (w *witness) requireAlive(t *testing.T) {
	t.Helper()
	require.NoError(t, w.file.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := w.lines.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "no process is alive")
}
