package hostenv

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// guestDoors is where sandboxes with a root of their own have doors.
const guestDoors = "/run/toolfleet"

// Bounds of a door.
const (
	maxCallers  = 32                    // programs that use it at once; further ones wait
	acceptRetry = 50 * time.Millisecond // when the system has no descriptors left
)

// Doors are sockets in a directory of their own, by which commands in a sandbox ask for what is the
// user's. This process answers, and looks at each request; what it asks is never reached itself.
type Doors struct {
	// Env tells programs of the doors.
	Env map[string]string

	dir, guest string // where it is on the host, and for commands
	stops      []func() error
	work       sync.WaitGroup
}

// OpenDoors makes a directory without any door.
func OpenDoors(view View) (*Doors, error) {
	private, err := os.MkdirTemp("", "toolfleet-")
	if err != nil {
		return nil, err
	}
	d := &Doors{dir: filepath.Join(private, "doors"), guest: guestDoors, Env: map[string]string{}}
	if !view.Root {
		d.guest = d.dir
	}
	// In a sandbox commands may be somebody else; on the host the directory above is in the way.
	if err := errors.Join(os.Mkdir(d.dir, 0o755), os.Chmod(d.dir, 0o755)); err != nil { //nolint:gosec // as above
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Mount shows the doors to a sandbox.
func (d *Doors) Mount() isolation.Mount { return isolation.Mount{Host: d.dir, Guest: d.guest} }

// path is where commands find something in the directory.
func (d *Doors) path(name string) string { return filepath.Join(d.guest, name) }

// put makes a file for commands to read.
func (d *Doors) put(name, content string) error {
	path := filepath.Join(d.dir, name)
	return errors.Join(os.WriteFile(path, []byte(content), 0o644), os.Chmod(path, 0o644)) //nolint:gosec // it is for commands
}

// serve makes a door, behind which answer talks with each caller until that is gone or ctx ends.
func (d *Doors) serve(ctx context.Context, name string, answer func(ctx context.Context, caller net.Conn)) error {
	path := filepath.Join(d.dir, name)
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	d.stops = append(d.stops, func() error { cancel(); return l.Close() })
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // see OpenDoors
		return err
	}
	slots := make(chan struct{}, maxCallers)
	d.work.Go(func() {
		for {
			slots <- struct{}{}
			caller, err := l.Accept()
			if err != nil {
				<-slots
				if !pause.For(ctx, acceptRetry) {
					return
				}
				continue
			}
			d.work.Go(func() {
				defer func() { <-slots }()
				defer context.AfterFunc(ctx, func() { _ = caller.Close() })()
				answer(ctx, caller)
				_ = caller.Close()
			})
		}
	})
	return nil
}

// Close closes the doors, and returns when nobody is answered any more.
func (d *Doors) Close() error {
	var faults []error
	for _, stop := range d.stops {
		faults = append(faults, stop())
	}
	d.work.Wait()
	return errors.Join(errors.Join(faults...), os.RemoveAll(filepath.Dir(d.dir)))
}
