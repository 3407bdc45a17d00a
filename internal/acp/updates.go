package acp

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

const (
	// outputPeriod is how often the output of a running call is sent, and maxOutput how much of it.
	outputPeriod = 200 * time.Millisecond
	maxOutput    = 8 << 10
	// maxOld bounds a file that is read for the diff of a call that would replace it.
	maxOld = 1 << 20
)

// updates translates the events of a session.
type updates struct {
	workspace string
	table     func() *tools.Table
	send      func(acp.SessionUpdate)

	mu            sync.Mutex // calls write while events come
	said, thought string     // of the reply, as far as it was sent
	calls         map[protocol.CallID]*running
}

// running is a call that was announced and has no result.
type running struct {
	output []byte // its end
	sent   time.Time
}

// observe sends what an event says.
func (u *updates) observe(e loop.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch e.Type {
	case loop.EventTextDelta:
		u.said += e.Text
		u.send(acp.UpdateAgentMessageText(e.Text))
	case loop.EventReasoningDelta:
		u.thought += e.Text
		u.send(acp.UpdateAgentThoughtText(e.Text))
	case loop.EventModelWaits, loop.EventReplyFailed:
		if u.said != "" {
			u.send(acp.UpdateAgentMessageText("\n\n[The reply was cut off, and begins again.]\n\n"))
		}
		u.said, u.thought = "", ""
	case loop.EventModelReply:
		u.reply(&e)
	case loop.EventToolCall, loop.EventApprovalAsked:
		u.announce(&e)
	case loop.EventToolRunning:
		if u.calls[e.CallID] != nil {
			u.send(acp.UpdateToolCall(idOf(e.CallID), acp.WithUpdateStatus(acp.ToolCallStatusInProgress)))
		}
	case loop.EventAgentMoved:
		if u.calls[e.CallID] != nil {
			u.send(acp.UpdateToolCall(idOf(e.CallID), acp.WithUpdateContent(textOf(e.Text))))
		}
	case loop.EventToolResult, loop.EventJobEnded:
		u.result(&e)
	case loop.EventNativeCall:
		u.native(&e)
	default:
	}
}

// replay sends the conversation of a session that is loaded.
func (u *updates) replay(events []loop.Event) {
	kept := events[:0:0]
	for i := range events {
		if e := &events[i]; e.Type == loop.EventRewound {
			for len(kept) > 0 && kept[len(kept)-1].Turn > e.KeptTurn {
				kept = kept[:len(kept)-1]
			}
		}
		kept = append(kept, events[i])
	}
	for i := range kept {
		e := &kept[i]
		if e.Type == loop.EventTurnStarted || e.Type == loop.EventInputAdded {
			if e.Input != "" {
				u.send(acp.UpdateUserMessageText(e.Input))
			}
			for _, a := range e.Attachments {
				u.send(acp.UpdateUserMessageText("\n[" + a.Name + "]"))
			}
		}
		u.observe(*e)
	}
}

// reply sends what was not streamed of a reply.
func (u *updates) reply(e *loop.Event) {
	if e.Reasoning != nil {
		if rest, more := strings.CutPrefix(e.Reasoning.Text, u.thought); more && rest != "" {
			u.send(acp.UpdateAgentThoughtText(rest))
		}
	}
	if rest, more := strings.CutPrefix(e.Text, u.said); more && rest != "" {
		u.send(acp.UpdateAgentMessageText(rest))
	}
	u.said, u.thought = "", ""
}

// announce sends a call that begins, or about which a person is asked.
func (u *updates) announce(e *loop.Event) {
	if u.calls[e.CallID] != nil {
		return
	}
	u.calls[e.CallID] = &running{}
	call := u.about(e.Name, e.Arguments)
	call.ToolCallId, call.Status = idOf(e.CallID), acp.ToolCallStatusPending
	u.send(acp.SessionUpdate{ToolCall: &call})
}

