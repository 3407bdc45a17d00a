package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	opts     Options
	endpoint *endpoint
	rejects  rejects
}

var (
	_ loop.Model    = (*Model)(nil)
	_ loop.Provider = (*Model)(nil)
)

// New returns a model. It connects to nothing; the error reports every fault of the
// options.
func New(opts Options) (*Model, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("openai options: %w", err)
	}
	m := &Model{opts: opts, endpoint: &endpoint{
		client: opts.HTTPClient, model: opts.Model, baseURL: shownURL(opts.BaseURL), secret: opts.APIKey,
		start: opts.StartTimeout, idle: opts.IdleTimeout,
	}}
	return m, nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return nativeProvider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	delays := &backoff.ExponentialBackOff{
		InitialInterval: m.opts.RetryDelay, MaxInterval: m.opts.MaxRetryDelay,
		Multiplier: 2, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	for attempt := 1; ; attempt++ {
		reply, err := m.attempt(ctx, req, delta)
		if err == nil {
			return reply, nil
		}
		if ctx.Err() != nil {
			return loop.Reply{}, fmt.Errorf("reply of model %s: %w", m.opts.Model, context.Cause(ctx))
		}
		fault, ok := errors.AsType[*Error](err)
		if !ok || !fault.retryable() || attempt >= m.opts.MaxAttempts {
			return loop.Reply{}, m.refused(req, afterAttempts(err, attempt))
		}
		delay := m.delay(fault, delays)
		m.opts.Logger.WarnContext(ctx, "model did not reply, trying again",
			slog.String("error_type", fault.Type), slog.String("error", fault.Error()),
			slog.Int("attempt", attempt), slog.Int64("delay_ms", delay.Milliseconds()))
		if !pause.For(ctx, delay) {
			return loop.Reply{}, fmt.Errorf("reply of model %s: %w (attempt %d: %w)", m.opts.Model, context.Cause(ctx), attempt, err)
		}
	}
}

// delay is the back-off, or what the server asked for when that is longer. On top of
// the latter comes a part of the jittered back-off, so that those who were told the
// same time do not all come back at once.
func (m *Model) delay(fault *Error, delays backoff.BackOff) time.Duration {
	next := delays.NextBackOff()
	if fault.RetryAfter == 0 {
		return next
	}
	return max(next, min(fault.RetryAfter, m.opts.MaxRetryDelay)+next/8)
}

func afterAttempts(err error, attempts int) error {
	if attempts == 1 {
		return err
	}
	return fmt.Errorf("after %d attempts: %w", attempts, err)
}

// attempt asks once, and again without what the server turns out to reject.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	for {
		sent := m.request(req)
		reply, err := m.ask(ctx, sent, delta)
		if !m.rejects.learn(err, sent) {
			return reply, err
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, request *request, delta func(loop.Delta)) (loop.Reply, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return loop.Reply{}, m.because(TypeInvalidRequest, "the request was not sent: ", err)
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, m.opts.BaseURL+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return loop.Reply{}, m.because(TypeInvalidRequest, "the request was not sent: ", err)
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("Accept", "text/event-stream")
	if m.opts.APIKey != "" {
		post.Header.Set("Authorization", "Bearer "+m.opts.APIKey)
	}
	if m.opts.Organization != "" {
		post.Header.Set("OpenAI-Organization", m.opts.Organization)
	}
	events, err := m.endpoint.send(post)
	if err != nil {
		return loop.Reply{}, err
	}
	defer func() { _ = events.Close() }()
	var parts assembler
	for {
		data, err := events.next()
		if err == nil {
			err = parts.read(data, delta)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, errNotDone) && parts.finish != "":
			return m.finish(&parts)
		default:
			return loop.Reply{}, m.streamError(err)
		}
	}
}

// streamError gives every error of a stream its type.
func (m *Model) streamError(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*formError](err); ok {
		return m.because(TypeInvalidResponse, "a chunk of the stream cannot be read: ", err)
	}
	return m.because(TypeStreamBroken, "the answer broke off: ", err)
}

func (m *Model) because(kind, what string, err error) *Error {
	fault := m.endpoint.fault(kind, what+err.Error())
	fault.cause = err
	return fault
}
