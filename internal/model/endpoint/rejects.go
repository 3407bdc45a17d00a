package endpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Path finds the index into a list in the ways in which servers write a path: `list[1]`, `list.1`,
// "list", 1.
func Path(list string) *regexp.Regexp {
	return regexp.MustCompile(`\b` + list + `(?:\[|\.|/|\W{0,2},\W{0,2})(\d+)`)
}

// Field is something of requests that some servers reject.
type Field struct {
	Name string
	// Says is how an error names it. Its last group, if it has one, is the value that is taken.
	Says *regexp.Regexp
	// Once says that the error is about one request's conversation: the next request has it again.
	Once bool
}

// Rejects are what a server has rejected of requests, by session: what one reply of a session
// teaches changes the requests of no other one. It is safe for concurrent use.
type Rejects struct {
	conversation *regexp.Regexp // the path of a message
	fields       []Field

	mu       sync.Mutex
	sessions map[protocol.SessionID]map[string]string
}

// maxSessions bounds the sessions that have lessons. What is forgotten is learned again.
const maxSessions = 1024

// NewRejects returns what is known of a server: nothing. The first of fields that an error names is
// what it is about; an error that has a path of the conversation is about no tool.
func NewRejects(conversation *regexp.Regexp, fields ...Field) *Rejects {
	return &Rejects{conversation: conversation, fields: fields, sessions: map[protocol.SessionID]map[string]string{}}
}

// Of is what is known for the next request of a session.
func (r *Rejects) Of(session protocol.SessionID) *Lessons {
	r.mu.Lock()
	defer r.mu.Unlock()
	lessons := &Lessons{rejects: r, session: session, known: map[string]string{}}
	maps.Copy(lessons.known, r.sessions[session])
	return lessons
}

// Lessons are what a server has rejected of the requests for one reply, and of the session's
// others.
type Lessons struct {
	rejects *Rejects
	session protocol.SessionID
	known   map[string]string // from the name of a field, or [toolKey], to what the server said
}

// Omits reports whether requests are without a field.
func (l *Lessons) Omits(field string) bool { return l.known[field] != "" }

// Most is the largest value of a field that the server takes; 0 if that is unknown.
func (l *Lessons) Most(field string) int64 {
	most, err := strconv.ParseInt(l.known[field], 10, 64)
	if err != nil {
		return 0
	}
	return most
}

// Learn reports whether an error says that the server rejects something that the sent request has,
// so that one without it may do.
func (l *Lessons) Learn(err error, sent *Asked) bool {
	failure, ok := errors.AsType[*Error](err)
	if !ok || failure.Type != TypeInvalidRequest {
		return false
	}
	text := failure.Text()
	for _, field := range l.rejects.fields {
		found := field.Says.FindStringSubmatch(failure.Code + " " + text)
		if found == nil || !sent.has[field.Name] || l.known[field.Name] == found[len(found)-1] {
			continue
		}
		l.known[field.Name] = cmp.Or(found[len(found)-1], found[0])
		if !field.Once {
			l.Omit(field.Name, l.known[field.Name])
		}
		return true
	}
	if l.rejects.conversation.MatchString(text) {
		return false
	}
	tool, named := sent.rejectedTool(text)
	if named {
		l.Omit(toolKey(tool), text)
	}
	return named
}

// Omit has the requests of the session from now on without a field, for what the server said.
func (l *Lessons) Omit(field, said string) {
	l.known[field] = said
	r := l.rejects
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[l.session] == nil {
		if len(r.sessions) >= maxSessions {
			clear(r.sessions)
		}
		r.sessions[l.session] = map[string]string{}
	}
	r.sessions[l.session][field] = said
}

// Offered returns the tools that are sent: they can be declared, and are not rejected.
func (l *Lessons) Offered(all []tools.Definition, declared func(tools.Definition) bool) []tools.Definition {
	var offered []tools.Definition
	for _, definition := range all {
		if !l.Omits(toolKey(definition)) && declared(definition) {
			offered = append(offered, definition)
		}
	}
	return offered
}

// Notes tell a model which tools it is not offered, and why; "" when there are none.
func (l *Lessons) Notes(all []tools.Definition) string {
	var notes strings.Builder
	for _, definition := range all {
		if reason := l.known[toolKey(definition)]; reason != "" {
			fmt.Fprintf(&notes, "\n\n[The tool %s is left out, because the model's server refuses it: %s]", definition.Name, reason)
		}
	}
	return notes.String()
}

