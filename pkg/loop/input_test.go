package loop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	png = "\x89PNG\x0d\x0a\x1a\x0a\x00\x00\x00\x0dIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\x0aIDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82" // of one pixel
	pdf = "%PDF-1.7"
)

func attach(t *testing.T, name, content string) loop.Attachment {
	t.Helper()
	a, err := loop.NewAttachment(name, []byte(content))
	require.NoError(t, err)
	return a
}

// The model gets images and documents as files and texts as text, in every run of the session, and
// so does the model of a replay.
func TestAttachments_GoToTheModel(t *testing.T) {
	t.Parallel()
	r := newRig(says("I see."), says("Still."))
	files := []loop.Attachment{attach(t, "a.png", png), attach(t, "n.txt", "one\ntwo\n"), attach(t, "b.pdf", pdf)}
	r.mustRunInput(t.Context(), t, loop.Input{Text: "Look.", Attachments: files})
	require.NoError(t, runErr(r.run(t.Context(), t, "Again.")))
	said := r.model.lastSeen()[1]
	require.Equal(t, loop.RoleUser, said.Role)
	require.Equal(t, "Look.\n\n[Attached file n.txt:]\none\ntwo\n[End of n.txt]\n\n[Attached: a.png, b.pdf]", said.Text)
	require.Equal(t, []loop.Attachment{
		{ID: "attachment_1_1", Name: "a.png", Image: loop.Image{MediaType: "image/png", Data: []byte(png)}},
		{ID: "attachment_1_3", Name: "b.pdf", Image: loop.Image{MediaType: "application/pdf", Data: []byte(pdf)}},
	}, said.Attachments)

	var export bytes.Buffer
	require.NoError(t, loop.History{Events: r.events(t)}.Export(&export, r.session))
	events, err := loop.ReadExport(&export)
	require.NoError(t, err)
	recording, err := loop.History{Events: events}.Recording()
	require.NoError(t, err)
	other := newRig(says("I see."), says("Still."))
	for _, input := range recording.Inputs() {
		require.NoError(t, runErr(other.runInput(t.Context(), t, input)))
	}
	require.Equal(t, said, other.model.lastSeen()[1])
}

func runErr(_ loop.TurnResult, err error) error { return err }

// refusesPDF is a model whose server refuses PDF documents.
type refusesPDF struct{ *script }

func (m refusesPDF) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	for _, message := range req.Messages {
		for _, a := range message.Attachments {
			if a.MediaType == "application/pdf" {
				return loop.Reply{}, &loop.RefusedError{
					Parts: []loop.Part{{ToolCallID: a.ID, Kind: loop.PartAttachment}, {ToolCallID: "attachment_9_9", Kind: loop.PartAttachment}},
					Err:   errors.New("400: no documents"),
				}
			}
		}
	}
	return m.script.Reply(ctx, req, delta)
}

// An attachment that the server refuses is left out, for good, and the model is notified.
func TestAttachments_RefusedOnesAreLeftOut(t *testing.T) {
	t.Parallel()
	r := newRig(says("One."), says("Two."))
	for _, input := range []loop.Input{
		{Text: "Look.", Attachments: []loop.Attachment{attach(t, "a.png", png), attach(t, "b.pdf", pdf)}}, {Text: "Again."},
	} {
		runner := mustNew(t, refusesPDF{r.model}, r.fleet, r.journal, table(t), &r.opts)
		result := mustRun(t.Context(), t, runner, r.session, input)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		said := r.model.lastSeen()[1]
		require.Len(t, said.Attachments, 1)
		require.Equal(t, "a.png", said.Attachments[0].Name)
		require.Contains(t, said.Text, "[The attached file b.pdf was left out, because the model's server refuses it: 400: no documents]")
	}
	left := r.watch.of(loop.EventPartLeftOut)
	require.Len(t, left, 1)
	require.Equal(t, loop.PartAttachment, left[0].Part)
	require.Equal(t, "attachment_1_2", left[0].ToolCallID)
}

