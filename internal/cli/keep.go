package cli

import (
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/natsio"
)

// Storage bounds what a fleet stores, as flags. Replicas and what is kept are those of a new fleet.
type Storage struct {
	Replicas   int           `default:"1" enum:"1,3,5" help:"Replicas of new streams: 1, 3 or 5."`
	StreamSize Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of the streams that workers fill, such as 20G, at least 1G, applied only when the fleet is created; 0 means 47G, and no limit for a stream that servers have no room for."`
	KeepAge    time.Duration `default:"0s" help:"Retention of full outputs of shortened results, applied only when the fleet is created; 0 means until their session is removed."`
	KeepSize   Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of full outputs, such as 50G, applied only when the fleet is created; 0 means 8G, or its part of --stream-size. When it is reached, no more outputs are stored."`
	ResultAge  time.Duration `default:"0s" help:"Retention of call results, 10m to 8760h. It also applies to an existing fleet: older results are removed at once. 0 means the fleet's setting, or 168h. A call that is sent again after its result is removed runs again."`
	ResultSize Size          `default:"0" placeholder:"SIZE" help:"Maximum total size of call results, such as 8G, at least 64M; the oldest are removed first. It also applies to an existing fleet. 0 means the fleet's setting, or 16G, or its part of --stream-size."`
}

// Bounds are the flags as [natsio.Topology] takes them.
func (s *Storage) Bounds() natsio.Storage {
	return natsio.Storage{
		Replicas: s.Replicas, StreamBytes: int64(s.StreamSize), KeepAge: s.KeepAge, KeepBytes: int64(s.KeepSize), ResultAge: s.ResultAge, ResultBytes: int64(s.ResultSize),
	}
}

// CheckStorage returns every fault of the flags, as one.
func (s *Storage) CheckStorage() error {
	bounds := s.Bounds()
	err := bounds.Validate()
	if err == nil {
		return nil
	}
	return Usagef("%s", strings.NewReplacer(
		"stream bytes", "--stream-size", "keep age", "--keep-age", "keep bytes", "--keep-size", "result age", "--result-age", "result bytes", "--result-size", "\n", "; ",
	).Replace(err.Error()))
}
