package webui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// form is what a person asks of a session.
type form struct {
	u       *ui
	r       *http.Request
	session protocol.SessionID
	call    protocol.CallID
	of      fleet.Sessions
}

// text is a text of the form, with the ends of lines that files have: browsers send others.
func (f *form) text(name string) string { return textOf(f.r, name) }

// textOf is a text of a form.
func textOf(r *http.Request, name string) string {
	return strings.ReplaceAll(r.PostFormValue(name), "\r\n", "\n")
}

// acts are what a person may ask of a session. Each returns the page that it leads to; "" is the
// session. Those that lose something have a page that asks first.
func (f *form) acts() map[string]func(context.Context) (string, error) {
	return map[string]func(context.Context) (string, error){
		"send":        f.send,
		"approve":     f.approve,
		"refuse":      f.refuse,
		"answer":      f.answer,
		"cancel":      f.cancel,
		"cancel-call": f.cancelCall,
		"fork":        f.fork,
		"merge":       f.merge,
		"restore":     f.restore,
		"remove":      f.remove,
		"resolve":     f.resolve,
	}
}

// act does what a person asks of a session.
func (u *ui) act(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	act := r.PathValue("act")
	f := &form{u: u, r: r, session: idOf(r), call: protocol.CallID(r.PostFormValue("call"))}
	do := f.acts()[act]
	if do == nil {
		return fmt.Errorf("%w: act %q: there is none of this name", fleet.ErrInvalid, act)
	}
	if slices.Contains([]string{"merge", "restore", "remove", "fork"}, act) { // they end when they have ended
		ctx = r.Context()
	}
	var err error
	if f.of, err = u.using(ctx, f.session, act); err != nil {
		return err
	}
	to, err := do(ctx)
	if err != nil {
		return err
	}
	if to == "" && r.Header.Get("HX-Request") != "" && r.PostFormValue("to") == "stay" { // the page shows it by itself
		w.Header().Set("HX-Trigger", "changed")
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if asked := r.PostFormValue("to"); to == "" && strings.HasPrefix(asked, "/") {
		to = inside(asked)
	}
	u.redirect(w, r, cmp.Or(to, sessionPath(f.session)))
	return nil
}

// using is of, for acts that take a process that runs the session, or a turn.
func (u *ui) using(ctx context.Context, id protocol.SessionID, act string) (fleet.Sessions, error) {
	switch act {
	case "send", "restore", "remove", "merge":
		pool, err := u.Local.Use(ctx, id, act == "send", act == "send")
		return u.Client.Sessions(pool), err
	default:
		return u.of(ctx, id), nil
	}
}

func (f *form) send(ctx context.Context) (string, error) {
	turn, err := turnOf(f.r)
	if err == nil {
		turn.Session = f.session
		_, err = f.of.Submit(ctx, turn)
	}
	return "", err
}

// turnOf is the turn that a form begins: its prompt, its files, and the schema of its answer.
func turnOf(r *http.Request) (turn fleet.Turn, err error) {
	if turn.Prompt = textOf(r, "prompt"); strings.TrimSpace(turn.Prompt) == "" {
		return turn, fmt.Errorf("%w: prompt: must not be empty", fleet.ErrInvalid)
	}
	turn.AnswerSchema = json.RawMessage(strings.TrimSpace(textOf(r, "answer_schema"))) // which Submit checks
	turn.Attachments, err = filesOf(r)
	return turn, err
}

// filesOf are the files of a form. Each is checked as those of the HTTP API are, and all of them by
// the turn.
func filesOf(r *http.Request) (files []loop.Attachment, err error) {
	if r.MultipartForm == nil {
		return nil, nil
	}
	for _, given := range r.MultipartForm.File["files"] {
		if given.Filename == "" && given.Size == 0 { // none was chosen
			continue
		}
		content, err := given.Open()
		if err != nil {
			return nil, fmt.Errorf("file %.100q: %w", given.Filename, err)
		}
		data, err := io.ReadAll(content)
		_ = content.Close() // it was read
		if err != nil {
			return nil, fmt.Errorf("file %.100q: %w", given.Filename, err)
		}
		file, err := loop.NewAttachment(given.Filename, data)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", fleet.ErrInvalid, err)
		}
		files = append(files, file)
	}
	return files, nil
}

func (f *form) approve(ctx context.Context) (string, error) {
	return "", f.of.Approve(ctx, f.session, f.call, protocol.Approval{
		Granted: true, Session: f.r.PostFormValue("for") == "session", By: judge.Of(ctx).Name, Note: f.text("note"),
	})
}

func (f *form) refuse(ctx context.Context) (string, error) {
	return "", f.of.Approve(ctx, f.session, f.call, protocol.Approval{By: judge.Of(ctx).Name, Note: f.text("note")})
}

