// Package prompt asks the person at this terminal: for approvals, for answers to a running tool,
// and for the next message of a conversation.
//
//	Prompt.Approve   whether a tool call may be made: one line
//	Prompt.Fill      what a running tool asks: a form, one line a field
//	Editor.Read      the next message of a conversation, with history and completion
//	Editor.Meanwhile a message while a turn runs; a question takes the terminal from it
//	Answers          passes the questions of a fleet to a Prompt, and sends the answers back
//
// A terminal has one keyboard: what was typed before a question was shown never answers it.
package prompt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Prompt asks on a terminal, one question at a time.
type Prompt struct {
	screen *terminal.View
	keys   *keyboard
	files  Files
	always map[string]bool // calls that were allowed for the whole session
	asking chan struct{}   // holds one token while a question is shown, or a message is typed
	wanted chan struct{}   // asks the editor for the terminal: received while a message is typed
}

// Files returns how to read the current content of a workspace's files, for the difference that a
// question shows; nil if they are unknown.
type Files func(ctx context.Context) func(path string) ([]byte, bool)

// New returns nil unless stdin is a terminal.
func New(stdin io.Reader, screen *terminal.View, files Files) *Prompt {
	file, isFile := stdin.(*os.File)
	if !isFile || !terminal.IsTerminal(file) {
		return nil
	}
	return &Prompt{screen: screen, keys: newKeyboard(file), files: files, always: map[string]bool{}, asking: make(chan struct{}, 1), wanted: make(chan struct{})}
}

// ask shows a question and reads a line that was typed after it.
func (q *Prompt) ask(ctx context.Context, question terminal.Question) (string, error) {
	asked := q.keys.discard()
	answered := q.screen.Ask(question)
	line, err := q.keys.line(ctx, asked)
	answered()
	if ctx.Err() != nil {
		q.screen.Notice("No answer is needed any more.")
		return "", context.Cause(ctx)
	}
	return line, err
}

// begin waits until no other question is shown, and no message is typed: the editor leaves the
// terminal to questions. It may be back before the question has the terminal; it then leaves again.
func (q *Prompt) begin(ctx context.Context) (end func(), err error) {
	for {
		select {
		case q.asking <- struct{}{}:
			return func() { <-q.asking }, nil
		case q.wanted <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// yieldTime is more than the editor needs to leave the terminal.
const yieldTime = 5 * time.Second

var errNoInput = errors.New("the standard input has ended")

// Approve asks whether a call may be made. Any answer but yes refuses it, and is passed on to the
// model. If it had to wait for another question, the error wraps [loop.ErrAskAgain].
func (q *Prompt) Approve(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	kind, scope := loop.ScopeOf(request.Tool, request.Arguments)
	if q.always[kind] {
		q.screen.Notice("allowed as before: %s", scope)
		return protocol.Approval{Granted: true, By: UserName(), Via: "terminal"}, nil
	}
	begun := time.Now()
	end, err := q.begin(ctx)
	if err != nil {
		return protocol.Approval{}, fmt.Errorf("%w: %w", loop.ErrAskAgain, err)
	}
	defer end()
	if time.Since(begun) > yieldTime { // the time passed in another question
		return protocol.Approval{}, loop.ErrAskAgain
	}
	line, err := q.ask(ctx, terminal.Question{
		Reason: request.Reason, Tool: request.Tool, Arguments: request.Arguments, Old: q.files(ctx),
		Answers: "Allow it? y: yes. a: always in this session, " + scope + ". \"y: ...\" adds a note; anything else is no, and the model reads it:",
	})
	if err != nil {
		return protocol.Approval{}, err
	}
	answer, always := parseAnswer(line)
	if always {
		q.always[kind] = true
	}
	return answer, nil
}

// FilesOf reads the files of a directory; "" is none.
func FilesOf(dir string) Files {
	return func(context.Context) func(string) ([]byte, bool) {
		if dir == "" {
			return nil
		}
		return func(path string) ([]byte, bool) { return textIn(dir, path) }
	}
}

func textIn(dir, path string) ([]byte, bool) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, false
	}
	defer func() { _ = root.Close() }() // nothing was written
	content, err := regular.ReadIn(root, path, maxShownFile)
	return content, err == nil && !bytes.ContainsRune(content, 0)
}

// StoredFiles reads the files of a session's last checkpoint. They are unknown if workers store
// none, or the rights do not reach.
func StoredFiles(client *fleet.Client, session protocol.SessionID) Files {
	return func(ctx context.Context) func(string) ([]byte, bool) {
		all := client.Sessions("")
		files, err := all.Files(ctx, session, "")
		if err != nil {
			return nil
		}
		sizes := make(map[string]int64, len(files))
		for _, file := range files {
			if file.Type == protocol.TypeFile {
				sizes[file.Path] = file.Size
			}
		}
		return func(name string) ([]byte, bool) {
			name = path.Clean(name)
			if size, is := sizes[name]; !is || size > maxShownFile {
				return nil, false
			}
			content, err := all.ReadFile(ctx, session, name, "")
			return content, err == nil && !bytes.ContainsRune(content, 0)
		}
	}
}

// maxShownFile bounds the files whose difference is shown, in bytes.
const maxShownFile = 512 << 10

// parseAnswer reads an answer; always means that it holds for the whole session.
func parseAnswer(line string) (answer protocol.Approval, always bool) {
	text := strings.TrimSpace(line)
	word, note, _ := strings.Cut(text, ":")
	answer = protocol.Approval{By: UserName(), Via: "terminal", Note: strings.TrimSpace(note)}
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "a", "always":
		answer.Granted, always = true, true
	case "y", "yes":
		answer.Granted = true
	case "", "n", "no":
	default:
		answer.Note = text
	}
	return answer, always
}

