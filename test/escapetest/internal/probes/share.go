//go:build linux

package probes

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// beSharing leaves behind what processes share by System V's means: a queue, a semaphore, and so
// many bytes of memory, attached no more.
func beSharing(bytes string) {
	const segment = 8 << 20
	left, err := strconv.Atoi(bytes)
	if err != nil {
		fail(err)
	}
	const private = unix.IPC_CREAT | 0o600
	if errno := call(unix.SYS_MSGGET, unix.IPC_PRIVATE, private); errno != 0 {
		fail(errno)
	}
	if errno := call(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, private); errno != 0 {
		fail(errno)
	}
	for ; left > 0; left -= segment {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, segment, private)
		if err != nil {
			fail(err)
		}
		memory, err := unix.SysvShmAttach(id, 0, 0)
		if err != nil {
			fail(err)
		}
		occupy(memory)
		if err := unix.SysvShmDetach(memory); err != nil {
			fail(err)
		}
	}
	_, _ = fmt.Fprintln(os.Stdout, "shared")
}

// beHolding has so many bytes of a file in its memory, or of one in memory that has no name, until
// it is killed.
func beHolding(name, bytes string) {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		fail(err)
	}
	fd, err := unix.MemfdCreate("held", unix.MFD_CLOEXEC)
	if name != "-" {
		fd, err = unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		fail(err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fail(err)
	}
	occupy(memory)
	_, _ = fmt.Fprintln(os.Stdout, "held")
	time.Sleep(time.Hour)
	runtime.KeepAlive(memory)
}

// occupy has the kernel give the pages of some memory.
func occupy(memory []byte) {
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
}