// A turn that stays open ends first where the same words come with other files.
func TestAttachments_OtherOnesAreAnotherTurn(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "bash"), says("One."), says("Two."))
	r.fleet.err = errors.New("no servers")
	_, err := r.runInput(t.Context(), t, loop.Input{Text: "Look.", Attachments: []loop.Attachment{attach(t, "a.png", png)}})
	require.Error(t, err)
	r.fleet.err = nil
	result := r.mustRunInput(t.Context(), t, loop.Input{Text: "Look.", Attachments: []loop.Attachment{attach(t, "b.pdf", pdf)}})
	require.Equal(t, "Two.", result.Text)
	var last []string
	for _, a := range r.model.lastSeen()[len(r.model.lastSeen())-1].Attachments {
		last = append(last, a.Name)
	}
	require.Equal(t, []string{"b.pdf"}, last)
}

// blind is a model that takes no files.
type blind struct{ *script }

func (blind) Views(string) bool { return false }

// What a model cannot get begins no turn; a text is for every model.
func TestAttachments_OfAModelThatTakesNone(t *testing.T) {
	t.Parallel()
	r := newRig(says("ok"))
	runner := mustNew(t, blind{r.model}, r.fleet, r.journal, table(t), &r.opts)
	result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "Look.", Attachments: []loop.Attachment{attach(t, "a.png", png)}})
	require.ErrorContains(t, err, "attachment a.png: the model takes no files of type image/png")
	require.Equal(t, protocol.CodeInvalidArguments, result.Error.Code)
	require.NotContains(t, result.Error.Message, string(protocol.CodeInvalidArguments), "the code is said once")
	require.Empty(t, r.events(t))
	mustRun(t.Context(), t, runner, r.session, loop.Input{Attachments: []loop.Attachment{attach(t, "n.txt", "x")}})
	require.Equal(t, "[Attached file n.txt:]\nx\n[End of n.txt]", r.model.lastSeen()[1].Text)
}

// A conversation that is too long keeps the attachments of the last input that has some; a summary
// keeps all.
func TestAttachments_OfALongConversation(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	r := newRig(says(long), says(long), says("Three."))
	for i := range 2 {
		r.mustRunInput(t.Context(), t, loop.Input{Text: "Look.", Attachments: []loop.Attachment{attach(t, fmt.Sprintf("%d.png", i), png)}})
	}
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &loop.Options{Compaction: &loop.Compaction{Model: &summarizer{}}})
	done, err := runner.Compact(t.Context(), r.session, "")
	require.NoError(t, err)
	require.True(t, done)
	tooLong := 0
	shy := modelFunc(func(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
		if tooLong++; tooLong == 1 {
			require.Len(t, req.Messages[1].Attachments, 1, "the user's words stay beside a summary")
			return loop.Reply{}, loop.ErrTooLong
		}
		return r.model.Reply(ctx, req, delta)
	})
	runner = mustNew(t, shy, r.fleet, r.journal, table(t), &loop.Options{})
	mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "On."})
	var notes, files []string
	for _, message := range r.model.lastSeen() {
		if strings.Contains(message.Text, "is left out because the conversation is long") {
			notes = append(notes, message.Text)
		}
		for _, a := range message.Attachments {
			files = append(files, a.Name)
		}
	}
	require.Equal(t, []string{"1.png"}, files)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "[The attached file 0.png is left out")
}

type modelFunc func(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error)

func (f modelFunc) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	return f(ctx, req, delta)
}

func TestNewAttachment_TypesByContent(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		png: "image/png", pdf: "application/pdf",
		"plain, Grüße": "text/plain", "<html>": "text/plain", `{"a": 1}`: "text/plain",
	} {
		require.Equal(t, want, attach(t, "x", content).MediaType, "%q", content)
	}
}

