package worker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Published is a port of a sandbox that is reached from this host, while the worker runs. What
// connects when nothing listens there is disconnected at once.
type Published struct {
	// Listener gets the connections; the worker closes it.
	Listener net.Listener
	// Sandbox is whose Port it is.
	Sandbox string
	Port    uint16
	// Listens is called, once or again, when something listens there.
	Listens func()
}

// Bounds of a published port.
const (
	maxPublished = 256 // connections at once; further ones wait
	listenPeriod = 250 * time.Millisecond
)

// publish forwards connections into sandboxes until stop, which waits for the last one.
func (w *Worker) publish(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range w.options.Publish {
		context.AfterFunc(ctx, func() { _ = p.Listener.Close() })
		all.Go(func() { w.forward(ctx, p) })
		all.Go(func() { w.awaitServer(ctx, p) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// forward accepts connections until ctx ends.
func (w *Worker) forward(ctx context.Context, p Published) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, maxPublished)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		client, err := p.Listener.Accept()
		if err != nil {
			<-slots
			if !pause.For(ctx, pause.Retry) {
				return
			}
			continue
		}
		work.Go(func() {
			defer func() { <-slots }()
			w.connect(ctx, client, p)
		})
	}
}

// awaitServer calls Listens when something listens in the sandbox.
func (w *Worker) awaitServer(ctx context.Context, p Published) {
	for pause.For(ctx, listenPeriod) {
		if dialer := w.dialer(p); dialer != nil && dialer.Listens(p.Port) {
			p.Listens()
			return
		}
	}
}

// connect connects a client with the server in the sandbox.
func (w *Worker) connect(ctx context.Context, client net.Conn, p Published) {
	var server net.Conn
	err := sandbox.ErrClosed
	if dialer := w.dialer(p); dialer != nil {
		server, err = dialer.Dial(ctx, p.Port)
	}
	if err != nil {
		if tcp, ok := client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // reset, so that clients do not take it for an empty answer
		}
		_ = client.Close()
		return
	}
	p.Listens()
	egress.Join(ctx, client, server)
}

// dialer connects into the sandbox of a port; nil if nothing runs there.
func (w *Worker) dialer(p Published) isolation.Dialer {
	return w.env.Sandboxes.Lane(protocol.Lane("sandbox/" + p.Sandbox)).Dialer()
}
