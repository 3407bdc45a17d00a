package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// chatVerb is a line that the model does not get.
type chatVerb struct {
	name, argument, help string
	// meanwhile says that it works while a turn runs, too.
	meanwhile bool
	// act returns the text of a turn that begins now; "" begins none.
	act func(v *conversation, ctx context.Context, argument string) (text string)
}

// chatVerbs are the commands, in the order of /help.
func chatVerbs() []chatVerb {
	silent := func(act func(*conversation, context.Context, string)) func(*conversation, context.Context, string) string {
		return func(v *conversation, ctx context.Context, argument string) string {
			act(v, ctx, argument)
			return ""
		}
	}
	plain := func(act func(*conversation, context.Context)) func(*conversation, context.Context, string) string {
		return silent(func(v *conversation, ctx context.Context, _ string) { act(v, ctx) })
	}
	return []chatVerb{
		{"/attach", "FILE", "sends a file with your next message: an image, a PDF document or a text", false, silent((*conversation).attach)},
		{"/clear", "", "begins the conversation again; the session and its files stay", false, plain((*conversation).clear)},
		{"/compact", "", "replaces older replies by a summary, so that there is room for more", false, plain((*conversation).compact)},
		{"/cost", "", "shows the tokens and the cost of the session", true, plain((*conversation).cost)},
		{"/diff", "", "shows what has changed in the workspace since this conversation began here", false, plain((*conversation).diff)},
		{"/edit", "[TURN [TEXT]]", "changes your message of a turn (by default of the last one), and answers it", false, (*conversation).edit},
		{"/fork", "", "makes a copy of this session as it is now, and says how to continue the copy", false, plain((*conversation).fork)},
		{"/help", "", "lists these commands", true, plain((*conversation).help)},
		{"/jobs", "", "lists the calls that run in the background", true, plain((*conversation).jobs)},
		{"/model", "[NAME]", "shows the model, or selects another one for the next turns", false, silent((*conversation).useModel)},
		{"/quit", "", "ends chat; so do Ctrl-D, and Ctrl-C twice", false, plain(func(v *conversation, _ context.Context) { v.over = true })},
		{"/retry", "", "answers your last message again, with the files as they were before", false, (*conversation).retry},
		{"/skill", "[NAME [TEXT]]", "lists the skills, or asks the model to use one", false, (*conversation).skill},
		{"/status", "", "shows the session, its model and workspace, and how to continue it", true, plain((*conversation).status)},
		{"/tools", "", "lists the tools of the model", true, plain((*conversation).tools)},
		{"/triggers", "", "lists the triggers, which begin turns of this session later", true, plain((*conversation).triggers)},
		{"/undo", "", "restores the files as they were before the last turn; repeat it to go back further", false, plain((*conversation).undo)},
	}
}

func commandNames() (names []string) {
	for _, verb := range chatVerbs() {
		names = append(names, verb.name)
	}
	return names
}

// isCommand reports whether a message is for this program: one line that begins with a slash.
func isCommand(text string) bool {
	return strings.HasPrefix(text, "/") && !strings.Contains(text, "\n")
}

// verbOf finds the command of a line; one that is not there is reported.
func (v *conversation) verbOf(line string) (verb chatVerb, argument string, ok bool) {
	name, argument, _ := strings.Cut(line, " ")
	if name == "/exit" {
		name = "/quit"
	}
	all := chatVerbs()
	at := slices.IndexFunc(all, func(verb chatVerb) bool { return verb.name == name })
	if at < 0 {
		v.say("there is no command %s; the commands are %s", name, strings.Join(commandNames(), ", "))
		return verb, "", false
	}
	return all[at], strings.TrimSpace(argument), true
}

// obey obeys a command between two turns, and returns the text of a turn that begins now.
func (v *conversation) obey(ctx context.Context, line string) (text string) {
	verb, argument, ok := v.verbOf(line)
	if !ok {
		return ""
	}
	if argument != "" && verb.argument == "" {
		v.say("%s takes no argument, so nothing is done", verb.name)
		return ""
	}
	return verb.act(v, ctx, argument)
}

// obeyMeanwhile obeys a command while a turn runs.
func (v *conversation) obeyMeanwhile(ctx context.Context, line string) {
	verb, argument, ok := v.verbOf(line)
	switch {
	case ok && verb.meanwhile:
		verb.act(v, ctx, argument)
	case ok:
		v.say("%s works between two turns; Ctrl-C stops this one", verb.name)
	}
}

