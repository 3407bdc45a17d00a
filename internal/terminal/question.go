package terminal

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// maxQuestionLines is how much is shown of what a person is asked about.
const maxQuestionLines = 200

// Question is what a person is asked about a tool call.
type Question struct {
	// Reason says why somebody is asked.
	Reason string
	// Tool and Arguments are the call, as the model wrote it.
	Tool, Arguments string
	// Answers says what may be answered.
	Answers string
	// Old returns what a file of the workspace has now; nil where that is not known.
	Old func(path string) ([]byte, bool)
}

// Ask shows a question: of a command all of it, and of a file what would change. What comes after
// it waits until answered is called.
func (v *View) Ask(q Question) (answered func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.measure()
	v.pause()
	head := v.flow(v.ink.paint(yellow, "?")+" ", "  ")
	head.add(q.Reason + ": " + q.Tool)
	head.end()
	v.lines(v.asked(q))
	foot := v.flow("  ", "  ")
	foot.add(q.Answers)
	foot.end()
	calls, doing := v.calls, v.activity
	v.idle()
	v.flush() // without what runs: it would stand where the answer is typed
	v.calls, v.activity = calls, doing
	v.asking = true
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asking = false
		v.measure()
		v.flush()
	}
}

// lines shows lines behind a bar, up to a bound.
func (v *View) lines(all []part) {
	shown := all[:min(len(all), maxQuestionLines)]
	for _, line := range shown {
		bar := v.ink.paint(dim, strings.TrimRight(v.marks.bar, " "))
		text := v.flow("  "+bar+" ", "  "+bar+" ")
		text.restyle(func(piece string) string { return v.ink.paint(line.style, piece) })
		text.add(line.text)
		if text.end(); !text.begun {
			v.line("  " + bar)
		}
	}
	if more := len(all) - len(shown); more > 0 {
		v.line("  " + v.ink.paint(yellow, "… "+Plural(more, "more line")+", not shown"))
	}
}

// asked is what a call would do.
func (v *View) asked(q Question) []part {
	var args arguments
	if json.Unmarshal([]byte(q.Arguments), &args) != nil || args == nil {
		return inStyle(plain, q.Arguments)
	}
	path, _ := args.text("path")
	switch q.Tool {
	case "bash", "run_code":
		for _, name := range []string{"command", "code"} {
			if text, ok := args.text(name); ok {
				return append(inStyle(bold, text), rest(args, name)...)
			}
		}
	case "write":
		if content, ok := args.text("content"); ok {
			return append(inStyle(bold, path), q.change(path, content)...)
		}
	case "edit":
		if patch, ok := args.text("patch"); ok {
			return append(inStyle(bold, path), diffParts(patch)...)
		}
		if old, ok := args.text("old"); ok {
			replacement, _ := args.text("new")
			return append(inStyle(bold, path), between(old, replacement)...)
		}
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, []byte(q.Arguments), "", "  ") != nil {
		return inStyle(plain, q.Arguments)
	}
	return inStyle(plain, pretty.String())
}

// change is what a file becomes.
func (q *Question) change(path, content string) []part {
	if q.Old != nil {
		if old, ok := q.Old(path); ok {
			text, err := udiff.ToUnified("a/"+path, "b/"+path, string(old), udiff.Lines(string(old), content), udiff.DefaultContextLines)
			if err == nil {
				return diffParts(text)
			}
		}
	}
	return signed(green, "+", content)
}

func between(old, replacement string) []part {
	return append(signed(red, "-", old), signed(green, "+", replacement)...)
}

func signed(st style, sign, text string) []part {
	var all []part
	for _, line := range lines(text) {
		all = append(all, part{st, sign + line})
	}
	return all
}

func inStyle(st style, text string) []part { return signed(st, "", text) }

func diffParts(diff string) []part {
	var all []part
	for kind, line := range diffLines(diff) {
		if kind != lineCut || line != "" {
			all = append(all, part{diffStyle(kind), line})
		}
	}
	return all
}

// rest is the arguments beside the one that was shown.
func rest(args arguments, shown string) []part {
	delete(args, shown)
	if len(args) == 0 {
		return nil
	}
	body, err := json.Marshal(args)
	if err != nil {
		return nil
	}
	return inStyle(dim, string(body))
}

// Diff shows a unified diff that the command itself made, all of it.
func (v *View) Diff(diff string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.measure()
	v.pause()
	for _, line := range diffParts(diff) {
		v.line(v.ink.paint(line.style, fit(line.text, v.width)))
	}
	v.flush()
}
