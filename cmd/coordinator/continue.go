package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lastFile is the file with the last session of a directory: the workspace, or the current
// directory.
func (c *runCommand) lastFile() (path, dir string, err error) {
	if dir = c.Workspace; dir == "" {
		dir = "."
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	key := sha256.Sum256([]byte(strings.Join([]string{dir, c.Data, c.Nats, c.Fleet}, "\x00")))
	path, err = cli.StateDir(filepath.Join("last", hex.EncodeToString(key[:])))
	return path, dir, err
}

// lastSession returns the session that was remembered.
func (c *runCommand) lastSession() (protocol.SessionID, error) {
	path, dir, err := c.lastFile()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", cli.Usagef("--continue: there is no session in %s yet; omit --continue to begin one", dir)
	}
	if err != nil {
		return "", err
	}
	return protocol.ParseSessionID(strings.TrimSpace(string(content)))
}

// findLast has --continue name the session.
func (c *runCommand) findLast() error {
	if !c.Continue {
		return nil
	}
	if c.Session != "" {
		return cli.Usagef("--continue and --session: give one of them")
	}
	last, err := c.lastSession()
	c.Session = string(last)
	return err
}

// remember stores the session as the last one. If that fails, --continue does not find it.
func (c *runCommand) remember(session protocol.SessionID) {
	if path, _, err := c.lastFile(); err == nil && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = regular.Replace(path, []byte(session+"\n"))
	}
}

// totals are what a session has used in its turns, whichever process ran them.
type totals struct {
	turns int         // that have ended
	turn  int         // the number of the last one that began
	open  *loop.Input // of that one, while it has not ended
	bill  loop.Bill
}

// see adds what an event says. A fork begins with nothing.
func (t *totals) see(e *loop.Event) {
	switch e.Type {
	case loop.EventSessionForked:
		*t = totals{turn: t.turn}
	case loop.EventTurnStarted:
		t.turn, t.open = e.Turn, &loop.Input{ID: e.CallID, Text: e.Input, Attachments: e.Attachments}
	case loop.EventTurnEnded:
		t.open = nil
		t.turns++
	default:
	}
	t.bill.Add(e)
}

// goOn reads what the session did before, and says what a process that was lost has left open. It
// is an error if there is neither a prompt nor something open.
func (s *started) goOn(ctx context.Context, prompt string) error {
	history, err := s.env.Client.Sessions("").Log(ctx, s.session)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	for i := range history.Events {
		s.totals.see(&history.Events[i])
	}
	s.show.screen.AddHistory(history.Events)
	turn, running := unfinished(history.Events)
	switch {
	case turn == 0 && prompt == "" && !s.talks:
		return cli.Usagef("PROMPT is empty, and session %s has no unfinished turn to continue: say what the agent is to do", s.session)
	case turn == 0:
		return nil
	}
	text := fmt.Sprintf("turn %d of this session did not end, because the process that ran it was lost", turn)
	if len(running) > 0 {
		text += " while this ran: " + strings.Join(running, "; ")
	}
	text += ". It continues now"
	if prompt != "" {
		text += ", and your prompt follows"
	}
	s.show.warn(text + ".")
	return nil
}

// howToGoOn says how a session continues that did not answer.
func (c *runCommand) howToGoOn(session protocol.SessionID) string {
	return fmt.Sprintf("continue with: coordinator run%s --session %s --model %s PROMPT", c.Reach(), session, cli.ShellWord(c.Model))
}

// unfinished returns the number of the open turn, 0 if there is none, and its calls without result.
func unfinished(events []loop.Event) (turn int, running []string) {
	open := loop.StateOf(events)
	for _, e := range open.Calls() {
		if e.CallID != "" && e.Status == "" { // else it was not sent, or refused
			running = append(running, terminal.About(e.Name, e.Arguments))
		}
	}
	if open.Turn != nil {
		turn = open.Turn.Turn
	}
	return turn, running
}

// replayFlag is about --model replay:FILE.
type replayFlag struct {
	LiveTools bool `group:"Tools:" help:"With --model replay:FILE, run the tool calls, except those of the tool agent. Default: use their recorded results."`
}

// playBack runs all turns of a recording, and compares the transcripts.
func playBack(ctx context.Context, s *started) (result loop.TurnResult, err error) {
	for _, input := range s.options.Replay.Inputs() {
		if result, err = s.turn(ctx, input); err != nil || ctx.Err() != nil {
			return result, err
		}
	}
	history, err := s.env.Client.Sessions("").Log(ctx, s.session)
	if err != nil {
		return result, err
	}
	var recorded, now bytes.Buffer
	if err := errors.Join(s.options.Replay.Transcript(&recorded), history.Transcript(&now)); err != nil {
		return result, err
	}
	if at := firstDifference(recorded.String(), now.String()); at != "" {
		s.show.warn(at)
		return result, errors.New("the transcript differs from that of the recording")
	}
	return result, nil
}

// maxDifference bounds the lines that are shown, in characters.
const maxDifference = 500

// firstDifference describes the first line in which transcripts differ; "" when they do not.
func firstDifference(recorded, now string) string {
	if recorded == now {
		return ""
	}
	a, b := strings.Split(recorded, "\n"), strings.Split(now, "\n")
	n := 0
	for n < min(len(a), len(b))-1 && a[n] == b[n] {
		n++
	}
	return fmt.Sprintf("line %d of the transcript (session export --transcript) differs\nrecorded: %s\nnow:      %s",
		n+1, prose.Short(a[n], maxDifference), prose.Short(b[n], maxDifference))
}
