// Package pause waits: for time to pass, or until something that is tried again and again succeeds.
// Each wait ends with its context.
package pause

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// Retry is the pause between two tries of a request that failed.
	Retry = 100 * time.Millisecond
	// Resume is the pause between two tries of a whole operation, whose requests were tried often
	// enough.
	Resume = time.Second
)

// For waits for d and reports true, or reports false as soon as ctx has ended. With a d of 0 or
// less it waits for nothing, and reports whether ctx has not ended.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Until calls try until it reports true, with a pause of d between two calls. It reports false if
// ctx ends first; a call that has begun is waited for.
func Until(ctx context.Context, d time.Duration, try func() bool) bool {
	for !try() {
		if !For(ctx, d) {
			return false
		}
	}
	return true
}

// Accept serves the connections of a listener, so many at once, while further ones wait. It returns
// when ctx has ended, the listener was closed, and the last connection was served.
func Accept(ctx context.Context, l net.Listener, most int, serve func(net.Conn)) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, most)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-slots
			if !For(ctx, Retry) {
				return
			}
			continue
		}
		work.Go(func() {
			defer func() { <-slots }()
			serve(conn)
		})
	}
}

// Mutex is a [sync.Mutex] that may be held during requests. A goroutine that waits for it waits in
// the sense of [testing/synctest], whose time stands still for a goroutine that waits for a
// [sync.Mutex]. The zero value is unlocked.
type Mutex struct {
	mu     sync.Mutex
	locked bool
	freed  *sync.Cond // nil until a goroutine has waited
}

// Lock waits until the mutex is unlocked, and locks it.
func (m *Mutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.locked {
		if m.freed == nil {
			m.freed = sync.NewCond(&m.mu)
		}
		m.freed.Wait()
	}
	m.locked = true
}

// TryLock locks the mutex if it is unlocked, and reports whether it was.
func (m *Mutex) TryLock() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.locked
	m.locked = true
	return !was
}

// Unlock unlocks the mutex.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked = false
	if m.freed != nil {
		m.freed.Signal()
	}
}
