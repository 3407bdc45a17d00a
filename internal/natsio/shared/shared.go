// Package shared is the NATS server that the processes of one user on one machine share: their
// local fleet.
//
//	run, chat, session, mcp ... ──► Dial: is a server there?  ── yes ──► connects, with the token
//	                                         │ no
//	                                 start.lock, so that one process starts it
//	                                         │
//	                                 a process of its own (Serve) ──► server.lock, NATS, server.json
//
// The directory has mode 0700 and belongs to the user. In it are:
//
//   - start.lock: held by the process that starts a server, until that listens, with its process
//     id. Others wait for it as long as a server may take to listen.
//   - server.lock: held by the server as long as it lives. The system releases it, also after kill
//     -9, so a server.json without a held lock is what a dead server has left: no process connects
//     to its address, where by now another program may listen, and no token is sent there.
//   - server.json: where the server listens, written when it does, and its protocol; a server whose
//     file is removed writes it again. A server that ended because it could not store leaves the
//     reason in it.
//   - server.log: what the last server wrote. An error about a server that did not start has its
//     last lines.
//   - nats: the data directory of the server, with the token (see package embedded).
//
// A connection of a client is made by [Server.Dial], the first one and each later one. So when the
// server is killed, the next process that notices starts another one, which has the same data and
// token, and all clients connect to it as they do after any loss of a connection.
//
// The server ends when no process has been connected for a time, and at once when its directory is
// removed. It has no standard streams and no inherited descriptors of the command that started it,
// and leads a session of its own: no terminal, pipe or lock is held by it. A container ends it as
// it ends all processes; where no process may be left in the background, --data has the server
// inside the command.
//
// Servers and clients of different versions work together as long as [protocolVersion] is the same.
package shared

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// protocolVersion is that of server.json, and of what servers and clients expect of each other.
const protocolVersion = 1

// Files of the directory.
const (
	startLock  = "start.lock"
	serverLock = "server.lock"
	stateFile  = "server.json"
	logFile    = "server.log"
	natsDir    = "nats"
	maxState   = 16 << 10
	maxLog     = 1 << 20
	logLines   = 8 // of an error
)

const (
	// startTime is how long a server may take to listen. A machine that does much else is slow.
	startTime = time.Minute
	// dialTime is how long a connection waits for that: meanwhile its client does nothing else, and
	// then it tries again.
	dialTime = 10 * time.Second
	// look is the time between two looks at a server that starts.
	look = 20 * time.Millisecond
	// URL is an address instead of that of the server, which [Server.Dial] finds.
	URL = "nats://127.0.0.1"
)

// Server is the server of a directory, as clients reach it.
type Server struct {
	// Dir is the directory. It is made when missing.
	Dir string
	// Command is the command line of this program that serves the directory, see [Serve].
	Command []string
	// Running starts no server: without one that runs, connections fail with [ErrNone].
	Running bool
	// Failed gets the reason when a server ended because it could not store, and this process was
	// connected to it; nil ignores it.
	Failed func(reason error)

	connected atomic.Bool
	startTime time.Duration // shorter in a test
}

// ErrNone means that no server runs, and that none may be started.
var ErrNone = errors.New("the server of your sessions does not run")

// state is what a server says of itself.
type state struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Address  string `json:"address,omitempty"`
	Failed   string `json:"failed,omitempty"` // why it ended
}

// TokenFile is the file with the token that connections need.
func (s *Server) TokenFile() string { return filepath.Join(s.Dir, natsDir, embedded.TokenFile) }

// Dial connects to the server, which it starts if none is there. It is a Dial of
// [natsio.ConnectOptions].
func (s *Server) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		at, err := s.state()
		if err == nil && s.connected.Load() && at.Failed != "" && s.Failed != nil {
			err = errors.New(at.Failed) //nolint:err113 // the reason of another process
			go s.Failed(err)            // which may close the connection that dials
			return nil, err
		}
		if at, err = s.reach(ctx); err != nil {
			if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() > 0 && s.connected.Load() && s.Failed != nil {
				go s.Failed(err) // it cannot start, and was not killed
			}
			return nil, err
		}
		conn, err := natsio.Dial(ctx, network, at.Address)
		if err == nil {
			s.connected.Store(true)
			return conn, nil
		}
		if !pause.For(ctx, look) { // a server that just ends listens no more, and holds its lock
			return nil, err
		}
	}
}

// Reach sees that a server is there, and starts one if not.
func (s *Server) Reach(ctx context.Context) error {
	if !s.Running {
		if err := Own(s.Dir); err != nil {
			return err
		}
	}
	_, err := s.reach(ctx)
	return err
}

// Own makes the directory that has the server of a user, and refuses one that belongs to another.
func Own(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = own(dir)
	}
	if err != nil {
		return fmt.Errorf("the directory of your sessions: %w; set HOME or XDG_STATE_HOME to a directory of yours that can be written to, or name one with --data", err)
	}
	return nil
}