// result sends how a call ended, or that it continues in the background.
func (u *updates) result(e *loop.Event) {
	if e.Type == loop.EventToolResult && e.Job != "" && e.Error == nil {
		u.send(acp.UpdateToolCall(idOf(e.CallID), acp.WithUpdateStatus(acp.ToolCallStatusInProgress)))
		return
	}
	if u.calls[e.CallID] == nil { // of an earlier turn, whose call is not shown any more
		u.announce(e)
	}
	delete(u.calls, e.CallID)
	status := acp.ToolCallStatusCompleted
	if e.Status != string(protocol.StatusOK) {
		status = acp.ToolCallStatusFailed
	}
	content, locations := u.diffs(e.Diff)
	text := e.Content
	if e.Diff != "" {
		text = strings.Replace(text, e.Diff, "", 1)
	}
	if strings.TrimSpace(text) != "" {
		if u.kindOf(e.Name) != acp.ToolKindThink {
			text = fenced(text)
		}
		content = append(content, textOf(text)...)
	}
	options := []acp.ToolCallUpdateOpt{acp.WithUpdateStatus(status), acp.WithUpdateContent(content), acp.WithUpdateRawOutput(rawOutput(e))}
	if len(locations) > 0 {
		options = append(options, acp.WithUpdateLocations(locations))
	}
	u.send(acp.UpdateToolCall(idOf(e.CallID), options...))
	if e.Scratch != nil && e.Scratch.Key == planKey {
		u.plan(e.Scratch.Value)
	}
}

// planKey is the key of the scratchpad whose list the client shows as the plan.
const planKey = "plan"

// plan sends a list of the scratchpad: lines such as "- [ ] open", "- [~] begun" and "- [x] done".
// Without one the client shows no plan.
func (u *updates) plan(text *string) {
	entries, list := []acp.PlanEntry{}, ""
	if text != nil {
		list = *text
	}
	for line := range strings.Lines(list) {
		mark, content, is := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "-*0123456789. ["), "]")
		status, known := map[string]acp.PlanEntryStatus{
			"": acp.PlanEntryStatusPending, " ": acp.PlanEntryStatusPending, "~": acp.PlanEntryStatusInProgress,
			"x": acp.PlanEntryStatusCompleted, "X": acp.PlanEntryStatusCompleted,
		}[mark]
		if content = strings.TrimSpace(content); is && known && content != "" {
			entries = append(entries, acp.PlanEntry{Content: content, Priority: acp.PlanEntryPriorityMedium, Status: status})
		}
	}
	u.send(acp.UpdatePlan(entries...))
}

func rawOutput(e *loop.Event) map[string]any {
	raw := map[string]any{"status": e.Status}
	if e.Error != nil {
		raw["error"] = map[string]any{"code": e.Error.Code, "message": e.Error.Message}
	}
	return raw
}

// native sends a call that the provider of the model ran.
func (u *updates) native(e *loop.Event) {
	call := acp.SessionUpdateToolCall{
		ToolCallId: acp.ToolCallId(fmt.Sprintf("native-%d-%d-%s-%d", e.Turn, e.Step, e.Name, e.Time.UnixNano())), Title: strings.TrimSpace(e.Name + " " + e.Text),
		Kind: acp.ToolKindFetch, Status: acp.ToolCallStatusCompleted,
	}
	if e.Content != "" {
		call.Content = textOf(fenced(e.Content))
	}
	u.send(acp.SessionUpdate{ToolCall: &call})
}

// output sends the end of what a running call writes.
func (u *updates) output(id protocol.CallID, o fleet.Output) {
	u.mu.Lock()
	defer u.mu.Unlock()
	call := u.calls[id]
	if call == nil {
		return
	}
	call.output = append(call.output, o.Data...)
	if more := len(call.output) - maxOutput; more > 0 {
		call.output = append([]byte{}, call.output[more:]...)
	}
	if now := time.Now(); now.Sub(call.sent) >= outputPeriod {
		call.sent = now
		u.send(acp.UpdateToolCall(idOf(id), acp.WithUpdateContent(textOf(fenced(strings.ToValidUTF8(string(call.output), ""))))))
	}
}

