// Package background keeps the processes of a sandbox that outlive the calls that started them.
//
//	command_run, background ──► Start ──► sandbox.Exec in a goroutine ──► output ring
//	process_read, process_list ◄── what the ring has; the end                │
//	process_kill ──► cancel ─────────────────────────────────────────────────┘
//
// A process ends by itself, by process_kill, when its life time is over, or with its
// sandbox: that is when the worker stops, is lost, or loses the lane. As long as one
// lives the worker keeps the lane, and with it the sandbox, although no call comes.
// Later calls run at the same time as the process: its changes to the workspace have no
// order with theirs.
//
// What a process writes goes into a spool, both streams in order: all of it is read from there
// while the process lives, and handed to [Command.StoreFull] when it ends. How it ended, and the
// last [KeepBytes], are written to a file next to the workspace, so that they can be read after the
// sandbox has been closed, by whichever worker has the directory. Processes that lived when a
// worker was killed leave nothing.
package background

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/longlived"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Bounds of [Processes].
const (
	// MaxRunning is how many background processes a sandbox may have at once.
	MaxRunning = 16
	// MaxEnded is how many ended ones are remembered.
	MaxEnded = 16
	// maxWait bounds the wait of one read.
	maxWait = 5 * time.Minute
	// maxRead is the most that one read returns, in bytes.
	maxRead = 64 << 10
	// inputWait is how long a process may take to read its input.
	inputWait = 5 * time.Second
	// firstScreen is how long the start of a process with a terminal waits for it to write
	// something.
	firstScreen = 2 * time.Second
	// maxCommand is where the command in a status is cut, in bytes.
	maxCommand = 200
)

// Processes are the background processes of one sandbox. It is safe for concurrent use.
type Processes struct {
	file string

	mu     sync.Mutex
	loaded bool
	all    []*process // in the order of their start
	group  sync.WaitGroup
}

// New returns the processes whose ends are remembered in file.
func New(file string) *Processes { return &Processes{file: file} }

// Reload has the file read again, unless processes live: another worker may have written it.
func (ps *Processes) Reload() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.countRunning() == 0 {
		ps.loaded, ps.all = false, nil
	}
}

// Running is how many processes live.
func (ps *Processes) Running() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.countRunning()
}

func (ps *Processes) countRunning() int {
	n := 0
	for _, p := range ps.all {
		if p.isRunning() {
			n++
		}
	}
	return n
}

// Command is the command of a process.
type Command struct {
	Handle string
	// Text is what people call it.
	Text string
	sandbox.Cmd
	// Lifetime is the longest that it may live.
	Lifetime time.Duration
	// TTY gives it a terminal, for [Processes.Send].
	TTY bool
	// Written gets all that the process writes. It is closed when the process has ended.
	Written *spool.Spool
	// StoreFull stores all of that under an id when the process has ended, if it is much. It is not
	// called for a process that could not be started.
	StoreFull func(*spool.Spool) (protocol.CallID, error)
	// Ended is called when the process has ended; nil is not.
	Ended func()
	// Live gets the output of the process piece by piece; it may be nil.
	Live func(stream sandbox.Stream, data []byte)
}

// Start runs a command in the background and waits a moment for its end, so that the caller
// sees a command that fails at once. The result is as of Read. The
// error is a *[protocol.Error] or wraps [sandbox.ErrUnsupported] when the command cannot
// be started, and a *[protocol.Error] when too many live.
func (ps *Processes) Start(ctx context.Context, s sandbox.Sandbox, c Command, moment time.Duration) (wire.ProcessReadResult, error) {
	p := newProcess(c.Handle, prose.Cut(c.Text, maxCommand), longlived.NewLifetime(ctx, c.Lifetime, nil))
	p.written, p.keep = c.Written, c.StoreFull
	if c.TTY {
		p.input, p.status.TTY = make(chan []byte), true
		c.Typed = p.input
	}
	if err := ps.add(p); err != nil {
		p.lifetime.End(nil)
		_ = c.Written.Close() // it is empty
		return wire.ProcessReadResult{}, err
	}
	go func() {
		defer ps.group.Done()
		p.lifetime.Run(func(ctx context.Context) {
			p.run(ctx, s, c.Cmd, c.Live)
			if c.Ended != nil {
				c.Ended()
			}
			ps.ended(p)
		})
	}()
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-p.lifetime.Done():
	case <-timer.C:
	case <-ctx.Done():
		p.lifetime.Stop(0, nil)
	}
	if c.TTY {
		p.awaitQuiet(ctx, 0, firstScreen)
	}
	if err := p.fault(); err != nil {
		ps.forget(p)
		return wire.ProcessReadResult{}, err
	}
	return p.read(0, maxRead), nil
}

