//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// startWait is how long a sandbox may take to start.
const startWait = 20 * time.Second

// errLost says that the first process of a sandbox is gone.
var errLost = errors.New("the sandbox is lost")

// instance is a running sandbox: a first process and what it answers.
type instance struct {
	conn    *initd.Conn
	process *os.Process
	bwrap   *bwrap // the process that has started it; nil when our launcher did
	ready   initd.Ready
	gone    chan struct{} // closed when it does not answer any more
	network network
	bounds  *supervisor.Bounds

	requests
	ending
}

// requests are the requests that wait for a reply of the first process.
type requests struct {
	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan<- *reply // nil when the process does not answer any more
	failure error                    // the first one of the connection
}

// ending is how an instance was closed.
type ending struct {
	reader   sync.WaitGroup // of replies
	closing  sync.Once
	closeErr error
	ended    string // how the first process has ended; set by closing
}

// reply is a message, parsed if it is one of the stream.
type reply struct {
	*initd.Message

	files  initd.FileReply
	socket *os.File // closed by the waiting caller, or by the collector
}

// await waits until the sandbox serves.
func (i *instance) await(ctx context.Context) error {
	i.conn.ReceiveUntil(time.Now().Add(startWait))
	stop := context.AfterFunc(ctx, func() { i.conn.ReceiveUntil(time.Now()) })
	err := i.readStart()
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	i.conn.ReceiveUntil(time.Time{})
	return err
}

