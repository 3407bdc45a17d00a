//go:build linux

package probes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// descriptorProbes look at what this process was given.
func descriptorProbes() map[string]probe {
	return map[string]probe{
		"given/descriptors":   onlyStandard,
		"given/parent":        parentDescriptors,
		"given/stdin":         stdinIsEmpty,
		"given/stdout":        func(canary.Host) canary.Verdict { return isPipe(1) },
		"given/stderr":        func(canary.Host) canary.Verdict { return isPipe(2) },
		"given/stdout-reopen": reopen,
		"given/environment":   environment,
		"given/directory":     directory,
		"given/hostname":      hostname,
		"given/mounts":        mounts,
		"given/mount-sources": mountSources,
		"given/user":          user,
		"given/terminal":      terminal,
	}
}

// onlyStandard looks for descriptors beyond the standard ones. Go's own are let pass:
// its poller, and the file by which its runtime follows a limit of processor time.
func onlyStandard(canary.Host) canary.Verdict {
	for fd := 3; fd < 4096; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && (strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "/sys/fs/cgroup/")) {
			continue
		}
		return escape(fmt.Sprintf("descriptor %d is %s", fd, target))
	}
	return contained(errors.New("none"))
}

// parentDescriptors looks at the descriptors of the process that started this one.
func parentDescriptors(h canary.Host) canary.Verdict {
	dir := fmt.Sprintf("/proc/%d/fd", os.Getppid())
	entries, err := os.ReadDir(dir)
	if err != nil {
		return contained(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(dir + "/" + entry.Name()); err == nil && (strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, h.Dir)) {
			return escape(target)
		}
	}
	return contained(errors.New("no socket"))
}

func stdinIsEmpty(canary.Host) canary.Verdict {
	data, err := io.ReadAll(io.LimitReader(os.Stdin, 1))
	if err == nil && len(data) > 0 {
		return leak("input")
	}
	return contained(cmpErr(err, io.EOF))
}

// isPipe wants output to go to a pipe, never to a file of the host.
func isPipe(fd int) canary.Verdict {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return unsupported(errnoName(err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return escape(fmt.Sprintf("mode %o", st.Mode))
	}
	return contained(errors.New("a pipe"))
}

func reopen(h canary.Host) canary.Verdict {
	target, err := os.Readlink("/proc/self/fd/1")
	if err != nil {
		return contained(err)
	}
	if strings.HasPrefix(target, "/") {
		return escape(target)
	}
	return read("/proc/self/fd/1/../../"+h.Dir+"/public", h.Secret)
}

func environment(h canary.Host) canary.Verdict {
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if strings.Contains(pair, h.Secret) {
			return escape(name)
		}
		if strings.HasPrefix(name, "NATS") || strings.HasPrefix(name, "GO") {
			return leak(name)
		}
	}
	return contained(errors.New("clean"))
}

// directory wants to be in the workspace, and no directory of the host above it.
func directory(h canary.Host) canary.Verdict {
	dir, err := os.Getwd()
	if err != nil {
		return contained(err)
	}
	if h.Isolated && dir != "/workspace" {
		return escape(dir)
	}
	if !h.Isolated {
		return leak(dir)
	}
	return contained(errors.New(dir))
}

func hostname(h canary.Host) canary.Verdict {
	got, err := os.Hostname()
	if err == nil && got == h.Hostname {
		return leak(got)
	}
	return contained(cmpErr(err, errors.New("another")))
}

// mounts looks for paths of the host in the tree of mounts. The root of a bind mount is
// its path on the host's file system, which the kernel shows to everybody.
func mounts(h canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return contained(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], h.Dir) {
			return escape(fields[4])
		}
	}
	if !h.Isolated {
		return leak("the host's mounts")
	}
	return contained(errors.New("its own"))
}

// mountSources looks for directories of the host in the sources of mounts.
func mountSources(h canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return contained(err)
	}
	for line := range strings.Lines(string(data)) {
		const root = 3 // the source's place in its own file system
		if fields := strings.Fields(line); len(fields) > root && strings.Contains(fields[root], h.Name) {
			return leak(fields[root])
		}
	}
	return contained(errors.New("not named"))
}

func user(canary.Host) canary.Verdict {
	if os.Getuid() == 0 {
		return escape("is root")
	}
	return contained(fmt.Errorf("user %d", os.Getuid()))
}

func terminal(canary.Host) canary.Verdict {
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			return escape(fmt.Sprintf("descriptor %d is a terminal", fd))
		}
	}
	return contained(unix.ENOTTY)
}
