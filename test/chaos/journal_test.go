//go:build linux

package chaos

import (
	"encoding/json"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/chaos/history"
)

// journal is where a process writes down what it does. A record is one write, so
// none is lost or torn when the process is killed. It is safe for concurrent use.
type journal struct{ file *os.File }

func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

// write adds a record, with the time if it has none.
func (j *journal) write(r *history.Record) {
	if r.At == 0 {
		r.At = now()
	}
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
	j.write(&history.Record{Kind: history.KindTrouble, Message: what})
}

// now is the machine's monotonic clock, which all its processes share.
func now() history.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return history.Time(t.Nano())
}
