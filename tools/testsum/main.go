// Command testsum reads the output of `go test -json` from standard input and
// shows what a person wants to know: a line for each package, all that failing
// tests wrote, which tests were skipped and why, and a summary in the last line.
//
//	go test -json ./... | testsum
//
// It exits with 1 when a test or a package failed, or when nothing was tested.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// maxLine bounds one line of input.
const maxLine = 16 << 20

func main() {
	passed, err := run(os.Stdin, os.Stdout, time.Now)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if !passed {
		os.Exit(1)
	}
}

// run writes the summary of in to out and reports whether everything passed.
func run(in io.Reader, out io.Writer, now func() time.Time) (passed bool, err error) {
	start := now()
	sum := newSummary(out)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			fmt.Fprintln(out, lines.Text()) // not of go test: shown as it is
			continue
		}
		sum.add(e)
	}
	passed = sum.finish(now().Sub(start))
	return passed && lines.Err() == nil, lines.Err()
}
