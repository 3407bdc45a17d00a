//go:build linux

package probes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// workerSecret is where beWorker keeps its secret, as a variable of the process.
var workerSecret [64]byte

// beWorker holds a secret in its environment, its memory and an open file, says where, and
// ends when its input does.
func beWorker() {
	copy(workerSecret[:], os.Getenv("NATS_CREDS"))
	file, err := os.Open(os.Getenv("CANARY_FILE"))
	if err != nil {
		fail(err)
	}
	if err := unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		fail(err)
	}
	if os.Getenv("CANARY_KEY") != "" {
		runtime.LockOSThread() // which has the key
		if _, err := unix.AddKey("user", "toolfleet-key", workerSecret[:], unix.KEY_SPEC_THREAD_KEYRING); err != nil {
			fail(err)
		}
	}
	_, _ = fmt.Fprintln(os.Stdout, uintptr(unsafe.Pointer(&workerSecret)), file.Fd())
	_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
}

// processProbes look at the host's processes through /proc.
func processProbes() map[string]probe {
	all := map[string]probe{
		"process/any-environ":   anyEnviron,
		"process/any-cmdline":   anyCmdline,
		"process/init-environ":  func(h canary.Host) canary.Verdict { return readInit(h, "environ") },
		"process/init-mem":      func(canary.Host) canary.Verdict { return judge(open("/proc/1/mem", unix.O_RDONLY)) },
		"process/init-mem-rw":   func(canary.Host) canary.Verdict { return judge(open("/proc/1/mem", unix.O_RDWR)) },
		"process/init-exe":      func(canary.Host) canary.Verdict { return judge(open("/proc/1/exe", unix.O_WRONLY)) },
		"process/init-maps":     func(h canary.Host) canary.Verdict { return readInit(h, "maps") },
		"process/init-root":     func(canary.Host) canary.Verdict { return judge(list("/proc/1/root")) },
		"process/init-cwd":      func(canary.Host) canary.Verdict { return judge(list("/proc/1/cwd")) },
		"process/init-fd":       initDescriptors,
		"process/init-map-file": func(canary.Host) canary.Verdict { return judge(list("/proc/1/map_files")) },
		"process/init-ptrace":   func(canary.Host) canary.Verdict { return judge(attach(1)) },
		"process/init-kill":     killInit,
		"process/init-queue":    func(canary.Host) canary.Verdict { return queueInit() },
		"process/init-limits":   func(canary.Host) canary.Verdict { return changeInit(limitTo0) },
		"process/init-priority": func(canary.Host) canary.Verdict { return changeInit(lowerPriority) },
		"process/init-affinity": func(canary.Host) canary.Verdict { return changeInit(affinity) },
		"process/init-schedule": func(canary.Host) canary.Verdict { return changeInit(schedule) },
		"process/init-user": func(canary.Host) canary.Verdict {
			return changeInit(func(int) error { return unix.Setpriority(unix.PRIO_USER, 0, 19) })
		},
	}
	for _, file := range []string{"environ", "cmdline", "mem", "maps"} {
		all["process/worker-"+file] = func(h canary.Host) canary.Verdict { return workerFile(h, file) }
	}
	for _, link := range []string{"root", "cwd", "exe"} {
		all["process/worker-"+link] = func(h canary.Host) canary.Verdict { return workerLink(h, link) }
	}
	all["process/worker-fd"] = func(h canary.Host) canary.Verdict {
		return read(fmt.Sprintf("/proc/%d/fd/%d", h.Worker, h.FD), h.Secret)
	}
	return all
}

func list(dir string) error {
	_, err := os.ReadDir(dir)
	return err
}

// isWorker reports whether a process id means the host's worker in here.
func isWorker(h canary.Host, pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(cmdline, []byte(h.Marker))
}

// errAnother says that the process id is somebody else's in here.
var errAnother = errors.New("another process")

