package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// maxEnviron is how much of an environment is looked at, in bytes.
const maxEnviron = 4 << 20

// proc is a process as /proc describes it.
type proc struct {
	pid, ppid, pgrp, session int

	state byte
	start uint64 // in ticks since boot; with pid it names a process for good
}

// ended reports whether p only waits for being reaped. A process whose first
// thread has ended while others run looks the same.
func (p proc) ended() bool { return p.state == 'Z' || p.state == 'X' }

// readProcs returns every process that /proc shows, in the order of ids.
func readProcs() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	procs := make([]proc, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			procs = append(procs, p)
		}
	}
	return procs, nil
}

// readProc returns one process; ok is false when it does not exist.
func readProc(pid int) (p proc, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	return parseStat(pid, stat)
}

// Positions in /proc/PID/stat, counted after the command's name, which may contain anything.
const (
	statState = iota
	statPPID
	statPgrp
	statSession
	statStart = 19
)

func parseStat(pid int, stat []byte) (proc, bool) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= statStart {
		return proc{}, false
	}
	ppid, err1 := strconv.Atoi(fields[statPPID])
	pgrp, err2 := strconv.Atoi(fields[statPgrp])
	session, err3 := strconv.Atoi(fields[statSession])
	start, err4 := strconv.ParseUint(fields[statStart], 10, 64)
	if errors.Join(err1, err2, err3, err4) != nil {
		return proc{}, false
	}
	return proc{
		pid: pid, ppid: ppid, pgrp: pgrp, session: session,
		state: fields[statState][0], start: start,
	}, true
}

// markOf returns the value of [MarkVar] in the environment that a process started
// with; "" when it has none, or cannot be looked at.
func markOf(pid int) string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	defer file.Close()
	env, err := io.ReadAll(io.LimitReader(file, maxEnviron))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(MarkVar+"=")); ok {
			return string(value)
		}
	}
	return ""
}
