package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// prompt asks on a terminal. Its questions must not overlap.
type prompt struct {
	say     func(string)
	flush   func() // drops what was typed and not read
	input   *clockedReader
	buffer  *bufio.Reader // of input
	lines   chan typed
	reading bool // a line is being read; it outlives a question that needs no answer
}

// typed is a line, and when the last of it was read.
type typed struct {
	text string
	at   time.Time
	err  error
}

// newPrompt returns nil when standard input is no terminal.
func newPrompt(p program, say func(string)) *prompt {
	file, isFile := p.Stdin.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	input := &clockedReader{Reader: file}
	return &prompt{
		say: say, flush: func() { dropTyped(file) }, input: input, buffer: bufio.NewReader(input), lines: make(chan typed, 1),
	}
}

// clockedReader notes when it last read something.
type clockedReader struct {
	io.Reader

	last time.Time
}

// Read implements [io.Reader].
func (r *clockedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.last = time.Now()
	return n, err
}

var errNoInput = errors.New("the standard input has ended")

// approve asks until there is an answer. Anything but yes is no. What is said beyond that
// is told to the model. What was typed before the question does not count.
func (q *prompt) approve(ctx context.Context, request loop.ApprovalRequest) (loop.Approval, error) {
	if !q.reading {
		q.buffer.Reset(q.input)
	}
	q.flush()
	asked := time.Now()
	q.say(fmt.Sprintf("%s: %s %s", request.Reason, request.Tool, shortened(request.Arguments)))
	q.say("Allow it? y for yes, \"y: ...\" to add something; anything else is no, and is told to the model:")
	for {
		q.read()
		select {
		case line := <-q.lines:
			q.reading = false
			switch {
			case line.err != nil:
				return loop.Approval{}, errNoInput
			case line.at.After(asked):
				return answerOf(line.text), nil
			}
		case <-ctx.Done():
			q.say("No answer is needed any more.")
			return loop.Approval{}, context.Cause(ctx)
		}
	}
}

// read begins to read a line, unless that has begun: nothing can interrupt the read of a
// terminal, so it may last until the process ends.
func (q *prompt) read() {
	if q.reading {
		return
	}
	q.reading = true
	go func() {
		text, err := q.buffer.ReadString('\n')
		q.lines <- typed{text, q.input.last, err}
	}()
}

func answerOf(line string) loop.Approval {
	answer := strings.TrimSpace(line)
	word, note, _ := strings.Cut(answer, ":")
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "y", "yes":
		return loop.Approval{Granted: true, By: userName(), Note: strings.TrimSpace(note)}
	case "", "n", "no":
		return loop.Approval{By: userName(), Note: strings.TrimSpace(note)}
	default:
		return loop.Approval{By: userName(), Note: answer}
	}
}

// shortened is a text that fits a few lines of a terminal.
func shortened(text string) string {
	const most = 1000
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + fmt.Sprintf(" [... and %d more characters]", len(runes)-most)
	}
	return text
}

// userName is who answers, for the audit log.
func userName() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return ""
}
