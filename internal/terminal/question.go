package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// maxQuestionLines is how much is shown of what a person is asked about.
const maxQuestionLines = 200

// Question is what a person is asked about a tool call.
type Question struct {
	// Reason says why the call needs approval.
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
	v.reply.pause()
	v.say(v.ink.paint(yellow, "?")+" ", "  ", plain, q.Reason+": "+q.Tool)
	v.lines(v.asked(q))
	v.say("  ", "  ", plain, q.Answers)
	calls, doing := v.calls, v.activity
	v.clearActivity()
	v.flush() // without what runs: it would stand where the answer is typed
	v.calls, v.activity = calls, doing
	v.asking = true
	return func() { v.update(func() { v.asking = false }) }
}

// lines shows lines behind a bar, up to a bound.
func (p *page) lines(all []part) {
	shown := all[:min(len(all), maxQuestionLines)]
	for _, line := range shown {
		bar := p.ink.paint(dim, strings.TrimRight(p.marks.bar, " "))
		if !p.say("  "+bar+" ", "  "+bar+" ", line.style, line.text) {
			p.line("  " + bar)
		}
	}
	if more := len(all) - len(shown); more > 0 {
		p.line("  " + p.ink.paint(yellow, "… "+Plural(more, "more line")+", not shown"))
	}
}

// asked is what a call would do.
func (p *page) asked(q Question) []part {
	var args arguments
	if json.Unmarshal([]byte(q.Arguments), &args) != nil || args == nil {
		return inStyle(plain, q.Arguments)
	}
	if parts, ok := q.asPerson(args); ok {
		return parts
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, []byte(q.Arguments), "", "  ") != nil {
		return inStyle(plain, q.Arguments)
	}
	return inStyle(plain, pretty.String())
}

// asPerson is what a call of a known tool would do, as a person reads it.
func (q *Question) asPerson(args arguments) (parts []part, ok bool) {
	path, _ := args.text("path")
	switch Builtin(q.Tool) {
	case "bash":
		text, ok := args.command()
		return append(inStyle(bold, text), rest(args, "command", "cmd", "args")...), ok
	case "run_code":
		text, ok := args.text("code")
		return append(inStyle(bold, text), rest(args, "code")...), ok
	case "write":
		content, ok := args.text("content")
		return append(inStyle(bold, path), q.change(path, content)...), ok
	case "edit":
		parts, ok := edit(args)
		return slices.Concat(inStyle(bold, path), parts, rest(args, "path", "patch", "old", "new", "search", "replace")), ok
	case "multi_edit":
		edits, ok := args.edits()
		parts = inStyle(bold, path)
		for i, e := range edits {
			one, whole := edit(e)
			ok = ok && whole
			parts = slices.Concat(parts, inStyle(dim, fmt.Sprintf("%d of %d", i+1, len(edits))), one, rest(e, "old", "new"))
		}
		return append(parts, rest(args, "path", "edits")...), ok
	case "json_write":
		return q.jsonWrite(path, args)
	default:
		return nil, false
	}
}

// edit is one replacement or patch.
func edit(args arguments) (parts []part, ok bool) {
	if patch, ok := args.text("patch"); ok {
		return diffParts(patch), true
	}
	for old, replacement := range map[string]string{"old": "new", "search": "replace"} {
		if text, is := args.text(old); is {
			by, _ := args.text(replacement)
			return between(text, by), true
		}
	}
	return nil, false
}

// jsonWrite is a document, or a place of one.
func (q *Question) jsonWrite(path string, args arguments) (parts []part, ok bool) {
	content := []byte(args["content"])
	if text, is := args.text("content"); is && strings.ContainsAny(firstOf(text), "{[") && json.Valid([]byte(text)) {
		content = []byte(text) // it is taken as that
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, content, "", "  ") != nil {
		return nil, false
	}
	query, _ := args.text("query")
	if query == "" {
		return append(inStyle(bold, path), q.change(path, pretty.String()+"\n")...), true
	}
	return append(inStyle(bold, path+" at "+query), signed(green, "+", pretty.String())...), true
}

// firstOf is the first character of a text that is no space.
func firstOf(text string) string {
	text = strings.TrimSpace(text)
	return text[:min(1, len(text))]
}

// change is what a file becomes.
func (q *Question) change(path, content string) []part {
	if q.Old == nil {
		return append(inStyle(dim, "all that it will have:"), inStyle(plain, content)...)
	}
	if old, ok := q.Old(path); ok {
		text, err := udiff.ToUnified("a/"+path, "b/"+path, string(old), udiff.Lines(string(old), content), udiff.DefaultContextLines)
		if err == nil {
			return diffParts(text)
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

// rest is the arguments that were not shown.
func rest(args arguments, shown ...string) []part {
	for _, name := range shown {
		delete(args, name)
	}
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
	v.update(func() {
		v.reply.pause()
		for _, line := range diffParts(diff) {
			v.line(v.ink.paint(line.style, Fit(line.text, v.width)))
		}
	})
}