// toolKey is a tool as it is declared: another declaration may do.
func toolKey(definition tools.Definition) string {
	key, _ := json.Marshal(definition) // of JSON and strings
	return string(key)
}

// Asked is what the errors of a request may be about.
type Asked struct {
	Sent

	Lessons *Lessons
	// Tools are the declared ones. Where the API has functions in a list of their own, they are the
	// others, and Functions that list.
	Tools, Functions []tools.Definition

	has map[string]bool
}

// May reports whether the request may have a field. It has it then.
func (a *Asked) May(field string) bool {
	if a.Lessons.Omits(field) {
		return false
	}
	a.Has(field)
	return true
}

// Has notes that the request has a field.
func (a *Asked) Has(field string) {
	if a.has == nil {
		a.has = map[string]bool{}
	}
	a.has[field] = true
}

// Where errors name a declared tool by its position.
//
//nolint:gochecknoglobals // compiled once
var (
	inTools     = Path("tools")
	inFunctions = Path("function_?[dD]eclarations")
)

// rejectedTool is the tool whose declaration an error names, by its position, or by its name in a
// phrase about declarations. Errors about calls name tools too.
func (a *Asked) rejectedTool(text string) (tool tools.Definition, named bool) {
	if i, is := IndexIn(inFunctions, text, len(a.Functions)); is {
		return a.Functions[i], true
	}
	if i, is := IndexIn(inTools, text, len(a.Tools)); is {
		return a.Tools[i], true
	}
	for _, definition := range slices.Concat(a.Tools, a.Functions) {
		if declares(definition).MatchString(text) {
			return definition, true
		}
	}
	return tools.Definition{}, false
}

// declares finds the phrases about the declaration of a tool.
func declares(definition tools.Definition) *regexp.Regexp {
	names := []string{regexp.QuoteMeta(definition.Name)}
	for _, native := range definition.Native {
		if declared, err := lenient.FieldsOf("", native); err == nil && lenient.String(declared["type"]) != "" {
			names = append(names, regexp.QuoteMeta(lenient.String(declared["type"])))
		}
	}
	name := `\W{1,3}(?:` + strings.Join(names, "|") + `)\b`
	return regexp.MustCompile(`(?i)\b(?:invalid|unsupported|duplicate) (?:[\w-]+ ){0,3}(?:schema|definition|declaration|name|type) (?:for|of|in) (?:the )?(?:function|tool)` + name +
		`|\b(?:function|tool)` + name + `\W{1,3}(?:is|are) not (?:supported|allowed|enabled)\b` +
		`|\bdoes not support (?:the )?(?:function|tool)s?(?: types?)?` + name)
}

// Things that a model is shown, and what a server finds wrong with them.
const (
	imageThing = `(?:\b(?:images?|pictures?|pdfs?|vision|multi-?modal)\b|\bdocument (?:has|is|was|blocks?|input|pages?)\b)`
	imageWrong = `\b(?:not?|cannot|can't|couldn't|doesn't|unable|invalid|unsupported|bad|fail(?:s|ed)?|exceeds?|at most|maximum|too (?:many|large|big|small)|only|missing|corrupt(?:ed)?|empty)\b`
)

// How servers say that they do not take an image or document: things and what is wrong with them in
// one sentence, or the field or the code of one.
var (
	imageCode   = regexp.MustCompile(`(?:^|_)(?:image|pdf|document)(?:_|$)`)
	imageField  = regexp.MustCompile(`(?i)\b(?:image_url|input_image|input_file|inline_?data|file_data|(?:image|document)\.source)\b`)
	imagePhrase = regexp.MustCompile(`(?i)` + imageThing + `[^.;!?]*` + imageWrong + `|` + imageWrong + `[^.;!?]*` + imageThing)
	otherImage  = regexp.MustCompile(`(?i)\bimages?[ _-]generation\b|\b(?:container|docker|base|disk) images?\b`)
	// imageBroke is what a server says that fails, or finds no model, because of an image.
	imageBroke = regexp.MustCompile(`(?i)\bimage input\b|\b(?:identify|process|decode) (?:the )?(?:input )?image\b` +
		`|\bsupport(?:s|ing)? (?:for )?` + imageThing + `|` + imageThing + `(?: inputs?)? (?:is|are) not (?:supported|enabled)\b|\bnot a (?:vision|multi-?modal)\b`)
	tooManyFor = regexp.MustCompile(`(?i)at most|too many|more than`)
)

