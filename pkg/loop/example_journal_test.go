package loop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lineJournal keeps each session in a file, one event a line; the sequence of an event is the
// number of its line. It is for one process at a time.
type lineJournal struct {
	dir string
	mu  sync.Mutex
}

var _ loop.Journal = (*lineJournal)(nil)

// Load implements [loop.Journal]. A last line without its end is what a crash left of an append:
// nobody was told that it was stored, so it is not there.
func (j *lineJournal) Load(_ context.Context, session protocol.SessionID) (loop.History, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	stored, err := j.read(session)
	if err != nil {
		return loop.History{}, err
	}
	var history loop.History
	for line := range bytes.Lines(stored) {
		var event loop.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return loop.History{}, fmt.Errorf("session %s, line %d: %w", session, history.Last+1, err)
		}
		history.Events, history.Last = append(history.Events, event), history.Last+1
	}
	return history, nil
}

// Append implements [loop.Journal].
func (j *lineJournal) Append(_ context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	stored, err := j.read(session)
	if err != nil {
		return 0, err
	}
	if last := uint64(bytes.Count(stored, []byte{'\n'})); last != expected {
		return 0, fmt.Errorf("session %s is at %d, not at %d: %w", session, last, expected, loop.ErrJournalConflict)
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines) // ends each event with a line feed
	for i := range events {
		if err := encoder.Encode(events[i]); err != nil {
			return 0, err
		}
	}
	file, err := os.OpenFile(j.file(session), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	_, err = file.WriteAt(lines.Bytes(), int64(len(stored))) // over what a crash left
	err = errors.Join(err, file.Truncate(int64(len(stored)+lines.Len())), file.Sync(), file.Close())
	return expected + uint64(len(events)), err
}

// The id of a session is one name in a directory: letters, digits, '-' and '_'.
func (j *lineJournal) file(session protocol.SessionID) string {
	return filepath.Join(j.dir, string(session)+".jsonl")
}

// read returns the lines that are stored whole.
func (j *lineJournal) read(session protocol.SessionID) ([]byte, error) {
	content, err := os.ReadFile(j.file(session))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return content[:bytes.LastIndexByte(content, '\n')+1], nil
}

// A journal of one's own, here of files, is tested with looptest.RunJournal.
func ExampleJournal() {
	dir, err := os.MkdirTemp("", "journal-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	table, err := calculator()
	if err != nil {
		fmt.Println(err)
		return
	}
	journal, session := &lineJournal{dir: dir}, protocol.NewSessionID()
	for _, text := range []string{"What is 2 + 2?", "And again?"} { // as two processes would
		runner, err := loop.New(clerk{}, nowhere{}, journal, table, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		result, err := runner.Run(context.Background(), session, loop.Input{Text: text})
		fmt.Println(result.Turn, result.Text, err)
	}
	history, err := journal.Load(context.Background(), session)
	fmt.Println(len(history.Events), history.Events[0].Type, err)
	// Output:
	// 1 It is 4. <nil>
	// 2 It is 4. <nil>
	// 13 session_started <nil>
}
