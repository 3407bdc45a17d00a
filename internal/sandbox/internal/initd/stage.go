//go:build linux

package initd

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/calls"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
)

// Arg0 is the name under which the binary is the program of this package.
const Arg0 = "toolfleet-sandbox"

// The stages, the second word of the command line.
const (
	StageLaunch = "launch"
	StageShut   = "shut" // what follows when bwrap has made the namespaces
	stageServe  = "serve"
	StageGuard  = "guard" // no stage of a sandbox, see guard
)

// Descriptors of the stages.
const (
	fdControl = 3
	fdImage   = 4
)

// Environments of the stages: few threads, which start faster and can be counted.
const (
	OneThread    = "GOMAXPROCS=1" // at a time
	threeThreads = "GOMAXPROCS=3"
)

// Image is how a stage starts the next one.
const Image = "/proc/self/fd/4"

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

// layer adds a step on which what a sandbox promises rests. The tests of this package break
// such steps, by seam.
func layer(l *calls.List, config wire.Config, name string, add func()) {
	l.Step(name)
	if seam.step != nil {
		seam.step(l, config, name, add)
		return
	}
	add()
}

// seam is how the tests of this package make sandboxes from which something is missing, to see
// that those do not serve. Nothing but their code can set it; in a program it is empty.
var seam struct { //nolint:gochecknoglobals // as above
	step  func(l *calls.List, config wire.Config, name string, add func())
	clone func(config wire.Config, c *cloned)
}

// Whole reports that nothing is missing from this package in this program, so that another program
// with it can stand in for this one.
func Whole() bool { return seam.step == nil && seam.clone == nil }

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
	case StageShut:
		err = shut(conn)
	case stageServe:
		err = serve(conn)
	case StageGuard:
		supervise(conn)
	default:
		return 2
	}
	if err == nil {
		return 0
	}
	_ = conn.Send(0, wire.KindFailed, Failure(args[1], err)) // there is no other way to report it
	return 1
}

// Failure says at which step something went wrong; at a stage as such if err does not say.
func Failure(stage string, err error) wire.Failed {
	failed := wire.Failed{Step: stage, Error: err.Error()}
	if s, ok := errors.AsType[*stepError](err); ok {
		failed.Step, failed.Error = s.step, s.err.Error()
	}
	if c, ok := errors.AsType[*calls.Error](err); ok {
		failed.Step, failed.Error = c.Step, c.Errno.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		failed.Errno = int(errno)
	}
	return failed
}

// receiveConfig returns the configuration, the first message of a worker to a stage of a sandbox.
func receiveConfig(conn *wire.Conn) (config wire.Config, err error) {
	m, err := conn.Receive()
	if err != nil {
		return config, fmt.Errorf("configuration: %w", err)
	}
	m.CloseFDs() // there are none
	if m.Kind != wire.KindConfig {
		return config, fmt.Errorf("configuration: %w: kind %d", wire.ErrMalformed, m.Kind)
	}
	return config, m.Decode(&config)
}
