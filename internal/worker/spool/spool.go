// Package spool keeps the output of a command in the order written: in memory at first, then in an
// unnamed file of the worker.
//
//	memory ──► file: | head: the first 32 MiB | tail: a ring of 8 segments of 4 MiB |
//
// Of what does not fit, head and tail are kept, with a mark between them that says how many bytes
// are missing. Both streams of a command are in one spool, as frames that say whose bytes they
// have, and can be read together or apart.
package spool

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Sizes of a [Spool], in bytes.
const (
	// MaxStored is how much is kept, frames included: one half from the beginning, the other from
	// the end, less at most a segment.
	MaxStored = 64 << 20
	// memory is how much is written to the file at once; what is less needs none.
	memory = 256 << 10

	segment  = 4 << 20
	segments = MaxStored / segment
	ring     = segments / 2 // the first segment of the tail

	frameHead = 5 // stream (1 byte) | length (4)
)

// Spool keeps what one command writes. The zero value is not ready for use, see [New]. Its methods
// must not overlap.
type Spool struct {
	dir   string
	file  *os.File // nil while memory is enough
	named bool     // systems other than Unix remove no file that is open
	err   error    // the first one of the file: nothing is kept then

	buffer []byte // of the segment, not in the file yet
	frame  int    // where the last frame in the buffer begins; -1 when there is none
	at     int    // the segment that is written
	parts  [segments]part
	total  [2]int64 // bytes of each stream
}

// part is what a segment has.
type part struct {
	size int64    // of its frames, in the file
	has  [2]int64 // bytes of each stream, in the file or not
}

// New returns an empty spool with its file in dir.
func New(dir string) *Spool { return &Spool{dir: dir, frame: -1} }

// Write keeps some output. When it cannot, as on a full disk, [Spool.Err] says so.
func (s *Spool) Write(stream sandbox.Stream, data []byte) {
	s.total[stream-1] += int64(len(data))
	for len(data) > 0 && s.err == nil {
		room := segment - s.parts[s.at].size - int64(len(s.buffer)) - frameHead
		if room <= 0 {
			s.flush()
			s.nextSegment()
			continue
		}
		n := min(int64(len(data)), room)
		s.add(stream, data[:n])
		data = data[n:]
		if len(s.buffer) >= memory {
			s.flush()
		}
	}
}

// add puts output into the buffer: into its last frame if that is of the same stream.
func (s *Spool) add(stream sandbox.Stream, data []byte) {
	if s.frame < 0 || s.buffer[s.frame] != byte(stream) {
		s.frame = len(s.buffer)
		s.buffer = append(s.buffer, byte(stream), 0, 0, 0, 0)
	}
	s.buffer = append(s.buffer, data...)
	binary.BigEndian.PutUint32(s.buffer[s.frame+1:], uint32(len(s.buffer)-s.frame-frameHead)) //nolint:gosec // less than a segment
	s.parts[s.at].has[stream-1] += int64(len(data))
}

// flush writes the buffer to the file.
func (s *Spool) flush() {
	if len(s.buffer) == 0 || s.err != nil {
		return
	}
	if s.file == nil {
		if s.file, s.err = os.CreateTemp(s.dir, "output-"); s.err != nil {
			return
		}
		s.named = os.Remove(s.file.Name()) != nil // so it is gone however the worker ends
	}
	current := &s.parts[s.at]
	if _, s.err = s.file.WriteAt(s.buffer, int64(s.at)*segment+current.size); s.err != nil {
		return
	}
	current.size += int64(len(s.buffer))
	s.buffer, s.frame = s.buffer[:0], -1
}

// nextSegment begins another segment: an empty one, or the oldest of the tail.
func (s *Spool) nextSegment() {
	if s.at++; s.at == segments {
		s.at = ring
	}
	s.parts[s.at] = part{}
}

// Err says why nothing is kept; nil when something is.
func (s *Spool) Err() error { return s.err }

// Total is how many bytes were written to the streams, kept or not.
func (s *Spool) Total(streams ...sandbox.Stream) (n int64) {
	for _, stream := range streams {
		n += s.total[stream-1]
	}
	return n
}

// Missing is how many of those are not kept.
func (s *Spool) Missing(streams ...sandbox.Stream) int64 {
	n := s.Total(streams...)
	for _, stream := range streams {
		for _, p := range s.parts {
			n -= p.has[stream-1]
		}
	}
	return n
}

// Reader reads the kept output of some streams in the order written, with a mark where output is
// missing. Nothing may be written meanwhile.
func (s *Spool) Reader(streams ...sandbox.Stream) io.Reader {
	readers := []io.Reader{}
	for i := range ring {
		readers = append(readers, s.read(i, streams))
	}
	if missing := s.Missing(streams...); missing > 0 {
		readers = append(readers, strings.NewReader(fmt.Sprintf("\n[... %d bytes left out ...]\n", missing)))
	}
	const tail = segments - ring
	for i := range tail { // after the one that is written comes the oldest
		readers = append(readers, s.read(ring+(max(s.at-ring, 0)+1+i)%tail, streams))
	}
	return io.MultiReader(readers...)
}

// read reads the bytes of some streams in a segment.
func (s *Spool) read(at int, streams []sandbox.Stream) io.Reader {
	frames := []io.Reader{}
	if size := s.parts[at].size; size > 0 {
		frames = append(frames, io.NewSectionReader(s.file, int64(at)*segment, size))
	}
	if at == s.at {
		frames = append(frames, bytes.NewReader(s.buffer))
	}
	return &reader{frames: bufio.NewReader(io.MultiReader(frames...)), streams: streams}
}

// Close closes the file.
func (s *Spool) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if s.named {
		err = errors.Join(err, os.Remove(s.file.Name()))
	}
	return err
}

// reader is the bytes of some streams in frames.
type reader struct {
	frames  *bufio.Reader
	streams []sandbox.Stream
	left    int // of a frame
}

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) {
	for r.left == 0 {
		var head [frameHead]byte
		if _, err := io.ReadFull(r.frames, head[:]); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(head[1:]))
		if slices.Contains(r.streams, sandbox.Stream(head[0])) {
			r.left = size
		} else if _, err := r.frames.Discard(size); err != nil {
			return 0, err
		}
	}
	n, err := r.frames.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
