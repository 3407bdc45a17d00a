//go:build linux

package bounds

import (
	"sync"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// shared is limits that the kernel has for all commands of a sandbox together. They are those of
// the sandbox, or of the command that runs, when that is the only one: a command may have tighter
// limits than its sandbox.
type shared struct {
	set func(sandbox.Limits) error // nil when the kernel bounds nothing

	mu      sync.Mutex // held by the caller of every method
	whole   sandbox.Limits
	running map[*part]struct{}
}

// part is a command under shared limits.
type part struct {
	limits sandbox.Limits
	alone  bool // no command has run beside it
}

// enter counts a command in, whose limits are tighter than those of the sandbox or the same.
func (s *shared) enter(limits sandbox.Limits) (*part, error) {
	p := &part{limits: limits, alone: true}
	if s.running == nil {
		s.running = map[*part]struct{}{}
	}
	s.running[p] = struct{}{}
	if len(s.running) > 1 {
		for other := range s.running {
			other.alone = false
		}
	}
	if err := s.apply(); err != nil {
		delete(s.running, p)
		return nil, err
	}
	return p, nil
}

// leave counts a command out.
func (s *shared) leave(p *part) {
	delete(s.running, p)
	_ = s.apply() // the limits that there were still hold
}

// only reports whether a command runs, and no other one does now.
func (s *shared) only(p *part) bool {
	_, runs := s.running[p]
	return runs && len(s.running) == 1
}

// apply has the kernel enforce the limits that hold now.
func (s *shared) apply() error {
	limits := s.whole
	if len(s.running) == 1 {
		for p := range s.running {
			limits = p.limits
		}
	}
	if s.set == nil {
		return nil
	}
	return s.set(limits)
}
