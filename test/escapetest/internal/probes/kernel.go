//go:build linux

package probes

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// kernelProbes make system calls that no tool needs. Their arguments are such that
// nothing happens where they are allowed.
func kernelProbes() map[string]probe {
	calls := map[string]struct {
		nr   uintptr
		args []uintptr
	}{
		"io-uring-setup":    {unix.SYS_IO_URING_SETUP, []uintptr{1, 0}},
		"io-uring-enter":    {unix.SYS_IO_URING_ENTER, []uintptr{^uintptr(0)}},
		"io-uring-register": {unix.SYS_IO_URING_REGISTER, []uintptr{^uintptr(0)}},
		"bpf":               {unix.SYS_BPF, []uintptr{0, 0, 0}},
		"perf-event-open":   {unix.SYS_PERF_EVENT_OPEN, []uintptr{0, 0, 0, ^uintptr(0), 0}},
		"userfaultfd":       {unix.SYS_USERFAULTFD, []uintptr{1}},
		"keyctl":            {unix.SYS_KEYCTL, []uintptr{0, ^uintptr(2), 0}},
		"add-key":           {unix.SYS_ADD_KEY, []uintptr{0, 0, 0, 0, 0}},
		"request-key":       {unix.SYS_REQUEST_KEY, []uintptr{0, 0, 0, 0}},
		"kexec-load":        {unix.SYS_KEXEC_LOAD, []uintptr{0, 0, 0, ^uintptr(0)}},
		"reboot":            {unix.SYS_REBOOT, []uintptr{0, 0, 0, 0}}, // without the magic numbers
		"init-module":       {unix.SYS_INIT_MODULE, []uintptr{0, 0, 0}},
		"finit-module":      {unix.SYS_FINIT_MODULE, []uintptr{^uintptr(0), 0, 0}},
		"delete-module":     {unix.SYS_DELETE_MODULE, []uintptr{0, 0}},
		"syslog":            {unix.SYS_SYSLOG, []uintptr{10, 0, 0}},
		"acct":              {unix.SYS_ACCT, []uintptr{1}},
		"quotactl":          {unix.SYS_QUOTACTL, []uintptr{0, 0, 0, 0}},
		"fanotify":          {unix.SYS_FANOTIFY_INIT, []uintptr{^uintptr(0), 0}},
		"swapoff":           {unix.SYS_SWAPOFF, []uintptr{1}},
		"swapon":            {unix.SYS_SWAPON, []uintptr{1, 0}},
		"vhangup":           {unix.SYS_VHANGUP, nil},
		"kcmp":              {unix.SYS_KCMP, []uintptr{1, 1, 0, 0, 0}},
		"process-madvise":   {unix.SYS_PROCESS_MADVISE, []uintptr{^uintptr(0), 0, 0, 0, 0}},
		"move-pages":        {unix.SYS_MOVE_PAGES, []uintptr{0, 0, 0, 0, 0, 0}},
		"quotactl-fd":       {unix.SYS_QUOTACTL_FD, []uintptr{^uintptr(0), 0, 0, 0}},
		"open-tree-attr":    {unix.SYS_OPEN_TREE_ATTR, []uintptr{^uintptr(0), 0, 0, 0, 0}},
		"move-mount":        {unix.SYS_MOVE_MOUNT, []uintptr{^uintptr(0), 0, ^uintptr(0), 0, 0}},
		"fsmount":           {unix.SYS_FSMOUNT, []uintptr{^uintptr(0), 0, 0}},
		"fspick":            {unix.SYS_FSPICK, []uintptr{^uintptr(0), 0, 0}},
		"fsconfig":          {unix.SYS_FSCONFIG, []uintptr{^uintptr(0), 0, 0, 0, 0}},
		"io-setup":          {unix.SYS_IO_SETUP, []uintptr{1, 0}},
		"clone3":            {unix.SYS_CLONE3, []uintptr{0, 0}},
		"openat2":           {unix.SYS_OPENAT2, []uintptr{^uintptr(0), 0, 0, 0}},
		"clock-settime":     {unix.SYS_CLOCK_SETTIME, []uintptr{0, 0}},
		"adjtimex":          {unix.SYS_ADJTIMEX, []uintptr{0}},
		"unknown-1000":      {1000, nil},
		"unknown-600":       {600, nil},
	}
	all := map[string]probe{
		"kernel/int80": int80, "kernel/x32": x32, "kernel/bpf-program": bpfProgram, "kernel/dmesg": dmesg, "kernel/pressure": pressure,
		"kernel/huge-pages": hugePages, "kernel/huge-file": hugeFile, "kernel/huge-shared": hugeShared, "kernel/line-discipline": lineDiscipline,
	}
	for name, c := range calls {
		all["kernel/"+name] = func(canary.Host) canary.Verdict { return denied(call(c.nr, c.args...)) }
	}
	return all
}

// bpfProgram loads the smallest program.
func bpfProgram(canary.Host) canary.Verdict {
	code := [2]uint64{0xb7, 0x95} // r0 = 0; exit
	license := [4]byte{'G', 'P', 'L'}
	attr := struct {
		kind, count   uint32
		code, license uint64
		level, size   uint32
		log           uint64
		kernel, flags uint32
	}{kind: 1, count: 2, code: uint64(uintptr(unsafe.Pointer(&code))), license: uint64(uintptr(unsafe.Pointer(&license)))}
	return unlessDone(call(unix.SYS_BPF, 5, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)))
}

// hugePages takes of those that the host has set aside, without touching them.
func hugePages(canary.Host) canary.Verdict {
	memory, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.Munmap(memory)
	}
	return judge(err)
}

func hugeFile(canary.Host) canary.Verdict {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB)
	if err == nil {
		_ = unix.Close(fd)
	}
	return judge(err)
}

func hugeShared(canary.Host) canary.Verdict {
	const huge, noReserve = 0o4000, 0o10000
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 2<<20, unix.IPC_CREAT|huge|noReserve|0o600)
	if err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
	return judge(err)
}

// lineDiscipline gives a terminal a driver: the one that it has, but the kernel would load any.
func lineDiscipline(canary.Host) canary.Verdict {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	return judge(unix.IoctlSetPointerInt(fd, unix.TIOCSETD, 0))
}

// dmesg reads the log of the host's kernel.
func dmesg(canary.Host) canary.Verdict {
	buffer := make([]byte, 4096)
	n, err := unix.Klogctl(3, buffer)
	if err == nil && n > 0 {
		return leak("the kernel's log")
	}
	return contained(cmpErr(err, errors.New("empty")))
}

// pressure asks the kernel to be woken for the host's pressure: a process that has asked a thousand
// times outlives its kill by seconds.
func pressure(canary.Host) canary.Verdict {
	fd, err := unix.Open("/proc/pressure/cpu", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("some 1000000 2000000\x00"))
	return judge(err)
}
