package files

import "github.com/toolfleet/toolfleet/internal/sandbox/isolation"

// room is how much more an operation may return of what it finds: it finds all, and
// returns the first that fit.
type room struct{ entries, bytes int }

// newRoom is room for limit entries; 0 and less is as many as may be returned at all.
func newRoom(limit int) room {
	r := room{entries: isolation.MaxFound, bytes: isolation.MaxFoundBytes}
	if limit > 0 {
		r.entries = min(r.entries, limit)
	}
	return r
}

// take takes room for an entry of so many bytes, and reports whether there was any.
// Once there was not, there is none for those that follow.
func (r *room) take(bytes int) bool {
	if r.entries < 1 || r.bytes < bytes {
		r.entries = 0
		return false
	}
	r.entries--
	r.bytes -= bytes
	return true
}
