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
	rest, dead := w.look(t)
	require.True(t, dead, "a process is still alive")
	return rest
}

// requireAlive fails if no process holds the FIFO.
func (w *witness) requireAlive(t *testing.T) {
	t.Helper()
	_, dead := w.look(t)
	require.False(t, dead, "no process is alive")
}

// look returns what was written and not read yet, and whether nobody holds the FIFO now. It waits
// for nothing.
func (w *witness) look(t *testing.T) (rest string, dead bool) {
	t.Helper()
	said := make([]byte, w.lines.Buffered())
	_, err := io.ReadFull(w.lines, said)
	require.NoError(t, err)
	conn, err := w.file.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, conn.Control(func(fd uintptr) {
		chunk := make([]byte, 4096)
		for {
			n, err := syscall.Read(int(fd), chunk)
			switch {
			case err == syscall.EINTR:
				continue
			case n <= 0:
				dead = err == nil
				return
			}
			said = append(said, chunk[:n]...)
		}
	}))
	return string(said), dead
}
