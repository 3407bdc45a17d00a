package background

// KeepBytes is how much of a process's output is kept, from its end.
const KeepBytes = 256 << 10

// ring is the end of a stream of bytes. It is not safe for concurrent use.
type ring struct {
	data []byte
	base int64 // where data begins in the stream
}

func (r *ring) write(p []byte) {
	r.data = append(r.data, p...)
	if len(r.data) >= 2*KeepBytes { // half of the time nothing is moved
		r.trim()
	}
}

// trim drops all but the last KeepBytes.
func (r *ring) trim() {
	if drop := len(r.data) - KeepBytes; drop > 0 {
		r.base += int64(drop)
		r.data = append(r.data[:0], r.data[drop:]...)
	}
}

func (r *ring) total() int64 { return r.base + int64(len(r.data)) }

// read returns up to limit bytes from offset on, negative from the end, and where they begin.
func (r *ring) read(offset, limit int64) ([]byte, int64) {
	r.trim()
	if offset < 0 {
		offset += r.total()
	}
	offset = min(max(offset, r.base), r.total())
	data := r.data[offset-r.base:]
	return append([]byte(nil), data[:min(limit, int64(len(data)))]...), offset
}