func (v *conversation) help(context.Context) {
	lines := []string{
		"@path      a file of the workspace; Tab completes it, and commands too",
		"\\          at the end of a line continues the message on the next one; pasted lines stay together",
		"While a turn runs, Enter sends a message to the model for its next step. Ctrl-T keeps it for the next turn.",
	}
	for _, verb := range chatVerbs() {
		lines = append(lines, fmt.Sprintf("%-10s %s", strings.TrimSpace(verb.name+" "+verb.argument), verb.help))
	}
	v.say("%s", strings.Join(lines, "\n"))
}

func (v *conversation) status(context.Context) {
	s, sums := v.session, v.session.sums()
	workspace := s.workspace
	if workspace == "" {
		workspace = "of its own"
	}
	v.say("session %s, model %s, workspace %s, %s, %d tokens; continue with: coordinator chat%s --model %s --session %s",
		s.session, s.options.ModelName, workspace, terminal.Plural(sums.turns, "turn"), sums.bill.Usage.Total(), v.command.Reach(), cli.ShellWord(s.options.ModelName), s.session)
}

func (v *conversation) cost(context.Context) {
	sums := v.session.sums()
	about, cost := "", "the cost is unknown: this model has no price (--price)"
	if sums.bill.Usage.Estimated {
		about = "about "
	}
	switch {
	case sums.bill.CostUSD != nil:
		cost = fmt.Sprintf("$%.4f", *sums.bill.CostUSD)
	case v.session.options.Price != nil:
		cost = "the cost is unknown"
	}
	v.say("%s: %s%d input tokens (%d from the cache), %d output tokens; %s", terminal.Plural(sums.turns, "turn"), about,
		sums.bill.Usage.InputTokens, sums.bill.Usage.CachedTokens, sums.bill.Usage.OutputTokens, cost)
}

// useModel has another model reply from the next turn on.
func (v *conversation) useModel(_ context.Context, name string) {
	s := v.session
	if name == "" {
		v.say("the model is %s; /model NAME changes it", s.options.ModelName)
		return
	}
	next := s.prepared
	next.attachments = v.attached
	_, err := v.command.openModel(model.Opener{Env: v.getenv, MaxWait: v.command.ModelWait, Gate: s.gate}, name, &next)
	switch {
	case err == nil && next.options.Replay != nil:
		err = errors.New("chat cannot play a recording; this does: coordinator run --model " + name)
	case err == nil:
		err = next.options.CheckPrices(next.model, next.tools.Table)
	}
	if err == nil {
		err = s.use(next)
	}
	if err != nil {
		v.say("the model stays %s: %v", s.options.ModelName, err)
		return
	}
	v.say("%s replies from the next turn on", s.options.ModelName)
}

func (v *conversation) tools(context.Context) {
	var lines []string
	for _, tool := range v.session.tools.Table.Definitions() {
		first, _, _ := strings.Cut(tool.Description, ". ")
		lines = append(lines, fmt.Sprintf("%-16s %s", tool.Name, prose.Visible(strings.TrimSuffix(first, "."))))
	}
	v.say("%s", strings.Join(append(lines, "coordinator tools --doc NAME describes one"), "\n"))
}

// skill lists the skills, or begins a turn that uses one.
func (v *conversation) skill(_ context.Context, argument string) string {
	answer, text := useSkill(v.session.tools, argument)
	if answer != "" {
		v.say("%s", answer)
	}
	return text
}

// triggers lists the triggers of the session, which are schedules of the fleet.
func (v *conversation) triggers(ctx context.Context) {
	if v.command.Nats == "" {
		v.say("this session has no triggers, because triggers need a fleet (--nats)")
		return
	}
	all, err := v.session.env.Client.Schedules().List(ctx)
	if err != nil {
		v.say("%v", err)
		return
	}
	all = slices.DeleteFunc(all, func(s fleet.Schedule) bool { return s.SessionID != v.session.session })
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = fmt.Sprintf("%s  %s  %s", all[i].Name, nextOf(&all[i]), promptOf(all[i].Prompt, 60))
	}
	if len(lines) == 0 {
		lines = []string{"this session has no triggers"}
	}
	v.say("%s", strings.Join(lines, "\n"))
}