func (e *Error) aboutImages() bool {
	text := otherImage.ReplaceAllString(e.Text(), "")
	if e.Type != TypeInvalidRequest {
		return imageBroke.MatchString(text)
	}
	return imageCode.MatchString(e.Code) || imageField.MatchString(text) || imagePhrase.MatchString(text)
}

// Refused makes the error of a request that the server refuses for parts of the conversation a
// [loop.RefusedError]. The parts are the ones that the text of the error names by position, else
// images, if it mentions images; images holds the sent ones, by message.
func Refused(err error, named func(text string, aboutImages bool) []loop.Part, images func() [][]loop.Part) error {
	failure, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	if parts := refusedParts(failure, named, images); len(parts) > 0 {
		return &loop.RefusedError{Parts: parts, Err: err}
	}
	return err
}

func refusedParts(failure *Error, named func(string, bool) []loop.Part, images func() [][]loop.Part) []loop.Part {
	text, aboutImages := failure.Text(), failure.aboutImages()
	switch failure.Type {
	case TypeInvalidRequest:
	case TypeServerError, TypeNotFound: // some servers answer so to what they cannot show a model
		if !aboutImages {
			return nil
		}
	default:
		return nil
	}
	if parts := named(text, aboutImages); len(parts) > 0 || !aboutImages {
		return parts
	}
	groups := images()
	switch {
	case len(groups) == 0:
		return nil
	case tooManyFor.MatchString(text):
		return groups[0][:1]
	default: // the newest: the server took those before
		return groups[len(groups)-1]
	}
}

// AttachmentPart is an attachment as a part that can be left out.
func AttachmentPart(a *loop.Attachment) loop.Part {
	return loop.Part{ToolCallID: a.ID, Kind: loop.PartAttachment}
}

// IndexIn is the index into a list that a text names, if it is below its length.
func IndexIn(list *regexp.Regexp, text string, length int) (index int, named bool) {
	found := list.FindStringSubmatch(text)
	if found == nil {
		return 0, false
	}
	index, err := strconv.Atoi(found[1])
	if err != nil || index >= length {
		return 0, false
	}
	return index, true
}

// Sent are the parts of the conversation that a request has, by message and by position in it; the
// zero [loop.Part] stands for what cannot be left out.
type Sent struct {
	Messages [][]loop.Part
	images   map[string]bool // the tool calls with an image
}

// AddImage notes that the result of a tool call is sent with its image.
func (s *Sent) AddImage(toolCallID string) {
	if s.images == nil {
		s.images = map[string]bool{}
	}
	s.images[toolCallID] = true
}

// Refused is [Refused] for an API whose errors name a message and the position in it.
func (s *Sent) Refused(err error, inMessage, inContent *regexp.Regexp) error {
	return Refused(err, func(text string, aboutImages bool) []loop.Part {
		at, named := IndexIn(inMessage, text, len(s.Messages))
		if !named {
			return nil
		}
		i, named := IndexIn(inContent, text, len(s.Messages[at]))
		if !named && len(s.Messages[at]) != 1 { // the only part needs no position
			return nil
		}
		switch part := s.Messages[at][i]; {
		case part.ToolCallID == "":
			return nil
		case aboutImages && s.images[part.ToolCallID] && part.Kind == loop.PartResult:
			return []loop.Part{{ToolCallID: part.ToolCallID, Kind: loop.PartImage}}
		default:
			return []loop.Part{part}
		}
	}, s.imageGroups)
}

func (s *Sent) imageGroups() [][]loop.Part {
	var groups [][]loop.Part
	for _, message := range s.Messages {
		var images []loop.Part
		for _, part := range message {
			switch {
			case part.Kind == loop.PartAttachment:
				images = append(images, part)
			case part.Kind == loop.PartResult && s.images[part.ToolCallID]:
				images = append(images, loop.Part{ToolCallID: part.ToolCallID, Kind: loop.PartImage})
			}
		}
		if len(images) > 0 {
			groups = append(groups, images)
		}
	}
	return groups
}

// ShortID stands for the id of a tool call that a server does not take: one of nine letters and
// digits, which every known server takes.
func ShortID(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:9]
}
