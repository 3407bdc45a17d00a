package journal

import "github.com/nats-io/nats.go/jetstream"

// ReadFrom has a journal read another stream.
func (j *Journal) ReadFrom(of func(jetstream.Stream) jetstream.Stream) { j.stream = of(j.stream) }
