//go:build linux

package ns

import (
	"io"
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
)

// link takes the frames of a sandbox's link for packets. One reads and one writes at a time.
type link struct {
	file    *os.File
	in, out []byte
}

// Read reads a packet, which has to have room in b.
func (l *link) Read(b []byte) (int, error) {
	if need := len(initd.LinkHeader) + len(b); len(l.in) < need {
		l.in = make([]byte, need)
	}
	n, err := l.file.Read(l.in)
	if err != nil {
		return 0, err
	}
	if n < len(initd.LinkHeader) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, l.in[len(initd.LinkHeader):n]), nil
}

// Write sends a packet.
func (l *link) Write(b []byte) (int, error) {
	l.out = append(append(l.out[:0], initd.LinkHeader...), b...)
	n, err := l.file.Write(l.out)
	return max(0, n-len(initd.LinkHeader)), err
}

// Close closes the link.
func (l *link) Close() error { return l.file.Close() }