// about describes a call.
func (u *updates) about(name, arguments string) acp.SessionUpdateToolCall {
	call := acp.SessionUpdateToolCall{Title: terminal.About(name, arguments), Kind: u.kindOf(name)}
	var given map[string]any
	if json.Unmarshal([]byte(arguments), &given) != nil {
		call.RawInput = arguments
		return call
	}
	call.RawInput = given
	at, _ := given["path"].(string)
	if at != "" {
		location := acp.ToolCallLocation{Path: u.absolute(at)}
		for _, field := range []string{"line", "offset", "start_line"} {
			if line, is := given[field].(float64); is && line >= 1 {
				location.Line = new(int(line))
			}
		}
		call.Locations = []acp.ToolCallLocation{location}
	}
	switch command, isCommand := given["command"].(string); {
	case isCommand && strings.Contains(strings.TrimSpace(command), "\n") || len(command) > len(call.Title):
		call.Content = textOf(fenced(command))
	case call.Kind == acp.ToolKindEdit && at != "":
		call.Content = u.preview(at, given)
	}
	return call
}

// preview is what a call would change in a file, as far as its arguments say it.
func (u *updates) preview(at string, given map[string]any) (content []acp.ToolCallContent) {
	text := func(from map[string]any, name string) string {
		value, _ := from[name].(string)
		return value
	}
	if patch := text(given, "patch"); patch != "" {
		content, _ = u.diffs(patch)
		return content
	}
	if whole, is := given["content"].(string); is && given["query"] == nil {
		diff := acp.ToolDiffContent(u.absolute(at), whole)
		if old, there := u.read(at); there {
			diff.Diff.OldText = &old
		}
		return append(content, diff)
	}
	edits, _ := given["edits"].([]any)
	for _, one := range append([]any{given}, edits...) {
		edit, _ := one.(map[string]any)
		for old, replacement := range map[string]string{"old": "new", "search": "replace"} {
			if edit[old] != nil && edit[replacement] != nil {
				content = append(content, acp.ToolDiffContent(u.absolute(at), text(edit, replacement), text(edit, old)))
			}
		}
	}
	return content
}

// read reads a file of the workspace, for what a call would change in it.
func (u *updates) read(name string) (string, bool) {
	root, err := os.OpenRoot(u.workspace)
	if err != nil {
		return "", false
	}
	defer func() { _ = root.Close() }() // it was only read
	content, err := regular.ReadIn(root, filepath.FromSlash(name), maxOld)
	return string(content), err == nil
}

// diffs are the changes that a unified diff shows.
func (u *updates) diffs(diff string) (content []acp.ToolCallContent, locations []acp.ToolCallLocation) {
	for _, h := range terminal.HunksIn(diff) {
		shown := acp.ToolDiffContent(u.absolute(h.Path), h.New)
		if !h.Created {
			shown.Diff.OldText = new(h.Old)
		}
		content = append(content, shown)
		locations = append(locations, acp.ToolCallLocation{Path: u.absolute(h.Path), Line: new(h.Line)})
	}
	return content, locations
}

// absolute is the absolute path of a file of the workspace.
func (u *updates) absolute(name string) string {
	if name = filepath.FromSlash(name); filepath.IsAbs(name) || u.workspace == "" {
		return name
	}
	return filepath.Join(u.workspace, name)
}

// kindOf is what a tool does.
func (u *updates) kindOf(name string) acp.ToolKind {
	switch terminal.Builtin(name) {
	case "bash", "run_code", "process", "tool_continue":
		return acp.ToolKindExecute
	case "edit", "multi_edit", "write", "json_write":
		return acp.ToolKindEdit
	case "read", "json_read":
		return acp.ToolKindRead
	case "list", "tree", "glob", "grep", "exists":
		return acp.ToolKindSearch
	case "web_fetch", "web_search":
		return acp.ToolKindFetch
	case "agent", "scratchpad", "skill":
		return acp.ToolKindThink
	}
	if tool, known := u.table().Lookup(name); known && tool.Effect.ReadOnly {
		return acp.ToolKindRead
	}
	return acp.ToolKindOther
}

func idOf(id protocol.CallID) acp.ToolCallId { return acp.ToolCallId(id) }

func textOf(text string) []acp.ToolCallContent {
	return []acp.ToolCallContent{acp.ToolContent(acp.TextBlock(text))}
}

// fenced is a text as Markdown shows it unchanged.
func fenced(text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "\n" + strings.Trim(text, "\n") + "\n" + fence
}
