package loop

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/model/media"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Attachment is an image, a PDF document or a text that a user's input carries. A model gets texts
// as part of the input, the others as they are. A model that takes no PDF documents gets their
// text.
type Attachment struct {
	// ID names it in its session. The Runner sets it.
	ID string `json:"id,omitempty"`
	// Name is the name of the file, for the model.
	Name string `json:"name"`
	// Image has the file. Its MediaType may also be text/plain.
	Image
}

// Viewer is implemented by a [Model] that cannot be shown every image and document.
type Viewer interface {
	// Views reports whether the model takes files of a media type.
	Views(mediaType string) bool
}

const mediaText = "text/plain"

// Bounds of the attachments of an input, in files and bytes.
const (
	maxAttachments     = 16
	maxAttachedText    = 256 << 10
	maxAttachedBytes   = 12 << 20
	maxAttachmentName  = 255
	attachmentForModel = 6000 // bytes of a conversation that an image or document counts for
)

// NewAttachment makes an attachment of a file: a PNG, JPEG, GIF or WebP image that can be decoded
// or a PDF document of up to 4 MiB, or a text in UTF-8 of up to 256 KiB. The content decides which.
func NewAttachment(name string, data []byte) (Attachment, error) {
	a := Attachment{Name: name, Image: Image{MediaType: typeOf(data), Data: data}}
	most := render.MaxImageBytes
	if a.MediaType == mediaText {
		most = maxAttachedText
	}
	var problem string
	switch {
	case name == "" || len(name) > maxAttachmentName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return a, invalid("attachment %q: the name must be 1 to %d bytes of UTF-8 without control characters", prose.Short(name, maxAttachmentName), maxAttachmentName)
	case len(data) == 0:
		problem = "is empty"
	case a.MediaType == "":
		problem = "must be a PNG, JPEG, GIF or WebP image, a PDF document, or text in UTF-8"
	case len(data) > most:
		problem = fmt.Sprintf("has %d bytes as %s: must be at most %d", len(data), a.MediaType, most)
	case a.MediaType == mediaText, a.MediaType == render.MediaPDF:
		return a, nil
	default:
		var err error
		if a.MediaType, err = media.Picture(data); err == nil {
			return a, nil
		}
		problem = fmt.Sprintf("is no picture that can be decoded: %v", err)
	}
	return a, invalid("attachment %s: %s", name, problem)
}

// typeOf is the media type of a content; "" if it cannot be attached.
func typeOf(data []byte) string {
	switch sniffed := http.DetectContentType(data); sniffed {
	case "image/png", "image/jpeg", "image/gif", "image/webp", render.MediaPDF:
		return sniffed
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return ""
	}
	return mediaText
}

// Check reports why the input cannot begin a turn: its AnswerSchema is none, or a model cannot get
// the attachments: at most 16, of 12 MiB together, each as
// [NewAttachment] takes it and of a type that the model takes. A nil model takes all types. A model
// that takes no PDF documents gets their text, if they have some: that is seen when the turn
// begins.
func (in Input) Check(model Model) error {
	_, err := attached(model, 0, in.Attachments)
	return cmp.Or(err, checkSchema(in.AnswerSchema))
}

// pagesAsText replaces the PDF documents that a model does not take by their text.
func pagesAsText(ctx context.Context, model Model, list []Attachment) error {
	for i := range list {
		a := &list[i]
		if a.MediaType != render.MediaPDF || views(model, a.MediaType) {
			continue
		}
		text, err := media.PDFText(ctx, a.Data, maxAttachedText)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return invalid("attachment %s: the model takes no PDF documents, and the text of this one cannot be sent instead: %v", a.Name, err)
		}
		a.MediaType, a.Data = mediaText, []byte(text)
	}
	return nil
}

// views reports whether a model takes files of a type. A nil model takes all.
func views(model Model, mediaType string) bool {
	viewer, is := model.(Viewer)
	return !is || viewer.Views(mediaType)
}

// attached are the attachments of a turn's input, with their ids.
func attached(model Model, turn int, given []Attachment) ([]Attachment, error) {
	if len(given) > maxAttachments {
		return nil, invalid("attachments: %d files: must be at most %d", len(given), maxAttachments)
	}
	var list []Attachment
	total := 0
	for i := range given {
		a, err := NewAttachment(given[i].Name, given[i].Data)
		if err != nil {
			return nil, err
		}
		if a.MediaType != mediaText && a.MediaType != render.MediaPDF && !views(model, a.MediaType) {
			return nil, invalid("attachment %s: the model takes no files of type %s", a.Name, a.MediaType)
		}
		if total += len(a.Data); total > maxAttachedBytes {
			return nil, invalid("attachments: more than %d bytes together", maxAttachedBytes)
		}
		a.ID = fmt.Sprintf("attachment_%d_%d", turn, i+1)
		list = append(list, a)
	}
	return list, nil
}

func invalid(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArguments, format, args...)
}

