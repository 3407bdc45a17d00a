//go:build linux

package probes

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// fileProbes reach for the host's files by every kind of path.
func fileProbes() map[string]probe {
	onVictim := func(try func(path string) error) probe {
		return func(h canary.Host) canary.Verdict { return judge(try(filepath.Join(h.Dir, "victim"))) }
	}
	at := func(path func(h canary.Host) string) probe {
		return func(h canary.Host) canary.Verdict {
			if path(h) == "" {
				return unsupported("the host has no such directory")
			}
			return read(path(h), h.Secret)
		}
	}
	return map[string]probe{
		"file/read-0644":      at(func(h canary.Host) string { return filepath.Join(h.Dir, "public") }),
		"file/read-0600":      at(func(h canary.Host) string { return filepath.Join(h.Dir, "private") }),
		"file/read-tmp":       at(func(h canary.Host) string { return h.TmpFile }),
		"file/read-shm":       at(func(h canary.Host) string { return h.ShmFile }),
		"file/proc-self-root": at(func(h canary.Host) string { return "/proc/self/root" + filepath.Join(h.Dir, "public") }),
		"file/proc-self-cwd":  at(func(h canary.Host) string { return "/proc/self/cwd/" + strings.Repeat("../", 20) + h.Dir + "/public" }),
		"file/dotdot":         at(func(h canary.Host) string { return strings.Repeat("../", 20) + h.Dir + "/public" }),
		"file/read-shadow":    readShadow,
		"file/list":           listHost,
		"file/symlink":        throughSymlink,
		"file/symlink-dir":    throughSymlinkDir,
		"file/hard-link": func(h canary.Host) canary.Verdict {
			return judge(os.Link(filepath.Join(h.Dir, "public"), "hard-link"))
		},
		"file/write":    onVictim(func(path string) error { return open(path, unix.O_WRONLY) }),
		"file/append":   onVictim(func(path string) error { return open(path, unix.O_WRONLY|unix.O_APPEND) }),
		"file/truncate": onVictim(func(path string) error { return os.Truncate(path, 0) }),
		"file/chmod":    onVictim(func(path string) error { return os.Chmod(path, 0o606) }),
		"file/utime":    onVictim(func(path string) error { return os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0)) }),
		"file/setxattr": onVictim(setxattr),
		"file/unlink": func(h canary.Host) canary.Verdict {
			return judge(os.Remove(filepath.Join(h.Dir, "to-unlink")))
		},
		"file/rename": func(h canary.Host) canary.Verdict {
			return judge(os.Rename(filepath.Join(h.Dir, "to-rename"), "renamed"))
		},
		"file/create": func(h canary.Host) canary.Verdict {
			return judge(open(filepath.Join(h.Dir, "created"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL))
		},
		"file/setuid-is-inert": setuidIsInert,
	}
}

// read calls the secret an escape.
func read(path, secret string) canary.Verdict {
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		return contained(err)
	case bytes.Contains(data, []byte(secret)):
		return escape("read " + path)
	default:
		return contained(errors.New("another file"))
	}
}

// open opens and closes a file.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func setxattr(path string) error {
	return unix.Setxattr(path, "user.probe", []byte("x"), 0)
}

func readShadow(canary.Host) canary.Verdict {
	data, err := os.ReadFile("/etc/shadow")
	if err == nil && len(data) == 0 {
		return contained(errors.New("empty"))
	}
	return judge(err)
}

// listHost looks for the host's files by listing.
func listHost(h canary.Host) canary.Verdict {
	entries, err := os.ReadDir(h.Dir)
	if err == nil && len(entries) == 0 {
		return contained(errors.New("empty"))
	}
	if err == nil {
		return leak("names of files")
	}
	return contained(err)
}

func throughSymlink(h canary.Host) canary.Verdict {
	_ = os.Remove("symlink")
	if err := os.Symlink(filepath.Join(h.Dir, "private"), "symlink"); err != nil {
		return unsupported(errnoName(err))
	}
	return read("symlink", h.Secret)
}

func throughSymlinkDir(h canary.Host) canary.Verdict {
	_ = os.Remove("symlink-dir")
	if err := os.Symlink("/", "symlink-dir"); err != nil {
		return unsupported(errnoName(err))
	}
	return read(filepath.Join("symlink-dir", h.Dir, "public"), h.Secret)
}

// setuidIsInert looks whether a file with the setuid bit could give rights.
func setuidIsInert(canary.Host) canary.Verdict {
	var fs unix.Statfs_t
	if err := unix.Statfs(".", &fs); err != nil {
		return unsupported(errnoName(err))
	}
	if fs.Flags&unix.ST_NOSUID != 0 {
		return contained(errors.New("nosuid"))
	}
	if noNewPrivs() {
		return contained(errors.New("no_new_privs"))
	}
	return escape("neither nosuid nor no_new_privs")
}
