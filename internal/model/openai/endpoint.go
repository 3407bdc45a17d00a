package openai

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// maxErrorBody bounds what is read of an answer that is not a stream, in bytes.
const maxErrorBody = 64 << 10

// minSecret is the length of the shortest key that can be a secret, in bytes.
const minSecret = 8

// endpoint sends requests. Each of its errors, and each error of
// a stream that it returns, is an [*Error], except io.EOF and [errNotDone].
type endpoint struct {
	client  *http.Client
	model   string
	baseURL string // as errors show it
	secret  string // never shown
	start   time.Duration
	idle    time.Duration
}

// send sends a request, and returns its answer if that is a stream.
func (e *endpoint) send(req *http.Request) (*events, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	dog := e.watch(cancel)
	resp, err := e.client.Do(req.WithContext(ctx)) //nolint:bodyclose // the reader of the stream closes it
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

func (e *endpoint) connectionError(err error) *Error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // without the URL, which Error names anyway
	}
	failure := e.newError(TypeConnection, err.Error())
	failure.cause = err
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	failure.permanent = badCertificate || notTLS
	return failure
}

// refuse reads and closes an answer that is not a stream.
func (e *endpoint) refuse(resp *http.Response) *Error {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && len(body) == 0 {
		return e.connectionError(err)
	}
	failure, told := parseError(body, false)
	if !told {
		failure.Message = string(body)
		if isHTML(resp) {
			failure.Message = "the server answered with an HTML page"
		}
	}
	if resp.StatusCode == http.StatusOK {
		if told {
			return e.serverError(typeInStream(failure), failure)
		}
		return e.newError(TypeInvalidResponse, fmt.Sprintf("answered with content type %q instead of a stream of events: %s (check the base URL, which usually ends in /v1)",
			resp.Header.Get("Content-Type"), failure.Message))
	}
	refused := e.serverError(typeOf(resp.StatusCode, failure), failure)
	refused.Status = resp.StatusCode
	refused.RetryAfter = retryAfter(resp.Header, time.Now())
	return refused
}

func (e *endpoint) serverError(kind string, told serverReply) *Error {
	failure := e.newError(kind, told.Message)
	failure.Code, failure.param = told.Code, told.Param
	if failure.Code == "" {
		failure.Code = told.Type
	}
	return failure
}

// error makes an error of this server. The message never holds the key, even if
// the server repeated it. Keys that are too short to be secret, as local servers want
// them, stay: they may be parts of words.
func (e *endpoint) newError(kind, message string) *Error {
	if len(e.secret) >= minSecret {
		message = strings.ReplaceAll(message, e.secret, "[redacted]")
	}
	if message = excerpt(message); message == "" {
		message = "the server gave no reason"
	}
	return &Error{Type: kind, Model: e.model, BaseURL: e.baseURL, Message: message}
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
	endpoint *endpoint
	begun    atomic.Bool
	fired    atomic.Pointer[Error]
	timer    *time.Timer
	cancel   context.CancelCauseFunc
}

func (e *endpoint) watch(cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{endpoint: e, cancel: cancel}
	w.timer = time.AfterFunc(e.start, w.fire)
	return w
}

func (w *watchdog) fire() {
	message := fmt.Sprintf("no answer began within %v", w.endpoint.start)
	if w.begun.Load() {
		message = fmt.Sprintf("the answer fell silent for %v", w.endpoint.idle)
	}
	failure := w.endpoint.newError(TypeTimeout, message)
	w.fired.Store(failure)
	w.cancel(failure)
}

// heard says that bytes have arrived.
func (w *watchdog) heard() {
	w.begun.Store(true)
	w.timer.Reset(w.endpoint.idle)
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