// journal reads the events of the session.
func (v *conversation) journal(ctx context.Context) []loop.Event {
	history, err := v.session.env.Client.Sessions("").Log(ctx, v.session.session)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		v.say("%v", err)
	}
	return history.Events
}

func (v *conversation) jobs(ctx context.Context) {
	var lines []string
	for _, e := range loop.StateOf(v.journal(ctx)).Jobs {
		lines = append(lines, fmt.Sprintf("%s  since %s  %s", e.Job, e.Time.Local().Format("15:04:05"), terminal.About(e.Name, e.Arguments)))
	}
	if len(lines) == 0 {
		lines = []string{"no call runs in the background; background processes of bash are no calls: the model lists them with its tool process"}
	}
	v.say("%s", strings.Join(lines, "\n"))
}

// fork makes a session of this one, which goes on here.
func (v *conversation) fork(ctx context.Context) {
	id := protocol.NewSessionID()
	if _, err := v.session.env.Fork(ctx, id); err != nil {
		v.say("%v", err)
		return
	}
	v.say("session %s is a fork of this one; when you have ended here, continue it with: coordinator chat%s --model %s --session %s",
		id, v.command.Reach(), cli.ShellWord(v.session.options.ModelName), id)
}

// said are the inputs of the turns that the conversation has, by the numbers of the turns.
func (v *conversation) said(ctx context.Context) (turns []loop.Event) {
	for _, e := range v.journal(ctx) {
		switch e.Type {
		case loop.EventTurnStarted:
			turns = append(turns, e)
		case loop.EventRewound:
			turns = slices.DeleteFunc(turns, func(turn loop.Event) bool { return turn.Turn > e.KeptTurn })
		default:
		}
	}
	return turns
}

func (v *conversation) clear(ctx context.Context) {
	if err := v.session.runner.Rewind(ctx, v.session.session, 0); err != nil {
		v.say("%v", err)
		return
	}
	v.back, v.undone = 0, 0
}

func (v *conversation) retry(ctx context.Context, _ string) string {
	turns := v.said(ctx)
	if len(turns) == 0 {
		v.say("there is no message to answer again")
		return ""
	}
	last := turns[len(turns)-1]
	text := v.goBack(ctx, last.Turn-1, last.Input)
	if text != "" {
		v.attached = slices.Concat(last.Attachments, v.attached)
	}
	return text
}

// edit changes the input of a turn: to a text, or to what is typed next.
func (v *conversation) edit(ctx context.Context, argument string) string {
	turns := v.said(ctx)
	if len(turns) == 0 {
		v.say("there is no message to change")
		return ""
	}
	number, text, _ := strings.Cut(argument, " ")
	at := len(turns) - 1
	if number != "" {
		n, err := strconv.Atoi(number)
		if at = slices.IndexFunc(turns, func(turn loop.Event) bool { return turn.Turn == n }); err != nil || at < 0 {
			var numbers []int
			for _, turn := range turns {
				numbers = append(numbers, turn.Turn)
			}
			v.say("/edit %s: the conversation has %s; name one, and its new text or nothing", number, backup.TurnsText(numbers))
			return ""
		}
	}
	if text = strings.TrimSpace(text); text != "" {
		return v.goBack(ctx, turns[at].Turn-1, text)
	}
	v.edits = turns[at].Turn
	v.editor.Begin(turns[at].Input)
	lines := strings.Split(turns[at].Input, "\n")
	if len(lines) > 1 {
		v.say("you can change the last line here, and these lines come before it (/edit %d TEXT replaces the whole message):\n%s",
			v.edits, strings.Join(lines[:len(lines)-1], "\n"))
	}
	v.say("Enter sends the line instead of your message of turn %d; an empty line changes nothing", v.edits)
	return ""
}

// filesStay is the note to the model for a conversation that goes back further than the files.
const filesStay = "[The conversation goes back to here. The files are as they are now: read them again before you rely on them.]"

// goBack takes the turns after a turn out of the conversation, and undoes what they changed in the
// workspace as far as /undo can. It returns the text of the next turn; "" if the conversation
// stays.
func (v *conversation) goBack(ctx context.Context, turn int, text string) string {
	s, later := v.session, 0
	for _, e := range v.said(ctx) {
		if e.Turn > turn {
			later++
		}
	}
	if turn > 0 {
		if effects, err := s.env.Client.Sessions("").Effects(ctx, s.session, fleet.At{Turn: turn}); err == nil && len(effects) > 0 {
			v.say("the effects of %s outside of the workspace stay", terminal.Plural(len(effects), "later call"))
		}
	}
	if err := s.runner.Rewind(ctx, s.session, turn); err != nil {
		v.say("%v", err)
		v.editor.Begin(text)
		return ""
	}
	later -= v.back
	for later > 0 && len(v.before) > 0 && v.undoneOne(ctx, true) {
		later--
	}
	v.back, v.undone = 0, 0
	if later > 0 {
		text = filesStay + "\n\n" + text
	}
	return text
}

