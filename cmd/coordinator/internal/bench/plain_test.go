package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// plain is what the engines without lanes have in common: calls in a work queue, workers that
// consume them, and results that come back as core NATS messages. Results are not stored, nothing
// can be cancelled, and attempts are not counted: they do less than a fleet.
type plain struct {
	stream jetstream.Stream
	js     jetstream.JetStream
	inbox  string
	// subject is where a call goes. It may have to make something first.
	subject func(ctx context.Context, call *protocol.Call) (string, error)
	workers []*plainWorker

	replies *nats.Subscription
	mu      sync.Mutex
	waiting map[protocol.CallID]chan bool
}

// plainWorker executes what the consumers give it.
type plainWorker struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	witness *witness
	id      protocol.WorkerID
	slots   chan struct{}

	mu        sync.Mutex
	consuming []jetstream.ConsumeContext
}

// headerReplyTo tells where the result of a call is awaited: the reply subject of the message is
// JetStream's own.
const headerReplyTo = "bench-reply-to"

// plainWait bounds how long a caller waits for a result, which may get lost.
const plainWait = time.Minute

// startPlain makes the stream and connects workers that do not consume yet.
func startPlain(ctx context.Context, nc *nats.Conn, o Options, w *witness) (p *plain, err error) {
	p = &plain{inbox: nc.NewInbox(), waiting: map[protocol.CallID]chan bool{}}
	if p.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)); err != nil {
		return nil, err
	}
	p.stream, err = p.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: plainSubject(o), Subjects: []string{plainSubject(o) + ".>"}, Storage: jetstream.FileStorage,
		Retention: jetstream.WorkQueuePolicy, Replicas: max(o.Replicas, 1),
	})
	if err != nil {
		return nil, fmt.Errorf("stream of the engine: %w", err)
	}
	if p.replies, err = nc.Subscribe(p.inbox+".*", p.reply); err != nil {
		return nil, errors.Join(err, p.end(ctx))
	}
	for i := range o.Workers {
		worker, err := startPlainWorker(o, i, w)
		if err != nil {
			return nil, errors.Join(err, p.end(ctx))
		}
		p.workers = append(p.workers, worker)
	}
	return p, nil
}

// plainSubject is the first token of the subjects, and the name of the stream.
func plainSubject(o Options) string { return string(o.Fleet) + "-bench-plain" }

func startPlainWorker(o Options, i int, w *witness) (*plainWorker, error) {
	nc, err := o.Connect(fmt.Sprintf("bench worker %d", i))
	if err != nil {
		return nil, err
	}
	worker := &plainWorker{nc: nc, witness: w, id: wire.NewWorkerID("bench"), slots: make(chan struct{}, o.Slots)}
	if worker.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)); err != nil {
		nc.Close()
		return nil, err
	}
	return worker, nil
}

// call publishes a call, which is stored then, and waits for its result.
func (p *plain) call(ctx context.Context, call *protocol.Call) bool {
	ctx, cancel := context.WithTimeout(ctx, plainWait)
	defer cancel()
	subject, err := p.subject(ctx, call)
	if err != nil {
		return false
	}
	msg := nats.NewMsg(subject)
	msg.Header.Set(headerReplyTo, p.inbox+"."+string(call.ID))
	if msg.Data, err = wire.EncodeCall(call); err != nil {
		return false
	}
	result := make(chan bool, 1)
	p.mu.Lock()
	p.waiting[call.ID] = result
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, call.ID)
	}()
	if _, err := p.js.PublishMsg(ctx, msg); err != nil {
		return false
	}
	select {
	case ok := <-result:
		return ok
	case <-ctx.Done():
		return false
	}
}

// reply gives a result to whoever waits for it.
func (p *plain) reply(msg *nats.Msg) {
	r, err := wire.DecodeResult(msg.Data)
	id := protocol.CallID(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:])
	p.mu.Lock()
	defer p.mu.Unlock()
	if result := p.waiting[id]; result != nil {
		select {
		case result <- err == nil && r.Status == protocol.StatusOK:
		default: // told already
		}
	}
}

func (p *plain) connections() []*nats.Conn {
	all := make([]*nats.Conn, len(p.workers))
	for i, w := range p.workers {
		all[i] = w.nc
	}
	return all
}

func (p *plain) stop(ctx context.Context) { _ = p.end(ctx) } // a stream that is left is in a fleet of its own

func (p *plain) end(ctx context.Context) error {
	for _, w := range p.workers {
		w.stop()
	}
	var err error
	if p.replies != nil {
		err = p.replies.Unsubscribe()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), plainWait)
	defer cancel()
	return errors.Join(err, p.js.DeleteStream(ctx, p.stream.CachedInfo().Config.Name))
}

// consume executes what a consumer has, one message after the other.
func (w *plainWorker) consume(ctx context.Context, consumer jetstream.Consumer) error {
	consuming, err := consumer.Consume(func(msg jetstream.Msg) { w.execute(ctx, msg) })
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.consuming = append(w.consuming, consuming)
	return nil
}

// execute runs a call, sends its result, and settles the message, in this order. A message that is
// not settled comes back.
func (w *plainWorker) execute(ctx context.Context, msg jetstream.Msg) {
	w.slots <- struct{}{}
	defer func() { <-w.slots }()
	meta, err := msg.Metadata()
	if err != nil {
		return
	}
	call, err := wire.DecodeCall(msg.Data())
	if err != nil {
		_ = msg.Term() // it would never get better
		return
	}
	result := w.witness.Execute(ctx, &lane.Run{
		Call: call, Header: msg.Headers(), Attempt: int(min(meta.NumDelivered, 1<<30)), Sequence: meta.Sequence.Stream,
	})
	result.WorkerID, result.FinishedAt = w.id, time.Now().UTC()
	body, err := wire.EncodeResult(&result)
	if err != nil {
		return
	}
	if w.nc.Publish(msg.Headers().Get(headerReplyTo), body) == nil {
		_ = msg.Ack() // should it get lost, the call runs again
	}
}

func (w *plainWorker) stop() {
	w.mu.Lock()
	consuming := w.consuming
	w.mu.Unlock()
	for _, c := range consuming {
		c.Stop()
	}
	for _, c := range consuming {
		<-c.Closed()
	}
	w.nc.Close()
}
