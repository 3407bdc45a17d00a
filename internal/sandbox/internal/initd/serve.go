//go:build linux

package initd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what runs in a sandbox at once. The first process must never need a thread
// more than it has: when commands have used up the processes of the sandbox, it would not get
// it, and end.
const (
	maxFileCalls  = 4
	maxMessages   = 64
	threadsAtOnce = 13
)

// server is the first process of a sandbox once everything is shut.
type server struct {
	conn     *Conn
	files    *files.FS
	null     *os.File // the input of commands that have none
	lease    *start.Watchdog
	commands *commands

	mounts []isolation.Mount

	calls    chan fileCall // file operations that wait
	messages chan struct{} // full while the maximum of other messages is handled
	busy     atomic.Int64  // how many of both there are
}

// serve tests the sandbox from inside and answers requests until the worker is gone.
func serve(conn *Conn) error {
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
	if err := step("self-test: threads", testThreads); err != nil {
		return err
	}
	stocked := make(chan struct{})
	go func() {
		defer close(stocked)
		startThreads() // they have what their makers have
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
	if config.Link {
		if err := step("self-test: "+StepLink, testLink); err != nil {
			return err
		}
	}
	if config.Network == isolation.NetworkProxy {
		if err := step("listener of the proxy", func() error { return sendListener(conn) }); err != nil {
			return err
		}
	}
	s, err := newServer(conn, config)
	if err != nil {
		return err
	}
	if err := conn.Send(0, KindReady, Ready{Landlock: abi}); err != nil {
		return err
	}
	<-stocked // all of this before the first command, but the worker need not wait for it
	if err := step("signals", dropSignals); err != nil {
		return err
	}
	if err := step("out of reach", outOfReach); err != nil {
		return err
	}
	return s.receive()
}

// newServer makes a server that waits for children and file operations in the workspace.
func newServer(conn *Conn, config Config) (*server, error) {
	s := &server{
		conn: conn, commands: newCommands(conn), mounts: config.Mounts,
		calls: make(chan fileCall, maxMessages), messages: make(chan struct{}, maxMessages),
	}
	var err error
	if s.files, err = files.Open(GuestWorkspace, config.Workspace); err != nil {
		return nil, &stepError{step: "open workspace", err: err}
	}
	places := make([]string, 0, len(config.Protected))
	for _, place := range config.Protected {
		places = append(places, place.Path)
	}
	s.files.Protect(places)
	if s.null, err = os.Open(os.DevNull); err != nil {
		return nil, &stepError{step: "open " + os.DevNull, err: err}
	}
	if s.lease, err = start.NewWatchdog(func() { os.Exit(ExitLease) }); err != nil {
		return nil, &stepError{step: "lease", err: err}
	}
	go s.commands.reap()
	for range maxFileCalls {
		go s.serveFiles()
	}
	return s, nil
}

// receive takes requests until the worker is gone.
func (s *server) receive() error {
	for {
		m, err := s.conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil // the kernel kills everybody else
		}
		if err != nil {
			return &stepError{step: "receive", err: err}
		}
		s.take(m)
	}
}

// ProxyPort is where a sandbox's proxy listens on its loopback, the usual port of one.
const ProxyPort = 3128

// sendListener gives the worker a listener that only this sandbox reaches: it is made in the
// sandbox's network, and served from without.
func sendListener(conn *Conn) error {
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
	return conn.Send(0, KindListener, nil, fd)
}

// dropSignals makes the kernel drop every signal that commands send to this process. The handlers
// of the Go runtime end the process, for some signals as if the process had crashed unless kill(2)
// sent them; commands can send those by sigqueue(3). Without a handler the first process of a
// namespace gets no signal, but the kernel still ends it if its main thread blocks that signal at
// the moment, as it does to fork. So signals are ignored. A crash of this process still ends it.
// Commands get the defaults back, see [command.fork].
func dropSignals() error {
	ignore, byDefault := sigaction{handler: 1}, sigaction{}
	for sig := 1; sig <= lastSignal; sig++ {
		action := &ignore
		switch {
		case sig == int(unix.SIGKILL), sig == int(unix.SIGSTOP): // which have no handlers
			continue
		case sig == int(unix.SIGURG): // by which the runtime interrupts its own threads
			continue
		case sig == int(unix.SIGCHLD): // it is dropped by default, and what ignores it waits for no child
			action = &byDefault
		case sig > int(unix.SIGSYS):
			before, err := exchange(sig, nil)
			if err != nil {
				return err
			}
			if before.handler != 0 { // the runtime's, which drops them, too
				continue
			}
		}
		if _, err := exchange(sig, action); err != nil {
			return err
		}
	}
	return nil
}