// UserName is the name of the person who answers, for the audit log.
func UserName() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return ""
}

// Confirm asks a question of yes or no before anything else reads the terminal. Any answer but yes
// is no.
func Confirm(stdin *os.File, out io.Writer, question string) bool {
	discardInput(stdin)
	_, _ = fmt.Fprint(out, question+" y: yes; anything else is no: ")
	var line []byte
	for key := make([]byte, 1); ; line = append(line, key[0]) { // the bytes after the line are for the session
		if n, err := stdin.Read(key); n == 0 || err != nil || key[0] == '\n' {
			break
		}
	}
	answer := strings.ToLower(strings.TrimSpace(string(line)))
	return answer == "y" || answer == "yes"
}

// keyboard reads what is typed on a terminal, for one reader at a time. Nothing can interrupt the
// read of a terminal, so it continues after its reader has left, and the next reader gets the
// input.
type keyboard struct {
	file  *os.File
	begin sync.Once
	typed chan typed
	rest  []byte // the unread part of the last piece

	mu        sync.Mutex // held while a piece is read, so that it belongs to one side of a discard
	discarded int        // how often input was discarded
}

// typed is a piece of what was typed, and how often input had been discarded before it.
type typed struct {
	keys  []byte
	after int
	err   error
}

func newKeyboard(file *os.File) *keyboard { return &keyboard{file: file, typed: make(chan typed)} }

// next waits for the next piece; it returns [errResized] when the size of the terminal changes, and
// [errLeaves] when another reader wants it.
func (k *keyboard) next(ctx context.Context, resized <-chan os.Signal, wanted <-chan struct{}) (typed, error) {
	k.begin.Do(func() { go k.read() })
	select {
	case piece, open := <-k.typed:
		if !open {
			return typed{}, errNoInput
		}
		if piece.err != nil {
			return piece, errNoInput
		}
		return piece, nil
	case <-resized:
		return typed{}, errResized
	case <-wanted:
		return typed{}, errLeaves
	case <-ctx.Done():
		return typed{}, context.Cause(ctx)
	}
}

// read reads pieces until the terminal is gone; Ctrl-D alone does not end it.
func (k *keyboard) read() {
	defer close(k.typed)
	for {
		piece := k.piece()
		k.typed <- piece
		if piece.err != nil && !errors.Is(piece.err, io.EOF) {
			return
		}
	}
}

// piece reads what was typed. A read that waited with the lock would block the next question.
func (k *keyboard) piece() typed {
	buf := make([]byte, 4096)
	for waitForInput(k.file, forever) {
		k.mu.Lock()
		if waitForInput(k.file, 0) { // it was not discarded
			defer k.mu.Unlock()
			n, err := k.file.Read(buf)
			return typed{buf[:n], k.discarded, err}
		}
		k.mu.Unlock()
	}
	n, err := k.file.Read(buf)
	k.mu.Lock()
	defer k.mu.Unlock()
	return typed{buf[:n], k.discarded, err}
}

// forever is the time limit of [waitForInput] for none.
const forever = -1

// discard discards what was typed until now, and returns how often it has done so.
func (k *keyboard) discard() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rest = nil
	discardInput(k.file)
	k.discarded++
	return k.discarded
}

// line waits for a line that was typed after a call of [keyboard.discard].
func (k *keyboard) line(ctx context.Context, after int) (string, error) {
	var line []byte
	for {
		piece, err := k.next(ctx, nil, nil)
		if err != nil {
			return "", err
		}
		if piece.after < after {
			continue
		}
		line = append(line, piece.keys...)
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			return string(line[:end]), nil
		}
	}
}

// reader reads pieces. For each new size of the terminal it returns [errResized], and at the end of
// ctx, or when another reader wants the terminal, [errLeaves].
func (k *keyboard) reader(ctx context.Context, resized <-chan os.Signal, wanted <-chan struct{}) io.Reader {
	return &keyReader{k, ctx, resized, wanted}
}

type keyReader struct {
	keys    *keyboard
	ctx     context.Context //nolint:containedctx // of one line, which io.Reader cannot be given
	resized <-chan os.Signal
	wanted  <-chan struct{}
}

// Read implements [io.Reader]. It returns one line at most, or what [laterKey] ends: what was typed
// ahead is for the next reader.
func (r *keyReader) Read(p []byte) (int, error) {
	if len(r.keys.rest) == 0 {
		piece, err := r.keys.next(r.ctx, r.resized, r.wanted)
		if err != nil && r.ctx.Err() != nil {
			err = errLeaves
		}
		if err != nil {
			return 0, err
		}
		r.keys.rest = piece.keys
	}
	line := r.keys.rest
	if end := bytes.IndexAny(line, "\r\n"+string(rune(laterKey))); end >= 0 {
		if line = line[:end+1]; bytes.HasPrefix(r.keys.rest[end:], []byte("\r\n")) {
			line = r.keys.rest[:end+2]
		}
	}
	n := copy(p, line)
	r.keys.rest = r.keys.rest[n:]
	return n, nil
}
