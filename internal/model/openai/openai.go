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
	"net/url"
	"strings"
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

// New returns a model. It connects to nothing; the error reports every error of the
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
		failure, ok := errors.AsType[*Error](err)
		if !ok || !failure.retryable() || attempt >= m.opts.MaxAttempts {
			return loop.Reply{}, m.refused(req, afterAttempts(err, attempt))
		}
		delay := m.delay(failure, delays)
		m.opts.Logger.WarnContext(ctx, "model did not reply, trying again",
			slog.String("error_type", failure.Type), slog.String("error", failure.Error()),
			slog.Int("attempt", attempt), slog.Int64("delay_ms", delay.Milliseconds()))
		if !pause.For(ctx, delay) {
			return loop.Reply{}, fmt.Errorf("reply of model %s: %w (attempt %d: %w)", m.opts.Model, context.Cause(ctx), attempt, err)
		}
	}
}

// delay is the back-off, or what the server asked for when that is longer. On top of
// the latter comes a part of the jittered back-off, so that those who were told the
// same time do not all come back at once.
func (m *Model) delay(failure *Error, delays backoff.BackOff) time.Duration {
	next := delays.NextBackOff()
	if failure.RetryAfter == 0 {
		return next
	}
	return max(next, min(failure.RetryAfter, m.opts.MaxRetryDelay)+next/8)
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
	failure := m.endpoint.newError(kind, what+err.Error())
	failure.cause = err
	return failure
}

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.openai.com/v1"

// Options configure a [Model]. Only Model is required.
type Options struct {
	// Model is the name by which the server knows the model.
	Model string
	// APIKey is sent as a bearer token; "" sends none. It never appears in an error or a log.
	APIKey string
	// BaseURL is the server, up to and without "/chat/completions"; "" means
	// [DefaultBaseURL].
	BaseURL string
	// Images says that the model takes images: those of tool results are sent behind them.
	Images bool
	// Organization is sent as OpenAI-Organization; "" sends none.
	Organization string
	// HTTPClient carries the requests; nil means a client with the default
	// transport. Its Timeout should be 0, since it would cut off long replies.
	HTTPClient *http.Client
	// Logger is told about retries, as warnings; nil discards them.
	Logger *slog.Logger

	// MaxAttempts bounds the requests for one reply; 0 means 6.
	MaxAttempts int
	// RetryDelay is the mean delay before the second attempt; it doubles with each
	// further one. 0 means 500 ms.
	RetryDelay time.Duration
	// MaxRetryDelay bounds a delay, also one that the server asks for; 0 means 60 s.
	MaxRetryDelay time.Duration
	// StartTimeout bounds the time until an answer begins; 0 means 10 min, because
	// a model may think, or be loaded, before its first word.
	StartTimeout time.Duration
	// IdleTimeout bounds the silence within an answer; 0 means 2 min.
	IdleTimeout time.Duration
}

func (o Options) withDefaults() Options {
	o.BaseURL = strings.TrimRight(o.BaseURL, "/")
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 6
	}
	orDefault(&o.RetryDelay, 500*time.Millisecond)
	orDefault(&o.MaxRetryDelay, time.Minute)
	orDefault(&o.StartTimeout, 10*time.Minute)
	orDefault(&o.IdleTimeout, 2*time.Minute)
	return o
}

func orDefault(d *time.Duration, fallback time.Duration) {
	if *d == 0 {
		*d = fallback
	}
}

func (o Options) validate() error {
	var errs []error
	if o.Model == "" {
		errs = append(errs, errors.New("model: missing"))
	}
	errs = append(errs, validateBaseURL(o.BaseURL))
	if o.MaxAttempts < 0 {
		errs = append(errs, fmt.Errorf("max attempts %d: must not be negative", o.MaxAttempts))
	}
	for name, d := range map[string]time.Duration{
		"retry delay": o.RetryDelay, "max retry delay": o.MaxRetryDelay,
		"start timeout": o.StartTimeout, "idle timeout": o.IdleTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v: must not be negative", name, d))
		}
	}
	return errors.Join(errs...)
}

func validateBaseURL(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		// The error of url.Parse would repeat the URL with its password.
		return errors.New("base URL: is not a URL; want something like http://localhost:11434/v1")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %q: must start with http:// or https:// and name a host, like http://localhost:11434/v1", u.Redacted())
	case u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("base URL %q: must have neither a query nor a fragment", u.Redacted())
	case strings.HasSuffix(u.Path, "/chat/completions"):
		return fmt.Errorf("base URL %q: must end before /chat/completions", u.Redacted())
	}
	return nil
}

// shownURL is the base URL as errors show it: without its password.
func shownURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "an invalid URL"
	}
	return u.Redacted()
}
