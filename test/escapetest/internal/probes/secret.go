//go:build linux

package probes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// secretProbes look for what the worker and the kernel keep to themselves.
func secretProbes() map[string]probe {
	all := map[string]probe{
		"secret/everywhere": everywhere,
		"secret/keys":       keysListed,
		"secret/kallsyms":   func(canary.Host) canary.Verdict { return addresses("/proc/kallsyms") },
		"secret/iomem":      func(canary.Host) canary.Verdict { return addresses("/proc/iomem") },
		"secret/pagemap":    pagemap,
		"secret/sockets":    abstractListed,
		"secret/cgroup":     cgroupPath,
		"secret/terminals":  terminals,
		"secret/sys":        func(canary.Host) canary.Verdict { return judge(list("/sys/kernel")) },
		"secret/boot":       openAny(unix.O_RDONLY, "/boot/*", "/sys/firmware/*"),
		"secret/home":       openAny(unix.O_RDONLY, "/root/.*", "/root/*", "/home/*/.ssh", "/home/*/.aws", "/home/*/.config", "/var/run/secrets/*/*", "/run/secrets/*"),
		"secret/logs":       openAny(unix.O_RDONLY, "/var/log/*", "/run/log/*", "/run/systemd/*", "/var/lib/*"),
		"secret/core-dump":  coreDump,
		"secret/core-limit": coreLimit,
		"secret/sysctl":     sysctl,
		"secret/init-stat":  initStat,
		"secret/init-label": initLabel,
	}
	for _, file := range []string{
		"kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "timer_list", "vmallocinfo", "slabinfo", "pagetypeinfo", "sched_debug", "latency_stats",
	} {
		all["secret/kernel-"+file] = func(canary.Host) canary.Verdict { return readable("/proc/" + file) }
	}
	for _, file := range []string{
		"auxv", "io", "stack", "syscall", "pagemap", "smaps", "numa_maps", "personality", "timers", "clear_refs", "ns/mnt", "fdinfo/3", "map_files",
	} {
		all["secret/init-"+strings.ReplaceAll(file, "/", "-")] = func(canary.Host) canary.Verdict { return readable("/proc/1/" + file) }
	}
	return all
}

// readable calls any content a leak.
func readable(path string) canary.Verdict {
	f, err := os.Open(path)
	if err != nil {
		return contained(err)
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 1))
	if n > 0 {
		return leak(path + " can be read")
	}
	return contained(cmpErr(err, io.EOF))
}

// initLabel calls what the kernel's security module says of the first process a leak, unless it
// says the same of this one.
func initLabel(canary.Host) canary.Verdict {
	label, err := os.ReadFile("/proc/1/attr/current")
	if err != nil || len(label) == 0 {
		return contained(cmpErr(err, io.EOF))
	}
	own, err := os.ReadFile("/proc/self/attr/current")
	if err == nil && bytes.Equal(label, own) {
		return contained(errors.New("that of this process"))
	}
	return leak("/proc/1/attr/current: " + string(label))
}

// biggest is how much of a file is looked at.
const biggest = 256 << 10

// everywhere looks for the secret in every file that can be read, outside of the workspace,
// where it is told what to look for, and of the programs.
func everywhere(h canary.Host) canary.Verdict {
	workspace, err := os.Getwd()
	if err != nil {
		return unsupported(err.Error())
	}
	buffer, files, found := make([]byte, biggest), 0, ""
	_ = filepath.WalkDir("/", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case found != "":
			return fs.SkipAll
		case err != nil:
			return nil //nolint:nilerr // what cannot be listed is no secret
		case entry.IsDir() && (path == workspace ||
			slices.Contains([]string{"/usr", "/sys", "/opt", "/root/go", "/mnt"}, path) ||
			strings.HasPrefix(path, "/proc/") && strings.Contains(path, "/task/")):
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		files++
		if contains(path, buffer, []byte(h.Secret)) {
			found = path
		}
		return nil
	})
	if found != "" {
		return escape(found)
	}
	return contained(fmt.Errorf("not in %d files", files))
}

// contains looks for a secret at the beginning of a file.
func contains(path string, buffer, secret []byte) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buffer)
	return err == nil && bytes.Contains(buffer[:n], secret)
}

// keysListed looks for keys of the host, which sessions of its users have.
func keysListed(canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/keys")
	if err != nil {
		return contained(err)
	}
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, "_uid") && !strings.Contains(line, "_ses") && !strings.Contains(line, "_tid") {
			return leak(strings.TrimSpace(line))
		}
	}
	return contained(errors.New("none with a name"))
}

