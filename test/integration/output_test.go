package integration

import (
	"regexp"
	"strings"
	"sync"
)

// output is what a process has written so far. It is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // closed and replaced at every write
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

// String is everything that was written.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find looks for a pattern; without a match it returns a channel that is closed
// when there is more to look at.
func (o *output) find(pattern *regexp.Regexp) (match []string, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return pattern.FindStringSubmatch(o.text.String()), o.changed
}
