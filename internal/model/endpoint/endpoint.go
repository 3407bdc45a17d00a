// Package endpoint is the common part of the adapters of models: the HTTP side of a model's server,
// the attempts for one reply, and the assembly of a reply from the pieces of a stream.
//
//	Endpoint.Reply ──► attempt (the adapter) ──► Stream ──► server
//	  ▲                  │                         (HTTP errors, events, silence, sizes)
//	  │                  ├─ Assembler ──► Finish
//	  └── back-off ◄─────┴─ *Error that is worth another attempt
//
// Only this package sees HTTP. Every failure becomes an [*Error]: a status with the server's
// message, a broken connection, an answer that is no stream, an error object in the middle of a
// stream, a silent server. Adapters write the body of a request, and read only the data of the
// event stream ([Events]), without comments and keep-alives.
//
// # Retries
//
// Rate limits (429), server errors (5xx), conflicts (409), connections that fail or break, replies
// that the server gave up or rejects (a tool call that does not fit its schema), and silence (also
// 408) are tried again, with jittered exponential back-off, and not before the time that the server
// asks for (Retry-After, retry-after-ms, RetryInfo). Nothing else is: not used-up credit, a content
// filter, a bad key, an unknown model or a malformed request. Each attempt is a new request. After
// an attempt that broke in the middle of its text, the pieces of the next one begin from the start:
// live views show some words twice, the returned reply does not.
//
// A reply is an answer only when it ends for a reason that is known to be an end ([Ending]).
package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// API is what is particular to the HTTP API of a provider.
type API struct {
	// DefaultBaseURL is the provider's own server, and Example another one, for errors.
	DefaultBaseURL, Example string
	// Path is what requests add to a base URL, which must not end in it.
	Path string
	// BaseHint ends an error that may be about the base URL, as in "which usually ends in /v1".
	BaseHint string
	// FinishField is where the API says why a reply ended.
	FinishField string
}

// Options are the options of every adapter. Only Model is required.
type Options struct {
	// Model is the name by which the server knows the model.
	Model string
	// APIKey is sent as the API wants it; "" sends none. It never appears in an error or a log.
	APIKey string
	// BaseURL is the server; "" means [API].DefaultBaseURL.
	BaseURL string
	// HTTPClient carries the requests, and follows no redirects; nil means a client with the
	// default transport. Its Timeout should be 0, since it would cut off long replies.
	HTTPClient *http.Client
	// Logger gets a warning about each retry; nil discards them.
	Logger *slog.Logger

	// MaxAttempts bounds the requests for one reply; 0 means 6.
	MaxAttempts int
	// MaxWait is the time for which attempts are made, instead of MaxAttempts; 0 is none.
	MaxWait time.Duration
	// RetryDelay is the mean delay before the second attempt; it doubles with each
	// further one. 0 means 500 ms.
	RetryDelay time.Duration
	// MaxRetryDelay bounds a delay, also a delay that the server requests; 0 means 60 s.
	MaxRetryDelay time.Duration
	// StartTimeout bounds the time until an answer begins; 0 means 10 min, because
	// a model may think, or be loaded, before its first word.
	StartTimeout time.Duration
	// IdleTimeout bounds the silence within an answer; 0 means 2 min.
	IdleTimeout time.Duration
}

// Endpoint is one model of one server. Each of its errors, and each error of a stream that it
// returns, is an [*Error], except io.EOF and [ErrNotDone]. It is safe for concurrent use.
type Endpoint struct {
	api   API
	opts  Options
	shown string // the base URL as errors show it, without secrets
}

// New returns an endpoint. It connects to nothing; the error reports every error of the options.
func New(api API, opts Options) (*Endpoint, error) {
	opts.BaseURL = cmp.Or(strings.TrimRight(opts.BaseURL, "/"), api.DefaultBaseURL)
	opts = opts.withDefaults()
	if err := errors.Join(opts.validate(), api.validate(opts.BaseURL)); err != nil {
		return nil, err
	}
	return &Endpoint{api: api, opts: opts, shown: shownURL(opts.BaseURL)}, nil
}

// Options returns the options of the endpoint, with their defaults.
func (e *Endpoint) Options() Options { return e.opts }

