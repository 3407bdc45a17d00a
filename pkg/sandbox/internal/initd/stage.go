//go:build linux

package initd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// Arg0 is the name under which the binary is the program of this package.
const Arg0 = "toolfleet-sandbox"

// The stages, the second word of the command line.
const (
	StageLaunch = "launch"
	stageSetup  = "setup"
	stageServe  = "serve"
)

// Descriptors of the stages.
const (
	fdControl = 3
	fdImage   = 4
	fdConfig  = 5
	fdMounts  = 6
)

// image is how a stage starts the next one.
const image = "/proc/self/fd/4"

// User is whom commands are in the sandbox, user and group.
const User = 1000

// stepError says which step failed.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }

func (e *stepError) Unwrap() error { return e.err }

// step runs one step of a stage.
func step(name string, f func() error) error {
	if err := f(); err != nil {
		return &stepError{step: name, err: err}
	}
	return nil
}

// Main runs the stage that args ask for and never returns.
func Main(args []string) {
	os.Exit(run(args))
}

func run(args []string) int {
	if len(args) != 2 {
		return 2
	}
	conn, err := wire.Open(fdControl)
	if err != nil {
		return 2
	}
	switch args[1] {
	case StageLaunch:
		err = launch(conn)
	case stageSetup:
		err = setup(conn)
	case stageServe:
		err = serve(conn)
	default:
		return 2
	}
	if err == nil {
		return 0
	}
	failed := wire.Failed{Step: args[1], Error: err.Error()}
	if s, ok := errors.AsType[*stepError](err); ok {
		failed.Step, failed.Error = s.step, s.err.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		failed.Errno = int(errno)
	}
	_ = conn.Send(0, wire.KindFailed, failed, nil) // nobody else could be told
	return 1
}

// readConfig reads the configuration without moving its offset.
func readConfig() (wire.Config, error) {
	var c wire.Config
	var stat unix.Stat_t
	if err := unix.Fstat(fdConfig, &stat); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	content := make([]byte, stat.Size)
	if n, err := unix.Pread(fdConfig, content, 0); err != nil || n != len(content) {
		return c, fmt.Errorf("configuration: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(content, &c); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}
