package hostenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// Repository returns what git needs in a linked worktree or a submodule that is used in place.
// In the part that a worktree shares with its repository, commands can write only what a commit
// needs: objects, refs and their logs. In the worktree's own part they can write all but what is
// reserved. Settings, hooks and other worktrees stay as they are. The caller calls free when no
// sandbox has the mounts any more.
func (l Limits) Repository(ctx context.Context, o *gitguard.Outside) (mounts []isolation.Mount, free func() error, err error) {
	if !l.View.Root {
		return nil, nil, errors.New("this driver cannot protect a part of it")
	}
	gitDir := o.Named
	if !filepath.IsAbs(gitDir) { // git looks for it from the place that the workspace has in a sandbox
		gitDir = filepath.Join(guestWorkspace, gitDir)
	}
	places, free, err := o.Reserve(ctx)
	if err != nil {
		return nil, nil, err
	}
	if o.Common != o.GitDir {
		common := filepath.Join(gitDir, "..", "..")
		mounts = append(mounts, isolation.Mount{Host: o.Common, Guest: common, AsOwner: true})
		for _, name := range []string{"objects", "refs", "logs"} {
			mounts = append(mounts, isolation.Mount{Host: filepath.Join(o.Common, name), Guest: filepath.Join(common, name), Write: true, AsOwner: true})
		}
	}
	mounts = append(mounts, isolation.Mount{Host: o.GitDir, Guest: gitDir, Write: true, AsOwner: true})
	for _, name := range places {
		mounts = append(mounts, isolation.Mount{Host: filepath.Join(o.GitDir, name), Guest: filepath.Join(gitDir, name), AsOwner: true})
	}
	if err := l.checkRepository(mounts); err != nil {
		return nil, nil, errors.Join(err, free())
	}
	return mounts, free, nil
}

func (l Limits) checkRepository(mounts []isolation.Mount) error {
	for _, m := range mounts {
		info, err := os.Lstat(m.Host)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link", m.Host)
		}
	}
	return l.Check(mounts[0])
}

// identityTime bounds the queries to git, and maxIdentity a name.
const (
	identityTime = 5 * time.Second
	maxIdentity  = 256
)

// Identity is who commits: the user's name and address, as git has them in a directory, and nothing
// else of its settings. They are "" where git has none, or is none.
func Identity(ctx context.Context, dir string) (name, email string) {
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	name, email = gitguard.Identity(ctx, dir)
	return fit(name), fit(email)
}

// fit is a value of git's settings that is fit for a commit; "" when it is not.
func fit(value string) string {
	value = strings.TrimSpace(value)
	if len(value) > maxIdentity || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.ContainsAny(value, "<>") {
		return ""
	}
	return value
}

// guestDoors is where sandboxes with a root of their own have doors.
const guestDoors = "/run/toolfleet"

// maxCallers is how many programs use a door at once; further ones wait.
const maxCallers = 32

// Doors are sockets in a directory of their own, by which commands in a sandbox ask for what is the
// user's. This process answers, and looks at each request; what it asks is never reached itself.
type Doors struct {
	// Env has the variables by which programs find the sockets.
	Env map[string]string
	// Workspace is where commands write, so that no program of it answers; "" is nowhere.
	Workspace string

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
	// In a sandbox, commands may run as another user; on the host the directory above is in the
	// way.
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
	d.work.Go(func() {
		pause.Accept(ctx, l, maxCallers, func(caller net.Conn) {
			defer context.AfterFunc(ctx, func() { _ = caller.Close() })()
			answer(ctx, caller)
			_ = caller.Close()
		})
	})
	return nil
}

// Close closes the sockets, and returns when no request is being answered.
func (d *Doors) Close() error {
	var faults []error
	for _, stop := range d.stops {
		faults = append(faults, stop())
	}
	d.work.Wait()
	return errors.Join(errors.Join(faults...), os.RemoveAll(filepath.Dir(d.dir)))
}

// Publication is a port of a sandbox that the host reaches.
type Publication struct {
	Host     netip.Addr
	HostPort uint16 // 0 is any that is free
	Port     uint16 // of the sandbox
}

// ParsePublication reads [[HOST:]HOSTPORT:]PORT. HOST is the loopback where it is left out, and
// HOSTPORT the same as PORT.
func ParsePublication(text string) (Publication, error) {
	p := Publication{Host: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	host, port, more := cutLast(text)
	var err error
	if p.Port, err = parsePort("PORT", port, 1); err != nil {
		return p, err
	}
	if p.HostPort = p.Port; !more {
		return p, nil
	}
	host, port, more = cutLast(host)
	if p.HostPort, err = parsePort("HOSTPORT", port, 0); err != nil || !more {
		return p, err
	}
	if host == "localhost" {
		return p, nil
	}
	if p.Host, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err != nil {
		return p, fmt.Errorf("HOST is %q: must be an address of this host, such as 127.0.0.1, 0.0.0.0 or [::1]", host)
	}
	return p, nil
}

// cutLast cuts a text at its last colon; without one all of it is after.
func cutLast(text string) (before, after string, found bool) {
	at := strings.LastIndexByte(text, ':')
	return text[:max(at, 0)], text[at+1:], at >= 0
}

func parsePort(what, text string, least uint64) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < least {
		return 0, fmt.Errorf("want [[HOST:]HOSTPORT:]PORT, as in 3000, 8080:3000 or 0:3000; %s is %q: must be %d to 65535", what, text, least)
	}
	return uint16(n), nil
}

// Listen takes the port of the host.
func (p Publication) Listen(ctx context.Context) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(p.Host, p.HostPort).String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d of %s is taken; choose another one, or 0 for any that is free, as in 0:%d", p.HostPort, p.Host, p.Port)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %d of %s is not for ordinary users; choose one from 1024 on, or 0 for any that is free, as in 0:%d", p.HostPort, p.Host, p.Port)
	case err != nil:
		return nil, err
	}
	return l, nil
}

// URL is where a browser on this host finds what is listened for.
func URL(l net.Listener) string {
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err == nil && at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return "http://" + at.String()
}