func (f *form) answer(ctx context.Context) (string, error) {
	answer := protocol.Answer{Question: f.r.PostFormValue("question"), Action: protocol.Action(f.r.PostFormValue("action")), By: judge.Of(ctx).Name}
	if answer.Action == protocol.ActionAccept {
		content, err := contentOf(f.r.PostForm)
		if err != nil {
			return "", err
		}
		answer.Content = content
	}
	of := f.of
	if pool := f.r.PostFormValue("pool"); pool != "" {
		of = f.u.Client.Sessions(protocol.Pool(pool))
	}
	return "", of.Answer(ctx, f.session, f.call, answer)
}

// contentOf is the answer of a form: one field, in JSON, or a field of each property of the
// question's schema, whose name has the type before it. Its worker checks it.
func contentOf(values url.Values) (json.RawMessage, error) {
	if content := strings.TrimSpace(values.Get("content")); content != "" {
		return json.RawMessage(content), nil
	}
	object := map[string]any{}
	for name, given := range values {
		kind, property, is := strings.Cut(name, ":")
		if !is || given[0] == "" {
			continue
		}
		switch kind {
		case "string":
			object[property] = strings.ReplaceAll(given[0], "\r\n", "\n")
		case "array":
			object[property] = given
		case "boolean":
			object[property] = given[len(given)-1] == "true"
		case "number", "integer":
			n, err := strconv.ParseFloat(given[0], 64)
			switch {
			case err != nil || math.IsNaN(n) || math.IsInf(n, 0):
				return nil, fmt.Errorf("%w: %.100s %.100q: must be a number", fleet.ErrInvalid, property, given[0])
			case json.Valid([]byte(given[0])):
				object[property] = json.Number(given[0]) // as it is written: n has 53 bits
			default:
				object[property] = n
			}
		default:
		}
	}
	if len(object) == 0 {
		return nil, nil
	}
	return json.Marshal(object)
}

func (f *form) cancel(ctx context.Context) (string, error) {
	_, err := f.u.Local.Cancel(ctx, f.session)
	return "", err
}

func (f *form) cancelCall(ctx context.Context) (string, error) {
	future, err := f.u.Client.Attach(ctx, protocol.CallRef{SessionID: f.session, ID: f.call})
	if err == nil {
		err = future.Cancel(ctx)
	}
	return "", err
}

func (f *form) fork(ctx context.Context) (string, error) {
	made := protocol.NewSessionID()
	pool, err := f.u.Local.Use(ctx, made, true, false)
	if err == nil {
		_, err = f.u.Client.Sessions(pool).Fork(ctx, f.session, fleet.At{Call: f.call}, made)
	}
	return sessionPath(made), err
}

func (f *form) merge(ctx context.Context) (string, error) {
	_, err := f.of.Merge(ctx, protocol.SessionID(f.r.PostFormValue("fork")), f.session)
	return "", err
}

func (f *form) restore(ctx context.Context) (string, error) {
	_, _, err := f.of.Restore(ctx, f.session, f.call)
	return sessionPath(f.session, "files"), err
}

func (f *form) remove(ctx context.Context) (string, error) {
	_, err := f.u.Local.Remove(ctx, f.session, f.r.PostFormValue("force") != "")
	return "/sessions", err
}

func (f *form) resolve(ctx context.Context) (string, error) {
	return sessionPath(f.session, "details"), f.of.Resolve(ctx, f.session, f.call, f.r.PostFormValue("happened") == "true", judge.Of(ctx).Name)
}

// confirmPage asks before an act that loses something: it shows what that is.
type confirmPage struct {
	*sessionPage

	Act      string
	At       protocol.CallID
	Fork     protocol.SessionID
	Calls    []report.Call
	Planned  *report.MergedFiles
	Diff     string
	Fault    string // why it cannot be said what is lost
	LeftOver []report.Effect
}

// Nothing reports whether there is nothing that the act would change.
func (c *confirmPage) Nothing() bool {
	return c.Act == "cancel" && len(c.Calls) == 0 && c.Fault == "" && !c.Runs()
}

// confirm asks before an act. It works without scripts.
func (u *ui) confirm(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	p, err := u.load(ctx, r)
	if err != nil {
		return err
	}
	p.Tab = "confirm"
	c := &confirmPage{sessionPage: p, Act: r.PathValue("act"), At: protocol.CallID(r.URL.Query().Get("call")), Fork: protocol.SessionID(r.URL.Query().Get("fork"))}
	of := u.of(ctx, p.Session)
	switch c.Act {
	case "cancel", "remove":
		c.Calls, err = of.Unfinished(ctx, p.Session)
	case "cancel-call":
		err = p.find(c.At)
	case "restore":
		if c.Diff, err = of.Between(ctx, p.Session, "", c.At); err == nil {
			c.LeftOver, err = of.Effects(ctx, p.Session, fleet.At{Call: c.At})
		}
	case "merge":
		var planned report.MergedFiles
		if planned, err = of.Conflicts(ctx, c.Fork, p.Session); err == nil {
			c.Planned = &planned
		}
	default:
		return fmt.Errorf("act %q: %w", c.Act, fleet.ErrNotFound)
	}
	if err != nil {
		c.Fault = err.Error()
	}
	u.showSession(w, r, p, "confirm", c)
	return nil
}
