package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Limits are the limits of a worker's sandboxes, as flags. Calls can only tighten them.
type Limits struct {
	Wall      time.Duration `default:"0s" help:"Maximum run time of a command, whatever its call allows; 0 means no limit by the worker."`
	CPU       time.Duration `name:"cpu" default:"0s" help:"CPU time limit of one process; 0 means unlimited."`
	Memory    Size          `default:"0" placeholder:"SIZE" brief:"Memory limit of a sandbox, such as 2G." help:"Memory limit of a sandbox, such as 512M or 2G; 0 means unlimited."`
	Processes int64         `default:"0" help:"Limit of processes and threads in a sandbox; 0 means 1024."`
	OpenFiles int64         `default:"0" help:"Limit of open files of one process; 0 means 4096."`
	FileSize  Size          `default:"0" placeholder:"SIZE" help:"Size limit of a file that a command writes; 0 means unlimited."`
	Disk      Size          `default:"0" placeholder:"SIZE" help:"Disk space limit of a sandbox; 0 means unlimited."`
	Output    Size          `default:"0" placeholder:"SIZE" help:"Limit of each output stream in a result, 1K to 1M. Longer output is stored separately and ends no command. 0 means 128K."`
}

// Sandbox returns the limits, or every fault of the flags, joined.
func (l *Limits) Sandbox() (sandbox.Limits, error) {
	times := errors.Join(checkTime("--limit-wall", l.Wall), checkTime("--limit-cpu", l.CPU))
	limits := protocol.Limits{
		Memory: int64(l.Memory), Processes: l.Processes,
		OpenFiles: l.OpenFiles, FileSize: int64(l.FileSize), Disk: int64(l.Disk), Output: int64(l.Output),
	}
	if err := errors.Join(times, wire.ValidateLimits(limits)); err != nil {
		return sandbox.Limits{}, limitNames(err)
	}
	return sandbox.Limits{
		Wall: l.Wall, CPU: l.CPU, Memory: limits.Memory, Processes: limits.Processes,
		OpenFiles: limits.OpenFiles, FileSize: limits.FileSize, Disk: limits.Disk, Output: limits.Output,
	}, nil
}

// Warnings are what an operator should know of a driver with these capabilities, and which of the
// limits that were asked for it does not hold.
func Warnings(limits sandbox.Limits, caps isolation.Caps) []string {
	warnings := slices.Clone(caps.Warnings)
	var unheld []string
	for _, l := range []struct {
		flag  string
		asked bool
		kind  isolation.LimitKind
	}{
		{"--limit-cpu", limits.CPU > 0, caps.Limits.CPU},
		{"--limit-memory", limits.Memory > 0, caps.Limits.Memory},
		{"--limit-processes", limits.Processes > 0, caps.Limits.Processes},
		{"--limit-open-files", limits.OpenFiles > 0, caps.Limits.OpenFiles},
		{"--limit-file-size", limits.FileSize > 0, caps.Limits.FileSize},
		{"--limit-disk", limits.Disk > 0, caps.Limits.Disk},
	} {
		if l.asked && l.kind == isolation.LimitNone {
			unheld = append(unheld, l.flag)
		}
	}
	if len(unheld) > 0 {
		warnings = append(warnings, fmt.Sprintf("driver %s does not hold commands to %s", caps.Driver, strings.Join(unheld, ", ")))
	}
	return warnings
}

// checkTime refuses what calls could not ask for either, as the flag gives it.
func checkTime(flag string, value time.Duration) error {
	if value != 0 && (value < time.Millisecond || value > wire.MaxWall) {
		return fmt.Errorf("%s %s: must be 0 or %s to %s", flag, value, time.Millisecond, wire.MaxWall)
	}
	return nil
}

// limitNames turns faults that name fields of the wire into ones that name flags.
func limitNames(err error) error {
	text := strings.NewReplacer(
		"limits.", "--limit-", "_ms", "", "_bytes", "", "open_files", "open-files", "file_size", "file-size", " (the worker's own)", "",
	).Replace(err.Error())
	return Usagef("%s", strings.ReplaceAll(text, "\n", "; "))
}

// Size is a number of bytes, written with or without a unit: 512, 64K, 1.5G, 2GiB. The units
// are powers of 1024.
type Size int64

var errSize = errors.New("want a number of bytes, as in 4096, 64K, 512M or 1.5G")

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	number := strings.TrimSpace(string(text))
	upper := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(number), "B"), "I")
	factor := 1.0
	if at := strings.IndexAny("KMGT", upper[max(0, len(upper)-1):]); upper != "" && at >= 0 {
		factor = math.Pow(1024, float64(at+1))
		upper = upper[:len(upper)-1]
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(upper), 64)
	if err != nil || math.IsNaN(value) || value < 0 || value*factor >= math.MaxInt64 {
		return fmt.Errorf("%q: %w", number, errSize)
	}
	*s = Size(value * factor)
	return nil
}

// String returns the size with the largest unit of which it is a whole number.
func (s Size) String() string {
	for i, unit := range []string{"T", "G", "M", "K"} {
		if one := Size(1) << (10 * (4 - i)); s != 0 && s%one == 0 {
			return strconv.FormatInt(int64(s/one), 10) + unit
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