// add counts a process in.
func (ps *Processes) add(p *process) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.load()
	if ps.countRunning() >= MaxRunning {
		return protocol.Errorf(protocol.CodeLimitReached,
			"%d background processes live in this sandbox, and that is the limit; kill one that is not needed any more", MaxRunning)
	}
	ps.all = append(slices.DeleteFunc(ps.all, func(old *process) bool { return old.status.Process == p.status.Process }), p)
	ps.group.Add(1)
	return nil
}

func (ps *Processes) forget(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all = slices.DeleteFunc(ps.all, func(other *process) bool { return other == p })
}

// ended remembers how a process ended, and forgets the oldest ones.
func (ps *Processes) ended(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.fault() != nil {
		return // it never was
	}
	surplus := len(ps.all) - ps.countRunning() - MaxEnded
	ps.all = slices.DeleteFunc(ps.all, func(old *process) bool {
		if surplus <= 0 || old.isRunning() {
			return false
		}
		surplus--
		return true
	})
	ps.save()
}

// find returns the process of a handle. The error names the existing ones.
func (ps *Processes) find(handle string) (*process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.load()
	names := make([]string, 0, len(ps.all))
	for _, p := range ps.all {
		if p.status.Process == handle { // never changes
			return p, nil
		}
		names = append(names, p.status.Process)
	}
	return nil, protocol.Errorf(protocol.CodeNotFound,
		"there is no background process %q: processes end with their sandbox, when its worker stops or is lost; there is: %s",
		handle, cmp.Or(strings.Join(names, ", "), "none"))
}

// List returns the state of every process, in the order of their start.
func (ps *Processes) List() wire.ProcessListResult {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.load()
	list := wire.ProcessListResult{Processes: []wire.ProcessStatus{}}
	for _, p := range ps.all {
		list.Processes = append(list.Processes, p.state())
	}
	return list
}

// Read returns output of a process, after waiting for some if that was asked for.
func (ps *Processes) Read(ctx context.Context, req wire.ProcessRead) (wire.ProcessReadResult, error) {
	p, err := ps.find(req.Process)
	if err != nil {
		return wire.ProcessReadResult{}, err
	}
	if req.Wait > 0 {
		from := req.Offset
		if from < 0 { // from the end: what is new
			from = p.state().Bytes
		}
		waiting, cancel := context.WithTimeout(ctx, min(req.Wait.Duration(), maxWait))
		p.await(waiting, from)
		cancel()
		if ctx.Err() != nil {
			return wire.ProcessReadResult{}, ctx.Err()
		}
	}
	limit := req.Limit
	if limit <= 0 || limit > maxRead {
		limit = maxRead
	}
	return p.read(req.Offset, limit), nil
}

// Send types at the terminal of a process, and returns what it wrote since: once it has written
// something and then nothing for a moment, or the time is over.
func (ps *Processes) Send(ctx context.Context, req wire.ProcessSend) (wire.ProcessSendResult, error) {
	p, err := ps.find(req.Process)
	if err != nil {
		return wire.ProcessSendResult{}, err
	}
	switch {
	case !p.state().TTY:
		return wire.ProcessSendResult{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"process %s has no terminal: nothing can be typed there; start it with tty", req.Process)
	case len(req.Input) == 0 || len(req.Input) > wire.MaxInput:
		return wire.ProcessSendResult{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"input has %d bytes: must be 1 to %d", len(req.Input), wire.MaxInput)
	case !p.isRunning():
		return wire.ProcessSendResult{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"process %s has ended: nothing was typed; read tells how it ended", req.Process)
	}
	from := p.state().Bytes
	timer := time.NewTimer(inputWait)
	defer timer.Stop()
	select {
	case p.input <- req.Input:
		p.awaitQuiet(ctx, from, min(req.Wait.Duration(), maxWait))
	case <-p.lifetime.Done(): // the state says so
	case <-timer.C:
		return wire.ProcessSendResult{}, protocol.Errorf(protocol.CodeLimitReached,
			"process %s reads nothing of what was typed before: nothing more was typed", req.Process)
	case <-ctx.Done():
		return wire.ProcessSendResult{}, ctx.Err()
	}
	return wire.ProcessSendResult{ProcessReadResult: p.read(from, maxRead)}, ctx.Err()
}

// Kill ends a process with all that it started, and returns when it is gone.
func (ps *Processes) Kill(ctx context.Context, handle string) (wire.ProcessKillResult, error) {
	p, err := ps.find(handle)
	if err != nil {
		return wire.ProcessKillResult{}, err
	}
	p.lifetime.End(nil)
	select {
	case <-p.lifetime.Done():
	case <-ctx.Done():
		return wire.ProcessKillResult{}, ctx.Err()
	}
	return wire.ProcessKillResult{ProcessStatus: p.state()}, nil
}

// Wait returns when none lives any more and all ends are remembered: soon after
// their sandbox was closed.
func (ps *Processes) Wait() { ps.group.Wait() }
