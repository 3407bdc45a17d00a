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
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolfleet/toolfleet/internal/pause"
)

// A store that failed to write once, be it for want of descriptors or of space, fails for as long
// as its server lives. Then the server is started again, which its clients survive as they do any
// other loss of the connection, or is given up with a reason.
const (
	// reopenWithin is the time in which a failed store must be open again for good.
	reopenWithin = 30 * time.Second
	// reopenEvery is the time between two attempts.
	reopenEvery = time.Second
	// steady is how long a server must live before a store that fails is a new failure.
	steady = 10 * time.Second
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

// WhenFailed calls do with the reason once the server is down for good because it could not store.
func (s *Server) WhenFailed(do func(error)) {
	context.AfterFunc(s.failed, func() { do(context.Cause(s.failed)) })
}

// watch opens stores again that failed, until ctx ends.
func (s *Server) watch(ctx context.Context) {
	opened, giveUp := time.Now(), time.Time{}
	for {
		var reason string
		select {
		case <-ctx.Done():
			return
		case reason = <-s.broken:
		}
		if now := time.Now(); giveUp.IsZero() || now.Sub(opened) > steady {
			giveUp = now.Add(reopenWithin)
		}
		if s.options.Logger != nil {
			s.options.Logger.WarnContext(ctx, "a store of the embedded NATS server failed; the server is started again", slog.String("reason", reason))
		}
		if err := s.reopen(ctx, giveUp); err != nil && ctx.Err() == nil {
			err = fmt.Errorf("embedded NATS in %s (--data) stores nothing any more: %s; and it could not be opened again: %w", s.options.Data, reason, err)
			if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
				err = fmt.Errorf("the disk of %s (--data) is full: make room there, then start again: %w", s.options.Data, err)
			}
			s.current().Shutdown()
			s.fail(err)
			return
		}
		opened = time.Now()
	}
}

// reopen starts the server again. It gives up at some time, or when ctx ends.
func (s *Server) reopen(ctx context.Context, giveUp time.Time) error {
	had := streams(s.current())
	for {
		err := s.again(ctx, had)
		if err == nil || errors.Is(err, os.ErrNotExist) || !time.Now().Before(giveUp) || !pause.For(ctx, reopenEvery) {
			return err
		}
	}
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
