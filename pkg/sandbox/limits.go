package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Limits bound a command, or all of a sandbox; zero values mean the documented default, and where
// there is none, no limit. Negative values are refused, see [Limits.Validate]. What a driver really
// enforces, and how, is in [Caps].Limits; a limit that it cannot enforce is ignored and published
// as such.
type Limits struct {
	// Wall is the longest run; 0 is bounded by the context only.
	Wall time.Duration
	// CPU is how much processor time one process may use, in whole seconds; with a
	// fraction it is rounded up. A process that uses more is killed.
	CPU time.Duration
	// Memory is how many bytes the processes of a sandbox may hold together. A command
	// that is killed for it ends with [ReasonOOM]. Shared memory is limited to half of it.
	Memory int64
	// Processes is how many processes and threads a sandbox may have at once; 0 means
	// [DefaultProcesses]. The next fork fails.
	Processes int64
	// OpenFiles is how many files a process may have open; 0 means [DefaultOpenFiles].
	OpenFiles int64
	// FileSize is how big a file may become, in bytes. The write fails, and the process
	// gets SIGXFSZ.
	FileSize int64
	// Disk is how many bytes workspace and scratch may take up together. Under a quota
	// ([LimitQuota]) the write fails, and there may be one file for each 4 KiB, at least 1,024;
	// otherwise the command is killed. A command that fails or is killed for it ends with
	// [ReasonDiskLimit].
	Disk int64
	// Output is how many bytes of each stream are kept, head and tail; 0 means
	// [DefaultOutput]. A command may write as much as it likes.
	Output int64
	// Grace is the time between SIGTERM and SIGKILL; 0 means [DefaultGrace].
	Grace time.Duration
}

// Defaults of [Limits].
const (
	DefaultProcesses = 1024
	DefaultOpenFiles = 4096
	DefaultOutput    = 128 << 10
	DefaultGrace     = 2 * time.Second
)

// Validate reports every limit that is negative, joined, by the name of its field. Drivers open no
// sandbox and run no command with such limits: the error is a *[protocol.Error].
func (l Limits) Validate() error {
	var faults []error
	for _, limit := range []struct {
		name     string
		value    any
		negative bool
	}{
		{"Wall", l.Wall, l.Wall < 0},
		{"CPU", l.CPU, l.CPU < 0},
		{"Memory", l.Memory, l.Memory < 0},
		{"Processes", l.Processes, l.Processes < 0},
		{"OpenFiles", l.OpenFiles, l.OpenFiles < 0},
		{"FileSize", l.FileSize, l.FileSize < 0},
		{"Disk", l.Disk, l.Disk < 0},
		{"Output", l.Output, l.Output < 0},
		{"Grace", l.Grace, l.Grace < 0},
	} {
		if limit.negative {
			faults = append(faults, fmt.Errorf("sandbox.Limits.%s %v: must be 0 (the default) or more", limit.name, limit.value))
		}
	}
	return errors.Join(faults...)
}

// Tighten returns l where each limit that by sets lower is lowered to it.
func (l Limits) Tighten(by Limits) Limits {
	return Limits{
		Wall:      tighter(l.Wall, by.Wall),
		CPU:       tighter(l.CPU, by.CPU),
		Memory:    tighter(l.Memory, by.Memory),
		Processes: tighter(l.Processes, by.Processes),
		OpenFiles: tighter(l.OpenFiles, by.OpenFiles),
		FileSize:  tighter(l.FileSize, by.FileSize),
		Disk:      tighter(l.Disk, by.Disk),
		Output:    tighter(l.Output, by.Output),
		Grace:     tighter(l.Grace, by.Grace),
	}
}

// WithDefaults returns l with the documented defaults in place of zero values, and zero
// in place of negative ones that have none.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Wall:      max(l.Wall, 0),
		CPU:       max(l.CPU, 0),
		Memory:    max(l.Memory, 0),
		Processes: cmp.Or(max(l.Processes, 0), DefaultProcesses),
		OpenFiles: cmp.Or(max(l.OpenFiles, 0), DefaultOpenFiles),
		FileSize:  max(l.FileSize, 0),
		Disk:      max(l.Disk, 0),
		Output:    cmp.Or(max(l.Output, 0), DefaultOutput),
		Grace:     cmp.Or(max(l.Grace, 0), DefaultGrace),
	}
}

// tighter returns the smaller of two limits, where 0 and less is none.
func tighter[T ~int64](a, b T) T {
	if b > 0 && (a <= 0 || b < a) {
		return b
	}
	return a
}
