// Command testsum runs commands that print what `go test -json` does, all at once, and shows what
// a person wants to know: a line for each package, all that failing tests wrote, which tests were
// skipped and why, which took longest, and a summary in the last line.
//
//	testsum go test -json ./... -- go test -race -json ./...
//
// It exits with 1 when a test or a package failed, when a command did, when nothing was tested,
// and, on Linux, when the tests left a process behind. Such processes are listed and killed. When
// it is interrupted, it kills all that it has started.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// maxLine bounds one line of input.
const maxLine = 16 << 20

// drainWait is for reading what a command has written before it ended.
const drainWait = 5 * time.Second

func main() {
	commands := split(os.Args[1:])
	if len(commands) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testsum COMMAND [ARGUMENT]... [-- COMMAND [ARGUMENT]...]...")
		os.Exit(2)
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	passed, err := runCommands(commands, os.Stdout, endWait, interrupts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if !passed || err != nil {
		os.Exit(1)
	}
}

// split returns the commands between "--".
func split(args []string) (commands [][]string) {
	begin := true
	for _, arg := range args {
		switch {
		case arg == "--":
			begin = true
		case begin:
			commands, begin = append(commands, []string{arg}), false
		default:
			last := len(commands) - 1
			commands[last] = append(commands[last], arg)
		}
	}
	return commands
}

// runCommands runs commands, writes the summary of their output to out, and gives what they leave
// behind a limit to end. An interrupt kills them all.
func runCommands(argvs [][]string, out io.Writer, limit time.Duration, interrupts <-chan os.Signal) (passed bool, err error) {
	if err := adopt(); err != nil {
		return false, err
	}
	sum := newSummary(out)
	var pipes []*os.File
	var commands []*exec.Cmd
	var reading sync.WaitGroup
	failed := make([]error, len(argvs))
	for n, argv := range argvs {
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
			killAll(descendants())
			return false, err
		}
		pipes, commands = append(pipes, in), append(commands, command)
		reading.Go(func() { failed[n] = sum.read(n, in) })
	}
	ended := make(chan error, 1)
	go func() { ended <- wait(commands) }()
	var interrupted error
	for ending := true; ending; {
		select {
		case s := <-interrupts:
			interrupted, limit = fmt.Errorf("stopped by signal %s", s), 0
			killAll(descendants())
		case err = <-ended:
			ending = false
		}
	}
	for _, in := range pipes {
		_ = in.SetReadDeadline(time.Now().Add(drainWait)) // what is left behind may have the other end
	}
	reading.Wait()
	passed = sum.finish()
	if n := left(out, limit); interrupted != nil {
		return false, interrupted
	} else if n > 0 {
		return false, fmt.Errorf("the tests left %d processes behind", n)
	}
	err = errors.Join(append(failed, err)...)
	if !passed {
		err = errors.Join(failed...) // that a command failed says nothing more
	}
	return passed && err == nil, err
}

// read adds what one of the commands writes.
func (s *summary) read(command int, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		e := event{command: command}
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			s.show(lines.Text()) // not of go test: shown as it is
			continue
		}
		s.add(e)
	}
	if err := lines.Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