func workerFile(h canary.Host, file string) canary.Verdict {
	path := fmt.Sprintf("/proc/%d/%s", h.Worker, file)
	switch file {
	case "mem":
		f, err := os.Open(path)
		if err != nil {
			return contained(err)
		}
		defer f.Close()
		return memory(h, func(b []byte) error { _, err := f.ReadAt(b, int64(h.Address)); return err })
	case "cmdline":
		if isWorker(h, h.Worker) {
			return leak("its arguments")
		}
		_, err := os.ReadFile(path)
		return contained(cmpErr(err, errAnother))
	case "maps":
		data, err := os.ReadFile(path)
		if err == nil && isWorker(h, h.Worker) && len(data) > 0 {
			return leak("its memory map")
		}
		return contained(cmpErr(err, errAnother))
	default:
		return read(path, h.Secret)
	}
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// memory reads the worker's secret out of its memory.
func memory(h canary.Host, readAt func([]byte) error) canary.Verdict {
	b := make([]byte, len(h.Secret))
	if err := readAt(b); err != nil {
		return contained(err)
	}
	if string(b) == h.Secret {
		return escape("read its memory")
	}
	return contained(errAnother)
}

func workerLink(h canary.Host, link string) canary.Verdict {
	path := fmt.Sprintf("/proc/%d/%s", h.Worker, link)
	if !isWorker(h, h.Worker) {
		_, err := os.Readlink(path)
		return contained(cmpErr(err, errAnother))
	}
	if link == "root" {
		return read(path+filepath.Join(h.Dir, "public"), h.Secret)
	}
	if _, err := os.Readlink(path); err != nil {
		return contained(err)
	}
	return leak("where it points")
}

// eachProcess calls f for every process in /proc.
func eachProcess(f func(pid int) bool) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && f(pid) {
			return nil
		}
	}
	return unix.ESRCH
}

// anyEnviron looks for the secret in every environment, this process and its init included.
func anyEnviron(h canary.Host) canary.Verdict {
	found := 0
	err := eachProcess(func(pid int) bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		found = pid
		return err == nil && bytes.Contains(data, []byte(h.Secret))
	})
	if err == nil {
		return escape(fmt.Sprintf("in process %d", found))
	}
	return contained(err)
}

// anyCmdline looks for processes of the host by their arguments.
func anyCmdline(h canary.Host) canary.Verdict {
	if err := eachProcess(func(pid int) bool { return isWorker(h, pid) }); err != nil {
		return contained(err)
	}
	return leak("processes of the host")
}

func readInit(h canary.Host, file string) canary.Verdict {
	data, err := os.ReadFile("/proc/1/" + file)
	switch {
	case err != nil:
		return contained(err)
	case bytes.Contains(data, []byte(h.Secret)):
		return escape("the secret")
	case len(data) == 0:
		return contained(errors.New("empty"))
	default:
		return leak("it can be read")
	}
}

// initDescriptors looks at what process 1 has open.
func initDescriptors(canary.Host) canary.Verdict {
	const dir = "/proc/1/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return contained(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(dir + entry.Name()); err == nil {
			return escape(target)
		}
	}
	return leak("the numbers of its descriptors")
}

// killInit sends init a signal that it may ignore but nobody else may send.
func killInit(canary.Host) canary.Verdict {
	if err := unix.Kill(1, unix.SIGKILL); err != nil {
		return contained(err)
	}
	// The kernel takes the signal and keeps it from the init of a process namespace.
	if err := unix.Kill(1, 0); err != nil {
		return escape("init is gone")
	}
	return contained(errors.New("ignored"))
}

// queueInit sends the first process every signal with the sender's own word for why, as sigqueue(3)
// does, if it is that of a sandbox: programs take some for signals of the kernel then.
func queueInit() canary.Verdict {
	if err := sandboxInit(); err != nil {
		return contained(err)
	}
	const last, queued = 64, -1 // SI_QUEUE
	for sig := int32(1); sig <= last; sig++ {
		info := unix.Siginfo{Signo: sig, Code: queued}
		_, _, _ = unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), uintptr(unsafe.Pointer(&info)))
	}
	const enough = 100 * time.Millisecond // to end, and this with it
	<-time.After(enough)
	return contained(errors.New("ignored"))
}

