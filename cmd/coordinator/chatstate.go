package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lastFile is where the last session of a directory is noted: of the workspace, or the one this
// process is in.
func (c *chatCommand) lastFile() (path, dir string, err error) {
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

// lastSession is the session that was remembered.
func (c *chatCommand) lastSession() (protocol.SessionID, error) {
	path, dir, err := c.lastFile()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", cli.Usagef("--continue: there was no conversation in %s yet; leave it out", dir)
	}
	if err != nil {
		return "", err
	}
	return protocol.ParseSessionID(strings.TrimSpace(string(content)))
}

// remember notes the session as the last one. Where that fails, --continue does not find it.
func (c *chatCommand) remember(session protocol.SessionID) {
	if path, _, err := c.lastFile(); err == nil && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.WriteFile(path, []byte(session+"\n"), 0o600)
	}
}

// history is what was said on this machine, the last first.
type history struct {
	lines []string // the last one last
	file  string   // "" keeps none
}

// maxHistory is how many lines are kept in mind.
const maxHistory = 500

func loadHistory() *history {
	h := &history{}
	file, err := cli.StateDir("chat_history")
	if err != nil {
		return h
	}
	h.file = file
	if content, err := os.ReadFile(file); err == nil {
		h.lines = strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
		h.lines = h.lines[max(0, len(h.lines)-maxHistory):]
	}
	return h
}

// Add implements [term.History].
func (h *history) Add(line string) {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.file == "" || os.MkdirAll(filepath.Dir(h.file), 0o700) != nil {
		return
	}
	file, err := os.OpenFile(h.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = file.WriteString(line + "\n") // a history that cannot be kept is no reason to stop
	_ = file.Close()
}

// Len implements [term.History].
func (h *history) Len() int { return len(h.lines) }

// At implements [term.History].
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
