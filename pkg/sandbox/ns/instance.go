//go:build linux

package ns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// startWait is how long a sandbox may take to start.
const startWait = 20 * time.Second

// errLost says that the first process of a sandbox is gone.
var errLost = errors.New("the sandbox is lost")

// instance is a running sandbox: a first process and what it answers.
type instance struct {
	conn    *wire.Conn
	process *os.Process
	ready   wire.Ready
	gone    chan struct{} // closed when it does not answer any more
	proxy   *proxy        // nil unless the sandbox has one

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan<- *reply // nil when it is gone

	reader   sync.WaitGroup
	closing  sync.Once
	closeErr error
}

// reply is a message, parsed if it is one of the stream.
type reply struct {
	*wire.Message

	files sandbox.FileReply
}

// startError says at which step the start of a sandbox has failed.
type startError struct{ wire.Failed }

// Error implements the error interface.
func (e *startError) Error() string { return fmt.Sprintf("%s: %s", e.Step, e.Failed.Error) }

// launch starts a sandbox and waits until it serves.
func launch(ctx context.Context, config wire.Config) (_ *instance, err error) {
	program, err := image()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	settings, err := memfd("configuration", bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	defer settings.Close()
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	i := &instance{conn: conn, gone: make(chan struct{}), waiting: map[uint64]chan<- *reply{}}
	launcher := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", program.Fd()), Args: []string{initd.Arg0, initd.StageLaunch},
		Env: []string{}, ExtraFiles: []*os.File{theirs, program, settings},
	}
	err = launcher.Start()
	err = errors.Join(err, theirs.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the launcher: %w", err), conn.Close())
	}
	if err := i.await(ctx); err != nil {
		_ = launcher.Process.Kill() // it may have ended
		_ = launcher.Wait()         // it was killed, or failed and told why
		return nil, errors.Join(err, i.close())
	}
	i.reader.Go(i.receive)
	if err := launcher.Wait(); err != nil {
		return nil, errors.Join(fmt.Errorf("launcher: %w", err), i.close())
	}
	return i, nil
}

// await waits until the sandbox serves. On failure too, the process is known if there is one.
func (i *instance) await(ctx context.Context) error {
	started := make(chan error, 1)
	go func() { started <- i.start() }()
	timer := time.NewTimer(startWait)
	defer timer.Stop()
	var late error
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		late = ctx.Err()
	case <-timer.C:
		late = fmt.Errorf("it does not answer within %s", startWait)
	}
	i.conn.Hurry()
	<-started //nolint:errcheck // it is too late
	return late
}

// start reads the messages of a start. They come from two processes, in any order; both
// have told everything, or are gone, when it returns.
func (i *instance) start() error {
	var failed *startError
	for served := false; i.process == nil || !served; {
		m, err := i.conn.Receive()
		if err != nil && failed != nil {
			return failed
		}
		if err != nil {
			return fmt.Errorf("the sandbox ended while it started: %w", err)
		}
		if m.Kind == wire.KindListener && i.proxy == nil {
			i.proxy, err = newProxy(m)
		}
		m.CloseFDs()
		switch m.Kind {
		case wire.KindListener:
		case wire.KindLaunched:
			err = i.launched(m)
		case wire.KindReady:
			served, err = true, m.Decode(&i.ready)
		case wire.KindFailed:
			failed = &startError{}
			err = m.Decode(&failed.Failed)
		default:
			err = fmt.Errorf("%w: kind %d", wire.ErrMalformed, m.Kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// launched learns the first process, which is a child of this one.
func (i *instance) launched(m *wire.Message) error {
	var launched wire.Launched
	err := m.Decode(&launched)
	if err == nil && i.process == nil {
		i.process, err = os.FindProcess(launched.PID)
	}
	return err
}

// receive hands out replies until the sandbox is gone.
func (i *instance) receive() {
	defer i.lose()
	for {
		m, err := i.conn.Receive()
		if err != nil {
			return
		}
		r := &reply{Message: m}
		if m.Kind == wire.KindFiles && i.conn.DecodeStream(m, &r.files) != nil {
			return
		}
		m.CloseFDs() // a sandbox has none to give away
		i.mu.Lock()
		to := i.waiting[m.ID]
		delete(i.waiting, m.ID)
		i.mu.Unlock()
		if to != nil {
			to <- r // there is room for it
		}
	}
}

// lose tells everybody who waits that no reply will come.
func (i *instance) lose() {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.gone)
	i.waiting = nil
}

// register returns an id for a request and the channel of its reply.
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

// forget gives up waiting for a reply.
func (i *instance) forget(id uint64) {
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
	if err := send(id); err != nil {
		i.forget(id)
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	select {
	case r := <-replies:
		return r, nil
	case <-i.gone:
		select {
		case r := <-replies: // the last word
			return r, nil
		default:
			return nil, errLost
		}
	case <-ctx.Done():
		i.forget(id)
		return nil, ctx.Err()
	}
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
			_, i.closeErr = i.process.Wait()
		}
		i.closeErr = errors.Join(i.closeErr, i.conn.Close(), i.proxy.close())
		i.reader.Wait()
	})
	return i.closeErr
}
