package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// RunningCall is a call that a worker executes.
type RunningCall struct {
	CallID    protocol.CallID    `json:"call_id"`
	SessionID protocol.SessionID `json:"session_id"`
	Tool      string             `json:"tool"`
	Attempt   int                `json:"attempt"` // from 1
	// RunningMS is how long this attempt has been running, in milliseconds.
	RunningMS int64 `json:"running_ms"`
}

// Answer is what a worker says about lanes that it holds. It tells durations, because the
// clocks of machines differ. What it says may be outdated; the streams are the truth.
type Answer struct {
	Type     string            `json:"type"`
	Version  int               `json:"version"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	Lanes    []HeldLane        `json:"lanes"`
}

// TypeAnswer is the type of an [Answer].
const TypeAnswer = "lanes_held"

// HeldLane is a lane as its holder sees it.
type HeldLane struct {
	Lane    protocol.Lane `json:"lane"`
	Epoch   uint64        `json:"epoch"` // of the claim
	HeldMS  int64         `json:"held_ms"`
	Paused  bool          `json:"paused"`
	Running []RunningCall `json:"running"`
}

// answerBytes is when an answer about many lanes is cut into several.
const answerBytes = 256 << 10

// answerQuestions answers operators until stop is called.
func (h *Holder) answerQuestions() (stop func(), err error) {
	fleet, pool := h.options.Fleet, h.options.Pool
	all, err := h.store.NC.Subscribe(wire.AskAllSubject(fleet, pool), func(msg *nats.Msg) { h.respond(msg, h.lanes()) })
	if err != nil {
		return nil, fmt.Errorf("listen to questions: %w", err)
	}
	one, err := h.store.NC.Subscribe(wire.AskFilter(fleet, pool), h.answerOne)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to questions: %w", err), all.Unsubscribe())
	}
	return func() {
		_ = all.Unsubscribe() // fails only when the connection is closed
		_ = one.Unsubscribe()
	}, nil
}

// answerOne answers a question about one lane, if it is held here. Whoever asks may
// have changed something, so the lane looks into its mailbox.
func (h *Holder) answerOne(msg *nats.Msg) {
	hash := wire.LaneHash(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:])
	h.mu.Lock()
	l, life := h.held[hash], h.life
	h.mu.Unlock()
	if asked := msg.Header.Get(wire.HeaderLife); asked != "" && (life == nil || asked != string(life.id)) {
		return
	}
	if l == nil || len(msg.Data) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), store.ShortTimeout) //nolint:forbidigo // a callback of NATS has no context
		defer cancel()
		if len(msg.Data) > 0 {
			h.offered(ctx, hash, msg)
			return
		}
		h.disown(ctx, hash)
		return
	}
	if msg.Reply != "" {
		h.respond(msg, []*held{l})
	}
	l.marks.asked.Store(true)
	l.mail.nudge()
}

func (h *Holder) respond(question *nats.Msg, lanes []*held) {
	a := Answer{Type: TypeAnswer, Version: wire.Version, WorkerID: h.options.Worker, Lanes: []HeldLane{}}
	size := 0
	for _, l := range lanes {
		tells := l.tells()
		a.Lanes = append(a.Lanes, tells)
		if size += len(tells.Lane) + 256*(1+len(tells.Running)); size > answerBytes {
			h.send(question, &a)
			a.Lanes, size = a.Lanes[:0], 0
		}
	}
	if len(a.Lanes) > 0 {
		h.send(question, &a)
	}
}

func (h *Holder) send(question *nats.Msg, a *Answer) {
	body, err := json.Marshal(a)
	if err == nil {
		err = question.Respond(body)
	}
	if err != nil {
		h.options.Logger.Debug("question is not answered", slog.String("subject", question.Subject), slog.Any("error", err))
	}
}

// tells describes the lane, from any goroutine.
func (l *held) tells() HeldLane {
	now := time.Now()
	tells := HeldLane{
		Lane: l.lane, Epoch: l.claim.epoch.Load(), HeldMS: now.Sub(l.since).Milliseconds(),
		Paused: l.marks.paused.Load(), Running: []RunningCall{},
	}
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	for _, run := range l.running.calls {
		tells.Running = append(tells.Running, RunningCall{
			CallID: run.call.ID, SessionID: run.call.SessionID, Tool: run.call.Tool,
			Attempt: run.attempt, RunningMS: now.Sub(run.since).Milliseconds(),
		})
	}
	return tells
}

// logEvery is the least time between two lines about one kind of trouble.
const logEvery = time.Minute

// troubles logs what is tried again until it succeeds, as while the server is away: each kind once
// a minute at most, however many lanes and calls have it. The zero value with a logger is ready,
// and safe for concurrent use.
type troubles struct {
	logger *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time // when each message was logged; messages are constants
}

func (t *troubles) log(ctx context.Context, msg string, attrs ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.last[msg]; known && time.Since(last) < logEvery {
		return
	}
	if t.last == nil {
		t.last = map[string]time.Time{}
	}
	t.last[msg] = time.Now()
	t.logger.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // messages are constants of the callers
}

func (l *held) complain(msg string, err error) {
	l.holder.troubles.log(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err))
}