func TestCheckAttachments_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	of := func(name, content string) loop.Attachment {
		return loop.Attachment{Name: name, Image: loop.Image{Data: []byte(content)}}
	}
	big := of("a.png", png+strings.Repeat("x", 4<<20-len(png)))
	require.NoError(t, loop.Input{Attachments: []loop.Attachment{big, big, big}}.Check(nil))
	many := make([]loop.Attachment, 17)
	for want, list := range map[string][]loop.Attachment{
		"attachment a.bin: must be a PNG, JPEG, GIF or WebP image, a PDF document, or text in UTF-8": {of("a.bin", "\x00\x01")},
		"attachment a.txt: is empty":                                                {of("a.txt", "")},
		"attachment a.png: is no picture that can be decoded: ":                     {of("a.png", png[:8])},
		"attachment b.png: is no picture that can be decoded: ":                     {of("b.png", png[:len(png)-20])},
		"attachment a.png: has 4194305 bytes as image/png: must be at most 4194304": {of("a.png", png+strings.Repeat("x", 4<<20-len(png)+1))},
		"attachment a.txt: has 262145 bytes as text/plain: must be at most 262144":  {of("a.txt", strings.Repeat("x", 256<<10+1))},
		`attachment "": the name must be 1 to 255 bytes`:                            {of("", "x")},
		`attachment "a\nb": the name must be`:                                       {of("a\nb", "x")},
		`attachment "\xff": the name must be`:                                       {of("\xff", "x")},
		`attachment "aaa`:                                                           {of(strings.Repeat("a", 256), "x")},
		"attachments: 17 files: must be at most 16":                                 many,
		"attachments: more than 12582912 bytes together":                            {big, big, big, of("n", "x")},
	} {
		require.ErrorContains(t, loop.Input{Attachments: list}.Check(nil), want)
	}
}

// sighted is a model that takes pictures, and no documents.
type sighted struct{ *script }

func (sighted) Views(mediaType string) bool { return mediaType != "application/pdf" }

func pages(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../../internal/model/media/testdata/" + name)
	require.NoError(t, err)
	return data
}

// A model that takes no PDF documents gets their pages as text; a document without text is refused.
func TestAttachments_DocumentsAsText(t *testing.T) {
	t.Parallel()
	r := newRig(says("I see."), says("Still."))
	runner := mustNew(t, sighted{r.model}, r.fleet, r.journal, table(t), &r.opts)
	input := loop.Input{Text: "Read.", Attachments: []loop.Attachment{attach(t, "a.pdf", string(pages(t, "pages.pdf")))}}
	mustRun(t.Context(), t, runner, r.session, input)
	said := r.model.lastSeen()[1]
	require.Empty(t, said.Attachments)
	require.Equal(t, "Read.\n\n[Attached file a.pdf:]\n[Page 1 of 3]\nThe first page.\n\n[Page 2 of 3]\n\n\n[Page 3 of 3]\nThe third page.\n[End of a.pdf]", said.Text)
	input.Attachments[0] = attach(t, "a.pdf", string(pages(t, "empty.pdf")))
	_, err := runner.Run(t.Context(), r.session, input)
	require.ErrorContains(t, err, "attachment a.pdf: the model takes no PDF documents, and the text of this one cannot be sent instead: it has no text")
}

// What tools return is decoded before a model gets it: a picture that is none is left out, one of
// another type has its own, and of a document that the model does not take it gets the pages.
func TestRun_PicturesAreDecoded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mediaType string
		data      []byte
		shown     string
		text      string
	}{
		"a picture":    {"image/png", []byte(png), "image/png", ""},
		"another type": {"image/jpeg", []byte(png), "image/png", ""},
		"no picture":   {"image/png", []byte(png[:8]), "", "[It is not shown: it is no picture that can be decoded: "},
		"half of one":  {"image/png", []byte(png[:len(png)-20]), "", "[It is not shown: it is no picture that can be decoded: "},
		"a document":   {"application/pdf", pages(t, "pages.pdf"), "application/pdf", "[Page 3 of 3]\nThe third page."},
		"a scan": {
			"application/pdf", pages(t, "empty.pdf"), "application/pdf",
			"[It is not shown: you take no PDF documents, and its text cannot be read: it has no text",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "work"), says("ok"))
			r.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
				return protocol.MCPCallResult{Content: []protocol.MCPContent{{Type: "text", Text: "Look."}, {Type: "image", MediaType: test.mediaType, Data: test.data}}}, nil
			}
			runner := mustNew(t, sighted{r.model}, r.fleet, r.journal, table(t), &r.opts)
			mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
			for _, message := range r.model.lastSeen() {
				if message.Role != loop.RoleTool {
					continue
				}
				require.Contains(t, message.Text, test.text)
				if test.shown == "" {
					require.Nil(t, message.Image)
					return
				}
				require.Equal(t, test.shown, message.Image.MediaType)
				return
			}
			require.Fail(t, "no result")
		})
	}
}

