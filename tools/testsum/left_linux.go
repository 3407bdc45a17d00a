package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endWait is for processes that notice by themselves that their tests are over.
const endWait = 20 * time.Second

// killWait is for processes that are killed.
const killWait = 10 * time.Second

// adopt has the kernel give this process what its descendants leave behind. So it knows what
// belongs to this run, whatever else runs on the machine.
func adopt() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", errno)
	}
	return nil
}

// wait waits for commands, and meanwhile reaps what is adopted.
func wait(commands []*exec.Cmd) (err error) {
	running := map[int]string{}
	for _, command := range commands {
		running[command.Process.Pid] = command.Path
	}
	for len(running) > 0 {
		var status syscall.WaitStatus
		pid, waited := syscall.Wait4(-1, &status, 0, nil)
		path, ours := running[pid]
		switch {
		case errors.Is(waited, syscall.EINTR):
			continue
		case waited != nil:
			return errors.Join(err, fmt.Errorf("wait: %w", waited))
		case ours && status.Signaled():
			err = errors.Join(err, fmt.Errorf("%s: %s", path, status.Signal()))
		case ours && status.ExitStatus() != 0:
			err = errors.Join(err, fmt.Errorf("%s: exit status %d", path, status.ExitStatus()))
		}
		delete(running, pid)
	}
	return err
}

// left lists the processes that there still are after limit, kills them, and returns how many there
// were.
func left(out io.Writer, limit time.Duration) int {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if reap() {
			return 0
		}
	}
	all := descendants()
	if len(all) == 0 {
		return 0
	}
	fmt.Fprintf(out, "\nProcesses that the tests left behind, killed now:\n")
	for _, p := range all {
		fmt.Fprintf(out, "  %d (parent %d, state %s): %s\n", p.pid, p.parent, p.state, p.line)
	}
	killAll(all)
	for deadline := time.Now().Add(killWait); !reap() && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		killAll(descendants()) // what they have started since
	}
	return len(all)
}

func killAll(processes []process) {
	for _, p := range processes {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended
	}
}

// processorTime says how many seconds of processors what has ended has used.
func processorTime() string {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used) != nil {
		return ""
	}
	return fmt.Sprintf(", %ds of processors", used.Utime.Sec+used.Stime.Sec)
}

// reap reaps what has ended, and reports whether nothing is left.
func reap() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			return true
		}
		if err != nil || pid == 0 {
			return false
		}
	}
}

// process is one, with its command line.
type process struct {
	pid, parent int
	state, line string
}

// descendants are the processes that this one has started or adopted, and theirs.
func descendants() []process {
	children := map[int][]process{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile("/proc/" + entry.Name() + "/stat")
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, ...
		if len(fields) < 2 || fields[0] == "Z" {
			continue // it has ended
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], process{pid, parent, fields[0], strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))})
	}
	var all []process
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			all = append(all, p)
			next = append(next, p.pid)
		}
	}
	return all
}
