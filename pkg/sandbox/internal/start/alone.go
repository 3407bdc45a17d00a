package start

import "sync"

var starting sync.Mutex //nolint:gochecknoglobals // what a process's children inherit, it has once

// Alone calls f, which starts a child of this process, and no other such function meanwhile. Drivers start all
// their children so: one may mark those of its own by something that every child inherits which is started at that time. It is
// safe for concurrent use.
func Alone(f func() error) error {
	starting.Lock()
	defer starting.Unlock()
	return f()
}