func (o Options) withDefaults() Options {
	client := http.Client{}
	if o.HTTPClient != nil {
		client = *o.HTTPClient
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // another server must get neither conversation nor key
	}
	o.HTTPClient = &client
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 6)
	o.RetryDelay, o.MaxRetryDelay = cmp.Or(o.RetryDelay, 500*time.Millisecond), cmp.Or(o.MaxRetryDelay, time.Minute)
	o.StartTimeout, o.IdleTimeout = cmp.Or(o.StartTimeout, 10*time.Minute), cmp.Or(o.IdleTimeout, 2*time.Minute)
	return o
}

func (o Options) validate() error {
	var errs []error
	if o.Model == "" {
		errs = append(errs, errors.New("model: missing"))
	}
	if o.MaxAttempts < 0 {
		errs = append(errs, fmt.Errorf("max attempts %d: must not be negative", o.MaxAttempts))
	}
	for name, d := range map[string]time.Duration{
		"retry delay": o.RetryDelay, "max retry delay": o.MaxRetryDelay,
		"start timeout": o.StartTimeout, "idle timeout": o.IdleTimeout, "max wait": o.MaxWait,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v: must not be negative", name, d))
		}
	}
	return errors.Join(errs...)
}

func (a API) validate(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		// The error of url.Parse would repeat the URL with its password.
		return fmt.Errorf("base URL: is not a URL; want something like %s", a.Example)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %q: must start with http:// or https:// and name a host, like %s", shown(u), a.Example)
	case u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("base URL %q: must have neither a query nor a fragment", shown(u))
	case a.Path != "" && strings.HasSuffix(u.Path, a.Path):
		return fmt.Errorf("base URL %q: must end before %s", shown(u), a.Path)
	}
	return nil
}

// shownURL is the base URL as errors show it.
func shownURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "an invalid URL"
	}
	return shown(u)
}

// shown is a URL without what may be secret: who asks, and the query. Some have a token there.
func shown(u *url.URL) string {
	const hidden = "xxxxx"
	clean := *u
	if clean.User != nil {
		clean.User = url.User(hidden)
	}
	if clean.RawQuery != "" {
		clean.RawQuery = hidden
	}
	if clean.Fragment != "" {
		clean.Fragment, clean.RawFragment = hidden, ""
	}
	text := clean.String()
	if i := strings.LastIndexByte(text, '@'); i >= 0 && clean.Host == "" { // no URL, but as if it were one
		text = hidden + text[i:]
	}
	return text
}

// maxErrorBody bounds what is read of an answer that is not a stream, in bytes.
const maxErrorBody = 64 << 10

// minSecret is the length of the shortest key that can be a secret, in bytes.
const minSecret = 8

// post sends a request, and returns its answer if that is a stream. The path continues the base
// URL, and the body is encoded as JSON. Headers without a value are not sent.
func (e *Endpoint) post(ctx context.Context, path string, body any, headers map[string]string) (*Events, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, e.localError(TypeInvalidRequest, "the request was not sent: ", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.opts.BaseURL+path, bytes.NewReader(encoded))
	if err != nil {
		cancel(nil)
		return nil, e.localError(TypeInvalidRequest, "the request was not sent: ", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	for name, value := range headers {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	dog := e.watch(cancel)
	resp, err := e.opts.HTTPClient.Do(req) //nolint:bodyclose // the reader of the stream closes it
	if err != nil {
		dog.stop()
		return nil, dog.explain(e.connectionError(err))
	}
	if resp.StatusCode != http.StatusOK || !mayBeStream(resp) {
		defer dog.stop()
		return nil, dog.explain(e.refuse(resp))
	}
	return newEvents(resp.Body, e, dog), nil
}

func (e *Endpoint) connectionError(err error) *Error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // without the URL, which Error names anyway
	}
	failure := e.NewError(TypeConnection, err.Error())
	failure.cause = err
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	failure.permanent = badCertificate || notTLS
	return failure
}

// refuse reads and closes an answer that is not a stream.
func (e *Endpoint) refuse(resp *http.Response) *Error {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return e.connectionError(err)
	}
	if address, err := resp.Location(); err == nil {
		refused := e.NewError(TypeInvalidRequest,
			fmt.Sprintf("redirects to %s, but requests to models follow no redirects: set the base URL to the address of the server", shown(address)))
		refused.Status = resp.StatusCode
		return refused
	}
	failure, reported := parseError(body, false)
	if !reported {
		failure.Message = string(body)
		if isHTML(resp) {
			failure.Message = "the server answered with an HTML page"
		}
	}
	if resp.StatusCode == http.StatusOK {
		if reported {
			return e.serverError(typeInStream(failure), failure)
		}
		return e.NewError(TypeInvalidResponse, fmt.Sprintf("answered with content type %q instead of a stream of events: %s (check the base URL%s)",
			resp.Header.Get("Content-Type"), failure.Message, e.baseHint()))
	}
	refused := e.serverError(typeOf(resp.StatusCode, failure), failure)
	refused.Status = resp.StatusCode
	refused.RetryAfter = max(retryAfter(resp.Header, time.Now()), failure.Delay)
	return refused
}

