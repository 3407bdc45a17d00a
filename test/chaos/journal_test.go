//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// These are spans in which the machine itself disturbs a worker or the server, and which excuse it
// like any other fault.
const (
	tickPeriod = 50 * time.Millisecond
	longTick   = 250 * time.Millisecond
	longWrite  = 100 * time.Millisecond
)

// journal is where a process writes down what it does. A record is one write, so
// only the last one can be torn when the process is killed. It is safe for concurrent use.
type journal struct {
	file   *os.File
	worker protocol.WorkerID // whose it is, if it is a worker's
}

// openJournal goes on with a journal, without the record that an earlier life was killed in: the
// kernel ends a write at a page's end for SIGKILL.
func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	written, err := io.ReadAll(file)
	if err == nil {
		err = file.Truncate(int64(bytes.LastIndexByte(written, '\n') + 1))
	}
	return &journal{file: file}, err
}

// write adds a record, with the time if it has none.
func (j *journal) write(r *Record) {
	if r.At == 0 {
		r.At = now()
	}
	j.store(r)
	if written := now(); j.worker != "" && written-r.At > Time(longWrite) {
		j.store(&Record{Kind: KindBlocked, At: r.At, Until: written, Worker: j.worker})
	}
}

// watch writes down when this process is not let run, until ctx ends.
func (j *journal) watch(ctx context.Context) {
	for last := now(); pause.For(ctx, tickPeriod); {
		at := now()
		if at-last > Time(longTick) {
			j.store(&Record{Kind: KindStall, At: last + Time(tickPeriod), Until: at, Worker: j.worker})
		}
		last = at
	}
}

func (j *journal) store(r *Record) {
	r.Wall = time.Now().UTC()
	line, err := json.Marshal(r)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // a history with a hole would prove nothing
	}
}

func (j *journal) trouble(what string) {
	j.write(&Record{Kind: KindTrouble, Message: what})
}

// now is the machine's monotonic clock, which all its processes share.
func now() Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return Time(t.Nano())
}

func TestJournal_ARecordThatWasTornIsLeftOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte(`{"kind":"trouble"}`+"\n"+`{"kind":"acc`), 0o600))
	j, err := openJournal(path)
	require.NoError(t, err)
	j.trouble("later")
	require.NoError(t, j.file.Close())
	log, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	h := newHistory()
	require.NoError(t, h.Read(log))
	require.Equal(t, []string{"", "later"}, h.Troubles)
}
