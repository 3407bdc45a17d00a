//go:build linux

package initd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/files"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// Bounds of what goes on in a sandbox at once. The first process must never need a thread
// more than it has: when commands have used up the processes of the sandbox, it would not get
// it, and end.
const (
	maxFileCalls  = 4
	maxMessages   = 64
	threadsAtOnce = 8
)

// server is the first process of a sandbox once everything is shut.
type server struct {
	conn     *wire.Conn
	files    *files.FS
	commands *commands

	once       sync.Once
	readers    *readers
	readersErr error

	calls    chan *wire.Message // file operations that wait
	messages chan struct{}      // a place for each other message that is dealt with
}

// serve tests the sandbox from inside and answers requests until the worker is gone.
func serve(conn *wire.Conn) error {
	debug.SetGCPercent(50)
	unix.CloseOnExec(fdControl)
	if err := step("order of killing", openScore); err != nil {
		return err
	}
	if err := step("not dumpable", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }); err != nil {
		return err
	}
	if err := step("self-test: descriptors", testDescriptors); err != nil { // before C libraries look at the system for new threads
		return err
	}
	stocked := make(chan struct{})
	go func() {
		defer close(stocked)
		stockThreads() // the self-test looks at those that are there; the others have what their makers have
	}()
	config, err := receiveConfig(conn)
	if err != nil {
		return err
	}
	if err := step("self-test: view", func() error { return testView(config) }); err != nil {
		return err
	}
	abi := confine.LandlockABI()
	if err := selfTest(abi > 0); err != nil {
		return err
	}
	if config.Network == sandbox.NetworkProxy {
		if err := step("listener of the proxy", func() error { return sendListener(conn) }); err != nil {
			return err
		}
	}
	opened, err := files.Open(GuestWorkspace, config.Workspace)
	if err != nil {
		return &stepError{step: "open workspace", err: err}
	}
	s := &server{
		conn: conn, files: opened, commands: newCommands(conn),
		calls: make(chan *wire.Message, maxMessages), messages: make(chan struct{}, maxMessages),
	}
	for range maxFileCalls {
		go s.serveFiles()
	}
	go s.commands.reap()
	ignoreLimits()
	if err := conn.Send(0, wire.KindReady, wire.Ready{Landlock: abi}, nil); err != nil {
		return err
	}
	<-stocked
	for {
		m, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil // the kernel kills everybody else
		}
		if err != nil {
			return &stepError{step: "receive", err: err}
		}
		if m.Kind == wire.KindFiles {
			s.calls <- m
			continue
		}
		s.messages <- struct{}{}
		go func() {
			defer func() { <-s.messages }()
			s.handle(m)
		}()
	}
}

// ProxyPort is where a sandbox's proxy listens on its loopback, the usual port of one.
const ProxyPort = 3128

// sendListener gives the worker a listener that only this sandbox reaches: it is made in the
// sandbox's network, and served from without.
func sendListener(conn *wire.Conn) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: ProxyPort, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return err
	}
	return conn.Send(0, wire.KindListener, nil, nil, fd)
}

// ignoreLimits makes this process fit for commands. Their limits are set in it for the moment of
// a fork. What they send to it then means nothing, and must not end it.
func ignoreLimits() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGXCPU, unix.SIGXFSZ, unix.SIGPIPE, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
}

// stockThreads has the runtime make its threads now, which it keeps.
func stockThreads() {
	var all, held sync.WaitGroup
	release := make(chan struct{})
	for range threadsAtOnce {
		held.Add(1)
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			held.Done()
			<-release
		})
	}
	held.Wait()
	close(release)
	all.Wait()
}

// serveFiles does file operations, for ever: in a goroutine that stays, because its stack has to grow for them.
// They are done here, so that whatever a path leads to is something of the sandbox.
func (s *server) serveFiles() {
	for m := range s.calls {
		m.CloseFDs() // there are none
		var request sandbox.FileRequest
		if err := wire.Unpack(m.Body, &request); err != nil {
			_ = s.conn.SendPacked(m.ID, m.Kind, sandbox.FileReply{Failure: err.Error()}) // as below
			continue
		}
		_ = s.conn.SendPacked(m.ID, m.Kind, *s.operate(&request)) // that the worker is gone is noticed by Receive
	}
}

// handle deals with any other request.
func (s *server) handle(m *wire.Message) {
	defer m.CloseFDs()
	switch m.Kind {
	case wire.KindExec:
		s.exec(m)
	case wire.KindSignal:
		var request wire.Signal
		if m.Decode(&request) == nil {
			s.commands.signal(request)
		}
	case wire.KindKillAll:
		s.commands.killAll()
		reply(s.conn, m, struct{}{}, nil)
	default:
		reply(s.conn, m, struct{}{}, fmt.Errorf("unknown request %d", m.Kind))
	}
}

// operate does a file operation, and not while a command with a limit for files is forked if it writes.
func (s *server) operate(request *sandbox.FileRequest) *sandbox.FileReply {
	if request.Write != nil || request.Edit != nil || request.WriteJSON != nil {
		s.commands.writing.RLock()
		defer s.commands.writing.RUnlock()
	}
	return sandbox.ServeFiles(context.Background(), s.files, request) //nolint:forbidigo // a worker that gives up does not read the answer
}

// reply answers a request. That the worker is gone is noticed by Receive.
func reply[T any](conn *wire.Conn, m *wire.Message, value T, err error) {
	answer := wire.Answer[T]{Value: value}
	if err != nil {
		if fault, ok := errors.AsType[*sandbox.Fault](err); ok {
			answer.Fault = &wire.Fault{Code: fault.Code, Message: fault.Message}
		} else {
			answer.Error = err.Error()
		}
	}
	_ = conn.Send(m.ID, m.Kind, answer, nil)
}