// attach adds a file to the next message.
func (v *conversation) attach(_ context.Context, path string) {
	if path == "" {
		v.say("name the file: /attach FILE")
		return
	}
	a, err := readAttachment(path)
	list := append(slices.Clone(v.attached), a)
	if err == nil {
		err = loop.Input{Attachments: list}.Check(v.session.model)
	}
	if err != nil {
		v.say("%s is not attached: %v", path, attachmentError(err))
		return
	}
	v.attached = list
	v.say("%s (%s) goes with your next message", a.Name, a.MediaType)
}

func (v *conversation) compact(ctx context.Context) {
	switch done, err := v.session.runner.Compact(ctx, v.session.session, ""); {
	case err != nil:
		v.say("%v", err)
	case !done:
		v.say("there are no older replies that a summary could replace")
	}
}

func (v *conversation) diff(ctx context.Context) {
	text, err := v.states.Diff(ctx, v.begin)
	switch {
	case err != nil:
		v.say("%v", err)
	case text == "":
		v.say("nothing has changed")
	default:
		v.session.show.screen.Diff(text)
	}
}

func (v *conversation) undo(ctx context.Context) {
	if len(v.before) == 0 {
		v.say("there is no turn to undo")
		if stored := v.states.Reach(); stored != "" {
			v.say("to go back further, end here and run: coordinator session restore %s --at \"turn N\"; these ends of turns are stored: %s", v.session.session, stored)
		}
		return
	}
	v.undoneOne(ctx, false)
}

// undoneOne undoes the changes of the last turn that was not undone, and reports whether it could.
// quiet says nothing if there were none.
func (v *conversation) undoneOne(ctx context.Context, quiet bool) bool {
	last := len(v.before) - 1
	var changes snapshot.Changes
	err := inplace.Change(ctx, v.session.workspace, "/undo", v.session.session, func(m string) { v.say("%s", m) }, func() (err error) {
		changes, err = v.states.Restore(ctx, v.before[last], nil, v.protect)
		return err
	})
	if err != nil {
		v.say("%v", err)
		return false
	}
	v.before, v.back = v.before[:last], v.back+1
	left := slices.Concat(changes.Conflicts, changes.Protected)
	switch {
	case len(changes.Written)+len(changes.Removed) > 0:
		v.undone = v.back
		v.say("undone: %s, %s; what commands did elsewhere, and git's commits, stay",
			terminal.Plural(len(changes.Written), "file")+" as before", terminal.Plural(len(changes.Removed), "new file")+" removed")
	case quiet && len(left) == 0:
	case len(left) == 0:
		v.say("the last turn changed no files here, so nothing is undone; /undo again goes back one turn more")
	default:
		v.say("nothing is undone; /undo again goes back one turn more")
	}
	for i, paths := range [][]string{changes.Written, changes.Removed} {
		if what := []string{"as before", "removed"}[i]; len(paths) > 0 {
			more := ""
			if len(paths) > maxNamed {
				paths, more = paths[:maxNamed], ", ..."
			}
			v.say("%s: %s%s", what, strings.Join(paths, ", "), more)
		}
	}
	if len(left) > 0 {
		v.say("left as they are: %s", strings.Join(left, ", "))
	}
	return true
}

// openStates opens the stored states of the workspace, for /diff and /undo. They outlive the
// conversation, for session restore. Those that are old go, also of other sessions.
func (v *conversation) openStates() *backup.States {
	s := v.session
	v.protect, _ = v.command.Places() // they were checked at the start
	switch {
	case s.env.Copy != nil:
		return backup.Refused("not possible with --nats: the session works on a copy; git diff shows what came back")
	case s.workspace == "":
		return backup.Refused("not possible without --workspace")
	}
	if all, err := cli.StateDir("local/sessions"); err == nil {
		backup.Sweep(all)
	}
	return backup.Open(s.workspace, backup.Folder(s.env.Data, s.session))
}