// addresses looks for addresses of the kernel, which are zero for those who must not know them.
func addresses(path string) canary.Verdict {
	data, err := os.ReadFile(path)
	if err != nil {
		return contained(err)
	}
	for line := range strings.Lines(string(data)) {
		address, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Trim(address, "0-") != "" {
			return leak(path)
		}
	}
	return contained(errors.New("zero"))
}

// pagemap looks for physical addresses of this process's memory.
func pagemap(canary.Host) canary.Verdict {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return contained(err)
	}
	defer f.Close()
	here := make([]byte, 1<<16)
	here[0] = 1
	entry := make([]byte, 8)
	if _, err := f.ReadAt(entry, int64(uintptr(unsafe.Pointer(&here[0]))/uintptr(os.Getpagesize())*8)); err != nil {
		return contained(err)
	}
	if bytes.Equal(entry[:6], make([]byte, 6)) {
		return contained(errors.New("zero"))
	}
	return leak("physical addresses")
}

// abstractListed looks for names of the host's sockets.
func abstractListed(h canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return contained(err)
	}
	if strings.Contains(string(data), h.Abstract) {
		return leak("names of sockets")
	}
	return contained(errors.New("not listed"))
}

// cgroupPath looks for the worker's place among the host's cgroups.
func cgroupPath(canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return contained(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if path := fields[len(fields)-1]; path != "/" {
			return leak(path)
		}
	}
	return contained(errors.New("/"))
}

// terminals looks for terminals of others.
func terminals(canary.Host) canary.Verdict {
	entries, err := os.ReadDir("/dev/pts")
	if err != nil {
		return contained(err)
	}
	for _, entry := range entries {
		if entry.Name() != "ptmx" {
			return leak("/dev/pts/" + entry.Name())
		}
	}
	return contained(errors.New("none"))
}

// coreDump has a process crash, with a core file if it can get one.
func coreDump(canary.Host) canary.Verdict {
	const dir = "crash"
	_ = os.Mkdir(dir, 0o700)
	_ = command("sh", "-c", "cd "+dir+" && ulimit -c unlimited; kill -SEGV $$").Run()
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return escape(entries[0].Name())
	}
	return contained(cmpErr(err, errors.New("no file")))
}

// coreLimit wants a limit of one byte that stays: no core file is that small, and a limit of one
// is what keeps the kernel from starting the host's handler of crashes. Zero would not.
func coreLimit(canary.Host) canary.Verdict {
	for _, limit := range []unix.Rlimit{{}, {Cur: 0, Max: 1}, {Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}} {
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
		_ = unix.Prlimit(0, unix.RLIMIT_CORE, &limit, nil)
		_ = unix.Prlimit(os.Getpid(), unix.RLIMIT_CORE, &limit, nil)
	}
	var got unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &got); err != nil {
		return unsupported(errnoName(err))
	}
	if got.Cur != 1 || got.Max != 1 {
		return leak(fmt.Sprintf("%d, %d at most", got.Cur, got.Max))
	}
	return contained(errors.New("1"))
}

// ownSettings are those of a sandbox's own IPC namespace. Whoever has made it may change them, for
// itself.
const ownSettings = "/proc/sys/fs/mqueue/"

// sysctl looks for a setting of the kernel that can be written to, by writing what is there.
func sysctl(h canary.Host) canary.Verdict {
	found, tried := "", 0
	_ = filepath.WalkDir("/proc/sys", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || h.Isolated && strings.HasPrefix(path, ownSettings) {
			return nil //nolint:nilerr // what cannot be listed cannot be written to
		}
		tried++
		if value, err := os.ReadFile(path); err == nil && os.WriteFile(path, value, 0) == nil {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if found != "" {
		return escape(found)
	}
	return contained(fmt.Errorf("none of %d", tried))
}

// initStat looks for addresses of process 1, which are zero for those who may not trace it.
func initStat(canary.Host) canary.Verdict {
	data, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return contained(err)
	}
	const startCode, startStack, instruction = 25, 27, 29 // counted from 0
	fields := strings.Fields(string(data))
	for _, at := range []int{startCode, startStack, instruction} {
		if at < len(fields) && strings.Trim(fields[at], "01") != "" {
			return leak("addresses")
		}
	}
	return contained(errors.New("zero"))
}
