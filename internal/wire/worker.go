package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// WorkerInfo is what a worker says about itself.
type WorkerInfo = report.Worker

// ErrInvalidWorkerInfo is wrapped by every error of [DecodeWorkerInfo].
var ErrInvalidWorkerInfo = errors.New("invalid worker info")

const typeWorkerInfo = "worker_info"

// EncodeWorkerInfo returns the JSON body of what a worker says about itself.
func EncodeWorkerInfo(w *WorkerInfo) ([]byte, error) {
	return encode(typeWorkerInfo, w)
}

// DecodeWorkerInfo reads what [EncodeWorkerInfo] wrote. Errors wrap [ErrInvalidWorkerInfo].
func DecodeWorkerInfo(body []byte) (*WorkerInfo, error) {
	w, err := decode[WorkerInfo](body, typeWorkerInfo, ErrInvalidWorkerInfo)
	if err == nil && w.WorkerID == "" {
		err = fmt.Errorf("%w: worker_id: missing", ErrInvalidWorkerInfo)
	}
	if err != nil {
		return nil, err
	}
	return &w, nil
}

// HigherLevel returns the higher of two sandbox levels, of which "" is any. A word that is no
// level is higher than all, so that no worker takes it for less than was meant.
func HigherLevel(a, b string) string {
	rank := func(level string) int {
		if level != "" && !slices.Contains(Levels(), level) {
			return len(Levels())
		}
		return slices.Index(Levels(), level)
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// Levels returns the words of sandbox levels, least first.
func Levels() []string { return []string{"none", "paths", "full", "kernel"} }
