//go:build linux

package blackbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// resource, payload and request are a call as docs/wire.md has it.
type (
	resource struct {
		Key    string `json:"key"`
		Access string `json:"access"`
	}
	payload struct {
		Type      string  `json:"type"`
		Version   int     `json:"version"`
		Command   string  `json:"command,omitempty"`
		Arguments *work   `json:"arguments,omitempty"`
		Server    *server `json:"server,omitempty"`
		Tool      string  `json:"tool,omitempty"`
	}
	server struct {
		Name    string   `json:"name"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	request struct {
		Type           string     `json:"type"`
		Version        int        `json:"version"`
		ID             string     `json:"id"`
		SessionID      string     `json:"session_id"`
		Pool           string     `json:"pool"`
		Resources      []resource `json:"resources"`
		Delivery       string     `json:"delivery"`
		IssuedAt       time.Time  `json:"issued_at"`
		Deadline       *time.Time `json:"deadline,omitempty"`
		QueueTimeoutMS int        `json:"queue_timeout_ms,omitempty"`
		Again          bool       `json:"again,omitempty"`
		Payload        payload    `json:"payload"`
	}
)

// work says what a call does: it writes down that it begins, a few times that it runs, and that it
// ends.
type work struct {
	ID      string `json:"id"`
	Sandbox string `json:"sandbox"`
	During  int    `json:"during"`   // how often, each after 30 ms
	SleepMS int    `json:"sleep_ms"` // before the end
}

// payload is what has work done: by a command, a handler in Go, or a tool of a server.
func (s *settings) payload(w work) payload {
	switch {
	case s.handler != "":
		return payload{Type: "effect", Version: 1, Arguments: &w}
	case len(s.serve) > 0:
		return payload{
			Type: "mcp_call", Version: 1, Tool: "effect", Arguments: &w,
			Server: &server{Name: "effects", Command: s.serve[0], Args: s.serve[1:]},
		}
	}
	does := ""
	if w.During > 0 {
		does = fmt.Sprintf("for i in $(seq %d); do sleep 0.03; say during; done; ", w.During)
	}
	if w.SleepMS > 0 {
		does += fmt.Sprintf("sleep 0.%03d; ", w.SleepMS)
	}
	return payload{
		Type: "command_run", Version: 1,
		Command: "read -r run </proc/sys/kernel/random/uuid; say() { echo \"$1 " + w.ID + " $run\" >>effects; }; say begin; " + does + "say end",
	}
}

// call is a call, and what its caller knows of it.
type call struct {
	request

	lane      string
	due       time.Duration // after which it must have its result, whatever happens before it; 0: no bound
	cancelled bool
	put       time.Time // when it was put first
	told      time.Time // when its result was known
	result    result    // as it was told
	// The stream has it at a sequence from low to high; they are the same if the first attempt to
	// put it was answered.
	low, high uint64
}

// result is what the checks need of a result.
type result struct {
	CallID  string `json:"call_id"`
	Status  string `json:"status"`
	Attempt int    `json:"attempt"`
	Error   struct {
		Code string `json:"code"`
	} `json:"error"`
}

// logged is what the checks need of a call of the log.
type logged struct {
	SessionID string     `json:"session_id"`
	Lane      string     `json:"lane"`
	Tool      string     `json:"tool"`
	Input     string     `json:"input"`
	Tenant    string     `json:"tenant"`
	WorkerID  string     `json:"worker_id"`
	Resources []resource `json:"resources"`
	Accepted  time.Time  `json:"accepted_at"`
	Finished  time.Time  `json:"finished_at"`
	result
}

// client is the callers' connection.
type client struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	mu    sync.Mutex
	last  uint64 // the greatest sequence that a call got
	made  atomic.Int64
	waits sync.Map // of call ids: channels of results
}

func connect(ctx context.Context, url, creds string) (*client, error) {
	token, err := os.ReadFile(creds)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(url, nats.Token(strings.TrimSpace(string(token))), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	c := &client{nc: nc}
	if c.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)); err != nil {
		return nil, err
	}
	_, err = nc.Subscribe("tf.done.>", func(msg *nats.Msg) {
		var r result
		if json.Unmarshal(msg.Data, &r) != nil {
			return
		}
		wait, _ := c.waits.LoadAndDelete(r.CallID)
		if wait, is := wait.(chan result); is {
			wait <- r
		}
	})
	if err != nil {
		return nil, err
	}
	for { // a worker makes the streams
		if _, err := c.js.Stream(ctx, "TF_RESULTS"); err == nil {
			return c, nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// makeCalls makes steps of calls, each after the results of the one before, until all callers
// together have made enough, and enough was killed.
func (c *client) makeCalls(ctx context.Context, s settings, caller int, killed *atomic.Int64) (made []*call) {
	random := rand.New(rand.NewPCG(s.seed, uint64(caller)+2))
	for n := 0; (c.made.Load() < int64(s.calls) || killed.Load() < int64(s.kills)) && ctx.Err() == nil; n++ {
		var step sync.WaitGroup
		lane := fmt.Sprintf("sandbox/s%d", random.IntN(s.lanes))
		for i := range 1 + random.IntN(4) {
			k := s.plan(random, fmt.Sprintf("c%d-%d-%d", caller, n, i), fmt.Sprintf("caller%d", caller), lane)
			cancelAfter := time.Duration(random.IntN(200)) * time.Millisecond
			made = append(made, k)
			c.made.Add(1)
			done := make(chan result, 1)
			c.waits.Store(k.ID, done)
			c.enqueue(ctx, k)
			step.Go(func() { c.follow(ctx, k, done) })
			if k.cancelled {
				step.Go(func() { c.cancel(ctx, k, cancelAfter) })
			}
		}
		step.Wait()
	}
	return made
}

// plan makes a call that writes down when it begins and ends.
func (s *settings) plan(random *rand.Rand, id, session, lane string) *call {
	k := &call{lane: lane}
	does, delivery := work{ID: id, Sandbox: strings.TrimPrefix(lane, "sandbox/")}, "idempotent"
	switch random.IntN(10) {
	case 0:
		does.During = 10
	case 1, 2:
		does.SleepMS = 20
	}
	if random.IntN(3) == 0 {
		delivery = "at_most_once"
	}
	k.request = request{
		Type: "call", Version: 1, ID: id, SessionID: session, Pool: "default", Delivery: delivery,
		Resources: []resource{{Key: lane, Access: "exclusive"}},
		Payload:   s.payload(does),
	}
	switch random.IntN(12) {
	case 0:
		k.due = 150 * time.Millisecond
	case 1:
		k.due, k.QueueTimeoutMS = 150*time.Millisecond, 150
	case 2:
		k.cancelled = true
	}
	return k
}

// laneHash is the lane's place in subjects.
func laneHash(lane string) string {
	sum := sha256.Sum256([]byte(lane))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// enqueue puts a call until it is accepted.
func (c *client) enqueue(ctx context.Context, k *call) {
	k.put, k.low = time.Now(), c.before()+1
	k.IssuedAt = k.put
	if k.due > 0 && k.QueueTimeoutMS == 0 {
		deadline := k.put.Add(k.due)
		k.Deadline = &deadline
	}
	ready, mailbox := "tf.ready.default."+laneHash(k.lane), "tf.call.default."+laneHash(k.lane)+"."+k.ID
	seq, err := c.publish(ctx, ready, k)
	for errors.Is(err, errRefused) || err != nil && ctx.Err() == nil {
		if !errors.Is(err, errRefused) {
			k.Again = true
		}
		if seq, err = c.publish(ctx, mailbox, k); errors.Is(err, errRefused) {
			seq, err = c.lastSequence(ctx)
		}
		if err == nil {
			_, err = c.publish(ctx, ready, &call{lane: k.lane})
			if errors.Is(err, errRefused) {
				err = nil
			}
		}
	}
	if k.high = seq; !k.Again {
		k.low = seq
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, seq)
}

// before is a sequence that calls that are put from now on will exceed.
func (c *client) before() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

var errRefused = errors.New("there is a message on that subject")

// publish stores a call, or a lane's empty ready message if the call has no id.
func (c *client) publish(ctx context.Context, subject string, k *call) (uint64, error) {
	msg := nats.NewMsg(subject)
	msg.Header.Set("Tf-Lane", k.lane)
	if k.ID != "" {
		msg.Header.Set("Tf-Call", k.ID)
		msg.Header.Set("Tf-Session", k.SessionID)
		var err error
		if msg.Data, err = json.Marshal(k.request); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ack, err := c.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if fault := (*jetstream.APIError)(nil); errors.As(err, &fault) && fault.ErrorCode == 10077 {
		return 0, errRefused
	}
	if err != nil {
		pause(ctx, 100*time.Millisecond)
		return 0, err
	}
	return ack.Sequence, nil
}

// lastSequence is that of the stream, which a call that is there does not exceed.
func (c *client) lastSequence(ctx context.Context) (uint64, error) {
	stream, err := c.js.Stream(ctx, "TF_CALLS")
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// cancel asks to cancel a call, until that is accepted.
func (c *client) cancel(ctx context.Context, k *call, after time.Duration) {
	pause(ctx, after)
	hash := laneHash(k.lane)
	for _, subject := range []string{"tf.call.default." + hash + "." + k.ID + ".cancel", "tf.ready.default." + hash} {
		for ctx.Err() == nil {
			if _, err := c.publish(ctx, subject, &call{lane: k.lane}); err == nil || errors.Is(err, errRefused) {
				break
			}
		}
	}
}

// patience is how long a caller waits for a result before it gives the call up for lost.
const patience = 3 * time.Minute

// follow waits until a call has its result.
func (c *client) follow(ctx context.Context, k *call, done <-chan result) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case k.result = <-done:
			k.told = time.Now()
			return
		case <-look.C:
			if r, err := c.stored(ctx, k); err == nil {
				k.result, k.told = r, time.Now()
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// stored reads the result of a call.
func (c *client) stored(ctx context.Context, k *call) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := c.js.Stream(ctx, "TF_RESULTS")
	if err != nil {
		return r, err
	}
	msg, err := stream.GetLastMsgForSubject(ctx, "tf.result."+k.SessionID+"."+k.ID)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(msg.Data, &r)
}

// awaitEmpty waits until the calls stream has nothing left.
func (c *client) awaitEmpty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for left := map[string]uint64(nil); ; {
		stream, err := c.js.Stream(ctx, "TF_CALLS")
		if err == nil && stream.CachedInfo().State.Msgs == 0 {
			return nil
		}
		if err == nil {
			if info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">")); err == nil {
				left = info.State.Subjects
			}
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("the calls stream is not empty %s after the last result: it has %v, %w", patience, left, cmp.Or(err, ctx.Err()))
		}
	}
}

// dropResults removes all results, as their age does.
func (c *client) dropResults(ctx context.Context) error {
	stream, err := c.js.Stream(ctx, "TF_RESULTS")
	if err != nil {
		return err
	}
	return stream.Purge(ctx)
}

// readResults reads the results stream from its first message to its last.
func (c *client) readResults(ctx context.Context, h *history) error {
	stream, err := c.js.Stream(ctx, "TF_RESULTS")
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	h.replaced = state.LastSeq - state.Msgs
	h.stored = map[string][]result{}
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		var r result
		if err == nil {
			err = json.Unmarshal(msg.Data, &r)
		}
		if err != nil {
			return fmt.Errorf("result %d: %w", seq, err)
		}
		h.stored[r.CallID] = append(h.stored[r.CallID], r)
	}
	return nil
}
