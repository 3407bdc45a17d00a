package wire

import (
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FrameKind is the kind of a live frame of a running call.
type FrameKind string

// Every kind of frame.
const (
	FrameWaiting FrameKind = "waiting" // a worker has the call, which waits for what Data says
	FrameStarted FrameKind = "started" // a worker starts the call
	FrameStdout  FrameKind = "stdout"
	FrameStderr  FrameKind = "stderr"
	FrameEvent   FrameKind = "event" // of a turn: Data is a session event in JSON
)

// Frame is one live message of a running call. Frames may be lost or cut off;
// the result is the truth.
type Frame struct {
	CallID protocol.CallID `json:"call_id"`
	// Seq counts the frames of one attempt from 1: a gap shows that some were lost. It is 0 before
	// the attempt starts.
	Seq      uint64            `json:"seq"`
	Kind     FrameKind         `json:"kind"`
	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	Data     protocol.Bytes    `json:"data,omitempty"`
}

// ErrInvalidFrame is wrapped by every error of [DecodeFrame].
var ErrInvalidFrame = errors.New("invalid frame")

const typeFrame = "frame"

// EncodeFrame returns the JSON body of a frame.
func EncodeFrame(f *Frame) ([]byte, error) {
	return encode(typeFrame, f)
}

// DecodeFrame reads what [EncodeFrame] wrote. A kind that it does not know is
// fine: whoever looks at frames skips those. Errors wrap [ErrInvalidFrame].
func DecodeFrame(body []byte) (*Frame, error) {
	f, err := decode[Frame](body, typeFrame, ErrInvalidFrame)
	if err != nil {
		return nil, err
	}
	if _, err := protocol.ParseCallID(string(f.CallID)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidFrame, err)
	}
	return &f, nil
}