// said are the texts of the messages of a role.
func said(messages []loop.Message, role loop.Role) (texts []string) {
	for _, m := range messages {
		if m.Role == role {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// roles says who speaks, in order.
func roles(messages []loop.Message) string {
	var b strings.Builder
	for _, m := range messages[1:] {
		b.WriteByte(string(m.Role)[0])
	}
	return b.String()
}

// What a person says while a tool runs is in the request behind its result, and in every later one
// at the same position.
func TestAdditions_ReachTheModelAtItsNextStep(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), asks("b", "work"), says("done"), says("again"))
	r.opts.Additions, r.opts.Author = &loop.Additions{}, protocol.Author{Name: "Ada", Email: "a@b.c"}
	taken, err := r.opts.Additions.Add(t.Context(), "nothing runs")
	require.NoError(t, err)
	require.False(t, taken)
	calls := 0
	r.fleet.told = func(protocol.Call) {
		if calls++; calls == 1 {
			taken, err = r.opts.Additions.Add(context.Background(), "more")
		}
	}
	_, runErr := r.run(t.Context(), t, "go")
	require.NoError(t, errors.Join(err, runErr))
	require.True(t, taken)
	require.Equal(t, []string{"go", "more"}, said(r.model.lastSeen(), loop.RoleUser))
	require.Equal(t, "uatuat", roles(r.model.lastSeen()), "behind the result of the first call")
	r.mustRun(t.Context(), t, "next")
	require.Equal(t, "uatuatau", roles(r.model.lastSeen()))
	require.True(t, slices.ContainsFunc(r.events(t), func(e loop.Event) bool {
		return e.Type == loop.EventInputAdded && e.Turn == 1 && e.Step == 1 && e.Input == "more" && e.By == "Ada"
	}))
	taken, err = r.opts.Additions.Add(t.Context(), "nothing runs")
	require.NoError(t, err)
	require.False(t, taken)
}

// What a person says while the model answers is no part of that request: the model is asked once
// more, and the turn's answer is that of the last reply.
func TestAdditions_WhileTheModelAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(says("too early"), says("done"))
	r.opts.Additions = &loop.Additions{}
	asked := 0
	r.model.before = func(ctx context.Context) {
		if asked++; asked == 1 {
			taken, err := r.opts.Additions.Add(ctx, "wait")
			require.NoError(t, err)
			require.True(t, taken)
		}
	}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, "done", result.Text)
	require.Equal(t, 2, result.Steps)
	require.Equal(t, "uau", roles(r.model.lastSeen()))
}

// A turn that ends otherwise leaves what the model has not read to the next turn.
func TestAdditions_OfATurnThatEndsOtherwise(t *testing.T) {
	t.Parallel()
	r := newRig()
	r.opts.Additions, r.model.err = &loop.Additions{}, errors.New("down")
	r.model.before = func(ctx context.Context) {
		_, err := r.opts.Additions.Add(ctx, "unread")
		require.NoError(t, err)
	}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	r.model.replies, r.model.before = []loop.Reply{says("done")}, nil
	r.mustRun(t.Context(), t, "next")
	require.Equal(t, []string{"go", "unread", "next"}, said(r.model.lastSeen(), loop.RoleUser))
}

