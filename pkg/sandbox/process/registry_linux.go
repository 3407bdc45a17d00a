package process

import "sync"

// registry knows the processes that this program started as commands, so that
// the orphans among its children can be told from them.
type registry struct {
	// starting is held shared from before a command is forked until it is known
	// here, and exclusively to handle children that nobody knows.
	starting sync.RWMutex

	mu      sync.Mutex
	mains   map[int]bool // commands that are not reaped
	trees   int          // commands that are not finished
	reaper  sync.Once
	reapErr error
}

// commands is one for the whole program, as is the kernel's list of its children.
var commands = registry{mains: make(map[int]bool)} //nolint:gochecknoglobals // see above

// start runs fork, which returns the id of a new command.
func (r *registry) start(fork func() (int, error)) error {
	r.starting.RLock()
	defer r.starting.RUnlock()
	r.count(1)
	pid, err := fork()
	if err != nil {
		r.count(-1)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mains[pid] = true
	return nil
}

// count adds n to the number of commands that are not finished.
func (r *registry) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trees += n
}

// reaped forgets a command that was waited for.
func (r *registry) reaped(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mains, pid)
}

// isMain reports whether pid is a command that is not reaped.
func (r *registry) isMain(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mains[pid]
}

// strangers calls handle while no command is being started. alone says that not
// more than one is unfinished.
func (r *registry) strangers(handle func(alone bool)) {
	r.starting.Lock()
	defer r.starting.Unlock()
	r.mu.Lock()
	alone := r.trees <= 1
	r.mu.Unlock()
	handle(alone)
}
