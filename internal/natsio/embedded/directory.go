package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

const (
	// lockFile is locked by the process that uses a data directory; holderFile names the process.
	lockFile   = "lock"
	holderFile = "holder.json"
	maxHolder  = 4 << 10
	// lockPause is the time between two tries to lock.
	lockPause = 100 * time.Millisecond
	// endGrace is how long a process may take to end after its drain.
	endGrace = 15 * time.Second
)

// ErrInUse is wrapped by the error of [Start] for a data directory that another process uses.
var ErrInUse = errors.New("choose another --data, or connect to that process with --nats")

// holder is a process that uses a data directory.
type holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // it drains, and ends by then
}

func (h holder) String() string {
	text := fmt.Sprintf("process %d, since %s", h.PID, h.Since.Local().Format(time.DateTime))
	if !h.Until.IsZero() {
		text += ", drains until " + h.Until.Local().Format(time.TimeOnly) + " at most"
	}
	return text
}

// holderOf returns the process that uses a data directory; false if it has not said so.
func holderOf(data string) (h holder, known bool) {
	content, err := regular.Read(filepath.Join(data, holderFile), maxHolder)
	return h, err == nil && json.Unmarshal(content, &h) == nil && h.PID > 0
}

// Holder names the process that uses a data directory, in parentheses and with a space in front; ""
// if it is unknown.
func Holder(data string) string {
	if h, known := holderOf(data); known {
		return " (" + h.String() + ")"
	}
	return ""
}

// acquire locks the data directory. It waits for a process that drains, and for no other.
func (s *Server) acquire(ctx context.Context) error {
	data := s.options.Data
	free, err := s.lock.TryLock()
	if h, known := holderOf(data); err == nil && !free && known && time.Now().Before(h.Until) {
		s.options.Notify(fmt.Sprintf("data directory %s is in use (%s): waiting for that process to end", data, h))
		limited, cancel := context.WithDeadline(ctx, h.Until)
		defer cancel()
		if free, err = s.lock.TryLockContext(limited, lockPause); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("embedded NATS: data directory %s cannot be locked: %w", data, err)
	}
	if !free {
		return fmt.Errorf("embedded NATS: data directory %s is in use by another process%s: %w", data, Holder(data), ErrInUse)
	}
	s.holder = holder{PID: os.Getpid(), Since: time.Now()}
	s.writeHolder()
	return nil
}

// Draining notes that the process ends soon after a time, so that one that is started meanwhile
// waits for it.
func (s *Server) Draining(until time.Time) {
	h := s.holder
	h.Until = until.Add(endGrace)
	s.holder = h
	s.writeHolder()
}

// writeHolder names this process to others. Without that they do not wait for it.
func (s *Server) writeHolder() {
	if content, err := json.Marshal(s.holder); err == nil { // it always is
		_ = regular.Replace(filepath.Join(s.options.Data, holderFile), content)
	}
}

// release gives the data directory back.
func (s *Server) release() error {
	_ = os.Remove(filepath.Join(s.options.Data, holderFile)) // the next one overwrites it
	return s.lock.Unlock()
}
