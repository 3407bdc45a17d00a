package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// Storage bounds what a fleet stores, as flags.
type Storage struct {
	Replicas int     `default:"1" enum:"1,3,5" help:"Replicas of new streams: 1, 3 or 5."`
	Stream   Stream  `embed:"" prefix:"stream-"`
	Keep     Keep    `embed:"" prefix:"keep-"`
	Results  Results `embed:"" prefix:"result-"`
}

// CheckStorage returns the errors of the flags.
func (s *Storage) CheckStorage() error {
	return errors.Join(s.Stream.Validate(), s.Keep.Validate(), s.Results.Validate())
}

// Bounds are the flags as [natsio.Topology] takes them.
func (s *Storage) Bounds() natsio.Storage {
	return natsio.Storage{
		Replicas: s.Replicas, StreamBytes: int64(s.Stream.Size), KeepAge: s.Keep.Age, KeepBytes: int64(s.Keep.Size), ResultAge: s.Results.Age, ResultBytes: int64(s.Results.Size),
	}
}

// Stream bounds the streams that workers fill, as flags.
type Stream struct {
	Size Size `default:"0" placeholder:"SIZE" help:"Maximum total size of the streams that workers fill, such as 20G, at least 1G, applied only when the fleet is created; 0 means 47G, and no limit for a stream that servers have no room for."`
}

// Validate returns the error of the flag.
func (s *Stream) Validate() error {
	if s.Size != 0 && s.Size < natsio.MinStreamBytes {
		return Usagef("--stream-size %d: must be 0 or at least 1G", int64(s.Size))
	}
	return nil
}

// Keep bounds what a fleet keeps of results that models were not shown whole, as flags. Like
// replicas they are of what does not exist yet.
type Keep struct {
	Age  time.Duration `default:"0s" help:"Retention of full outputs of shortened results, applied only when the fleet is created; 0 means until their session is removed."`
	Size Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of full outputs, such as 50G, applied only when the fleet is created; 0 means 8G, or its part of --stream-size. When it is reached, no more outputs are stored."`
}

// Validate returns the fault of the flags.
func (k *Keep) Validate() error {
	if k.Age != 0 && k.Age < time.Second {
		return Usagef("--keep-age %s: must be 0 or at least 1s", k.Age)
	}
	return nil
}

// Results bound the stream of results, as flags.
type Results struct {
	Age  time.Duration `default:"0s" help:"Retention of call results, 10m to 8760h. It also applies to an existing fleet: older results are removed at once. 0 means the fleet's setting, or 168h. A call that is sent again after its result is removed runs again."`
	Size Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of call results, such as 8G, at least 64M; the oldest are removed first. It also applies to an existing fleet. 0 means the fleet's setting, or 16G, or its part of --stream-size."`
}

// Validate returns every fault of the flags, as one.
func (r *Results) Validate() error {
	var faults []string
	if r.Age != 0 && (r.Age < natsio.MinResultAge || r.Age > natsio.MaxResultAge) {
		faults = append(faults, fmt.Sprintf("--result-age %s: must be 0 or 10m to 8760h", r.Age))
	}
	if r.Size != 0 && r.Size < natsio.MinResultSize {
		faults = append(faults, fmt.Sprintf("--result-size %d: must be 0 or at least 64M", int64(r.Size)))
	}
	if len(faults) > 0 {
		return Usagef("%s", strings.Join(faults, "; "))
	}
	return nil
}
