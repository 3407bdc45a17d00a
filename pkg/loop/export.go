package loop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// exportVersion is the version of the schema of exports. A field more is no new version: who reads
// an export ignores fields and types of events that it does not know.
const exportVersion = 1

// exportType is the type of the first line of an export.
const exportType = "session_export"

// exportHead is the first line of an export.
type exportHead struct {
	Type      string             `json:"type"`
	Version   int                `json:"version"`
	SessionID protocol.SessionID `json:"session_id"`
}

// Export writes the session as lines of JSON, for [ReadExport]: a line with the version, and each
// event as it is journaled, without the seed. Images and attachments are in it, other stored
// outputs are not.
func (h History) Export(w io.Writer, session protocol.SessionID) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(exportHead{exportType, exportVersion, session})
	for i := 0; err == nil && i < len(h.Events); i++ {
		e := h.Events[i]
		e.Seed = ""
		if e.Image != nil && len(e.Image.Data) > 0 {
			e.Image = &Image{MediaType: e.Image.MediaType, Data: e.Image.Data}
		}
		e.Attachments = slices.Clone(e.Attachments)
		for i := range e.Attachments {
			if a := &e.Attachments[i]; len(a.Data) > 0 {
				a.Blob = ""
			}
		}
		err = encoder.Encode(e)
	}
	if err != nil {
		return fmt.Errorf("export session %s: %w", session, err)
	}
	return nil
}

// ReadExport reads an export, and checks that its events are those of a session.
func ReadExport(r io.Reader) ([]Event, error) {
	lines := bufio.NewReader(r)
	var events []Event
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		last := err != nil
		switch line = bytes.TrimSpace(line); {
		case number == 1:
			if err := checkHead(line); err != nil {
				return nil, err
			}
		case len(line) > 0:
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			events = append(events, e)
		}
		if last {
			_, err := fold(events)
			return events, err
		}
	}
}

func checkHead(line []byte) error {
	var head exportHead
	if err := json.Unmarshal(line, &head); err != nil || head.Type != exportType {
		return fmt.Errorf(`line 1: must be {"type":%q,"version":%d,...}, as session export prints it`, exportType, exportVersion)
	}
	if head.Version != exportVersion {
		return fmt.Errorf("line 1: version %d: this program reads version %d", head.Version, exportVersion)
	}
	return nil
}

// transcriptLine is a line of a transcript.
type transcriptLine struct {
	Turn       int        `json:"turn"`
	Step       int        `json:"step,omitempty"`
	Role       string     `json:"role"` // a Role, or "end" for the end of a turn
	Text       string     `json:"text,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Name       string     `json:"name,omitempty"`
	Status     string     `json:"status,omitempty"` // of a tool call, or the Outcome of a turn
}

// Transcript writes what was said in a session as lines of JSON: each input, reply, result and
// note, in the order in which a model reads them, and how each turn ended. Times, ids that the
// fleet makes, workers and durations are not in it, so two sessions in which the same was said have
// the same transcript.
func (h History) Transcript(w io.Writer) error {
	s, err := fold(h.Events)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	write := func(line transcriptLine) {
		if err == nil {
			err = encoder.Encode(line)
		}
	}
	notes := func(turn, step int, notes []string) {
		for _, note := range notes {
			write(transcriptLine{Turn: turn, Step: step, Role: string(RoleUser), Text: note})
		}
	}
	for i := range s.turns {
		t := &s.turns[i]
		write(transcriptLine{Turn: t.number, Role: string(RoleUser), Text: t.input.message().Text})
		notes(t.number, 0, slices.Concat(t.notes, t.addedBehind(0)))
		for j := range t.steps {
			step := &t.steps[j]
			said := transcriptLine{Turn: t.number, Step: j + 1, Role: string(RoleAssistant), Text: step.text}
			for k := range step.calls {
				said.ToolCalls = append(said.ToolCalls, step.calls[k].ToolCall)
			}
			write(said)
			for k := range step.calls {
				if call := &step.calls[k]; call.content != nil {
					write(transcriptLine{
						Turn: t.number, Step: j + 1, Role: string(RoleTool), ToolCallID: call.ID, Name: call.Name, Status: string(call.status), Text: *call.content,
					})
				}
			}
			notes(t.number, j+1, slices.Concat(step.notes, t.addedBehind(j+1)))
		}
		if t.result != nil {
			write(transcriptLine{Turn: t.number, Role: "end", Status: string(t.result.Outcome)})
		}
	}
	return err
}
