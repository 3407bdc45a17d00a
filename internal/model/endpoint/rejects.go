package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Where a server says that something is wrong.
var (
	inTool     = regexp.MustCompile(`tools\W{1,3}(\d+)`)
	imageWord  = regexp.MustCompile(`(?i)image|vision|multi-?modal|document|\bpdf\b|input_file`)
	tooManyFor = regexp.MustCompile(`(?i)at most|too many|more than`)
)

// Tools are the tools that a server has rejected, which it is not sent again. It is safe for
// concurrent use.
type Tools struct{ rejected sync.Map } // from toolKey to the server's message

// Learn looks for the tool that a server names, by its index or its name. It reports whether
// it was among those that were sent.
func (t *Tools) Learn(text string, sent []tools.Definition) bool {
	if i, named := IndexIn(inTool, text, len(sent)); named {
		t.rejected.Store(toolKey(sent[i]), text)
		return true
	}
	for _, definition := range sent {
		quoted := regexp.MustCompile("(?i)(function|tool)\\W+" + regexp.QuoteMeta(definition.Name) + "\\b")
		if quoted.MatchString(text) {
			t.rejected.Store(toolKey(definition), text)
			return true
		}
	}
	return false
}

// Offered are the tools that are sent: those that can be declared, and are not rejected.
func (t *Tools) Offered(all []tools.Definition, declared func(tools.Definition) bool) []tools.Definition {
	var offered []tools.Definition
	for _, definition := range all {
		if _, rejected := t.rejected.Load(toolKey(definition)); !rejected && declared(definition) {
			offered = append(offered, definition)
		}
	}
	return offered
}

// Notes tell a model which tools it is not offered, and why; "" when there are none.
func (t *Tools) Notes(all []tools.Definition) string {
	var notes strings.Builder
	for _, definition := range all {
		if reason, rejected := t.rejected.Load(toolKey(definition)); rejected {
			fmt.Fprintf(&notes, "\n\n[The tool %s is left out, because the model's server refuses it: %v]", definition.Name, reason)
		}
	}
	return notes.String()
}

// toolKey is a tool as it is declared: another declaration may do.
func toolKey(definition tools.Definition) string {
	key, _ := json.Marshal(definition) // of JSON and strings
	return string(key)
}

// Refused makes the error of a request that the server refuses for parts of the conversation a
// [loop.RefusedError]. The parts are those that the text of the error names by their position, else
// images, if it speaks of them; images are those that were sent, by message.
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
	text := failure.Text()
	aboutImages := imageWord.MatchString(text)
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