// sandboxInit says why the first process is not that of a sandbox, nil when it is: no other one
// shall be harmed.
func sandboxInit() error {
	cmdline, err := os.ReadFile("/proc/1/cmdline")
	if err != nil || !bytes.Contains(cmdline, []byte("toolfleet-sandbox")) {
		return cmpErr(err, errAnother)
	}
	return nil
}

// changeInit tries to change settings of the first process by each of its threads, if it is that of
// a sandbox.
func changeInit(change func(id int) error) canary.Verdict {
	if err := sandboxInit(); err != nil {
		return contained(err)
	}
	threads, err := os.ReadDir("/proc/1/task")
	if err != nil {
		return contained(err)
	}
	var last error
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name()) // it is one
		if last = change(id); last == nil {
			return escape("by its thread " + thread.Name())
		}
	}
	return contained(last)
}

func limitTo0(id int) error { return unix.Prlimit(id, unix.RLIMIT_MSGQUEUE, &unix.Rlimit{}, nil) }

func lowerPriority(id int) error { return unix.Setpriority(unix.PRIO_PROCESS, id, 19) }

func schedule(id int) error {
	return unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
}

// attach traces a process and lets it go.
func attach(pid int) error {
	err := unix.PtraceSeize(pid)
	if err == nil {
		_ = unix.PtraceDetach(pid)
	}
	return err
}

// targetProbes reach for the worker's process by system calls.
func targetProbes() map[string]probe {
	on := func(try func(h canary.Host) error) probe {
		return func(h canary.Host) canary.Verdict {
			err := try(h)
			if err == nil && !isWorker(h, h.Worker) {
				err = errAnother
			}
			return judge(err)
		}
	}
	return map[string]probe{
		"target/signal":    on(func(h canary.Host) error { return unix.Kill(h.Worker, unix.SIGCONT) }),
		"target/signal-0":  on(func(h canary.Host) error { return unix.Kill(h.Worker, 0) }),
		"target/ptrace":    on(func(h canary.Host) error { return attach(h.Worker) }),
		"target/pidfd":     on(func(h canary.Host) error { return pidfdSignal(h.Worker) }),
		"target/getfd":     on(getfd),
		"target/priority":  on(func(h canary.Host) error { return unix.Setpriority(unix.PRIO_PROCESS, h.Worker, 19) }),
		"target/affinity":  on(func(h canary.Host) error { return affinity(h.Worker) }),
		"target/rlimit":    on(func(h canary.Host) error { return rlimit(h.Worker) }),
		"target/vm-readv":  vmReadv,
		"target/vm-writev": vmWritev,
	}
}

func pidfdSignal(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
}

// getfd takes a descriptor out of the worker.
func getfd(h canary.Host) error {
	pidfd, err := unix.PidfdOpen(h.Worker, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, h.FD, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func affinity(pid int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		return err
	}
	return unix.SchedSetaffinity(pid, &set)
}

func rlimit(pid int) error {
	var limit unix.Rlimit
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
}

// vector is b, for calls that take several pieces of memory.
func vector(b []byte) []unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return []unix.Iovec{v}
}

func vmReadv(h canary.Host) canary.Verdict {
	return memory(h, func(b []byte) error {
		local := vector(b)
		_, err := unix.ProcessVMReadv(h.Worker, local, []unix.RemoteIovec{{Base: h.Address, Len: len(b)}}, 0)
		return err
	})
}

// vmWritev writes back what is there, the secret.
func vmWritev(h canary.Host) canary.Verdict {
	b := []byte(h.Secret)
	local := vector(b)
	_, err := unix.ProcessVMWritev(h.Worker, local, []unix.RemoteIovec{{Base: h.Address, Len: len(b)}}, 0)
	if err == nil && !isWorker(h, h.Worker) {
		err = errAnother
	}
	return judge(err)
}
