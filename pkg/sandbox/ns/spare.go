//go:build linux

package ns

import (
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// spares has the next sandbox of this process half made, while nobody waits for it.
var spares = spare{life: time.Minute} //nolint:gochecknoglobals // as launchers

// spareDelay is how long after a sandbox was opened the next one is half made: its first command has ended by then, mostly, and
// need not share the processors.
const spareDelay = 4 * time.Millisecond

// spare is at most one sandbox that is half made, for one that differs from the last one in nothing but its
// directories and the limits of commands. It is used only if it is what would be made now. It ends with this process, and after
// some time: it holds little memory, but all that the host has mounted, if this is no root. It is safe for concurrent use.
type spare struct {
	life time.Duration

	mu     sync.Mutex // held while one is made: to wait for it is sooner than to make another
	ready  *half      // nil when there is none
	config wire.Config
	groups *cgroup.Tree
	host   *outlook
	expiry *time.Timer
}

// take returns the sandbox that is half made if it is like that of config; nil when there is none.
func (s *spare) take(config wire.Config, groups *cgroup.Tree) *half {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(config, groups) {
		return nil
	}
	if !s.host.same() {
		s.drop()
		return nil
	}
	taken := s.ready
	s.forget()
	return taken
}

// renewSoon makes one like that of config, a bit later.
func (s *spare) renewSoon(config wire.Config, groups *cgroup.Tree) {
	if config.Bwrap || len(config.Mounts) > 0 {
		return // bubblewrap does all at once; what is mounted may be anything
	}
	time.AfterFunc(spareDelay, func() { s.renew(config, groups) })
}

// renew makes one like that of config, unless it is there.
func (s *spare) renew(config wire.Config, groups *cgroup.Tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(config, groups) {
		s.drop()
		s.make(general(config), groups)
	}
}

// make makes one. The caller holds the lock.
func (s *spare) make(config wire.Config, groups *cgroup.Tree) {
	host, err := look(config)
	if err != nil {
		return // then there is none
	}
	h, err := begin(config, groups)
	if err != nil {
		host.close()
		return // whoever opens the next sandbox is told
	}
	s.ready, s.config, s.groups, s.host = h, config, groups, host
	s.expiry = time.AfterFunc(s.life, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ready == h {
			s.drop()
		}
	})
}

// fits reports whether there is one, and it is like that of config. The caller holds the lock.
func (s *spare) fits(config wire.Config, groups *cgroup.Tree) bool {
	return s.ready != nil && s.groups == groups && reflect.DeepEqual(s.config, general(config))
}

// general is what a configuration has in common with those of similar sandboxes. What is protected has the same places
// in all of them; which files those are is what the self-test of each looks at.
func general(config wire.Config) wire.Config {
	config.Workspace, config.Home, config.Temp = "", "", ""
	config.Protected, config.Pinned = anyFile(config.Protected), anyFile(config.Pinned)
	return config
}

func anyFile(places []wire.Place) []wire.Place {
	places = slices.Clone(places)
	for i := range places {
		places[i] = wire.Place{Path: places[i].Path}
	}
	return places
}

// drop ends the one that is there. The caller holds the lock.
func (s *spare) drop() {
	if s.ready != nil {
		_ = s.ready.abandon() // nothing was done with it
		s.forget()
	}
}

// forget says that there is none. The caller holds the lock.
func (s *spare) forget() {
	s.expiry.Stop()
	s.host.close()
	s.ready, s.host = nil, nil
}

// outlook is what of the host can be seen in a sandbox, but its own directories: it tells when that has changed.
type outlook struct {
	mounts int // /proc/self/mountinfo, which the kernel notes changes for
	config wire.Config
	files  []identity
}

// identity tells whether a name still means the same file; the zero value that it means none.
type identity struct{ device, inode uint64 }

// look looks at the host.
func look(config wire.Config) (*outlook, error) {
	mounts, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/self/mountinfo", Err: err}
	}
	return &outlook{mounts: mounts, config: config, files: identities(config)}, nil
}

// same reports whether a sandbox would see the same as when look was called.
func (o *outlook) same() bool {
	mounts := []unix.PollFd{{Fd: int32(o.mounts), Events: unix.POLLPRI}} //nolint:gosec // a descriptor
	n, err := unix.Poll(mounts, 0)
	if err != nil || n > 0 {
		return false
	}
	for i, now := range identities(o.config) {
		if now != o.files[i] {
			return false
		}
	}
	return true
}

func (o *outlook) close() { _ = unix.Close(o.mounts) } // nothing was written

// identities are those of everything that a sandbox is made of. Of a directory nothing else counts: the sandbox sees what is in it.
func identities(config wire.Config) []identity {
	var all []identity
	add := func(name string, flags int) {
		var stat unix.Stat_t
		if unix.Fstatat(unix.AT_FDCWD, name, &stat, flags) != nil {
			stat = unix.Stat_t{}
		}
		all = append(all, identity{stat.Dev, stat.Ino})
	}
	for _, name := range initd.System {
		add("/"+name, unix.AT_SYMLINK_NOFOLLOW)
	}
	for _, name := range initd.SettingsOf(config) {
		add("/etc/"+name, 0)
	}
	for _, name := range initd.Devices {
		add("/dev/"+name, 0)
	}
	return all
}