// StreamError is the error of a message that a server sent in a stream, in a form of its API.
func (e *Endpoint) StreamError(message, code, kind string) *Error {
	reported := serverReply{Message: message, Code: code, Type: kind}
	return e.serverError(typeInStream(reported), reported)
}

func (e *Endpoint) serverError(kind string, reported serverReply) *Error {
	failure := e.NewError(kind, reported.Message)
	failure.Code, failure.param = cmp.Or(reported.Code, reported.Type), reported.Param
	return failure
}

// NewError makes an error of this server. The message never holds the key, even if
// the server repeated it. Keys that are too short to be secret, as local servers want
// them, stay: they may be parts of words.
func (e *Endpoint) NewError(kind, message string) *Error {
	if len(e.opts.APIKey) >= minSecret {
		message = strings.ReplaceAll(message, e.opts.APIKey, "[redacted]")
	}
	if message = excerpt(message); message == "" {
		message = "the server gave no reason"
	}
	return &Error{Type: kind, Model: e.opts.Model, BaseURL: e.shown, Message: message, baseHint: e.baseHint()}
}

func (e *Endpoint) baseHint() string {
	if e.api.BaseHint == "" {
		return ""
	}
	return ", " + e.api.BaseHint
}

// localError makes the error of something that failed on this side.
func (e *Endpoint) localError(kind, what string, err error) *Error {
	failure := e.NewError(kind, what+err.Error())
	failure.cause = err
	return failure
}

// mayBeStream is false for the content types that a server uses when it does not
// stream. Others pass, because not every server labels its streams.
func mayBeStream(resp *http.Response) bool {
	return !isHTML(resp) && mediaType(resp) != "application/json"
}

func isHTML(resp *http.Response) bool { return mediaType(resp) == "text/html" }

func mediaType(resp *http.Response) string {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

// watchdog ends a request whose answer does not begin, or falls silent.
type watchdog struct {
	endpoint *Endpoint
	begun    atomic.Bool
	fired    atomic.Pointer[Error]
	timer    *time.Timer
	cancel   context.CancelCauseFunc
}

func (e *Endpoint) watch(cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{endpoint: e, cancel: cancel}
	w.timer = time.AfterFunc(e.opts.StartTimeout, w.fire)
	return w
}

func (w *watchdog) fire() {
	message := fmt.Sprintf("no answer began within %v", w.endpoint.opts.StartTimeout)
	if w.begun.Load() {
		message = fmt.Sprintf("the answer fell silent for %v", w.endpoint.opts.IdleTimeout)
	}
	failure := w.endpoint.NewError(TypeTimeout, message)
	w.fired.Store(failure)
	w.cancel(failure)
}

// restart begins the idle time: bytes have arrived.
func (w *watchdog) restart() {
	w.begun.Store(true)
	w.timer.Reset(w.endpoint.opts.IdleTimeout)
}

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain returns the watchdog's own error when it is the reason of err.
func (w *watchdog) explain(err *Error) *Error {
	if fired := w.fired.Load(); fired != nil {
		return fired
	}
	return err
}
