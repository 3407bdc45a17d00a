//go:build linux

package guard

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
)

// proc is a process as /proc describes it.
type proc struct{ pid, ppid, pgrp int }

// readProcs returns every process that /proc shows.
func readProcs() []proc {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	procs := make([]proc, 0, len(entries))
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if p, ok := parseStat(pid, stat); ok && err == nil {
			procs = append(procs, p)
		}
	}
	return procs
}

// parseStat reads /proc/PID/stat: a name, which may contain anything, the state, the parent and the
// group.
func parseStat(pid int, stat []byte) (proc, bool) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 3 {
		return proc{}, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	pgrp, err2 := strconv.Atoi(fields[2])
	return proc{pid: pid, ppid: ppid, pgrp: pgrp}, errors.Join(err1, err2) == nil
}
