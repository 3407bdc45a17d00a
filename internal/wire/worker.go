package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// WorkerInfo is what a worker says about itself when it is asked: what it can do, as
// far as it has proven it, and within which limits. It is for people and programs that
// look at a fleet; who gets a call does not depend on it.
type WorkerInfo struct {
	WorkerID protocol.WorkerID `json:"worker_id"`
	Pool     protocol.Pool     `json:"pool"`
	// Build is the version of its program, as --version prints it; "" when it does not say.
	Build string `json:"build,omitempty"`
	// Slots is how many calls run at once, HeldLanes how many lanes it holds right now.
	Slots     int `json:"slots"`
	HeldLanes int `json:"held_lanes"`
	// Driver is the sandbox driver and Launcher how it gets its namespaces, if it has any.
	Driver   string `json:"driver"`
	Launcher string `json:"launcher,omitempty"`
	// Level is what the driver has proven: none, paths, full or kernel.
	Level string `json:"level"`
	// Network is what sandboxes reach: none, proxy (listed hosts) or all.
	Network string `json:"network"`
	// ReadOnly says that read-only commands are enforced, and so accepted.
	ReadOnly bool `json:"read_only"`
	// LimitKinds says by what each limit is enforced, as in [protocol.Execution].
	LimitKinds map[string]string `json:"limit_kinds,omitempty"`
	// Limits are the worker's own, which calls can only tighten; 0 is none, or the driver's
	// default.
	Limits protocol.Limits `json:"limits,omitzero"`
	// Languages are those of code_run, sorted; Kinds the payloads of users' handlers, sorted.
	Languages []string        `json:"languages"`
	Kinds     []protocol.Kind `json:"kinds,omitempty"`
	// Models are those that a coordinator serves, sorted; coordinators are the workers of the pool
	// "session".
	Models []string `json:"models,omitempty"`
}

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