// message is what a model reads of an input.
func (in *Input) message() Message {
	m := Message{Role: RoleUser, Text: in.Text}
	var names []string
	for i := range in.Attachments {
		switch a := &in.Attachments[i]; {
		case len(a.Data) == 0:
			m.addNote("[The attached file " + a.Name + " is no longer stored.]")
		case a.MediaType == mediaText:
			m.addNote(fmt.Sprintf("[Attached file %s:]\n%s\n[End of %s]", a.Name, strings.TrimSuffix(string(a.Data), "\n"), a.Name))
		default:
			m.Attachments, names = append(m.Attachments, *a), append(names, a.Name)
		}
	}
	if len(names) > 0 {
		m.addNote("[Attached: " + strings.Join(names, ", ") + "]")
	}
	if len(in.AnswerSchema) > 0 {
		m.addNote(schemaNote(in.AnswerSchema))
	}
	return m
}

// addNote adds a paragraph to the text.
func (m *Message) addNote(text string) {
	if m.Text != "" {
		m.Text += "\n\n"
	}
	m.Text += text
}

// leaveOut removes attachments for which why returns a sentence, and adds the sentence to the text.
func (m *Message) leaveOut(why func(*Attachment) string) {
	var rest []Attachment
	for i := range m.Attachments {
		if note := why(&m.Attachments[i]); note != "" {
			m.addNote(note)
			continue
		}
		rest = append(rest, m.Attachments[i])
	}
	m.Attachments = rest
}

// Additions pass what a person says while a turn runs to that turn ([Options].Additions). The model
// reads it at its next step, and answers once more if it has just answered. The zero value is ready
// to use, by one run at a time.
type Additions struct {
	mu  sync.Mutex
	rec *recorder // nil while no turn runs
}

// Add journals a text and passes it to the turn that runs. It reports false, and has done nothing,
// if no turn runs that takes more. After an error it is unknown whether the text was journaled,
// unless the error wraps [ErrEventTooLarge]: then it was not.
func (a *Additions) Add(ctx context.Context, text string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rec == nil {
		return false, nil
	}
	return a.rec.add(ctx, text)
}

// during has additions come to a run until the function that it returns is called.
func (a *Additions) during(rec *recorder) (end func()) {
	set := func(rec *recorder) {
		if a != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.rec = rec
		}
	}
	set(rec)
	return func() { set(nil) }
}

// addition is what a person said while the turn ran.
type addition struct {
	step int // behind which the model reads it; 0 is before its first reply
	text string
}

// additions are journaled additions that the turn has not folded yet: it reads the session
// without a lock while its model replies. An addition names its position, so it does not matter
// that it is folded later than in another run.
type additions struct {
	added  []Event
	asked  int  // the last step for which the model was asked, without what comes from then on
	sealed bool // the turn accepts no more additions
}

// add journals an addition to the open turn.
func (r *recorder) add(ctx context.Context, text string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	turn := r.session.open()
	if turn == nil || r.sealed || r.lost != nil {
		return false, r.lost
	}
	events, err := r.store(ctx, []Event{{
		Type: EventInputAdded, Turn: turn.number, Step: max(len(turn.steps), r.asked), StartFields: StartFields{Input: prose.Valid(text)},
		NoteFields: NoteFields{By: r.author},
	}})
	if err != nil {
		return false, err
	}
	r.added = append(r.added, events...)
	r.observe(events[0])
	return true, nil
}

// collectAdditions folds the additions so far. With asks the model is asked next: what comes from
// then on is behind the reply.
func (r *recorder) collectAdditions(asks bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.added {
		if err := r.session.apply(&r.added[i]); err != nil {
			r.lost = err
			return err
		}
	}
	r.added = nil
	if asks {
		r.asked = len(r.session.open().steps) + 1
	}
	return nil
}

// seal reports whether the turn can end so, and then takes no more additions: an answer is no end
// while there is one that the model has not read.
func (r *recorder) seal(end *ending) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = end.outcome != OutcomeAnswered || len(r.added) == 0
	return r.sealed
}

// addInput folds an addition.
func (s *session) addInput(e *Event) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step < len(t.steps) || e.Step > len(t.steps)+1 {
		return errors.New("step is not the last")
	}
	t.added = append(t.added, addition{e.Step, e.Input})
	if e.Step == len(t.steps) {
		s.sinceReply += len(e.Input)
	}
	return nil
}

// addedBehind is what a person said behind a step. Behind the last step of a turn that has ended,
// it is also what the model would have read behind the next one.
func (t *turn) addedBehind(step int) []string {
	var texts []string
	for _, a := range t.added {
		if a.step == step || t.result != nil && step == len(t.steps) && a.step > step {
			texts = append(texts, a.text)
		}
	}
	return texts
}

// appendAdded adds what a person said behind a step, each as a message of its own.
func (t *turn) appendAdded(messages []Message, step int) []Message {
	for _, text := range t.addedBehind(step) {
		messages = append(messages, Message{Role: RoleUser, Text: text})
	}
	return messages
}

// unread reports whether a person said something that no reply so far could answer.
func (t *turn) unread() bool {
	return slices.ContainsFunc(t.added, func(a addition) bool { return a.step >= len(t.steps) })
}

// recordedAdditions are the additions that a replay has behind the last step and the turn has not.
func (t *turnRun) recordedAdditions() []Event {
	r, turn := t.opts.Replay, t.session.open()
	if r == nil {
		return nil
	}
	recorded := r.added[position{turn.number, len(turn.steps)}]
	return slices.Clone(recorded[min(len(turn.addedBehind(len(turn.steps))), len(recorded)):])
}
