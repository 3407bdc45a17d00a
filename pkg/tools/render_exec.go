package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// executionText is what a process wrote and how it ended: stdout as it is, stderr
// under a mark, and a line in brackets for each thing that is not as usual.
func executionText(e *protocol.Execution) string {
	stdout, stderr := share(plainText(string(e.Stdout)), plainText(string(e.Stderr)), bodyLimit)
	var b strings.Builder
	b.WriteString(stdout)
	if stderr != "" {
		text := ended(b.String()) + "[stderr]\n" + stderr
		b.Reset()
		b.WriteString(text)
	}
	marks := endMarks(e)
	if e.Truncated {
		marks = append(marks, fmt.Sprintf("[output was cut: stdout had %s, stderr %s; send it to a file and read that, or filter it]",
			plural(e.StdoutBytes, "byte"), plural(e.StderrBytes, "byte")))
	}
	if len(marks) == 0 {
		if b.Len() == 0 {
			return "[no output; exit code 0]"
		}
		return b.String()
	}
	return ended(b.String()) + strings.Join(marks, "\n")
}

// endMarks says how a process ended, when it is not by itself and with 0.
func endMarks(e *protocol.Execution) []string {
	var marks []string
	switch e.Reason {
	case "timeout":
		marks = append(marks, "[stopped: it ran out of its time]")
	case "oom":
		marks = append(marks, "[killed: it ran out of memory]")
	case "output_limit":
		marks = append(marks, "[killed: it wrote too much output]")
	case "disk_limit":
		marks = append(marks, "[killed: it used too much disk]")
	case "cancelled":
		marks = append(marks, "[stopped: the call was cancelled]")
	case "sandbox_lost":
		marks = append(marks, "[lost: its sandbox went away]")
	}
	switch {
	case e.Signal != "":
		marks = append(marks, "[ended by signal "+e.Signal+"]")
	case e.ExitCode != 0:
		marks = append(marks, fmt.Sprintf("[exit code %d]", e.ExitCode))
	}
	return marks
}

// share cuts two texts so that both together have at most limit characters. What
// one leaves of its half, the other may use.
func share(a, b string, limit int) (first, second string) {
	lenA, lenB := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	half := limit / 2
	return clip(a, max(half, limit-lenB)), clip(b, max(half, limit-lenA))
}
