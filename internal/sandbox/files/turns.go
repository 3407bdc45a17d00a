package files

import "sync"

// turns lets one change at a time work on a file. Calls that name one file in one way come one
// after the other anyway; with symbolic links it has several names. It is safe for concurrent use.
type turns struct {
	mu    sync.Mutex
	files map[string]*turn // those that somebody changes or waits for
}

type turn struct {
	mu    sync.Mutex
	users int
}

// take waits until nobody else changes the file and returns what ends the turn.
func (t *turns) take(name string) (done func()) {
	t.mu.Lock()
	if t.files == nil {
		t.files = map[string]*turn{}
	}
	this := t.files[name]
	if this == nil {
		this = &turn{}
		t.files[name] = this
	}
	this.users++
	t.mu.Unlock()
	this.mu.Lock()
	return func() {
		this.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if this.users--; this.users == 0 {
			delete(t.files, name)
		}
	}
}
