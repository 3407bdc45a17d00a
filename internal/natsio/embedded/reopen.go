package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolfleet/toolfleet/internal/pause"
)

// A store that failed to write once, for lack of descriptors or of space, fails until its server is
// restarted. Clients survive the restart as any other loss of the connection. If it does not help,
// the server ends with a reason.
const (
	// reopenWithin is the time within which a failed store must open again and stay open.
	reopenWithin = 30 * time.Second
	// reopenEvery is the time between two attempts.
	reopenEvery = time.Second
	// steady is how long a server must live before a store that fails is a new failure.
	steady = 10 * time.Second
	// calm is how long after that records are still consequences of the failure.
	calm = 5 * time.Second
	// spareFiles and spareBytes are what there must be before an attempt: a server that is opened
	// without finds its streams damaged.
	spareFiles = 64
	spareBytes = 1 << 20
)

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
	s.failing.Store(true)
	s.quiet.Store(true)
	select {
	case s.broken <- reason:
	default: // one failure is enough
	}
}

// Failing reports whether nothing is stored now: a store has failed, and is not open again.
func (s *Server) Failing() bool { return s.failing.Load() }

// watch opens stores again that failed, until ctx ends.
func (s *Server) watch(ctx context.Context) {
	var opened, giveUp time.Time
	var calmed <-chan time.Time
	for {
		var reason string
		select {
		case <-ctx.Done():
			return
		case <-calmed:
			s.quiet.Store(false)
			continue
		case reason = <-s.broken:
		}
		if now := time.Now(); giveUp.IsZero() || now.Sub(opened) > steady {
			giveUp = now.Add(reopenWithin)
			s.options.Notify(s.trying(reason))
		}
		if err := s.reopen(ctx, giveUp); err != nil && ctx.Err() == nil {
			err = fmt.Errorf("embedded NATS in %s (--data) can no longer store: %s; and it could not be opened again: %w", s.options.Data, reason, err)
			if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
				err = fmt.Errorf("the disk of %s (--data) is full: make room there, then start again: %w", s.options.Data, err)
			}
			s.current().Shutdown()
			s.fail(err)
			return
		} else if err == nil {
			s.failing.Store(len(s.broken) > 0)
			s.options.Notify(fmt.Sprintf("embedded NATS in %s (--data) stores again; waiting work continues", s.options.Data))
		}
		opened, calmed = time.Now(), time.After(calm)
	}
}

// trying says what happens while a store is opened again that failed for a reason.
func (s *Server) trying(reason string) string {
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(reason, full.Error()) {
			return fmt.Sprintf("the disk of %s (--data) is full: nothing can be stored; if there is room within %s, it continues, otherwise it ends", s.options.Data, reopenWithin)
		}
	}
	return fmt.Sprintf("embedded NATS in %s (--data) cannot store: %s; it is started again, and the process ends if that does not help within %s", s.options.Data, reason, reopenWithin)
}

// Quiet returns a logger whose records count as debug while nothing can be stored, and a moment
// longer: they are consequences of the failure that [Options].Notify has reported.
func (s *Server) Quiet(logger *slog.Logger) *slog.Logger {
	return slog.New(quietHandler{logger.Handler(), &s.quiet})
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

// reopen starts the server again. It gives up at some time, or when ctx ends.
func (s *Server) reopen(ctx context.Context, giveUp time.Time) (err error) {
	had := streams(s.current())
	pause.Until(ctx, reopenEvery, func() bool {
		err = s.again(ctx, had)
		return err == nil || errors.Is(err, os.ErrNotExist) || !time.Now().Before(giveUp)
	})
	return err
}

// again starts the server again if it has what it needs.
func (s *Server) again(ctx context.Context, had int) error {
	if err := spare(s.stores()); err != nil {
		return err
	}
	old := s.current()
	old.Shutdown()
	old.WaitForShutdown()
	// The state of a store that failed may speak of messages that were not written.
	states, _ := filepath.Glob(filepath.Join(s.stores(), "*", "streams", "*", "msgs", "index.db"))
	for _, state := range states {
		if err := os.Remove(state); err != nil {
			return err
		}
	}
	select {
	case <-s.broken: // of the server that is down
	default:
	}
	if err := s.start(ctx, s.options); err != nil {
		return err
	}
	if has := streams(s.current()); has < had {
		return fmt.Errorf("%d of %d streams were found", has, had)
	}
	return nil
}

// spare reports why a server cannot work in a directory now.
func spare(dir string) (err error) {
	var files []*os.File
	defer func() {
		for _, file := range files {
			_ = file.Close() // it has been removed
		}
	}()
	for range spareFiles {
		file, err := os.CreateTemp(dir, ".spare-*")
		if err != nil {
			return err
		}
		files = append(files, file)
		if err := os.Remove(file.Name()); err != nil {
			return err
		}
	}
	_, err = io.CopyN(files[0], zeros{}, spareBytes)
	return err
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// streams counts the streams of a server.
func streams(s *server.Server) int {
	info, err := s.Jsz(nil)
	if err != nil {
		return 0
	}
	return info.Streams
}