// lastSignal is the last one of the kernel.
const lastSignal = 64

// sigaction is the kernel's struct, or more than that. The handler 0 is the default, 1 ignores.
type sigaction struct {
	handler uintptr
	_       [7]uint64
}

// exchange sets what deals with a signal, unless that is nil, and returns what did.
func exchange(sig int, now *sigaction) (before sigaction, err error) {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(now)), uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	if errno != 0 {
		return before, errno
	}
	return before, nil
}

// startThreads has the runtime make its threads now, which it keeps. When it returns, none is still
// being made: stopping the world waits for every processor of the runtime that has been promised to
// a new thread. To ask for all stacks, and have no room for any, does that and no more.
func startThreads() {
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
	runtime.Stack(nil, true)
}

// outOfReach keeps commands, which have the same user, from changing limits, priorities and the
// like of this process. It has all of its threads by now, and their ids are the first ones of the
// sandbox.
func outOfReach() error { return confine.Untouchable(max(1, lastPID())) }

// ExitLease is the exit code of the first process when the worker's lease has ended. The kernel
// then kills all others.
const ExitLease = 3

// take handles a request: at once if no other runs and it takes no time, so that no other thread
// has to be woken; otherwise concurrently with others.
func (s *server) take(m *Message) {
	if m.Kind == KindFiles {
		s.takeFiles(m)
		return
	}
	if m.Kind == KindLease || m.Kind == KindExec && s.idle() {
		s.handle(m)
		return
	}
	s.busy.Add(1)
	s.messages <- struct{}{}
	go func() {
		defer func() {
			<-s.messages
			s.busy.Add(-1)
		}()
		s.handle(m)
	}()
}

// idle reports whether nothing runs. Only take starts something.
func (s *server) idle() bool { return s.busy.Load() == 0 && s.commands.none() }

// fileCall is a file operation that waits.
type fileCall struct {
	id      uint64
	request *FileRequest
}

// takeFiles deals with a file operation.
func (s *server) takeFiles(m *Message) {
	m.CloseFDs() // there are none
	call := fileCall{m.ID, &FileRequest{}}
	if err := m.Decode(call.request); err != nil {
		s.answer(call, &FileReply{Failure: err.Error()})
		return
	}
	s.busy.Add(1)
	s.calls <- call
}

// serveFiles does file operations, for ever: in a goroutine that stays, because its stack has to
// grow for them. They are done here, so that whatever a path leads to is something of the sandbox.
func (s *server) serveFiles() {
	for call := range s.calls {
		s.answer(call, ServeFiles(context.Background(), s.files, call.request)) //nolint:forbidigo // a worker that gives up does not read the answer
		s.busy.Add(-1)
	}
}

// answer answers a file operation. That the worker is gone is noticed by Receive.
func (s *server) answer(call fileCall, reply *FileReply) {
	_ = s.conn.Send(call.id, KindFiles, *reply)
}

// handle deals with any other request.
func (s *server) handle(m *Message) {
	defer m.CloseFDs()
	switch m.Kind {
	case KindExec:
		s.exec(m)
	case KindSignal:
		var request Signal
		if m.Decode(&request) == nil {
			s.commands.signal(request)
		}
	case KindLease:
		var lease Lease
		_ = m.Decode(&lease)                               // a deadline of 0 has passed
		_ = s.lease.Extend(start.Deadline(lease.Deadline)) // it is a timer
	case KindSocket:
		s.socket(m)
	default:
		reply(s.conn, m, struct{}{}, fmt.Errorf("unknown request %d", m.Kind))
	}
}

// reply answers a request. That the worker is gone is noticed by Receive.
func reply[T any](conn *Conn, m *Message, value T, err error) {
	answer := Answer[T]{Value: value}
	if err != nil {
		if failure, ok := errors.AsType[*protocol.Error](err); ok {
			answer.Fault = failure
		} else {
			answer.Error = err.Error()
		}
	}
	_ = conn.Send(m.ID, m.Kind, answer)
}

// socket gives the worker a socket of the sandbox's network. The worker connects it, so this
// process does not wait and needs no thread for it.
func (s *server) socket(m *Message) {
	var request Socket
	if err := m.Decode(&request); err != nil {
		reply(s.conn, m, struct{}{}, err)
		return
	}
	fd, err := unix.Socket(request.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		reply(s.conn, m, struct{}{}, err)
		return
	}
	defer unix.Close(fd)
	if err := s.conn.Send(m.ID, m.Kind, nil, fd); err != nil { // too many are on their way
		reply(s.conn, m, struct{}{}, err)
	}
}
