package shared

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

const (
	// DefaultIdle is how long a server stays without a client.
	DefaultIdle = 5 * time.Minute
	// IdleVariable is a variable for tests with another time.
	IdleVariable = "TOOLFLEET_LOCAL_IDLE"
	// lookAround is the longest time between two looks at clients and the directory.
	lookAround = time.Second
)

// Serve is the server of a directory: it returns when no client was connected for idle, when ctx
// ends, if another server has the directory, or with the reason why it cannot store. When no client
// was connected, tidy removes what processes that were killed have left; nil is nothing.
func Serve(ctx context.Context, dir string, idle time.Duration, logger *slog.Logger, tidy func(context.Context, *nats.Conn) error) error {
	err := own(dir)
	if err == nil {
		err = serve(ctx, dir, idle, logger, tidy)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("the disk of %s is full: make room there, then start again: %w", dir, err)
	}
	return err
}

func serve(ctx context.Context, dir string, idle time.Duration, logger *slog.Logger, tidy func(context.Context, *nats.Conn) error) error {
	lock := flock.New(filepath.Join(dir, serverLock))
	if free, err := acquire(ctx, lock, &Server{Dir: dir}); err != nil || !free {
		return err
	}
	defer func() { _ = lock.Unlock() }() // it ends with the process anyway
	at := filepath.Join(dir, stateFile)
	_ = os.Remove(at) // of a server that was killed since this one was started, see forget
	server, err := embedded.Start(ctx, embedded.Options{Data: filepath.Join(dir, natsDir), Listen: "127.0.0.1:0", Logger: logger})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	server.WhenFailed(func(reason error) { failed <- reason })
	for serving := true; serving; {
		if err = write(at, state{Address: server.Address()}); err == nil {
			err = watch(ctx, server, lock, at, idle, failed)
		}
		if err != nil || ctx.Err() != nil {
			break
		}
		_ = os.Remove(at) // a process that connects from now on waits for another server
		if tidy != nil {
			if err := tidyUp(ctx, server, tidy); err != nil { // the next one does so
				logger.WarnContext(ctx, "what killed processes have left cannot be removed", slog.Any("error", err))
			}
		}
		serving = isUsed(ctx, server) // by one that had read the address before
	}
	if reason, is := errors.AsType[*storeError](err); is {
		err = errors.Join(err, overwrite(at, state{Failed: strings.ReplaceAll(reason.Error(), " (--data)", "")}))
	} else {
		_ = os.Remove(at)
	}
	server.Close()
	return err
}

// tidyTime bounds tidying: meanwhile a process that connects waits for another server.
const tidyTime = 10 * time.Second

func tidyUp(ctx context.Context, server *embedded.Server, tidy func(context.Context, *nats.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	nc, err := nats.Connect(server.URL(), server.Options()...)
	if err != nil {
		return err
	}
	defer nc.Close()
	return tidy(ctx, nc)
}

// isUsed reports whether a client is connected, which is not one that has just closed.
func isUsed(ctx context.Context, server *embedded.Server) bool {
	for begun := time.Now(); server.Clients() > 0; {
		if time.Since(begun) > time.Second || !pause.For(ctx, look) {
			return ctx.Err() == nil
		}
	}
	return false
}

// acquire locks the directory: when a server that ends has ended, and when the processes that look
// whether a server lives have looked. It reports false if another server listens, or takes as long
// as one may take.
func acquire(ctx context.Context, lock *flock.Flock, other *Server) (free bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	pause.Until(waiting, look, func() bool {
		if free, err = lock.TryLock(); free || err != nil {
			return true
		}
		_, is := other.running()
		return is
	})
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	return free, nil
}

// storeError is why a server can store nothing more.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// write writes what a server says of itself.
func write(path string, s state) error {
	content, err := s.encode()
	if err == nil {
		err = regular.Replace(path, content)
	}
	return err
}

// overwrite writes over the file: on a full disk there is no room for another file.
func overwrite(path string, s state) error {
	content, err := s.encode()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	return errors.Join(err, file.Close())
}

// encode returns the state of this process, with spaces behind it: always as much.
func (s state) encode() ([]byte, error) {
	s.Protocol, s.PID = protocolVersion, os.Getpid()
	content, err := json.Marshal(s)
	return append(content, bytes.Repeat([]byte(" "), max(stateSize-len(content), 0))...), err
}

// stateSize is the size of the file, in bytes.
const stateSize = 4 << 10

// watch waits until the server is to end. at is the file of its state.
func watch(ctx context.Context, server *embedded.Server, lock *flock.Flock, at string, idle time.Duration, failed <-chan error) error {
	used := time.Now()
	for pause.For(ctx, min(lookAround, max(idle/4, look))) {
		select {
		case reason := <-failed:
			return &storeError{reason}
		default:
		}
		if there, err := os.Stat(lock.Path()); err != nil || !isSame(lock, there) {
			os.Exit(0) // the directory was removed: nothing is to be written there
		}
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) { // removed by hand: without it no process finds the server
			_ = write(at, state{Address: server.Address()}) // else in a moment
		}
		if server.Clients() > 0 {
			used = time.Now()
		} else if time.Since(used) >= idle {
			return nil
		}
	}
	return nil
}

func isSame(lock *flock.Flock, there os.FileInfo) bool {
	mine, err := lock.Stat()
	return err == nil && os.SameFile(mine, there)
}
