package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// A store that failed to write once, for lack of descriptors or of space, fails until its server is
// started again. So the server ends with the reason, and the next start opens what was stored.

// storeFailed returns what a line of the server says of a store that takes nothing more; "" is for
// any other line.
func (l serverLog) storeFailed(line string) string {
	for _, begin := range []string{"Critical write error: ", "Filesystem permission denied", "File system permission denied", notFound} {
		i := strings.Index(line, begin)
		if i < 0 {
			continue
		}
		if _, err := os.Stat(l.dir); begin == notFound && err == nil {
			continue // a file was removed twice, which the store survives
		}
		return line[i:]
	}
	return ""
}

const notFound = "Resource not found: "

// stores is the directory of the streams.
func (s *Server) stores() string { return filepath.Join(s.options.Data, server.JetStreamStoreDir) }

// WhenFailed calls do with the reason when the server has ended because it could not store.
func (s *Server) WhenFailed(do func(error)) {
	context.AfterFunc(s.failed, func() { do(context.Cause(s.failed)) })
}

// fails notes that a store takes nothing more.
func (s *Server) fails(reason string) {
	if !s.failing.Swap(true) { // one failure is enough
		s.broken <- reason
	}
}

// Failing reports whether a store has failed, so that nothing is stored.
func (s *Server) Failing() bool { return s.failing.Load() }

// watch ends the server when a store has failed, or returns when ctx ends.
func (s *Server) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
	case reason := <-s.broken:
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.fail(errors.Join(s.reason(reason), s.forget()))
	}
}

// reason is the error of a store that has failed.
func (s *Server) reason(reason string) error {
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(reason, full.Error()) {
			return fmt.Errorf("the disk of %s (--data) is full: make room there, then start again", s.options.Data) //nolint:err113 // the server has only a text
		}
	}
	return fmt.Errorf("embedded NATS in %s (--data) can no longer store: %s; start again when this is mended", s.options.Data, reason) //nolint:err113 // as above
}

// forget removes the states of the streams, which a server writes at its end: that of a store that
// failed may speak of messages that were not written. The next start reads the messages instead.
func (s *Server) forget() error {
	states, _ := filepath.Glob(filepath.Join(s.stores(), "*", "streams", "*", "msgs", "index.db")) // the pattern is right
	errs := make([]error, 0, len(states))
	for _, state := range states {
		errs = append(errs, os.Remove(state))
	}
	return errors.Join(errs...)
}

// Quiet returns a logger whose records count as debug when a store has failed: they are
// consequences of the failure that [Server.WhenFailed] reports.
func (s *Server) Quiet(logger *slog.Logger) *slog.Logger {
	return slog.New(quietHandler{logger.Handler(), &s.failing})
}

type quietHandler struct {
	slog.Handler

	quiet *atomic.Bool
}

func (h quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	if h.quiet.Load() {
		level = min(level, slog.LevelDebug)
	}
	return h.Handler.Enabled(ctx, level)
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.quiet.Load() {
		if r.Level = min(r.Level, slog.LevelDebug); !h.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs), h.quiet}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name), h.quiet}
}