// readStart reads the messages of a start.
func (i *instance) readStart() error {
	for {
		m, err := i.conn.Receive()
		if err != nil {
			return fmt.Errorf("the sandbox ended while it started: %w", err)
		}
		if m.Kind == initd.KindListener || m.Kind == initd.KindLink {
			err = i.network.accept(m)
		}
		m.CloseFDs()
		switch m.Kind {
		case initd.KindListener, initd.KindLink:
		case initd.KindReady:
			return m.Decode(&i.ready)
		case initd.KindFailed:
			return m.Failure()
		case initd.KindAborted:
			return aborted(m)
		default:
			err = fmt.Errorf("%w: kind %d", initd.ErrMalformed, m.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// aborted is the error of a sandbox that has failed before it was a program.
func aborted(m *initd.Message) error {
	failed, ok := confine.Failed(m.Body)
	if !ok {
		return fmt.Errorf("%w: an abort of %d bytes", initd.ErrMalformed, len(m.Body))
	}
	return &initd.Failed{Step: failed.Step, Reason: failed.Errno.Error(), Errno: int(failed.Errno)}
}

// receive hands out replies until the sandbox is gone.
func (i *instance) receive() {
	defer i.failRequests()
	for {
		m, err := i.conn.Receive()
		if err == nil && !i.deliver(m) {
			err = initd.ErrMalformed
		}
		if err != nil {
			i.recordFailure(err)
			return
		}
	}
}

// recordFailure notes why the sandbox cannot be used any more.
func (i *instance) recordFailure(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failure == nil {
		i.failure = err
	}
}

// deliver hands out a reply. It reports whether that was one.
func (i *instance) deliver(m *initd.Message) bool {
	r := &reply{Message: m, socket: takeSocket(m)}
	m.CloseFDs() // a sandbox has no others to give away
	if m.Kind == initd.KindFiles && m.Decode(&r.files) != nil {
		return false
	}
	i.mu.Lock()
	to := i.waiting[m.ID]
	delete(i.waiting, m.ID)
	i.mu.Unlock()
	if to != nil {
		to <- r // there is room for it
	}
	return true
}

// failRequests fails all pending requests: no reply will come.
func (i *instance) failRequests() {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.gone)
	for _, to := range i.waiting {
		close(to)
	}
	i.waiting = nil
}

// register returns an id for a request and the channel of its reply, which is closed without one
// when the sandbox is lost.
func (i *instance) register() (uint64, <-chan *reply, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.waiting == nil {
		return 0, nil, errLost
	}
	i.next++
	to := make(chan *reply, 1)
	i.waiting[i.next] = to
	return i.next, to, nil
}

// unregister gives up waiting for a reply.
func (i *instance) unregister(id uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.waiting, id)
}

// ask sends a request by send and waits for its reply.
func (i *instance) ask(ctx context.Context, send func(id uint64) error) (*reply, error) {
	id, replies, err := i.register()
	if err != nil {
		return nil, err
	}
	if err := i.sending(ctx, func() error { return send(id) }); err != nil {
		i.unregister(id)
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	select {
	case r := <-replies:
		if r == nil {
			return nil, errLost
		}
		return r, nil
	case <-ctx.Done():
		i.unregister(id)
		return nil, ctx.Err()
	}
}

// sending calls send, which sends a message. When ctx has ended and the first process does not take
// it, that is killed after a moment: a part of a message cannot be taken back, and all that comes
// behind it would wait. When sending returns an error and the sandbox is lost, that is recorded:
// the next caller gets another sandbox.
func (i *instance) sending(ctx context.Context, send func() error) error {
	sent := make(chan struct{})
	defer close(sent)
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(killWait)
		defer timer.Stop()
		select {
		case <-sent:
		case <-timer.C:
			_ = i.process.Kill()
		}
	})
	defer stop()
	err := send()
	if err != nil {
		select {
		case <-i.gone:
		case <-time.After(killWait):
		}
	}
	return err
}

// sendLease sends the end of the lease to the first process, now and whenever it moves. It ends
// with the first process; if it fails, the first process ends.
func (i *instance) sendLease(end func() time.Time) {
	if end == nil {
		return
	}
	send := func(d start.Deadline) error {
		return i.conn.Send(0, initd.KindLease, initd.Lease{Deadline: int64(d)})
	}
	first := end()
	_ = send(start.DeadlineAt(first)) // a first process that is gone runs nothing
	i.reader.Go(func() { start.SendDeadlines(end, first, i.gone, send) })
}

// wait waits for the end of the first process.
func (i *instance) wait() error {
	if i.bwrap != nil {
		return errors.Join(i.bwrap.wait(), i.process.Release())
	}
	state, err := i.process.Wait()
	if err == nil {
		i.ended = state.String()
	}
	return err
}

// postMortem kills the rest of a lost sandbox, and describes how its first process ended, as far as
// its parent knows, and the error of the connection.
func (i *instance) postMortem() string {
	if err := i.close(); err != nil {
		return err.Error()
	}
	ended := i.ended
	if ended == "" {
		ended = "known to bubblewrap only"
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return fmt.Sprintf("end of its first process: %s; connection: %v", ended, i.failure)
}

// lost reports whether the sandbox does not answer any more.
func (i *instance) lost() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// close kills the first process, with it everything, and returns when nothing is left. It
// is idempotent.
func (i *instance) close() error {
	i.closing.Do(func() {
		if i.process != nil {
			_ = i.process.Kill() // it may have ended
			i.closeErr = i.wait()
		}
		i.closeErr = errors.Join(i.closeErr, i.bounds.Close(), i.conn.Close(), i.network.close())
		i.reader.Wait()
	})
	return i.closeErr
}

// open starts a sandbox, in a group of its own unless groups is nil, and waits until it serves.
// When that fails, nothing is left.
func open(ctx context.Context, config initd.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	i, err := begin(config, groups, limits)
	if errors.Is(err, errLauncher) { // it may have been killed
		i, err = begin(config, groups, limits)
	}
	if err != nil {
		return nil, err
	}
	if err := i.await(ctx); err != nil {
		return nil, errors.Join(err, i.close())
	}
	i.reader.Go(i.receive)
	return i, nil
}

func begin(config initd.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	b, err := supervisor.NewBounds(groups, supervisor.Spare{Memory: spareMemory, Processes: initd.SpareProcesses}, limits)
	if err != nil {
		return nil, err
	}
	conn, theirs, err := initd.Pair()
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	i := &instance{conn: conn, bounds: b, gone: make(chan struct{}), requests: requests{waiting: map[uint64]chan<- *reply{}}}
	if config.Bwrap {
		if err = conn.Send(0, initd.KindConfig, config); err == nil { // for the stage before the last
			i.bwrap, i.process, err = startBwrap(config, theirs, b.Group())
		}
	} else {
		i.process, err = launchers.launch(config, theirs, b.Group())
	}
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, i.close())
	}
	_ = conn.Send(0, initd.KindConfig, config) // a first process that is gone has reported why
	return i, nil
}

// spareMemory is what the first process of a sandbox, and the kernel for it, may hold in addition
// to the commands.
const spareMemory = 16 << 20

// limitKinds says by what limits are enforced.
func limitKinds(grouped bool) isolation.LimitKinds {
	kinds := isolation.LimitKinds{
		CPU: isolation.LimitRlimit, Memory: isolation.LimitSoft, Processes: isolation.LimitRlimit,
		OpenFiles: isolation.LimitRlimit, FileSize: isolation.LimitRlimit, Disk: isolation.LimitSoft,
	}
	if grouped {
		kinds.Memory, kinds.Processes = isolation.LimitCgroup, isolation.LimitCgroup
	}
	return kinds
}
