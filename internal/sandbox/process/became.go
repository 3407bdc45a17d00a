package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
)

// status is the other end of [guard.StatusFD]; nil without a wrapper.
type status struct{ ours, theirs *os.File }

// newStatus gives a command that is wrapped its descriptor.
func (d *Driver) newStatus(c *exec.Cmd) (*status, error) {
	if d.wrap == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.ExtraFiles = []*os.File{theirs}
	return &status{ours: ours, theirs: theirs}, nil
}

// close is for a command that was not started.
func (s *status) close() {
	if s != nil {
		_, _ = s.ours.Close(), s.theirs.Close() // nothing was written
	}
}

// became waits until a wrapped command is the program name, and says why it is not.
func (s *status) became(name string) error {
	if s == nil {
		return nil
	}
	_ = s.theirs.Close() // the command has its own
	defer s.ours.Close()
	text, err := io.ReadAll(io.LimitReader(s.ours, 4096))
	if err != nil || len(text) == 0 {
		return err
	}
	if errno, err := strconv.Atoi(string(text)); err == nil {
		return start.Fault(name, syscall.Errno(errno))
	}
	return fmt.Errorf("start %q: %w", name, errors.New(string(text)))
}
