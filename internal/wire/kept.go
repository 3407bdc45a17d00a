package wire

import "github.com/toolfleet/toolfleet/pkg/protocol"

// ResultRead reads the result of an earlier call of the same session, line by
// line. It touches no sandbox: its resources may be empty but for a lane of its own.
type ResultRead struct {
	CallID protocol.CallID `json:"call_id"`
	// Part is text (the content of a file, or one line for each entry of a list), stdout, stderr or
	// output (both, in the order written) of a command, media (an image or document, all of it), or
	// value (JSON). "" means output of a command, and text of anything else.
	Part string `json:"part,omitempty"`
	// Offset is the first line, from 1; 0 means 1.
	Offset int `json:"offset,omitempty"`
	// Column is the first byte of that line, from 1; 0 means 1.
	Column int64 `json:"column,omitempty"`
	// Limit is how many lines; 0 means as many as fit.
	Limit int `json:"limit,omitempty"`
}

// ResultReadResult answers [ResultRead].
type ResultReadResult struct {
	CallID protocol.CallID `json:"call_id"`
	Part   string          `json:"part"`
	// Content is lines, each whole, but that the first begins at FirstColumn, and ends before
	// its end when it alone is more than fits.
	Content protocol.Bytes `json:"content"`
	// Bytes is the size of the whole part.
	Bytes int64 `json:"bytes"`
	// FirstLine is the number of the first line in Content, from 1; 0 when there is none.
	FirstLine int `json:"first_line"`
	// FirstColumn is the number of its first byte in that line, from 1; 0 means 1.
	FirstColumn int64 `json:"first_column,omitempty"`
	// LineBytes is the size of the first line, without its line end.
	LineBytes  int64 `json:"line_bytes,omitempty"`
	Lines      int   `json:"lines"`
	TotalLines int   `json:"total_lines"`
	// Truncated says that the part itself is not kept whole.
	Truncated bool `json:"truncated,omitempty"`
}

// The parts of a result.
const (
	PartText   = "text"
	PartStdout = "stdout"
	PartStderr = "stderr"
	PartOutput = "output"
	PartMedia  = "media"
	PartValue  = "value"
)
