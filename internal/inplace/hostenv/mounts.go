package hostenv

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// ParseMount reads HOST[:INSIDE][:ro|rw]. HOST becomes absolute; INSIDE is the same path where it
// is left out, and ro is what is meant without a word.
func ParseMount(text string) (isolation.Mount, error) {
	parts := strings.Split(text, ":")
	m := isolation.Mount{AsOwner: true}
	if last := parts[len(parts)-1]; len(parts) > 1 && (last == "ro" || last == "rw") {
		m.Write, parts = last == "rw", parts[:len(parts)-1]
	}
	if len(parts) > 2 || parts[0] == "" {
		return m, errors.New("want HOST[:INSIDE][:ro|rw], as in ~/data, ~/data:/data or ~/data:/data:rw")
	}
	host, err := filepath.Abs(parts[0])
	if err != nil {
		return m, err
	}
	m.Host, m.Guest = host, host
	if len(parts) == 2 {
		if !filepath.IsAbs(parts[1]) {
			return m, fmt.Errorf("INSIDE is %q: must be an absolute path, or one of the words ro and rw", parts[1])
		}
		m.Guest = filepath.Clean(parts[1])
	}
	return m, nil
}

// Limits of the host's paths that sandboxes get.
type Limits struct {
	View View
	// Home is the user's home directory, Workspace the directory that is worked on in place, and
	// Data are directories of toolfleet's own; "" is none.
	Home, Workspace string
	Data            []string
}

// ofTheHost are paths where the host's processes and devices can be reached.
var ofTheHost = []string{"/proc", "/sys", "/dev", "/run", "/var/run"} //nolint:gochecknoglobals // a constant

// Check refuses a mount that would let commands out of their sandbox, or that a sandbox cannot
// have.
func (l Limits) Check(m isolation.Mount) error {
	host := resolved(m.Host)
	if host == "" {
		return fmt.Errorf("%s does not exist", m.Host)
	}
	if err := l.checkHost(host, m.Write); err != nil {
		return err
	}
	if err := l.checkGuest(m); err != nil {
		return err
	}
	return checkKinds(host)
}

func (l Limits) checkHost(host string, write bool) error {
	for _, dir := range ofTheHost {
		if within(host, dir) {
			return fmt.Errorf("%s has devices, processes and sockets of the host; directories and files elsewhere can be mounted", dir)
		}
	}
	home, workspace := resolved(l.Home), resolved(l.Workspace)
	if host == "/" || home != "" && within(home, host) {
		return fmt.Errorf("%s is or contains your home directory, with keys and tokens; mount the part that is needed, such as %s",
			host, filepath.Join(l.Home, "data"))
	}
	for _, data := range l.Data {
		if data = resolved(data); data != "" && (within(host, data) || within(data, host)) {
			return fmt.Errorf("%s is, contains or is in %s, where toolfleet stores sessions and caches; mount another directory", host, data)
		}
	}
	if write && workspace != "" && (within(host, workspace) || within(workspace, host)) {
		return fmt.Errorf("%s is, contains or is in the workspace, which is writable already, except protected paths (--protect); omit rw", host)
	}
	return nil
}

func (l Limits) checkGuest(m isolation.Mount) error {
	switch {
	case !l.View.Root && m.Guest != m.Host:
		return fmt.Errorf("INSIDE is %s: with this driver, files have the same path inside as on the host; omit INSIDE, or use --sandbox ns", m.Guest)
	case !l.View.Root:
		return nil
	case m.Guest == "/":
		return errors.New("INSIDE is /: must be a directory below it, such as /data")
	}
	for _, own := range slices.Concat(l.View.own, l.View.sees) {
		if hides(own, m.Guest) || within(own, m.Guest) {
			return fmt.Errorf("the path inside would be %s, but %s belongs to the sandbox; choose another path, as in --mount %s:/data", m.Guest, own, m.Host)
		}
	}
	return nil
}

// mostEntries bounds the look for sockets in what is mounted.
const mostEntries = 50_000

var errEnough = errors.New("enough was looked at")

// checkKinds refuses sockets, devices and FIFOs: behind them are processes of the host, also when
// the mount is read-only.
func checkKinds(host string) error {
	const special = fs.ModeSocket | fs.ModeDevice | fs.ModeCharDevice | fs.ModeNamedPipe | fs.ModeIrregular
	seen := 0
	err := filepath.WalkDir(host, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > mostEntries {
			return errEnough
		}
		switch {
		case err != nil && path == host:
			return err
		case err != nil:
			return nil //nolint:nilerr // commands cannot read it either
		case d.Type()&special == 0:
			return nil
		case path == host:
			return fmt.Errorf("%s is a socket, a device or a FIFO; only directories and files can be mounted", path)
		}
		return fmt.Errorf("%s is a socket, a device or a FIFO, which would let commands reach the host; mount a directory without one", path)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// CheckAll parses and checks mounts, and refuses two at one path.
func (l Limits) CheckAll(texts []string) ([]isolation.Mount, error) {
	var mounts []isolation.Mount
	for _, text := range texts {
		m, err := ParseMount(text)
		if err == nil {
			err = l.Check(m)
		}
		if err == nil && slices.ContainsFunc(mounts, func(other isolation.Mount) bool { return other.Guest == m.Guest }) {
			err = fmt.Errorf("two mounts have the path %s", m.Guest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}
