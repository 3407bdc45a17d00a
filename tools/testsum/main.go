// Command testsum runs a command that prints what `go test -json` does, and shows what a person
// wants to know: a line for each package, all that failing tests wrote, which tests were skipped
// and why, and a summary in the last line.
//
//	testsum go test -json ./...
//
// It exits with 1 when a test or a package failed, when the command did, when nothing was tested,
// and, on Linux, when the tests left a process behind. Such processes are listed and killed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// maxLine bounds one line of input.
const maxLine = 16 << 20

// drainWait is for reading what a command has written before it ended.
const drainWait = 5 * time.Second

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testsum COMMAND [ARGUMENT]...")
		os.Exit(2)
	}
	passed, err := runCommand(os.Args[1:], os.Stdout, endWait)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if !passed || err != nil {
		os.Exit(1)
	}
}

// runCommand runs a command, writes the summary of its output to out, and gives what it leaves
// behind a limit to end.
func runCommand(argv []string, out io.Writer, limit time.Duration) (passed bool, err error) {
	if err := adopt(); err != nil {
		return false, err
	}
	in, theirs, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer in.Close()
	command := exec.Command(argv[0], argv[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, theirs, os.Stderr
	err = command.Start()
	_ = theirs.Close() // the command has its own
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() {
		err := wait(command)
		_ = in.SetReadDeadline(time.Now().Add(drainWait)) // what is left behind may have the other end
		ended <- err
	}()
	passed, err = run(in, out, time.Now)
	failed := <-ended
	if n := left(out, limit); n > 0 {
		return false, fmt.Errorf("the tests left %d processes behind", n)
	}
	if passed {
		err = errors.Join(err, failed)
	}
	return passed && failed == nil, err
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
	if err = lines.Err(); errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	passed = sum.finish(now().Sub(start))
	return passed && err == nil, err
}
