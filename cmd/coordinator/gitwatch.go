package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// gitWatch knows what a person's git would have run in a directory before a session worked on it.
type gitWatch struct {
	dir   string
	watch *gitguard.Watch // nil without a directory, or git
	alert func(string)
	told  []gitguard.Finding // after the last turn of a conversation
}

// watchGit looks at a directory before anything of a session can change it; "" is none.
func watchGit(ctx context.Context, dir string, alert func(string)) *gitWatch {
	w := &gitWatch{dir: dir, alert: alert}
	if dir == "" {
		return w
	}
	var err error
	if w.watch, err = gitguard.Look(ctx, dir); err != nil {
		w.cannot(err)
	}
	return w
}

// findings are what git would run only since then. What of the session still runs may add to them.
func (w *gitWatch) findings(ctx context.Context) []gitguard.Finding {
	found, err := w.watch.Findings(context.WithoutCancel(ctx))
	if err != nil {
		w.cannot(err)
	}
	return found
}

func (w *gitWatch) cannot(err error) {
	w.alert(fmt.Sprintf("what git would run in %s is not known, look at .git and its settings before you use git there: %v", w.dir, err))
}

// maxTold is how many findings are told on a terminal, one a line.
const maxTold = 20

// tell says what was found, to a person.
func (w *gitWatch) tell(found []gitguard.Finding) {
	if len(found) == 0 {
		return
	}
	lines := make([]string, 0, len(found))
	for _, finding := range found[:min(len(found), maxTold)] {
		lines = append(lines, finding.String())
	}
	if rest := len(found) - maxTold; rest > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", rest))
	}
	w.alert("before you use git or an editor in " + w.dir + ", look at what the session has left for git to run:\n" + strings.Join(lines, "\n"))
}

// tellNew says what was found, when a turn has ended and that has changed: the person's git may run
// before the conversation ends.
func (w *gitWatch) tellNew(ctx context.Context) {
	if found := w.findings(ctx); !slices.Equal(found, w.told) {
		w.told = found
		w.tell(found)
	}
}

// gitFindings is the event of --json.
type gitFindings struct {
	Type      string             `json:"type"`
	SessionID protocol.SessionID `json:"session_id"`
	Time      time.Time          `json:"time"`
	Findings  []gitguard.Finding `json:"findings"`
}

// found prints the event of findings.
func (j *jsonEvents) found(session protocol.SessionID, findings []gitguard.Finding) {
	if len(findings) == 0 {
		return
	}
	line, err := json.Marshal(gitFindings{Type: "git_findings", SessionID: session, Time: time.Now().UTC(), Findings: findings})
	if err != nil {
		panic(fmt.Sprintf("encode findings: %v", err)) // strings always encode
	}
	if _, err := j.w.Write(append(line, '\n')); err != nil && j.failed == nil {
		j.failed = fmt.Errorf("print events: %w", err)
	}
}
