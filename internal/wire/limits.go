package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of [protocol.Limits]: no command makes sense outside of them.
const (
	MaxWall      = 7 * 24 * time.Hour
	minMemory    = 1 << 20
	MinOutput    = 1 << 10
	maxOutput    = 1 << 20
	minOpenFiles = 8
)

// ValidateLimits reports every limit that is out of bounds, joined, by its name on the wire.
func ValidateLimits(l protocol.Limits) error {
	const most = 1 << 50
	var faults []error
	check := func(name string, value, least, greatest int64) {
		if value != 0 && (value < least || value > greatest) {
			faults = append(faults, fmt.Errorf("limits.%s %d: must be 0 (the worker's own) or %d to %d", name, value, least, greatest))
		}
	}
	check("wall_ms", int64(l.Wall), 1, int64(protocol.MillisOf(MaxWall)))
	check("cpu_ms", int64(l.CPU), 1, int64(protocol.MillisOf(MaxWall)))
	check("memory_bytes", l.Memory, minMemory, most)
	check("processes", l.Processes, 1, 1<<22)
	check("open_files", l.OpenFiles, minOpenFiles, 1<<20)
	check("file_size_bytes", l.FileSize, 1, most)
	check("disk_bytes", l.Disk, 1, most)
	check("output_bytes", l.Output, MinOutput, maxOutput)
	return errors.Join(faults...)
}