// own sees that a directory is this user's, and that nobody else may use it.
func own(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: is not a directory", dir)
	}
	if err := system.CheckOwner(dir, info); err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return os.Chmod(dir, 0o700) //nolint:gosec // a directory
	}
	return nil
}

// reach returns where the server is.
func (s *Server) reach(ctx context.Context) (state, error) {
	if at, is := s.running(); is {
		return at, at.check()
	}
	if s.Running {
		return state{}, ErrNone
	}
	lock := flock.New(filepath.Join(s.Dir, startLock))
	most := cmp.Or(s.startTime, startTime)
	waiting, cancel := context.WithTimeoutCause(ctx, most, errStarting)
	defer cancel()
	if _, err := lock.TryLockContext(waiting, look); err != nil {
		if cause := context.Cause(waiting); errors.Is(cause, errStarting) {
			pid, _ := regular.Read(lock.Path(), maxState)
			err = fmt.Errorf("process %s %w for %s: end it (kill %[1]s), then try again", bytes.TrimSpace(pid), cause, most)
		}
		return state{}, fmt.Errorf("start the server of your sessions in %s: %w", s.Dir, err)
	}
	defer func() { _ = lock.Unlock() }()                                                 // it ends with the process anyway
	_ = os.WriteFile(lock.Path(), strconv.AppendInt(nil, int64(os.Getpid()), 10), 0o600) // else it has no name
	if at, is := s.running(); is {
		return at, at.check()
	}
	return s.start(ctx)
}

// check refuses a server of another protocol.
func (at state) check() error {
	if at.Protocol != protocolVersion {
		return fmt.Errorf("the server of your sessions (process %d) is that of another version of coordinator: end the commands of that version, then run kill %d (else it ends some minutes after them), and try again", //nolint:err113 // it is for a person
			at.PID, at.PID)
	}
	return nil
}

// running returns what the server says of itself that lives and listens.
func (s *Server) running() (state, bool) {
	if !Locked(filepath.Join(s.Dir, serverLock)) {
		return state{}, false
	}
	at, err := s.state()
	return at, err == nil && at.Address != ""
}

// Locked reports whether a process holds the lock of a file alone. It makes no file.
func Locked(path string) bool {
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	if free {
		_ = lock.Unlock()
	}
	return err == nil && !free
}

func (s *Server) state() (at state, err error) {
	content, err := regular.Read(filepath.Join(s.Dir, stateFile), maxState)
	if err == nil {
		err = json.Unmarshal(content, &at)
	}
	return at, err
}

// forget removes what a server has left that has ended, before another one has the lock: then its
// address would count as that of the other one.
func (s *Server) forget() {
	lock := flock.New(filepath.Join(s.Dir, serverLock))
	if free, _ := lock.TryRLock(); free { // no server has it, and none gets it
		_ = os.Remove(filepath.Join(s.Dir, stateFile)) // there may be none
		_ = lock.Unlock()
	}
}

// start starts a server, and waits until it, or one that another process has started, listens.
func (s *Server) start(ctx context.Context) (state, error) {
	failure := func(err error) (state, error) {
		return state{}, fmt.Errorf("start the server of your sessions in %s: %w%s", s.Dir, err, s.lastLines())
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return failure(err)
	}
	defer func() { _ = log.Close() }() // the server has it, too
	program, err := os.Executable()    // the name of the command is a shell's
	if err != nil {
		return failure(err)
	}
	cmd := &exec.Cmd{Path: program, Args: s.Command, Dir: s.Dir, Stdout: log, Stderr: log}
	for _, name := range environment() {
		if value, is := os.LookupEnv(name); is {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	system.Detach(cmd)
	s.forget()
	if err := cmd.Start(); err != nil {
		return failure(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		if at, is := s.running(); is {
			return at, at.check()
		}
		select {
		case err := <-ended:
			if at, is := s.running(); is { // another one was faster
				return at, at.check()
			}
			if err == nil {
				err = errEnded
			}
			return failure(err)
		default:
		}
		if !pause.For(ctx, look) {
			return failure(context.Cause(ctx))
		}
	}
}

// environment names the variables that a server gets: it outlives its command, whose keys and
// passwords are none of its business.
func environment() []string {
	return []string{"PATH", "HOME", "TMPDIR", "GOMEMLIMIT", "GORACE", "GOCOVERDIR", IdleVariable}
}

var (
	errEnded    = errors.New("it ended at once")
	errStarting = errors.New("has been about to start it")
)

// lastLines are the last lines of the log, each after a line break.
func (s *Server) lastLines() string {
	content, err := regular.Read(filepath.Join(s.Dir, logFile), maxLog)
	lines := strings.Split(string(bytes.TrimSpace(content)), "\n")
	if err != nil || lines[0] == "" {
		return ""
	}
	return ":\n" + strings.Join(lines[max(len(lines)-logLines, 0):], "\n")
}