// An addition is in the journal before Add returns. A coordinator that ends at any event behind it
// neither loses it nor shows it to the model twice, and a replay of the session has it, too.
func TestAdditions_CrashAtAnyEvent(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"call", "reply", "answer"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			replies := []loop.Reply{asks("a", "work"), says("first"), says("second")}
			clean := newRig(replies...)
			clean.opts.Additions = &loop.Additions{}
			add := func() {
				_, err := clean.opts.Additions.Add(context.Background(), "more")
				require.NoError(t, err)
			}
			asked := 0
			clean.model.before = func(context.Context) {
				if asked++; when == "reply" && asked == 1 || when == "answer" && asked == 2 {
					add()
				}
			}
			clean.fleet.told = func(protocol.Call) {
				if when == "call" {
					add()
				}
			}
			clean.mustRun(t.Context(), t, "go")
			events := clean.events(t)
			added := slices.IndexFunc(events, func(e loop.Event) bool { return e.Type == loop.EventInputAdded })
			require.Positive(t, added)
			for n := added + 1; n < len(events); n++ {
				r := newRig(replies...)
				r.session, r.fleet.known = clean.session, clean.fleet.known
				_, err := r.journal.Append(t.Context(), r.session, 0, events[:n]...)
				require.NoError(t, err)
				_, err = r.runInput(t.Context(), t, loop.Input{})
				require.NoError(t, err, n)
				r.mustRun(t.Context(), t, "next")
				require.Equal(t, []string{"go", "more", "next"}, said(r.model.lastSeen(), loop.RoleUser), "after %d events", n)
				require.True(t, strings.HasPrefix(transcript(t, r.events(t)), transcript(t, events)), "after %d events", n)
			}
			recording, err := loop.History{Events: events}.Recording()
			require.NoError(t, err)
			played := newRig()
			played.opts.Replay = recording
			runner := mustNew(t, recording, played.fleet, played.journal, table(t), &played.opts)
			mustRun(t.Context(), t, runner, played.session, recording.Inputs()[0])
			require.Equal(t, transcript(t, events), transcript(t, played.events(t)))
		})
	}
}

// A conversation goes back: the model reads nothing of the later turns, also not by a summary, and
// what they used still counts.
func TestRewind_TheModelReadsNoLaterTurn(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"), says("three"), says("four"))
	for _, input := range []string{"first", "second"} {
		r.mustRun(t.Context(), t, input)
	}
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts)
	require.ErrorContains(t, runner.Rewind(t.Context(), r.session, 3), "turn 3: the session has turns 1 to 2")
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1))
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1), "again")
	result := r.mustRun(t.Context(), t, "third")
	require.Equal(t, 3, result.Turn)
	require.Equal(t, []string{"first", "third"}, said(r.model.lastSeen(), loop.RoleUser))
	require.Equal(t, []string{"one"}, said(r.model.lastSeen(), loop.RoleAssistant))
	require.NoError(t, runner.Rewind(t.Context(), r.session, 0))
	r.mustRun(t.Context(), t, "fourth")
	require.Equal(t, "u", roles(r.model.lastSeen()))
	events := r.events(t)
	require.Equal(t, 2, strings.Count(transcriptTypes(events), "conversation_rewound"))
	_, err := loop.History{Events: events}.Recording()
	require.NoError(t, err)
}

// A summary that stands for turns that are taken out is no part of the conversation, either.
func TestRewind_TakesBackASummary(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"), says("three"), loop.Reply{Text: "a summary"})
	for _, input := range []string{"first", "second", "third"} {
		r.mustRun(t.Context(), t, input)
	}
	r.opts.Compaction = &loop.Compaction{}
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts)
	done, err := runner.Compact(t.Context(), r.session, "")
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1))
	r.model.replies = append(r.model.replies, says("again"))
	r.mustRun(t.Context(), t, "fourth")
	require.Equal(t, "uau", roles(r.model.lastSeen()))
	require.Equal(t, []string{"one"}, said(r.model.lastSeen(), loop.RoleAssistant))
}

func transcriptTypes(events []loop.Event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(string(e.Type) + "\n")
	}
	return b.String()
}
